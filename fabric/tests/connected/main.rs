//! Reliable connections as the users of the fabric see them.

mod captures;
mod ends;
mod errors;
mod messages;
mod shared;
mod states;
mod swarm;
