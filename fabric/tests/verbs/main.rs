//! The verbs, from one queue pair to another.

mod datagram;
mod hosts;
mod multicast;
mod queues;
