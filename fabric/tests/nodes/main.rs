//! Nodes with the real protocol core, over the fabric, with a subnet manager.

mod detach;
mod faults;
mod traffic;
mod world;
