//! Queue pairs.

use alloc::collections::VecDeque;

use fabric::qp::{
    QpChange, QpConfig, QpId, QpState, QpType, RcReadyToReceive, RcReadyToSend, RetryCount,
    RnrTimer,
};
use ipoib_rs::ib::{Gid, IbMtu, Mgid, Mlid, PkeyIndex, Psn, Qkey, Qpn};

use super::World;
use crate::error::Error;
use crate::layout::{Change, Context, PairConfig};
use crate::receives::Receives;
use crate::table::Handle;

/// A queue pair.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) id: QpId,
    pub(super) service: Service,
    pub(super) context: Context,
    pub(super) device: u32,
    /// The number of its port.
    pub(super) port: u8,
    send_queue: Handle,
    receive_queue: Handle,
    pub(super) shared: Option<Handle>,
    /// Posted here, if there is no shared receive queue.
    pub(super) receives: Receives,
    signals: Signals,
    pkey_index: PkeyIndex,
    qkey: Qkey,
}

/// Which sends have a completion if they succeed (IBA 10.8.6).
#[derive(Debug)]
enum Signals {
    All,
    /// Those that say so: one entry for each send that is posted.
    Some(VecDeque<bool>),
}

/// The service of a queue pair: `enum softib_service`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Service {
    /// QP0. Subnet management is not by datagrams here, so nothing ever comes.
    Smi,
    /// QP1.
    Gsi,
    /// Datagrams.
    Ud,
    /// Connections.
    Rc,
}

impl Service {
    const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Smi),
            1 => Some(Self::Gsi),
            2 => Some(Self::Ud),
            3 => Some(Self::Rc),
            _ => None,
        }
    }
}

/// `enum softib_state`.
pub const fn state_code(state: QpState) -> u32 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::ReadyToReceive => 2,
        QpState::ReadyToSend => 3,
        QpState::SendQueueDrained => 4,
        QpState::SendQueueError => 5,
        QpState::Error => 6,
    }
}

const fn state_from_code(code: u32) -> Option<QpState> {
    match code {
        0 => Some(QpState::Reset),
        1 => Some(QpState::Init),
        2 => Some(QpState::ReadyToReceive),
        3 => Some(QpState::ReadyToSend),
        4 => Some(QpState::SendQueueDrained),
        5 => Some(QpState::SendQueueError),
        6 => Some(QpState::Error),
        _ => None,
    }
}

impl Pair {
    /// A send is posted. Whether there is room for it.
    pub(super) fn begin_send(&mut self, is_signalled: bool) -> bool {
        match &mut self.signals {
            Signals::All => true,
            Signals::Some(sends) => {
                let has_room = sends.len() < sends.capacity();
                if has_room {
                    sends.push_back(is_signalled);
                }
                has_room
            }
        }
    }

    /// The queue in which sends end before anybody asks: without it, those that nobody wants to
    /// hear of would fill it.
    pub(super) const fn reaped_queue(&self) -> Option<Handle> {
        match self.signals {
            Signals::All => None,
            Signals::Some(_) => Some(self.send_queue),
        }
    }

    /// The oldest send ended. Whether its poster wants to know of success.
    pub(super) fn end_send(&mut self) -> bool {
        match &mut self.signals {
            Signals::All => true,
            Signals::Some(sends) => sends.pop_front().unwrap_or(true),
        }
    }

    /// The send that was begun last was refused.
    pub(super) fn take_back_send(&mut self) {
        match &mut self.signals {
            Signals::All => {}
            Signals::Some(sends) => {
                sends.pop_back();
            }
        }
    }

    fn forget_work(&mut self) {
        self.receives.clear();
        match &mut self.signals {
            Signals::All => {}
            Signals::Some(sends) => sends.clear(),
        }
    }
}

impl World {
    /// Makes a queue pair: its handle and its number.
    pub fn create_pair(
        &mut self,
        device: u32,
        config: &PairConfig,
    ) -> Result<(Handle, u32), Error> {
        let service = Service::from_code(config.service).ok_or(Error::Invalid)?;
        // Which port the others are on is said later; any will do until then.
        let port = match service {
            Service::Smi | Service::Gsi => self.port(device, config.port)?,
            Service::Ud | Service::Rc => self.port(device, 1)?,
        };
        let (send_queue, receive_queue) = (Handle(config.send_queue), Handle(config.receive_queue));
        let shared = (config.shared_queue != 0).then_some(Handle(config.shared_queue));
        let srq = match shared {
            Some(shared) => Some(self.shared.find(shared).ok_or(Error::Invalid)?.id),
            None => None,
        };
        let qp_type = match service {
            Service::Smi | Service::Ud => QpType::Ud,
            Service::Gsi => QpType::Gsi,
            Service::Rc => QpType::Rc { srq },
        };
        let mut signals = Signals::All;
        if config.signals_all == 0 {
            let mut sends = VecDeque::new();
            sends.try_reserve_exact(config.sends_max as usize)?;
            signals = Signals::Some(sends);
        }
        let receives_max = if shared.is_some() { 0 } else { config.receives_max };
        let receives = Receives::new(receives_max, config.receive_segments_max)?;
        self.pairs.reserve()?;
        self.pair_index.try_reserve(1)?;
        let id = self.fabric.create_qp(
            port,
            &QpConfig {
                qp_type,
                send_cq: self.cq(send_queue)?,
                receive_cq: self.cq(receive_queue)?,
                sends_max: config.sends_max,
                receives_max: config.receives_max,
            },
        )?;
        let qpn = match service {
            Service::Smi => 0,
            Service::Gsi | Service::Ud | Service::Rc => self.fabric.qpn(id).map_or(0, Qpn::value),
        };
        let handle = self.pairs.insert(Pair {
            id,
            service,
            context: config.context,
            device,
            port: config.port,
            send_queue,
            receive_queue,
            shared,
            receives,
            signals,
            pkey_index: PkeyIndex::default(),
            qkey: Qkey(0),
        })?;
        let place = self.pair_index.partition_point(|&(other, _)| other < id);
        self.pair_index.insert(place, (id, handle));
        Ok((handle, qpn))
    }

    /// Destroys a queue pair and whatever is posted on it.
    pub fn destroy_pair(&mut self, handle: Handle) -> Result<(), Error> {
        let id = self.pair(handle)?.id;
        self.forget_work(handle)?;
        self.fabric.destroy_qp(id)?;
        self.pairs.remove(handle);
        self.pair_index.retain(|&(_, other)| other != handle);
        Ok(())
    }

    /// The state of a queue pair; ERR for none.
    pub fn pair_state(&self, handle: Handle) -> QpState {
        let id = self.pair(handle).map(|pair| pair.id);
        id.ok().and_then(|id| self.fabric.qp_state(id)).unwrap_or(QpState::Error)
    }

    /// Changes a queue pair. ibcore has checked that the attributes are those of the transition.
    pub fn modify_pair(&mut self, handle: Handle, change: &Change) -> Result<(), Error> {
        let before = self.pair_state(handle);
        match state_from_code(change.state).ok_or(Error::Invalid)? {
            QpState::Reset => {
                self.forget_work(handle)?;
                self.modify(handle, &QpChange::Reset)
            }
            QpState::Init => self.initialise(handle, change, before),
            QpState::ReadyToReceive => self.prepare_to_receive(handle, change),
            QpState::ReadyToSend => self.prepare_to_send(handle, change, before),
            QpState::SendQueueDrained => self.modify(handle, &QpChange::DrainSendQueue),
            QpState::Error => self.modify(handle, &QpChange::Error),
            // IBA 10.3.1: only errors lead there.
            QpState::SendQueueError => Err(Error::Invalid),
        }
    }

    fn initialise(
        &mut self,
        handle: Handle,
        change: &Change,
        before: QpState,
    ) -> Result<(), Error> {
        let pair = self.pair(handle)?;
        let (id, device) = (pair.id, pair.device);
        let (pkey_index, qkey) = pair.keys(change);
        match pair.service {
            Service::Ud | Service::Rc if before == QpState::Reset => {
                let port = self.port(device, change.port)?;
                self.fabric.set_qp_port(id, port)?;
                self.pairs.find_mut(handle).ok_or(Error::Invalid)?.port = change.port;
            }
            Service::Smi | Service::Gsi | Service::Ud | Service::Rc => {}
        }
        self.modify(handle, &QpChange::Init { pkey_index, qkey })?;
        let pair = self.pairs.find_mut(handle).ok_or(Error::Invalid)?;
        (pair.pkey_index, pair.qkey) = (pkey_index, qkey);
        Ok(())
    }

    fn prepare_to_receive(&mut self, handle: Handle, change: &Change) -> Result<(), Error> {
        if change.has_pkey_index != 0 || change.has_qkey != 0 {
            // From INIT to INIT: so far nothing was received under the old keys.
            self.initialise(handle, change, QpState::Init)?;
        }
        let attributes = match self.pair(handle)?.service {
            Service::Smi | Service::Gsi | Service::Ud => {
                return self.modify(handle, &QpChange::ReadyToReceive);
            }
            Service::Rc => RcReadyToReceive {
                address: change.address.vector().ok_or(Error::Invalid)?,
                remote_qpn: Qpn::new(change.remote_qpn).ok_or(Error::Invalid)?,
                starting_psn: Psn::new(change.receive_psn).ok_or(Error::Invalid)?,
                path_mtu: IbMtu::from_code(change.path_mtu_code).ok_or(Error::Invalid)?,
                rnr_timer: RnrTimer::new(change.rnr_timer).ok_or(Error::Invalid)?,
            },
        };
        self.modify(handle, &QpChange::RcReadyToReceive(attributes))
    }

    fn prepare_to_send(
        &mut self,
        handle: Handle,
        change: &Change,
        before: QpState,
    ) -> Result<(), Error> {
        let service = self.pair(handle)?.service;
        if before == QpState::ReadyToReceive && service == Service::Rc {
            let attributes = RcReadyToSend {
                starting_psn: Psn::new(change.send_psn).ok_or(Error::Invalid)?,
                retry_count: retries(change.retry_count),
                rnr_retry_count: retries(change.rnr_retry_count),
            };
            return self.modify(handle, &QpChange::RcReadyToSend(attributes));
        }
        if before != QpState::ReadyToSend {
            self.modify(handle, &QpChange::ReadyToSend)?;
        }
        if change.has_qkey != 0 && service != Service::Rc {
            let qkey = Qkey(change.qkey);
            self.modify(handle, &QpChange::SetQkey(qkey))?;
            self.pairs.find_mut(handle).ok_or(Error::Invalid)?.qkey = qkey;
        }
        Ok(())
    }

    fn modify(&mut self, handle: Handle, change: &QpChange) -> Result<(), Error> {
        let id = self.pair(handle)?.id;
        self.fabric.modify_qp(id, change)?;
        // Work was flushed, or may leave now.
        self.schedule();
        Ok(())
    }

    /// What was posted will not complete, and what completed is not polled any more.
    fn forget_work(&mut self, handle: Handle) -> Result<(), Error> {
        let pair = self.pair(handle)?;
        let (context, queues) = (pair.context, [pair.send_queue, pair.receive_queue]);
        for queue in queues {
            self.purge(queue, context);
        }
        self.pairs.find_mut(handle).ok_or(Error::Invalid)?.forget_work();
        Ok(())
    }

    /// Attaches a queue pair to a group, or detaches it.
    pub fn attach(
        &mut self,
        handle: Handle,
        (gid, lid): ([u8; 16], u16),
        is_attached: bool,
    ) -> Result<(), Error> {
        let id = self.pair(handle)?.id;
        let mgid = Mgid::new(Gid(gid)).ok_or(Error::Invalid)?;
        let mlid = Mlid::new(lid).ok_or(Error::Invalid)?;
        if is_attached {
            self.fabric.attach_multicast(id, mgid, mlid)?;
        } else {
            self.fabric.detach_multicast(id, mgid, mlid)?;
        }
        Ok(())
    }

    pub(super) fn pair(&self, handle: Handle) -> Result<&Pair, Error> {
        self.pairs.find(handle).ok_or(Error::Invalid)
    }

    pub(super) fn pair_handle(&self, id: QpId) -> Option<Handle> {
        let place = self.pair_index.binary_search_by_key(&id, |&(id, _)| id);
        Some(self.pair_index[place.ok()?].1)
    }

    pub(super) fn pair_of(&self, id: QpId) -> Option<&Pair> {
        self.pairs.find(self.pair_handle(id)?)
    }
}

impl Pair {
    /// The keys after a change.
    const fn keys(&self, change: &Change) -> (PkeyIndex, Qkey) {
        let pkey_index = match change.has_pkey_index {
            0 => self.pkey_index,
            _ => PkeyIndex(change.pkey_index),
        };
        let qkey = match change.has_qkey {
            0 => self.qkey,
            _ => Qkey(change.qkey),
        };
        (pkey_index, qkey)
    }
}

/// IBA 9.7.5.2.8: 7 is endless for receivers that are not ready. Without a clock that would hold up
/// everything else, so it is the largest number that ends.
fn retries(count: u8) -> RetryCount {
    RetryCount::new(count.min(6)).unwrap_or(RetryCount::NONE)
}
