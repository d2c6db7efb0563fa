//! What is due when a packet is larger than its receiver takes (RFC 791, RFC 1191, RFC 4443 3.2),
//! found out anew from the packet.

use fabric::packet::Packet;
use ipoib_rs::wire::LinkAddress;

use crate::host::wire::{IpHeader, Ipv4Header};

/// What a packet that is too large is owed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::world) enum Due {
    /// It goes on in fragments.
    Fragments,
    /// Its sender is told.
    Report,
}

/// `None` if it may be dropped without a word: it is no whole packet of IP to one host. ICMP errors
/// are not looked at: no host here sends one over a link.
pub(in crate::world) fn due(packet: &Packet, to: &LinkAddress) -> Option<Due> {
    let header = IpHeader::parse(packet.bytes())?;
    let is_group = to.mgid().is_some() || header.destination.is_multicast();
    if header.total_bytes != packet.bytes().len() {
        return None;
    }
    match Ipv4Header::parse(packet.bytes()) {
        Some((ipv4, _)) if !ipv4.is_dont_fragment() => Some(Due::Fragments),
        Some(_) | None if is_group || header.is_fragment => None,
        Some(_) | None => Some(Due::Report),
    }
}
