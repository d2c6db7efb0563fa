//! The core under a real TCP/IP stack.
fn main() {}
