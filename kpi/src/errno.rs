//! Error numbers: a newtype that is converted once at each edge.

use core::ffi::c_int;
use core::num::NonZeroI32;

use sys_bindings as sys;

/// An error number of the kernel.
///
/// # Invariants
///
/// Positive, as FreeBSD has them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Errno(NonZeroI32);

/// Declares the constants of [`Errno`] from those of sys/errno.h.
macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self::constant(sys::$name as c_int);)*
        }
    };
}

errnos! {
    /// No such address.
    EADDRNOTAVAIL;
    /// No such kind of address.
    EAFNOSUPPORT;
    /// It is in use.
    EBUSY;
    /// There is one already.
    EEXIST;
    /// An argument is out of its range.
    EINVAL;
    /// The interface is down.
    ENETDOWN;
    /// A queue is full.
    ENOBUFS;
    /// There is none.
    ENOENT;
    /// No memory.
    ENOMEM;
    /// No such device.
    ENXIO;
    /// There is no room for more.
    ENOSPC;
    /// It does not go together with this protocol.
    EPROTONOSUPPORT;
    /// No answer in time.
    ETIMEDOUT;
    /// It cannot do that.
    EOPNOTSUPP;
}

impl Errno {
    /// What a function of the kernel returned: 0, or an error number.
    ///
    /// # Errors
    ///
    /// The error number. LinuxKPI has them negative; that is the same error.
    pub const fn result(code: c_int) -> Result<(), Self> {
        match NonZeroI32::new(code.saturating_abs()) {
            // INVARIANT: an absolute value other than 0.
            Some(code) => Err(Self(code)),
            None => Ok(()),
        }
    }

    /// What a function that the kernel calls returns.
    pub const fn code(result: Result<(), Self>) -> c_int {
        match result {
            Ok(()) => 0,
            Err(Self(code)) => code.get(),
        }
    }

    const fn constant(code: c_int) -> Self {
        match Self::result(code) {
            Err(errno) => errno,
            Ok(()) => panic!("no error has number 0"),
        }
    }
}
