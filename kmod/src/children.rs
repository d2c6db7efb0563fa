//! Children of an interface: one for each P_Key that the administrator made an interface of vlan(4)
//! for.

use alloc::boxed::Box;
use alloc::sync::Arc;

use ipoib_rs::ib::Pkey;
use kpi::client::Port;
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::ifnet::{Reference, Vlan, VlanTag};
use kpi::log::{self, Level};
use kpi::owned::try_box;
use kpi::sync::{self, Mutex};
use kpi::sysctl::Tree;

use crate::adapters::ListLevel;
use crate::interface::{Attached, Role};
use crate::settings::Settings;

/// The mutex of a list of children.
#[derive(Debug)]
pub(crate) struct ChildrenLevel;

impl sync::Level for ChildrenLevel {
    const NAME: &core::ffi::CStr = c"ipoib child list";
}

impl sync::After<ListLevel> for ChildrenLevel {}

/// The children of the interface of a port. vlan(4) has them come and go one at a time.
#[derive(Debug)]
pub(crate) struct Children {
    port: Port,
    unit: u32,
    settings: Settings,
    /// `net.link.ipoib`
    tree: Arc<Tree>,
    first: Mutex<ChildrenLevel, Option<Box<Child>>>,
}

#[derive(Debug)]
struct Child {
    tag: VlanTag,
    attached: Option<Attached>,
    next: Option<Box<Self>>,
}

impl Children {
    pub(crate) fn new(
        port: &Port,
        unit: u32,
        (settings, tree): (&Settings, &Arc<Tree>),
    ) -> Result<Self, Errno> {
        let (port, settings, tree) = (port.clone(), *settings, Arc::clone(tree));
        Ok(Self { port, unit, settings, tree, first: Mutex::new(None)? })
    }

    /// Makes the child that an interface of vlan(4) is to be. There is nobody to return an error
    /// to: the interface is there already, and carries nothing without a child.
    pub(crate) fn add(&self, vlan: &Vlan, may_sleep: &mut MaySleep) {
        let Self { port, unit, .. } = self;
        let VlanTag(tag) = vlan.tag();
        let made = self.make(vlan, may_sleep);
        let (level, result) = match &made {
            Ok(()) => (Level::Info, "added"),
            Err(Errno::EEXIST) => (Level::Error, "is that of the interface itself: not added"),
            Err(_) => (Level::Error, "not added"),
        };
        let pkey = tag | FULL_MEMBER;
        let (device, number) = (port.device().name(), port.number());
        let text = format_args!("ib{unit}: {device} port {number}, P_Key {pkey:#06x} {result}");
        log::line(level, text);
    }

    fn make(&self, vlan: &Vlan, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        let VlanTag(tag) = vlan.tag();
        let pkey = Pkey::new(tag | FULL_MEMBER).ok_or(Errno::EINVAL)?;
        let of_port = self.port.attributes(kpi::client::PartitionChoice::Port, may_sleep)?;
        if of_port.partition.is_some_and(|own| own.pkey.full() == pkey) {
            return Err(Errno::EEXIST);
        }
        let role = Role::Child { vlan, pkey, parent: self.unit };
        let mut child = try_box(Child { tag: vlan.tag(), attached: None, next: None })?;
        let attached = Attached::new(&self.port, role, (&self.settings, &self.tree), may_sleep)?;
        child.attached = Some(attached);
        self.first.with(may_sleep, |first, _| {
            child.next = first.take();
            *first = Some(child);
        });
        Ok(())
    }

    /// The interface of a child.
    pub(crate) fn find(
        &self,
        pkey: Pkey,
        before: &mut impl sync::Before<ChildrenLevel>,
    ) -> Option<Reference> {
        self.first.with(before, |first, _| {
            let mut place = first.as_ref();
            while let Some(child) = place {
                let VlanTag(tag) = child.tag;
                if tag | FULL_MEMBER == pkey.full().value() {
                    return child.attached.as_ref()?.interface().net.reference();
                }
                place = child.next.as_ref();
            }
            None
        })
    }

    /// Ends a child.
    pub(crate) fn remove(&self, tag: VlanTag, may_sleep: &mut MaySleep) {
        let child = self.first.with(may_sleep, |first, _| {
            let mut place = first;
            while place.as_ref().is_some_and(|child| child.tag != tag) {
                place = &mut place.as_mut()?.next;
            }
            let mut child = place.take()?;
            *place = child.next.take();
            Some(child)
        });
        if let Some(attached) = child.and_then(|child| child.attached) {
            attached.detach(may_sleep);
        }
    }
}

/// A tag has the low bits of a P_Key. A child asks for full membership (RFC 4391 4); it takes the
/// limited one where the port has only that.
const FULL_MEMBER: u16 = 0x8000;
