//! Interfaces that ifconfig(8) creates and destroys (if_clone(9)), in every vnet.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::{CStr, c_int, c_void};
use core::fmt;
use core::ptr::NonNull;

use sys_bindings as sys;

use crate::context::MaySleep;
use crate::errno::Errno;
use crate::ifnet::InterfaceId;
use crate::owned::try_box;

/// What makes the interfaces.
pub trait Maker: Send + Sync {
    /// Creates one with this number.
    ///
    /// # Errors
    ///
    /// What ifconfig(8) is to say.
    fn create(&self, unit: u32, kind: Kind, may_sleep: &mut MaySleep)
    -> Result<InterfaceId, Errno>;

    /// Destroys one that it created.
    fn destroy(&self, which: InterfaceId, may_sleep: &mut MaySleep);
}

/// What is to be created (laggtype of ifconfig(8)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Ethernet, which ifconfig(8) takes to be meant by `lagg` when nothing was said.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
    /// Nothing was said.
    Default,
}

/// Interfaces can be created as long as it exists; when it goes, those that were are destroyed.
///
/// # Invariants
///
/// `maker` came from a box, and the cloner has it.
pub struct Cloner {
    maker: NonNull<Arc<dyn Maker>>,
}

// SAFETY: what it has may be used and dropped by every thread, since it is `Send` and `Sync`.
unsafe impl Send for Cloner {}
// SAFETY: a shared reference gives nothing.
unsafe impl Sync for Cloner {}

impl Cloner {
    /// Begins with it, for interfaces of this name. There is one at a time.
    ///
    /// # Errors
    ///
    /// There is a cloner of that name already.
    pub fn new(
        name: &'static CStr,
        maker: Arc<dyn Maker>,
        _may_sleep: &mut MaySleep,
    ) -> Result<Self, Errno> {
        let maker = NonNull::from(Box::leak(try_box(maker)?));
        // SAFETY: may sleep, as the argument proves. The name and the callbacks are constant, and
        // the maker stays until nobody calls any more.
        let error = unsafe {
            sys::rust_helper_cloner_attach(
                name.as_ptr(),
                &raw const CALLBACKS,
                maker.as_ptr().cast(),
            )
        };
        match Errno::result(error) {
            Ok(()) => Ok(Self { maker }),
            Err(error) => {
                // SAFETY: it came from a box, and an error says that nobody else has it.
                drop(unsafe { Box::from_raw(maker.as_ptr()) });
                Err(error)
            }
        }
    }
}

/// Where it may sleep.
impl Drop for Cloner {
    fn drop(&mut self) {
        // SAFETY: attached, by the invariant; the owner may sleep where it drops this.
        unsafe { sys::rust_helper_cloner_detach() };
        // SAFETY: from a box by the invariant, and nobody else knows it any more.
        drop(unsafe { Box::from_raw(self.maker.as_ptr()) });
    }
}

impl fmt::Debug for Cloner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cloner").finish_non_exhaustive()
    }
}

static CALLBACKS: sys::kpi_cloner_callbacks =
    sys::kpi_cloner_callbacks { create: Some(create), destroy: Some(destroy) };

/// # Safety
///
/// `maker` is that of a cloner that exists.
unsafe fn maker_of<'a>(maker: *mut c_void) -> &'a dyn Maker {
    // SAFETY: it stays where it is until the cloner is detached.
    &**unsafe { &*maker.cast::<Arc<dyn Maker>>() }
}

/// # Safety
///
/// `maker` is that of a cloner that exists, and `interface` good for writing. The thread may sleep.
unsafe extern "C" fn create(
    maker: *mut c_void,
    unit: u32,
    kind: u32,
    interface: *mut *mut sys::kpi_ifnet,
) -> c_int {
    let kind = match kind {
        sys::kpi_cloner_kind::KPI_CLONER_ETHERNET => Kind::Ethernet,
        sys::kpi_cloner_kind::KPI_CLONER_INFINIBAND => Kind::InfiniBand,
        sys::kpi_cloner_kind::KPI_CLONER_DEFAULT => Kind::Default,
        // wildcard: a number of C, not an enum.
        _ => return Errno::code(Err(Errno::EINVAL)),
    };
    // SAFETY: as the caller says.
    let mut may_sleep = unsafe { MaySleep::assume() };
    // SAFETY: as the caller says.
    let created = unsafe { maker_of(maker) }.create(unit, kind, &mut may_sleep);
    Errno::code(created.map(|id| {
        // SAFETY: as the caller says.
        unsafe { interface.write(id.raw()) }
    }))
}

/// # Safety
///
/// `maker` is that of a cloner that exists. The thread may sleep.
unsafe extern "C" fn destroy(maker: *mut c_void, interface: *mut sys::kpi_ifnet) {
    // SAFETY: as the caller says.
    let mut may_sleep = unsafe { MaySleep::assume() };
    if let Some(which) = InterfaceId::from_raw(interface) {
        // SAFETY: as the caller says.
        unsafe { maker_of(maker) }.destroy(which, &mut may_sleep);
    }
}
