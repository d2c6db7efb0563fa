//! Bytes: the formats of RFC 4391 and what of IP the size rules need.
//!
//! Two levels as in smoltcp: a checked view over bytes, then a meaning. Constructors check length
//! and reserved fields and return an option; nothing here panics, whatever the bytes are.

mod address;
mod checksum;
mod encapsulation;
mod grh;
mod ipv4;
mod ipv6;
mod mgid;
mod neighbor_option;
#[cfg(test)]
pub(crate) mod testing;

pub use address::{AddressFlags, LINK_ADDRESS_BYTES, LinkAddress};
pub use checksum::internet_checksum;
pub use encapsulation::{ENCAPSULATION_BYTES, Encapsulation, EtherType};
pub use grh::{GRH_BYTES, Grh};
pub(crate) use ipv4::{FRAGMENT_UNIT_BYTES, IPV4_OPTIONS_BYTES_MAX, Ipv4Flags};
pub use ipv4::{IPV4_HEADER_BYTES_MAX, IPV4_HEADER_BYTES_MIN, Ipv4Header};
pub use ipv6::{IPV6_HEADER_BYTES, Ipv6Header, Ipv6Payload};
pub use mgid::{BroadcastGroup, Scope, Signature};
pub use neighbor_option::{
    NEIGHBOR_DISCOVERY_BYTES_MAX, OPTION_BYTES as ADDRESS_OPTION_BYTES, OptionPadding,
    is_neighbor_discovery, read_address_option, rewrite_address_options,
};
