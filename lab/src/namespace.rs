//! Network namespaces, one per host, under names that `ip netns` knows.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::panic;
use std::thread;

use nix::sched::{CloneFlags, setns};

use crate::error::Error;
use crate::lease::{Claim, Guard, Lease, Registry};
use crate::tools;

/// Kernel settings of a host, below `/proc/sys/net`.
const SETTINGS: [(&str, &str); 8] = [
    // A ping to 224.0.0.1 is answered, as a host on a real fabric can be told to.
    ("ipv4/icmp_echo_ignore_broadcasts", "0"),
    // Answers to a multicast ping are not thinned out.
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    // A host takes packets for any of its addresses on any of its interfaces.
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    // The lab gives the addresses; there is no router.
    ("ipv6/conf/default/addr_gen_mode", "1"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
];

/// A network namespace of ours. Deleted with the value.
#[derive(Debug)]
pub(crate) struct Namespace {
    handle: File,
    owned: Owned,
}

/// The right and the duty to delete a namespace.
#[derive(Debug)]
struct Owned {
    name: String,
    // Ends after the namespace is gone: fields are dropped after `Drop::drop`.
    _lease: Lease,
}

/// Makes the namespaces `names`, all or none.
///
/// # Errors
///
/// [`Error::NameTaken`] or [`Error::LabRunning`] if one of the names is somebody else's: then
/// nothing was touched.
pub(crate) fn create_all(registry: &Registry, names: &[String]) -> Result<Vec<Namespace>, Error> {
    let guard = registry.lock()?;
    let claims: Vec<Claim> =
        names.iter().map(|name| registry.examine(name, &guard)).collect::<Result<_, _>>()?;
    for (name, claim) in names.iter().zip(claims) {
        match claim {
            Claim::Free => {}
            Claim::Leftover => delete(name)?,
        }
    }
    names.iter().map(|name| Namespace::create(registry, name, &guard)).collect()
}

impl Namespace {
    fn create(registry: &Registry, name: &str, guard: &Guard) -> Result<Self, Error> {
        let lease = registry.take(name, guard)?;
        tools::run(tools::IP, &["netns", "add", name])?;
        // From here on the value's drop deletes the namespace.
        let owned = Owned { name: name.to_owned(), _lease: lease };
        let path = format!("/run/netns/{name}");
        let handle = File::open(&path).map_err(|source| Error::system(path, source))?;
        let namespace = Self { handle, owned };
        registry.confirm(name, guard)?;
        namespace.within(apply_settings)??;
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// The name.
    pub(crate) fn name(&self) -> &str {
        &self.owned.name
    }

    /// Runs `work` in the namespace, on a thread of its own: a namespace belongs to a thread.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the namespace cannot be entered.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let worker = || {
            setns(self.handle.as_fd(), CloneFlags::CLONE_NEWNET)
                .map_err(|errno| Error::system(format!("entering {}", self.name()), errno))?;
            Ok(work())
        };
        thread::scope(|scope| match scope.spawn(worker).join() {
            Ok(result) => result,
            Err(payload) => panic::resume_unwind(payload),
        })
    }

    /// Runs ip(8) in the namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Program`] with its message.
    pub(crate) fn ip(&self, arguments: &[&str]) -> Result<(), Error> {
        let mut all = vec!["-n", self.name()];
        all.extend_from_slice(arguments);
        tools::run(tools::IP, &all)
    }

    /// Changes a setting of the kernel, given by its path below `/proc/sys/net`.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if there is none or the value is refused.
    pub(crate) fn set(&self, setting: &str, value: &str) -> Result<(), Error> {
        let path = format!("/proc/sys/net/{setting}");
        let written = self.within(|| fs::write(&path, value))?;
        written.map_err(|source| Error::system(path, source))
    }

    /// Gives `interface` an address.
    ///
    /// # Errors
    ///
    /// [`Error::Program`] with the message of ip(8).
    pub(crate) fn add_address(
        &self,
        interface: &str,
        address: IpAddr,
        prefix_bits: u8,
    ) -> Result<(), Error> {
        let address = format!("{address}/{prefix_bits}");
        let mut arguments = vec!["address", "add", address.as_str(), "dev", interface];
        if address.contains(':') {
            // Duplicate address detection would keep the address unusable for a second.
            arguments.push("nodad");
        }
        self.ip(&arguments)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Err(error) = delete(&self.name) {
            eprintln!("ipoib-lab: {error}");
        }
    }
}

fn delete(name: &str) -> Result<(), Error> {
    tools::run(tools::IP, &["netns", "delete", name])
}

fn apply_settings() -> Result<(), Error> {
    for (setting, value) in SETTINGS {
        let path = format!("/proc/sys/net/{setting}");
        match fs::write(&path, value) {
            Ok(()) => {}
            // A kernel without IPv6 or without this setting: the checks say what is missing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::system(path, error)),
        }
    }
    Ok(())
}
