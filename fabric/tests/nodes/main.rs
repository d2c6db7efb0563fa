//! Nodes with the real protocol core, over the fabric, with a subnet manager.

mod connected;
mod detach;
mod faults;
mod traffic;
mod world;
