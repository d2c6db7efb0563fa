//! One MTU for all: a packet may go by any port.

use crate::limits::{LAGG_MTU_IDLE, MTU_MIN};

use super::Lagg;
use super::action::{Action, OpId, PortError};
use super::counters::Counter;
use super::port::{Capabilities, PortId, PortMtu, PortState};

/// The MTU is below [`MTU_MIN`] or above what a port could be given.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MtuOutOfRange;

impl Lagg {
    /// The MTU: what is wanted, as far as every port has it already. It grows after the last port
    /// has, and shrinks at once.
    pub fn mtu(&self) -> usize {
        let present = self.members().map(|(_, port)| port.report.mtu).min();
        present.map_or(self.mtu_target(), |present| present.min(self.mtu_target()))
    }

    /// What all ports can do.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::common(self.members().map(|(_, port)| port.report.capabilities))
    }

    pub(super) fn on_mtu(&mut self, mtu: Option<usize>) -> Result<(), MtuOutOfRange> {
        if mtu.is_some_and(|mtu| mtu < MTU_MIN || mtu > self.mtu_ceiling()) {
            return Err(MtuOutOfRange);
        }
        self.mtu_wish = mtu;
        Ok(())
    }

    pub(super) fn on_mtu_answer(&mut self, op: OpId, answer: Result<(), PortError>) {
        let port = self.ports.get_mut(op.place);
        let Some((port, mtu)) = port.and_then(|port| match port.mtu {
            PortMtu::Setting { generation, mtu } if generation == op.generation => {
                Some((port, mtu))
            }
            PortMtu::Settled | PortMtu::Setting { .. } | PortMtu::Refused { .. } => None,
        }) else {
            self.counters.count(Counter::StaleAnswers);
            return;
        };
        match answer {
            Ok(()) => {
                port.report.mtu = mtu;
                port.mtu = PortMtu::Settled;
            }
            Err(PortError) => {
                port.mtu = PortMtu::Refused { mtu };
                self.counters.count(Counter::MtuRefused);
            }
        }
    }

    /// A port's MTU follows the lagg's; one that leaves gets its own back.
    pub(super) fn poll_port_mtu(&mut self, place: u32) -> Option<Action> {
        let target = self.mtu_target();
        let generation = self.generation.wrapping_add(1);
        let port = self.ports.get_mut(place)?;
        let wanted = match port.state {
            PortState::Member => target,
            PortState::Leaving | PortState::Releasing => port.own_mtu,
        };
        let is_refused = match port.mtu {
            PortMtu::Settled => false,
            PortMtu::Setting { .. } => true,
            PortMtu::Refused { mtu } => mtu == wanted,
        };
        if wanted == port.report.mtu || wanted > port.report.mtu_max || is_refused {
            return None;
        }
        port.mtu = PortMtu::Setting { generation, mtu: wanted };
        let id = PortId { place, generation: port.generation };
        self.generation = generation;
        Some(Action::SetPortMtu { op: OpId { place, generation }, port: id, mtu: wanted })
    }

    /// The MTU that ports are to have.
    fn mtu_target(&self) -> usize {
        let own = self.members().map(|(_, port)| port.own_mtu).min();
        let wanted = self.mtu_wish.or(own).unwrap_or(LAGG_MTU_IDLE);
        wanted.min(self.mtu_ceiling())
    }

    /// The largest MTU that every port could be given.
    fn mtu_ceiling(&self) -> usize {
        self.members().map(|(_, port)| port.report.mtu_max).min().unwrap_or(usize::MAX)
    }
}
