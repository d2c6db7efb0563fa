//! TUN devices, and the only unsafe code of the lab: the ioctls of `<linux/if_tun.h>` and
//! `<linux/sockios.h>`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::libc;

use crate::error::Error;

const CLONE_DEVICE: &str = "/dev/net/tun";

/// A TUN device: whoever holds it is the wire. It disappears with the value.
#[derive(Debug)]
pub(crate) struct Tun {
    device: File,
    /// Lives in the device's namespace, whichever thread uses it later.
    control: UdpSocket,
    name: InterfaceName,
}

impl Tun {
    /// Makes the device `name` in the network namespace of the calling thread, without carrier.
    ///
    /// # Errors
    ///
    /// [`Error::NoTun`] if the clone device cannot be opened, [`Error::System`] for a name that is
    /// too long or in use.
    pub(crate) fn create(name: &str) -> Result<Self, Error> {
        let device = open_clone_device()?;
        let name = InterfaceName::new(name)
            .ok_or_else(|| Error::system(name, io::Error::from(io::ErrorKind::InvalidInput)))?;
        let flags = libc::IFF_TUN | libc::IFF_NO_PI;
        let request = InterfaceRequest::with_flags(name, flags as libc::c_short);
        // SAFETY: TUNSETIFF reads one ifreq, which `request` is laid out as; the descriptor is open
        // for the whole call and the kernel keeps no pointer.
        unsafe { ioctl::tun_set_interface(device.as_raw_fd(), &request) }
            .map_err(|errno| Error::system(format!("TUN device {name}"), errno))?;
        let control = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
            .map_err(|source| Error::system("socket for interface requests", source))?;
        let tun = Self { device, control, name };
        tun.set_carrier(false)?;
        Ok(tun)
    }

    /// Whether TUN devices can be made at all.
    ///
    /// # Errors
    ///
    /// [`Error::NoTun`] if not.
    pub(crate) fn probe() -> Result<(), Error> {
        open_clone_device().map(drop)
    }

    /// Reads one IP packet. `None` if there is none now.
    ///
    /// # Errors
    ///
    /// Whatever the device says, except for "would block".
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.device).read(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Hands one IP packet to the stack. `false` if the stack did not take it: the interface is
    /// down or the packet is no IP.
    pub(crate) fn write(&self, packet: &[u8]) -> bool {
        (&self.device).write(packet).is_ok()
    }

    /// Sets the carrier.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the kernel refuses; Linux can since 4.20.
    pub(crate) fn set_carrier(&self, is_up: bool) -> Result<(), Error> {
        let value = libc::c_int::from(is_up);
        // SAFETY: TUNSETCARRIER reads one int, which `value` is; the descriptor is open for the
        // whole call and the kernel keeps no pointer.
        unsafe { ioctl::tun_set_carrier(self.device.as_raw_fd(), &value) }
            .map_err(|errno| Error::system(format!("carrier of {}", self.name), errno))?;
        Ok(())
    }

    /// Sets the MTU.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the kernel refuses it.
    pub(crate) fn set_mtu(&self, mtu: usize) -> Result<(), Error> {
        let what = || format!("MTU {mtu} of {}", self.name);
        let value = libc::c_int::try_from(mtu)
            .map_err(|_| Error::system(what(), io::Error::from(io::ErrorKind::InvalidInput)))?;
        let request = InterfaceRequest::with_int(self.name, value);
        // SAFETY: SIOCSIFMTU reads one ifreq, which `request` is laid out as; the socket is open
        // for the whole call and the kernel keeps no pointer.
        unsafe { ioctl::interface_set_mtu(self.control.as_raw_fd(), &request) }
            .map_err(|errno| Error::system(what(), errno))?;
        Ok(())
    }

    /// Whether the administrator has the interface up.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the device is gone.
    pub(crate) fn is_admin_up(&self) -> Result<bool, Error> {
        let mut request = InterfaceRequest::with_int(self.name, 0);
        // SAFETY: SIOCGIFFLAGS reads and writes one ifreq, which `request` is laid out as and which
        // is borrowed mutably; the kernel keeps no pointer.
        unsafe { ioctl::interface_flags(self.control.as_raw_fd(), &mut request) }
            .map_err(|errno| Error::system(format!("flags of {}", self.name), errno))?;
        Ok(libc::c_int::from(request.flags()) & libc::IFF_UP != 0)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

fn open_clone_device() -> Result<File, Error> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(CLONE_DEVICE)
        .map_err(Error::NoTun)
}

/// A name of at most `IFNAMSIZ - 1` bytes, padded with zeros.
#[derive(Clone, Copy, Debug)]
struct InterfaceName([u8; libc::IFNAMSIZ]);

impl InterfaceName {
    fn new(name: &str) -> Option<Self> {
        let mut padded = [0; libc::IFNAMSIZ];
        let room = padded.get_mut(..name.len())?;
        room.copy_from_slice(name.as_bytes());
        (padded.last() == Some(&0) && padded.first() != Some(&0)).then_some(Self(padded))
    }
}

impl std::fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let length = self.0.iter().position(|&byte| byte == 0).unwrap_or(0);
        f.write_str(&String::from_utf8_lossy(&self.0[..length]))
    }
}

const VALUE_BYTES: usize = size_of::<libc::ifreq>() - libc::IFNAMSIZ;

/// `struct ifreq` with its union as plain bytes, so that no field of it is read as another.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
struct InterfaceRequest {
    name: InterfaceName,
    value: [u8; VALUE_BYTES],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());
const _: () = assert!(align_of::<InterfaceRequest>() >= align_of::<libc::ifreq>());

impl InterfaceRequest {
    fn new(name: InterfaceName, bytes: &[u8]) -> Self {
        let mut value = [0; VALUE_BYTES];
        value[..bytes.len()].copy_from_slice(bytes);
        Self { name, value }
    }

    fn with_flags(name: InterfaceName, flags: libc::c_short) -> Self {
        Self::new(name, &flags.to_ne_bytes())
    }

    fn with_int(name: InterfaceName, value: libc::c_int) -> Self {
        Self::new(name, &value.to_ne_bytes())
    }

    fn flags(&self) -> libc::c_short {
        libc::c_short::from_ne_bytes([self.value[0], self.value[1]])
    }
}

mod ioctl {
    use super::InterfaceRequest;
    use nix::libc;

    nix::ioctl_write_ptr_bad!(
        tun_set_interface,
        nix::request_code_write!(b'T', 202, size_of::<libc::c_int>()),
        InterfaceRequest
    );
    nix::ioctl_write_ptr!(tun_set_carrier, b'T', 226, libc::c_int);
    nix::ioctl_write_ptr_bad!(interface_set_mtu, libc::SIOCSIFMTU, InterfaceRequest);
    nix::ioctl_read_bad!(interface_flags, libc::SIOCGIFFLAGS, InterfaceRequest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_must_leave_room_for_its_terminator() {
        assert_eq!(InterfaceName::new("ib0").unwrap().to_string(), "ib0");
        assert!(InterfaceName::new("fifteen.bytes..").is_some());
        assert!(InterfaceName::new("sixteen.bytes...").is_none());
        assert!(InterfaceName::new("far.more.than.sixteen.bytes").is_none());
        assert!(InterfaceName::new("").is_none());
    }
}
