//! The fabric: everything behind one value.

mod connected;
mod egress;
mod ingress;
mod ledger;
mod management;
mod shared_receive;
mod verbs;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::cq::{Completion, CqId, Notice, Notification};
use crate::hca::{Hca, HcaConfig, HcaId};
use crate::outlet::{AsyncEvent, Outlet};
use crate::packet::{Packet, Pool, PoolLimits};
use crate::port::{Gids, Port, PortCounters, PortId, PortState};
use crate::qp::QpId;
use crate::slab::SlabError;
use crate::switch::{Switch, SwitchCounters};
use crate::transit::Transit;

pub use management::ManagementError;
pub use verbs::{AttachError, DestroyError, ModifyError, PostError, RefusedSend};

/// Adapters, their ports, and the switch between them.
///
/// Methods come in these kinds: verbs (`create_*`, `modify_qp`, `post_*` ...), outputs (`poll_*`),
/// the wire (`poll_transit`, `deliver`, `duplicate`, `discard`), management (`set_*`,
/// `dispatch_event`) and questions. All memory for packets is taken when objects are made; none is
/// taken for a packet, except by the pool while it grows to its limit.
#[derive(Debug)]
pub struct Fabric {
    config: FabricConfig,
    hcas: Vec<Hca>,
    ports: Vec<Port>,
    switch: Switch,
    outlet: Outlet,
    /// The queue pairs that have something to send: for datagrams one entry for each, in the order
    /// of posting, for a connected queue pair one entry.
    egress: VecDeque<QpId>,
    /// The entries that there may be, over all queue pairs.
    egress_max: usize,
    /// The copies of a multicast packet that were not polled yet.
    ready: VecDeque<Transit>,
    violations: Violations,
}

/// What a fabric is made of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FabricConfig {
    /// How many packets there may be.
    pub pool: PoolLimits,
    /// Asynchronous events that wait to be polled.
    pub events_max: u32,
    /// Whether the switch keeps packets out of ports that are not in their partition.
    pub partition_enforcement: bool,
    /// Whether a queue pair receives the multicast that it sent itself; others of its port always
    /// do.
    pub multicast_loopback: bool,
}

impl FabricConfig {
    /// A well-run fabric with adapters that echo.
    pub const DEFAULT: Self = Self {
        pool: PoolLimits::DEFAULT,
        events_max: 1024,
        partition_enforcement: true,
        multicast_loopback: true,
    };
}

/// What no correct user of the verbs does.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Violations {
    /// Datagrams longer than the MTU of the port that sends or of the port that receives.
    pub oversize_ud: u64,
    /// Sends whose address handle was destroyed before they left.
    pub missing_handles: u64,
}

/// An object could not be made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CreateError {
    /// An argument is out of its range.
    Invalid,
    /// No memory.
    OutOfMemory,
    /// As many as there may be.
    TooMany,
    /// An object named in the arguments does not exist.
    Unknown,
}

impl From<SlabError> for CreateError {
    fn from(error: SlabError) -> Self {
        match error {
            SlabError::Full => Self::TooMany,
            SlabError::OutOfMemory => Self::OutOfMemory,
        }
    }
}

impl Fabric {
    /// A fabric without adapters.
    ///
    /// # Errors
    ///
    /// [`CreateError::OutOfMemory`].
    pub fn new(config: FabricConfig) -> Result<Self, CreateError> {
        let mut events = VecDeque::new();
        events
            .try_reserve_exact(config.events_max as usize)
            .map_err(|_| CreateError::OutOfMemory)?;
        Ok(Self {
            config,
            hcas: Vec::new(),
            ports: Vec::new(),
            switch: Switch::new(),
            outlet: Outlet {
                pool: Pool::new(config.pool).map_err(|_| CreateError::OutOfMemory)?,
                notifications: VecDeque::new(),
                events,
                events_max: config.events_max as usize,
                events_lost: 0,
            },
            egress: VecDeque::new(),
            egress_max: 0,
            ready: VecDeque::new(),
            violations: Violations::default(),
        })
    }

    /// Plugs an adapter in. Its ports are DOWN, hold the default P_Key at index 0 and the GID of
    /// their GUID in the default subnet.
    ///
    /// # Errors
    ///
    /// [`CreateError::Invalid`] for a table or adapter of size 0, [`CreateError::OutOfMemory`].
    pub fn add_hca(&mut self, config: &HcaConfig) -> Result<HcaId, CreateError> {
        if config.port_count == 0 || config.pkey_table_len == 0 || config.gid_table_len == 0 {
            return Err(CreateError::Invalid);
        }
        let out_of_memory = |_| CreateError::OutOfMemory;
        let port_count = usize::from(config.port_count);
        self.hcas.try_reserve(1).map_err(out_of_memory)?;
        self.ports.try_reserve(port_count).map_err(out_of_memory)?;
        // One copy of a multicast packet for every port.
        self.ready.try_reserve(self.ports.len() + port_count).map_err(out_of_memory)?;
        let first = self.ports.len();
        let hca = HcaId(self.hcas.len() as u32);
        for number in 1..=config.port_count {
            match Port::new(hca, number, config) {
                Ok(port) => self.ports.push(port),
                Err(error) => {
                    self.ports.truncate(first);
                    return Err(error);
                }
            }
        }
        self.hcas.push(Hca::new(hca));
        Ok(hca)
    }

    /// The ports of an adapter, in the order of their numbers.
    pub fn hca_ports(&self, hca: HcaId) -> impl Iterator<Item = PortId> + '_ {
        self.ports().filter(move |port| self.ports[port.index()].hca == hca)
    }

    /// All ports.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + use<> {
        (0..self.ports.len() as u32).map(PortId)
    }

    /// A packet of `len` bytes from the fabric's pool; see [`Pool::allocate`].
    pub fn allocate(&mut self, len: usize) -> Option<Packet> {
        self.outlet.pool.allocate(len)
    }

    /// The fabric's pool.
    pub const fn pool(&self) -> &Pool {
        &self.outlet.pool
    }

    /// The fabric's pool.
    pub const fn pool_mut(&mut self) -> &mut Pool {
        &mut self.outlet.pool
    }

    /// The next completion of a queue. Nothing while the adapter is wedged.
    pub fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        let hca = self.hcas.get_mut(cq.hca.0 as usize)?;
        if hca.is_wedged {
            return None;
        }
        hca.cqs.get_mut(cq.key)?.queue.pop_front()
    }

    /// Asks for a notification when the next completion is put into the queue. Whether it holds
    /// some already: they raise none, so the caller polls again (IBA 11.4.2.2).
    pub fn req_notify(&mut self, cq: CqId) -> bool {
        let Some(hca) = self.hcas.get_mut(cq.hca.0 as usize) else {
            return false;
        };
        let is_wedged = hca.is_wedged;
        let Some(queue) = hca.cqs.get_mut(cq.key) else {
            return false;
        };
        queue.notice = match queue.notice {
            Notice::Unarmed | Notice::Armed => Notice::Armed,
            Notice::Raised | Notice::RaisedAndArmed => Notice::RaisedAndArmed,
        };
        !is_wedged && !queue.queue.is_empty()
    }

    /// The next queue whose owner asked to be told.
    pub fn poll_notification(&mut self) -> Option<Notification> {
        let notification = self.outlet.notifications.pop_front()?;
        let cq = notification.cq;
        let hca = self.hcas.get_mut(cq.hca.0 as usize)?;
        if let Some(queue) = hca.cqs.get_mut(cq.key) {
            queue.notice = match queue.notice {
                Notice::Raised | Notice::Unarmed => Notice::Unarmed,
                Notice::RaisedAndArmed | Notice::Armed => Notice::Armed,
            };
        }
        Some(notification)
    }

    /// The next asynchronous event.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.outlet.events.pop_front()
    }

    /// Whether there is a notification or an event to poll. A send may complete without a packet
    /// that moves: [`Self::poll_transit`] has none then, but there is something to be told.
    pub fn has_notices(&self) -> bool {
        !self.outlet.notifications.is_empty() || !self.outlet.events.is_empty()
    }

    /// Events that were lost because nobody polled.
    pub const fn events_lost(&self) -> u64 {
        self.outlet.events_lost
    }

    /// What no correct user does, counted.
    pub const fn violations(&self) -> &Violations {
        &self.violations
    }

    /// What the switch dropped.
    pub const fn switch_counters(&self) -> &SwitchCounters {
        &self.switch.counters
    }

    /// What a port dropped.
    pub fn port_counters(&self, port: PortId) -> Option<&PortCounters> {
        self.ports.get(port.index()).map(|port| &port.counters)
    }
}

impl Port {
    fn new(hca: HcaId, number: u8, config: &HcaConfig) -> Result<Self, CreateError> {
        use ipoib_rs::ib::{Gid, Pkey};
        let out_of_memory = |_| CreateError::OutOfMemory;
        let mut pkeys = Vec::new();
        let pkey_count = usize::from(config.pkey_table_len);
        pkeys.try_reserve_exact(pkey_count).map_err(out_of_memory)?;
        // IBA 10.9.1.2: a port comes up with the default key at index 0.
        pkeys.push(Some(Pkey::DEFAULT));
        pkeys.resize(pkey_count, None);

        let guid = config.guid.wrapping_add(u64::from(number));
        let gid_count = usize::from(config.gid_table_len);
        let mut table = Vec::new();
        table.try_reserve_exact(gid_count).map_err(out_of_memory)?;
        table.push(Some(Gid::new(Gid::SUBNET_PREFIX_DEFAULT, guid)));
        table.resize(gid_count, None);
        let mut sorted = Vec::new();
        sorted.try_reserve_exact(gid_count).map_err(out_of_memory)?;

        Ok(Self {
            hca,
            number,
            guid,
            state: PortState::Down,
            lid: None,
            mtu: config.mtu,
            sm: None,
            pkeys,
            gids: Gids::new(table, sorted),
            gsi: None,
            attachments: Vec::new(),
            counters: PortCounters::default(),
            datagrams_to_fail: 0,
        })
    }
}
