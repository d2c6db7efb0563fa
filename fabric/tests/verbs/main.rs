//! The fabric as its users see it: verbs, multicast, management, captures.

mod captures;
mod datagram;
mod hosts;
mod management;
mod model;
mod multicast;
mod queues;
