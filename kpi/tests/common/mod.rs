//! What tests on the fake kernel share.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use std::ptr::NonNull;

use ipoib_rs::packet::PacketBuf;
use kpi::context::{MaySleep, Unlocked};
use kpi::dma::Chain;
use kpi::mbuf::Packet;

/// Tests hold no mutex and are in no epoch.
pub fn may_sleep() -> MaySleep {
    // SAFETY: see above; the fake kernel checks it where it matters.
    unsafe { MaySleep::assume() }
}

/// Tests hold no mutex.
pub fn unlocked() -> Unlocked {
    // SAFETY: see above.
    unsafe { Unlocked::assume() }
}

/// A packet with these bytes.
pub fn packet(bytes: &[u8]) -> Packet {
    let chain = NonNull::new(fake_kernel::mbuf::packet(bytes)).expect("a packet");
    // SAFETY: the only reference, made just now.
    unsafe { Packet::from_chain(chain) }
}

/// The bytes of a packet.
pub fn bytes(packet: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    packet.copy_out(0, &mut bytes).expect("as many bytes as there are");
    bytes
}

/// Calls `attempt` again and again, with the first allocation failing, then the second, and so on,
/// until none fails: what it takes must be given back each time, which LeakSanitizer sees.
pub fn with_each_allocation_failing<T, E>(mut attempt: impl FnMut() -> Result<T, E>) {
    for count in 0.. {
        fake_kernel::memory::fail_after(count);
        let outcome = attempt();
        if !fake_kernel::memory::has_failed() {
            assert!(outcome.is_ok(), "it failed with all memory of the world");
            assert!(count > 0, "nothing was allocated");
            return;
        }
        assert!(outcome.is_err(), "allocation {count} failed, and nobody was told");
    }
}
