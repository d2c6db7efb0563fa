//! The requests of net/if_lagg.h. Their data is in memory of the kernel, as long as the request's
//! number says; what they point to is memory of the process that asks.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

use sys_bindings as sys;

use super::{Aggregator, Name, Named, PortStatus, WhichPort};
use crate::context::{MaySleep, Unlocked};
use crate::errno::Errno;

/// What ifconfig(8) may set. Nothing of it has a meaning for failover; it is kept because it can be
/// asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Options {
    /// What a flow is told by.
    pub hash: HashLayers,
    /// LAGG_OPT_*, without those of LACP.
    pub flags: i32,
    /// By how many bits a flow's number is shifted.
    pub flowid_shift: i32,
}

/// LAGG_F_HASH*, of which at least one is set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HashLayers(u32);

impl Options {
    /// Those of a new lagg, as with if_lagg(4).
    pub const DEFAULT: Self = Self {
        hash: HashLayers(sys::LAGG_F_HASHMASK),
        // CAST: a small number.
        flags: sys::LAGG_OPT_USE_NUMA as i32,
        flowid_shift: 16,
    };

    /// Sets or clears what a request names.
    fn change(&mut self, request: &sys::lagg_reqopts) -> Result<(), Errno> {
        // CAST: both are small numbers.
        const PLAIN: [i32; 2] = [sys::LAGG_OPT_USE_FLOWID as i32, sys::LAGG_OPT_USE_NUMA as i32];
        // CAST: as above.
        const SHIFT: i32 = sys::LAGG_OPT_FLOWIDSHIFT as i32;
        // CAST: as above.
        const SHIFT_MAX: i32 = sys::LAGG_OPT_FLOWIDSHIFT_MASK as i32;
        match request.ro_opts {
            // A stride, which is for another protocol.
            0 if request.ro_bkt != 0 => return Err(Errno::EINVAL),
            0 => {}
            SHIFT if (0..=SHIFT_MAX).contains(&request.ro_flowid_shift) => {
                self.flowid_shift = request.ro_flowid_shift;
            }
            flag if PLAIN.contains(&flag) => self.flags |= flag,
            flag if flag.checked_neg().is_some_and(|flag| PLAIN.contains(&flag)) => {
                self.flags &= !-flag;
            }
            // wildcard: a number of the process that asks, not an enum.
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }
}

/// # Safety
///
/// `data` is what a request of this number has, and nobody else uses it.
pub(super) unsafe fn answer(
    lagg: &dyn Aggregator,
    request: u32,
    data: *mut c_void,
    named: Option<Named>,
    may_sleep: &mut MaySleep,
) -> Result<(), Errno> {
    use sys::kpi_lagg_request as raw;
    // SAFETY: the thread may sleep, so it holds no mutex.
    let unlocked = &mut unsafe { Unlocked::assume() };
    match (request, named) {
        // SAFETY: in this and in the others, the data is of the type that belongs to the request.
        (raw::KPI_LAGG_GET, None) => show_all(lagg, unsafe { &mut *data.cast() }, may_sleep),
        (raw::KPI_LAGG_SET, None) => {
            // SAFETY: see above.
            set_protocol(unsafe { &*data.cast() })
        }
        (raw::KPI_LAGG_GET_FLAGS, None) => {
            // SAFETY: see above.
            let data = unsafe { &mut *data.cast::<sys::lagg_reqflags>() };
            lagg.options(&mut |options| data.rf_flags = options.hash.0, unlocked);
            Ok(())
        }
        (raw::KPI_LAGG_SET_HASH, None) => {
            // SAFETY: see above.
            let data = unsafe { &*data.cast::<sys::lagg_reqflags>() };
            let layers = data.rf_flags & sys::LAGG_F_HASHMASK;
            if layers == 0 {
                return Err(Errno::EINVAL);
            }
            lagg.options(&mut |options| options.hash = HashLayers(layers), unlocked);
            Ok(())
        }
        (raw::KPI_LAGG_GET_OPTIONS, None) => {
            // SAFETY: see above.
            show_options(lagg, unsafe { &mut *data.cast() }, may_sleep, unlocked)
        }
        (raw::KPI_LAGG_SET_OPTIONS, None) => {
            // SAFETY: see above.
            let data = unsafe { &*data.cast::<sys::lagg_reqopts>() };
            let mut result = Ok(());
            lagg.options(&mut |options| result = options.change(data), unlocked);
            result
        }
        (raw::KPI_LAGG_GET_PORT, Some(named)) => {
            let status = lagg.port(WhichPort::Named(&named), unlocked).ok_or(Errno::ENOENT)?;
            // SAFETY: see above.
            show_port(unsafe { &mut *data.cast() }, &lagg.name(), &status);
            Ok(())
        }
        (raw::KPI_LAGG_ADD_PORT, Some(named)) => lagg.add_port(named, may_sleep),
        (raw::KPI_LAGG_REMOVE_PORT, Some(named)) => lagg.remove_port(named, may_sleep),
        // wildcard: numbers of C, not an enum.
        _ => Err(Errno::EINVAL),
    }
}

/// Failover is the only protocol that InfiniBand can have: a port cannot take another address.
fn set_protocol(data: &sys::lagg_reqall) -> Result<(), Errno> {
    if data.ra_proto == sys::lagg_proto::LAGG_PROTO_FAILOVER {
        Ok(())
    } else {
        Err(Errno::EPROTONOSUPPORT)
    }
}

fn show_all(
    lagg: &dyn Aggregator,
    data: &mut sys::lagg_reqall,
    may_sleep: &mut MaySleep,
) -> Result<(), Errno> {
    let ports = lagg.ports(may_sleep)?;
    // As many as there is room for.
    let room = data.ra_size / size_of::<sys::lagg_reqport>();
    let name = lagg.name();
    let mut count = 0;
    for status in ports.iter().take(room) {
        let mut row = empty_row();
        show_port(&mut row, &name, status);
        copy_out(&row, data.ra_port.wrapping_add(count), may_sleep)?;
        count += 1;
    }
    data.ra_proto = sys::lagg_proto::LAGG_PROTO_FAILOVER;
    // CAST: as many as ports.
    data.ra_ports = count as c_int;
    data.ra_size = count * size_of::<sys::lagg_reqport>();
    // SAFETY: all bytes 0 is a value of what LACP would say, which consists of numbers.
    data.ra_psc = unsafe { MaybeUninit::zeroed().assume_init() };
    Ok(())
}

/// To the memory of the process that asks.
fn copy_out(
    row: &sys::lagg_reqport,
    to: *mut sys::lagg_reqport,
    _may_sleep: &mut MaySleep,
) -> Result<(), Errno> {
    // SAFETY: may sleep, as the argument proves. The row has that many bytes, all of which were
    // written; where they go is checked by copyout(9).
    Errno::result(unsafe {
        sys::rust_helper_copy_out((&raw const *row).cast(), to.cast(), size_of_val(row))
    })
}

/// Also the bytes between the fields are 0: it goes to a process.
fn empty_row() -> sys::lagg_reqport {
    // SAFETY: all bytes 0 is a value of the type, which consists of numbers.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

pub(super) fn show_port(row: &mut sys::lagg_reqport, lagg: &Name, status: &PortStatus) {
    let PortStatus { name, is_primary, is_carrier, has_link: _ } = status;
    row.rp_ifname = lagg.raw();
    row.rp_portname = name.raw();
    row.rp_prio = 0;
    row.rp_flags = 0;
    if *is_primary {
        row.rp_flags |= sys::LAGG_PORT_MASTER;
    }
    if *is_carrier {
        row.rp_flags |= sys::LAGG_PORT_ACTIVE;
    }
    row.rp_psc = empty_row().rp_psc;
}

fn show_options(
    lagg: &dyn Aggregator,
    data: &mut sys::lagg_reqopts,
    may_sleep: &mut MaySleep,
    unlocked: &mut Unlocked,
) -> Result<(), Errno> {
    let ports = lagg.ports(may_sleep)?;
    // CAST: in this and in the other, as many as ports.
    data.ro_count = ports.len() as u32;
    // CAST: see above.
    data.ro_active = ports.iter().filter(|port| port.has_link).count() as u32;
    // CAST: the field has no more bits.
    data.ro_flapping = lagg.carrier_changes(unlocked) as u32;
    data.ro_bkt = 0;
    lagg.options(
        &mut |options| {
            data.ro_opts = options.flags;
            data.ro_flowid_shift = options.flowid_shift;
        },
        unlocked,
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opts: i32, shift: i32, stride: u32) -> sys::lagg_reqopts {
        sys::lagg_reqopts {
            ro_ifname: Name::new("lagg0").raw(),
            ro_opts: opts,
            ro_count: 0,
            ro_active: 0,
            ro_flapping: 0,
            ro_flowid_shift: shift,
            ro_bkt: stride,
        }
    }

    #[test]
    fn options_are_set_and_cleared_one_at_a_time() {
        let mut options = Options::DEFAULT;
        let before = options.flags;
        assert_eq!(options.change(&request(1, 0, 0)), Ok(()));
        assert_eq!(options.flags, before | 1);
        assert_eq!(options.change(&request(-1, 0, 0)), Ok(()));
        assert_eq!(options.flags, before);
        assert_eq!(options.change(&request(2, 31, 0)), Ok(()));
        assert_eq!(options.flowid_shift, 31);
    }

    #[test]
    fn options_of_other_protocols_are_refused_and_change_nothing() {
        for refused in [
            request(0x10, 0, 0),
            request(-0x10, 0, 0),
            request(0x80, 0, 0),
            request(0x100, 0, 5),
            request(0, 0, 5),
            request(2, 32, 0),
            request(2, -1, 0),
            request(3, 0, 0),
            request(i32::MIN, 0, 0),
        ] {
            let mut options = Options::DEFAULT;
            assert_eq!(options.change(&refused), Err(Errno::EINVAL), "{}", refused.ro_opts);
            assert_eq!(options, Options::DEFAULT);
        }
    }

    #[test]
    fn no_protocol_but_failover() {
        let mut all: sys::lagg_reqall =
            // SAFETY: all bytes 0 is a value of the type: numbers and NULL.
            unsafe { MaybeUninit::zeroed().assume_init() };
        for protocol in 0..8 {
            all.ra_proto = protocol;
            let is_failover = protocol == sys::lagg_proto::LAGG_PROTO_FAILOVER;
            assert_eq!(set_protocol(&all).is_ok(), is_failover, "{protocol}");
        }
    }
}
