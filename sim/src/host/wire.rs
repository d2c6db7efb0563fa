//! Bytes of the protocols that a host speaks: ARP, IPv4, IPv6, ICMP, neighbour discovery.
//!
//! Checked views over bytes: a view that exists has the right length, its constant fields hold and,
//! where the format has one, its checksum is right. Nothing here panics, whatever the bytes are.

mod arp;
mod checksum;
mod icmp;
mod ip;
mod ndp;

pub use arp::{ARP_BYTES, Arp, ArpOperation};
pub use checksum::Checksum;
pub use icmp::{
    ECHO_HEADER_BYTES, Echo, EchoKind, TOO_BIG_BYTES_MAX, TooBig, answer_echo, write_too_big,
};
pub use ip::{
    IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, IpHeader, Ipv4Fields, Ipv4Header, Ipv6Header, Protocol,
};
pub use ndp::{
    Advertisement, NDP_BYTES, Ndp, Solicitation, advertisement_packet, solicitation_packet,
    solicited_node,
};
