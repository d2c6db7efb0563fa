//! What the tests of this crate share.

extern crate std;

use core::net::{Ipv4Addr, Ipv6Addr};
use std::vec::Vec;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use crate::packet::{NoHeadroom, PacketBuf, ShortPacket};

/// The same cases in every run: a failure is found by everybody or by nobody.
pub(crate) fn config() -> Config {
    Config {
        cases: 2000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(4391),
        ..Config::default()
    }
}

/// A multicast group of IPv4.
pub(crate) fn ipv4_group() -> impl Strategy<Value = Ipv4Addr> {
    (0xE000_0000_u32..0xF000_0000).prop_map(Ipv4Addr::from_bits)
}

/// A multicast group of IPv6.
pub(crate) fn ipv6_group() -> impl Strategy<Value = Ipv6Addr> {
    any::<u128>().prop_map(|low| Ipv6Addr::from_bits(low | 0xFF << 120))
}

/// A packet in one piece.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct TestPacket(pub(crate) Vec<u8>);

impl PacketBuf for TestPacket {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), ShortPacket> {
        let end = offset.checked_add(out.len()).ok_or(ShortPacket)?;
        out.copy_from_slice(self.0.get(offset..end).ok_or(ShortPacket)?);
        Ok(())
    }

    fn prepend(&mut self, bytes: &[u8]) -> Result<(), NoHeadroom> {
        self.0.splice(..0, bytes.iter().copied());
        Ok(())
    }

    fn trim_front(&mut self, count: usize) -> Result<(), ShortPacket> {
        if count > self.0.len() {
            return Err(ShortPacket);
        }
        self.0.drain(..count);
        Ok(())
    }
}
