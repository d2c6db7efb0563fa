//! The address resolution protocol over InfiniBand (RFC 826, RFC 4391 9.2).

use std::net::Ipv4Addr;

use ipoib_rs::wire::{EtherType, LINK_ADDRESS_BYTES, LinkAddress};
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The length of an ARP packet with two 20-byte and two 4-byte addresses.
pub const ARP_BYTES: usize = 56;

/// RFC 4391 9.2: "Hardware Type ... 32".
const HARDWARE_INFINIBAND: u16 = 32;

/// What an ARP packet says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ArpOperation {
    /// Who has the target address?
    Request,
    /// The sender has the address.
    Reply,
}

/// An ARP packet.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Arp {
    hardware_type: U16,
    protocol_type: U16,
    hardware_bytes: u8,
    protocol_bytes: u8,
    operation: U16,
    sender_hardware: LinkAddress,
    sender_protocol: [u8; 4],
    target_hardware: LinkAddress,
    target_protocol: [u8; 4],
}

const_assert_eq!(size_of::<Arp>(), ARP_BYTES);

impl Arp {
    /// Asks for `target`.
    pub fn request(sender: (LinkAddress, Ipv4Addr), target: Ipv4Addr) -> Self {
        // RFC 826 leaves the target hardware address of a request open; zero is what hosts send.
        let unknown = LinkAddress::new_zeroed();
        Self::new(ArpOperation::Request, sender, (unknown, target))
    }

    /// Answers a request.
    pub fn reply(sender: (LinkAddress, Ipv4Addr), target: (LinkAddress, Ipv4Addr)) -> Self {
        Self::new(ArpOperation::Reply, sender, target)
    }

    /// `None` unless the bytes begin with an ARP packet for IPv4 over InfiniBand.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (arp, _) = Self::read_from_prefix(bytes).ok()?;
        let is_ours = arp.hardware_type.get() == HARDWARE_INFINIBAND
            && arp.protocol_type.get() == EtherType::IPV4.0
            && usize::from(arp.hardware_bytes) == LINK_ADDRESS_BYTES
            && arp.protocol_bytes == 4
            && matches!(arp.operation.get(), 1 | 2);
        is_ours.then_some(arp)
    }

    /// The operation.
    pub fn operation(&self) -> ArpOperation {
        if self.operation.get() == 1 { ArpOperation::Request } else { ArpOperation::Reply }
    }

    /// Who sent it.
    pub fn sender(&self) -> (LinkAddress, Ipv4Addr) {
        (self.sender_hardware, self.sender_protocol.into())
    }

    /// Whom it is about.
    pub fn target(&self) -> Ipv4Addr {
        self.target_protocol.into()
    }

    fn new(
        operation: ArpOperation,
        sender: (LinkAddress, Ipv4Addr),
        target: (LinkAddress, Ipv4Addr),
    ) -> Self {
        let operation = match operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        };
        Self {
            hardware_type: U16::new(HARDWARE_INFINIBAND),
            protocol_type: U16::new(EtherType::IPV4.0),
            hardware_bytes: LINK_ADDRESS_BYTES as u8,
            protocol_bytes: 4,
            operation: U16::new(operation),
            sender_hardware: sender.0,
            sender_protocol: sender.1.octets(),
            target_hardware: target.0,
            target_protocol: target.1.octets(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ipoib_rs::ib::{Gid, Qpn};
    use ipoib_rs::wire::AddressFlags;

    use super::*;

    const SENDER: LinkAddress =
        LinkAddress::new(AddressFlags::empty(), Qpn::GSI, Gid::new(0xFE80 << 48, 7));

    #[test]
    fn request_has_the_bytes_of_the_rfc() {
        let request = Arp::request((SENDER, [10, 0, 0, 1].into()), [10, 0, 0, 2].into());
        let bytes = request.as_bytes();
        assert_eq!(bytes[..8], [0, 32, 8, 0, 20, 4, 0, 1]);
        assert_eq!(bytes[8..12], [0, 0, 0, 1]);
        assert_eq!(bytes[28..32], [10, 0, 0, 1]);
        assert_eq!(bytes[32..52], [0; 20]);
        assert_eq!(bytes[52..], [10, 0, 0, 2]);
    }

    #[test]
    fn parse_reads_back_what_was_made() {
        let reply = Arp::reply((SENDER, [10, 0, 0, 1].into()), (SENDER, [10, 0, 0, 2].into()));
        let parsed = Arp::parse(reply.as_bytes()).unwrap();
        assert_eq!(parsed, reply);
        assert_eq!(parsed.operation(), ArpOperation::Reply);
        assert_eq!(parsed.sender(), (SENDER, [10, 0, 0, 1].into()));
        assert_eq!(parsed.target(), Ipv4Addr::new(10, 0, 0, 2));
    }

    #[test]
    fn every_wrong_constant_and_every_short_length_is_refused() {
        let good = Arp::request((SENDER, [10, 0, 0, 1].into()), [10, 0, 0, 2].into());
        for position in [0, 1, 2, 3, 4, 5, 6] {
            let mut bytes = [0; ARP_BYTES];
            bytes.copy_from_slice(good.as_bytes());
            bytes[position] ^= 0x40;
            assert_eq!(Arp::parse(&bytes), None, "byte {position}");
        }
        for length in 0..ARP_BYTES {
            assert_eq!(Arp::parse(&good.as_bytes()[..length]), None);
        }
    }
}
