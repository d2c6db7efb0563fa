//! Bytes: the formats of RFC 4391 and what of IP the size rules need.
//!
//! Two levels as in smoltcp: a checked view over bytes, then a meaning. Constructors check length and
//! reserved fields and return an option; nothing here panics, whatever the bytes are.

mod address;
mod encapsulation;
mod grh;
mod mgid;

pub use address::{AddressFlags, LINK_ADDRESS_BYTES, LinkAddress};
pub use encapsulation::{ENCAPSULATION_BYTES, Encapsulation, EtherType};
pub use grh::{GRH_BYTES, Grh};
pub use mgid::{BroadcastGroup, Scope, Signature};
