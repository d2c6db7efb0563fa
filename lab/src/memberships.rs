//! The multicast groups that the kernel of a host has joined on an interface, as it lists them in
//! `/proc/net/igmp` and `/proc/net/igmp6`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::Error;
use crate::namespace::Namespace;

/// The two lists, open for the life of the host: an open file stays in the namespace in which it
/// was opened, whichever thread reads it.
#[derive(Debug)]
pub(crate) struct Memberships {
    igmp: Option<File>,
    mld: Option<File>,
    text: String,
}

impl Memberships {
    /// Opens the lists of a namespace. A kernel without multicast or IPv6 has no such list, and
    /// then no such groups.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if a list is there and cannot be opened.
    pub(crate) fn open(namespace: &Namespace) -> Result<Self, Error> {
        let (igmp, mld) = namespace.within(|| (open_list("igmp"), open_list("igmp6")))?;
        Ok(Self { igmp: igmp?, mld: mld?, text: String::new() })
    }

    /// The groups of `interface` as they are now.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if a list cannot be read.
    pub(crate) fn read(&mut self, interface: &str) -> Result<BTreeSet<IpAddr>, Error> {
        let failed = |source| Error::system("list of multicast groups", source);
        let mut groups = BTreeSet::new();
        if let Some(file) = &mut self.igmp {
            read_again(file, &mut self.text).map_err(failed)?;
            groups.extend(parse_igmp(&self.text, interface).map(IpAddr::V4));
        }
        if let Some(file) = &mut self.mld {
            read_again(file, &mut self.text).map_err(failed)?;
            groups.extend(parse_mld(&self.text, interface).map(IpAddr::V6));
        }
        Ok(groups)
    }
}

fn open_list(name: &str) -> Result<Option<File>, Error> {
    // /proc/net is the list of the process; this thread is in another namespace than that.
    let path = format!("/proc/thread-self/net/{name}");
    match File::open(&path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::system(path, error)),
    }
}

fn read_again(file: &mut File, text: &mut String) -> io::Result<()> {
    text.clear();
    file.rewind()?;
    file.read_to_string(text).map(drop)
}

/// A line per interface (`2  ib0  : 1  V3`), then an indented line per group that starts with the
/// address as the kernel holds it, in network order, printed as a number of this machine.
fn parse_igmp(text: &str, interface: &str) -> impl Iterator<Item = Ipv4Addr> {
    let mut is_wanted = false;
    text.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_whitespace();
        if !line.starts_with(char::is_whitespace) {
            is_wanted = fields.nth(1) == Some(interface);
            return None;
        }
        let group = u32::from_str_radix(fields.next()?, 16).ok()?;
        is_wanted.then(|| Ipv4Addr::from(group.to_ne_bytes()))
    })
}

/// A line per group: index, interface, 32 hexadecimal digits, users, flags, timer.
fn parse_mld(text: &str, interface: &str) -> impl Iterator<Item = Ipv6Addr> {
    text.lines().filter_map(move |line| {
        let mut fields = line.split_whitespace().skip(1);
        if fields.next() != Some(interface) {
            return None;
        }
        let group = u128::from_str_radix(fields.next()?, 16).ok()?;
        Some(Ipv6Addr::from(group))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn only_the_groups_of_the_interface_are_taken_from_igmp() {
        let text = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
            1\tlo        :     1      V3\n\
            \t\t\t\t010000E0     1 0:00000000\t\t0\n\
            2\tib0       :     2      V3\n\
            \t\t\t\tFB0000E0     1 0:00000000\t\t0\n\
            \t\t\t\t010000E0     1 0:00000000\t\t0\n\
            3\tib0.8001  :     1      V3\n\
            \t\t\t\t020000E0     1 0:00000000\t\t0\n";
        let groups: Vec<_> = parse_igmp(text, "ib0").collect();
        assert_eq!(groups, [Ipv4Addr::new(224, 0, 0, 251), Ipv4Addr::new(224, 0, 0, 1)]);
    }

    #[test]
    fn only_the_groups_of_the_interface_are_taken_from_igmp6() {
        let text = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n\
            2    ib0             ff0200000000000000000001ff000001     1 00000004 0\n\
            2    ib0             ff020000000000000000000000000001     1 0000000C 0\n";
        let groups: Vec<_> = parse_mld(text, "ib0").collect();
        assert_eq!(
            groups,
            ["ff02::1:ff00:1", "ff02::1"].map(|group| group.parse::<Ipv6Addr>().unwrap())
        );
    }

    #[test]
    fn a_list_that_cannot_be_read_has_no_groups() {
        assert_eq!(parse_igmp("", "ib0").count(), 0);
        assert_eq!(parse_igmp("Idx\n2\tib0 :\n\tnonsense\n\t\n", "ib0").count(), 0);
        assert_eq!(parse_mld("2 ib0\n2 ib0 zz\n", "ib0").count(), 0);
    }
}
