//! HCAs that come and go: an interface for each of their InfiniBand ports.

use alloc::sync::Arc;
use alloc::vec::Vec;

use ipoib_rs::ib::Pkey;
use kpi::client::{Client, Device, PartitionChoice, Port};
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::ifnet::Reference;
use kpi::log::{self, Level};
use kpi::owned::try_push;
use kpi::sync::{self, Mutex};
use kpi::sysctl::Tree;

use crate::interface::{Attached, Role};
use crate::settings::{Settings, name_of};

/// The mutex of the list of interfaces.
#[derive(Debug)]
pub(crate) struct ListLevel;

impl sync::Level for ListLevel {
    const NAME: &core::ffi::CStr = c"ipoib list";
}

/// All interfaces.
#[derive(Debug)]
pub(crate) struct Adapters {
    settings: Settings,
    /// `net.link.ipoib`
    tree: Arc<Tree>,
    list: Mutex<ListLevel, Vec<Member>>,
}

#[derive(Debug)]
struct Member {
    device: Device,
    unit: u32,
    attached: Option<Attached>,
}

impl Adapters {
    pub(crate) fn new(settings: Settings, tree: Arc<Tree>) -> Result<Self, Errno> {
        Ok(Self { settings, tree, list: Mutex::new(Vec::new())? })
    }

    /// Takes a number and a place for an interface, so that nothing can fail later.
    fn reserve(&self, device: &Device, may_sleep: &mut MaySleep) -> Result<u32, Errno> {
        self.list.with(may_sleep, |list, _| {
            let is_free = |unit: &u32| list.iter().all(|member| member.unit != *unit);
            let unit = (0..).find(is_free).ok_or(Errno::ENOMEM)?;
            try_push(list, Member { device: device.clone(), unit, attached: None })?;
            Ok(unit)
        })
    }

    fn fill(&self, unit: u32, attached: Option<Attached>, may_sleep: &mut MaySleep) {
        self.list.with(may_sleep, |list, _| match attached {
            Some(attached) => {
                if let Some(member) = list.iter_mut().find(|member| member.unit == unit) {
                    member.attached = Some(attached);
                }
            }
            None => list.retain(|member| member.unit != unit),
        });
    }

    fn attach(&self, device: &Device, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        for port in device.ports() {
            let unit = self.reserve(device, may_sleep)?;
            let role = Role::Port { unit };
            let made = Attached::new(&port, role, (&self.settings, &self.tree), may_sleep);
            let (name, number) = (device.name(), port.number());
            match &made {
                Ok(attached) => {
                    let interface = attached.interface();
                    let (mode, mtu) = interface.mode_and_mtu(may_sleep);
                    let (ib, mode) = (interface.net.name(), name_of(mode));
                    log::line(
                        Level::Info,
                        format_args!("{ib}: {name} port {number}, {mode} mode, mtu {mtu}"),
                    );
                }
                Err(error) => log::line(
                    Level::Error,
                    format_args!("ipoib_rs: {name} port {number}: no interface ({error:?})"),
                ),
            }
            self.fill(unit, made.ok(), may_sleep);
        }
        Ok(())
    }
}

impl Client for Adapters {
    fn device_added(&self, device: &Device, may_sleep: &mut MaySleep) {
        if !self.settings.drives(device.name()) {
            return;
        }
        if let Err(error) = self.attach(device, may_sleep) {
            let name = device.name();
            log::line(Level::Error, format_args!("ipoib_rs: {name}: {error:?}"));
        }
    }

    fn device_removed(&self, device: &Device, may_sleep: &mut MaySleep) {
        loop {
            let member = self.list.with(may_sleep, |list, _| {
                let at = list.iter().position(|member| member.device.is(device))?;
                Some(list.swap_remove(at))
            });
            let Some(Member { attached, .. }) = member else { return };
            if let Some(attached) = attached {
                attached.detach(may_sleep);
            }
        }
    }

    /// A port and a partition have one interface at most.
    fn find_interface(
        &self,
        port: &Port,
        pkey: Pkey,
        may_sleep: &mut MaySleep,
    ) -> Option<Reference> {
        let of_port = port.attributes(PartitionChoice::Port, may_sleep).ok()?.partition;
        let is_of_port = of_port.is_some_and(|own| own.pkey.full() == pkey.full());
        self.list.with(may_sleep, |list, held| {
            let mut attached = list.iter().filter_map(|member| member.attached.as_ref());
            let attached = attached.find(|attached| attached.is_of(port))?;
            // What is in the list is not taken down meanwhile.
            if is_of_port {
                attached.interface().net.reference()
            } else {
                attached.children()?.find(pkey, held)
            }
        })
    }
}
