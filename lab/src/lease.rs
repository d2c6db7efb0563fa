//! Who owns a name: so that a lab removes what a killed lab left behind, and nothing else.
//!
//! A lease is the file `/run/ipoib-lab/<name>` with the owner's process id, the time that this
//! process started (a process id alone is used again) and the identity of the namespace that was
//! made (a name alone is used again).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::error::Error;

/// Where the leases are, and where `ip netns` keeps its namespaces.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    leases: PathBuf,
    namespaces: PathBuf,
}

/// The exclusive right to a name. Ends with the value.
#[derive(Debug)]
pub(crate) struct Lease {
    path: PathBuf,
}

/// What the registry says about a name.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Claim {
    /// Nobody has it.
    Free,
    /// A lab that is gone left this namespace: remove it first.
    Leftover,
}

/// A lock on the registry: claims of several labs come one after the other.
#[derive(Debug)]
pub(crate) struct Guard {
    _lock: Flock<File>,
}

impl Registry {
    /// The registry of this machine.
    pub(crate) fn system() -> Self {
        Self { leases: PathBuf::from("/run/ipoib-lab"), namespaces: PathBuf::from("/run/netns") }
    }

    /// Locks the registry.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if its directory cannot be made or locked.
    pub(crate) fn lock(&self) -> Result<Guard, Error> {
        let failed = |source: io::Error| Error::system(self.leases.display().to_string(), source);
        fs::create_dir_all(&self.leases).map_err(failed)?;
        let directory = File::open(&self.leases).map_err(failed)?;
        Flock::lock(directory, FlockArg::LockExclusive)
            .map(|lock| Guard { _lock: lock })
            .map_err(|(_, errno)| failed(errno.into()))
    }

    /// Looks a name up, under the lock. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::LabRunning`] or [`Error::NameTaken`] if it is somebody else's.
    pub(crate) fn examine(&self, name: &str, _guard: &Guard) -> Result<Claim, Error> {
        let identity = Identity::of(&self.namespaces.join(name));
        let record =
            fs::read_to_string(self.leases.join(name)).ok().and_then(|text| Record::parse(&text));
        match (record, identity) {
            (Some(record), _) if record.is_owner_alive() => {
                Err(Error::LabRunning { name: name.to_owned(), pid: record.pid })
            }
            (None, None) | (Some(_), None) => Ok(Claim::Free),
            (Some(record), Some(found)) if record.made.is_none_or(|made| made == found) => {
                Ok(Claim::Leftover)
            }
            (None, Some(_)) | (Some(_), Some(_)) => Err(Error::NameTaken(name.to_owned())),
        }
    }

    /// Takes a name that is free, under the lock.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the record cannot be written.
    pub(crate) fn take(&self, name: &str, _guard: &Guard) -> Result<Lease, Error> {
        let path = self.leases.join(name);
        Record::own(None)
            .and_then(|record| fs::write(&path, record.to_text()))
            .map_err(|source| Error::system(path.display().to_string(), source))?;
        Ok(Lease { path })
    }

    /// Adds the namespace that now exists to the record, under the lock.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the record cannot be written.
    pub(crate) fn confirm(&self, name: &str, _guard: &Guard) -> Result<(), Error> {
        let path = self.leases.join(name);
        Record::own(Identity::of(&self.namespaces.join(name)))
            .and_then(|record| fs::write(&path, record.to_text()))
            .map_err(|source| Error::system(path.display().to_string(), source))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A record that stays says that its owner is gone: the next lab clears it.
        let _ = fs::remove_file(&self.path);
    }
}

/// The file that stands for a namespace: another namespace of the same name is another file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        fs::metadata(path)
            .ok()
            .map(|metadata| Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Record {
    pid: u32,
    started: u64,
    /// `None` between taking the name and making the namespace.
    made: Option<Identity>,
}

impl Record {
    fn own(made: Option<Identity>) -> io::Result<Self> {
        let pid = std::process::id();
        let started = start_time(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { pid, started, made })
    }

    fn is_owner_alive(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    fn to_text(self) -> String {
        let Self { pid, started, made } = self;
        match made {
            Some(Identity { device, inode }) => format!("{pid} {started} {device} {inode}\n"),
            None => format!("{pid} {started}\n"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split_whitespace();
        let pid = fields.next()?.parse().ok()?;
        let started = fields.next()?.parse().ok()?;
        let made = match (fields.next(), fields.next()) {
            (Some(device), Some(inode)) => {
                Some(Identity { device: device.parse().ok()?, inode: inode.parse().ok()? })
            }
            (Some(_) | None, None) | (None, Some(_)) => None,
        };
        Some(Self { pid, started, made })
    }
}

/// When a process started, in clock ticks since boot; `None` if there is no such process. Field 22
/// of proc(5) stat; the second field is a name in parentheses that may hold anything.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    // A zombie owns nothing any more.
    if state == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> (Self, Registry) {
            let root = std::env::temp_dir().join(format!("lease-{test}-{}", std::process::id()));
            let registry = Registry { leases: root.join("leases"), namespaces: root.join("netns") };
            fs::create_dir_all(&registry.leases).unwrap();
            fs::create_dir_all(&registry.namespaces).unwrap();
            (Self(root), registry)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A record of a process that cannot be: process ids end at 2^22.
    fn gone(made: Option<Identity>) -> String {
        let record = Record { pid: 1 << 23, started: 1, made };
        record.to_text()
    }

    #[test]
    fn a_name_that_nobody_has_is_free() {
        let (_directory, registry) = Directory::new("free");
        let guard = registry.lock().unwrap();
        assert_eq!(registry.examine("a", &guard).unwrap(), Claim::Free);
    }

    #[test]
    fn a_namespace_without_a_lease_is_not_touched() {
        let (_directory, registry) = Directory::new("foreign");
        fs::write(registry.namespaces.join("a"), "").unwrap();
        let guard = registry.lock().unwrap();
        assert!(
            matches!(registry.examine("a", &guard), Err(Error::NameTaken(name)) if name == "a")
        );
    }

    #[test]
    fn the_name_of_a_living_lab_is_refused_with_its_pid() {
        let (_directory, registry) = Directory::new("alive");
        let guard = registry.lock().unwrap();
        let _lease = registry.take("a", &guard).unwrap();
        let pid = std::process::id();
        assert!(matches!(
            registry.examine("a", &guard),
            Err(Error::LabRunning { pid: owner, .. }) if owner == pid
        ));
    }

    #[test]
    fn a_reused_pid_is_not_the_owner() {
        let (_directory, registry) = Directory::new("reused");
        fs::write(registry.namespaces.join("a"), "").unwrap();
        let record = Record { started: 0, ..Record::own(None).unwrap() };
        fs::write(registry.leases.join("a"), record.to_text()).unwrap();
        let guard = registry.lock().unwrap();
        assert_eq!(registry.examine("a", &guard).unwrap(), Claim::Leftover);
    }

    #[test]
    fn what_a_killed_lab_left_is_a_leftover() {
        let (_directory, registry) = Directory::new("killed");
        let namespace = registry.namespaces.join("a");
        fs::write(&namespace, "").unwrap();
        fs::write(registry.leases.join("a"), gone(Identity::of(&namespace))).unwrap();
        let guard = registry.lock().unwrap();
        assert_eq!(registry.examine("a", &guard).unwrap(), Claim::Leftover);
    }

    #[test]
    fn another_namespace_under_the_name_of_a_killed_lab_is_not_touched() {
        let (_directory, registry) = Directory::new("replaced");
        fs::write(registry.namespaces.join("a"), "").unwrap();
        let other = Identity::of(&registry.leases);
        fs::write(registry.leases.join("a"), gone(other)).unwrap();
        let guard = registry.lock().unwrap();
        assert!(matches!(registry.examine("a", &guard), Err(Error::NameTaken(_))));
    }

    #[test]
    fn a_lease_ends_with_its_value() {
        let (_directory, registry) = Directory::new("ends");
        let guard = registry.lock().unwrap();
        let lease = registry.take("a", &guard).unwrap();
        drop(lease);
        assert_eq!(registry.examine("a", &guard).unwrap(), Claim::Free);
    }

    #[test]
    fn a_record_survives_writing_and_reading() {
        let record = Record::own(Some(Identity { device: 4, inode: 5 })).unwrap();
        assert_eq!(Record::parse(&record.to_text()), Some(record));
        assert_eq!(Record::parse("not a record"), None);
        assert_eq!(Record::parse(""), None);
    }
}
