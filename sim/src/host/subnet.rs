//! An address of a host and the subnet around it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// An address with the length of its prefix.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Subnet {
    address: IpAddr,
    prefix_bits: u8,
}

/// The text is no address with a prefix length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ParseSubnetError;

impl Subnet {
    /// `None` if the prefix is longer than the address or the address is none of a host.
    pub fn new(address: IpAddr, prefix_bits: u8) -> Option<Self> {
        let is_host = !address.is_unspecified() && !address.is_multicast();
        (is_host && prefix_bits <= address_bits(address)).then_some(Self { address, prefix_bits })
    }

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The length of the prefix in bits.
    pub fn prefix_bits(&self) -> u8 {
        self.prefix_bits
    }

    /// Whether `address` is on the link that this subnet is.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let host_bits = u32::from(32 - self.prefix_bits);
                let prefix = |address: Ipv4Addr| address.to_bits().checked_shr(host_bits);
                prefix(own) == prefix(other)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let host_bits = u32::from(128 - self.prefix_bits);
                own.to_bits().checked_shr(host_bits) == other.to_bits().checked_shr(host_bits)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// The subnet's directed broadcast address (RFC 919 7); none in IPv6, and none in a subnet of
    /// at most two addresses (RFC 3021 2.1).
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        let host_bits = 32u8.checked_sub(self.prefix_bits)?;
        match self.address {
            IpAddr::V4(own) if host_bits > 1 => {
                let host_mask = u32::MAX.checked_shr(u32::from(self.prefix_bits)).unwrap_or(0);
                Some(Ipv4Addr::from_bits(own.to_bits() | host_mask))
            }
            IpAddr::V4(_) | IpAddr::V6(_) => None,
        }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

impl FromStr for Subnet {
    type Err = ParseSubnetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, prefix) = text.split_once('/').ok_or(ParseSubnetError)?;
        let address = address.parse().map_err(|_| ParseSubnetError)?;
        let prefix_bits = prefix.parse().map_err(|_| ParseSubnetError)?;
        Self::new(address, prefix_bits).ok_or(ParseSubnetError)
    }
}

fn address_bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(text: &str) -> Subnet {
        text.parse().unwrap()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_with_the_same_prefix_are_on_the_link() {
        assert!(subnet("10.1.2.3/24").contains(address("10.1.2.99")));
        assert!(!subnet("10.1.2.3/24").contains(address("10.1.3.3")));
        assert!(!subnet("10.1.2.3/32").contains(address("10.1.2.2")));
        assert!(subnet("10.1.2.3/0").contains(address("192.0.2.1")));
        assert!(subnet("fd00::1/64").contains(address("fd00::ffff:1")));
        assert!(!subnet("fd00::1/64").contains(address("fd00:0:0:1::1")));
        assert!(!subnet("fd00::1/0").contains(address("10.0.0.1")));
    }

    #[test]
    fn broadcast_address_ends_in_ones() {
        assert_eq!(subnet("10.1.2.3/24").broadcast(), Some([10, 1, 2, 255].into()));
        assert_eq!(subnet("10.1.2.3/31").broadcast(), None);
        assert_eq!(subnet("10.1.2.3/32").broadcast(), None);
        assert_eq!(subnet("fd00::1/64").broadcast(), None);
        assert_eq!(subnet("fd00::1/8").broadcast(), None);
    }

    #[test]
    fn impossible_subnets_are_refused() {
        for text in [
            "10.0.0.1",
            "10.0.0.1/33",
            "fd00::1/129",
            "224.0.0.1/4",
            "0.0.0.0/0",
            "x/1",
            "10.0.0.1/x",
        ] {
            assert_eq!(text.parse::<Subnet>(), Err(ParseSubnetError), "{text}");
        }
    }

    #[test]
    fn text_reads_back() {
        assert_eq!(subnet("fd00::1/64").to_string(), "fd00::1/64");
    }
}
