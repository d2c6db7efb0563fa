//! SubnAdmGet and SubnAdmDelete(MCMemberRecord) (IBA 15.2.5.17).

use ipoib_rs::action::{GroupRecord, SaRefusal};
use ipoib_rs::ib::{Gid, Mgid, Pkey, RateCode};

use super::{Outcome, demand, refused};
use crate::mad::{
    Attribute, JoinState, MemberComponents, MemberRecordWire, SaMad, Status, rate_mbps,
};
use crate::sm::SubnetManager;
use crate::sm::ports::PortView;

impl<P: Copy + Ord> SubnetManager<P> {
    /// Finds the one group of the requester's partitions that the request describes.
    pub(super) fn answer_member(&self, mad: &SaMad, requester: &PortView<P>) -> Outcome {
        let components = MemberComponents::from_bits_truncate(mad.component_mask.get());
        let wanted: MemberRecordWire = mad.record();
        let mut found = self
            .groups
            .iter()
            .map(|group| group.record)
            .filter(|record| requester.pkeys.key_of(record.pkey).is_some())
            .filter(|record| matches(record, &wanted, components))
            .filter(|record| self.has_member(record.mgid, &wanted, components));
        let record = found.next().ok_or(refused(SaRefusal::NoRecords))?;
        if found.next().is_some() {
            return Err(refused(SaRefusal::TooManyRecords));
        }
        // IBA 15.2.5.17: who is a member of what is told to trusted requesters only, so that
        // PortGID, JoinState and ProxyJoin are zero.
        let answer = MemberRecordWire::group(&record);
        Ok(mad.answer(Attribute::MemberRecord, &answer))
    }

    /// Whether the group has the member that the request describes, if it describes one.
    fn has_member(
        &self,
        mgid: Mgid,
        wanted: &MemberRecordWire,
        components: MemberComponents,
    ) -> bool {
        let names_port = components.contains(MemberComponents::PORT_GID);
        let names_state = components.contains(MemberComponents::JOIN_STATE);
        let port = self.ports.find_gid(wanted.port_gid).map(|port| port.port);
        if !names_port && !names_state {
            return true;
        }
        self.groups.members(mgid).any(|(member, join_state)| {
            (!names_port || Some(member) == port)
                && (!names_state || join_state == wanted.join_state())
        })
    }

    /// Ends a membership, or a part of it (IBA o15-0.1.14).
    pub(super) fn answer_leave(&mut self, mad: &SaMad, requester: &PortView<P>) -> Outcome {
        let components = MemberComponents::from_bits_truncate(mad.component_mask.get());
        let request: MemberRecordWire = mad.record();
        if !components.contains(MemberComponents::JOIN) {
            return Err(refused(SaRefusal::InsufficientComponents));
        }
        let invalid = refused(SaRefusal::RequestInvalid);
        let mgid = Mgid::new(request.mgid).ok_or(refused(SaRefusal::RequestInvalidGid))?;
        let record = *self.groups.find(mgid).ok_or(invalid)?;
        // o15-0.1.14, 4: the requester is the member.
        if request.port_gid != requester.config.gid {
            return Err(invalid);
        }
        // o15-0.1.14, 2 and 3: at least one bit is set, and none that the membership does not have.
        let join_state = self.groups.membership(mgid, requester.port);
        let leaving = request.join_state();
        if leaving.is_empty() || !join_state.contains(leaving) {
            return Err(invalid);
        }
        let remaining = self.end_membership(mgid, requester.port, leaving).ok_or(invalid)?;
        let answer = member_record(&record, requester.config.gid, remaining);
        Ok(mad.answer(Attribute::MemberRecord, &answer))
    }
}

/// The record of a member.
pub(super) fn member_record(
    record: &GroupRecord,
    port_gid: Gid,
    join_state: JoinState,
) -> MemberRecordWire {
    MemberRecordWire { port_gid, ..MemberRecordWire::group(record).with_join_state(join_state) }
}

/// Whether a group is what a request describes: every component that it fills in must fit, except
/// those of a member. ProxyJoin is not looked at (IBA o15-0.2.4).
pub(super) fn matches(
    record: &GroupRecord,
    wanted: &MemberRecordWire,
    components: MemberComponents,
) -> bool {
    let parameters = &record.parameters;
    let known = MemberRecordWire::group(record);
    let same = |component, is_same: bool| !components.contains(component) || is_same;
    same(MemberComponents::MGID, wanted.mgid == record.mgid.gid())
        && same(MemberComponents::QKEY, wanted.qkey == known.qkey)
        && same(MemberComponents::MLID, wanted.mlid == known.mlid)
        && same(MemberComponents::TRAFFIC_CLASS, wanted.traffic_class == known.traffic_class)
        && same(MemberComponents::PKEY, is_partition(wanted, record.pkey))
        && same(MemberComponents::SERVICE_LEVEL, wanted.service_level() == parameters.sl)
        && same(MemberComponents::FLOW_LABEL, wanted.flow_label() == parameters.global.flow_label)
        && same(MemberComponents::HOP_LIMIT, wanted.hop_limit() == parameters.global.hop_limit)
        && same(MemberComponents::SCOPE, wanted.scope() == known.scope())
        && values_fit(record, wanted, components)
}

/// Whether MTU, rate and packet life time are what the selectors demand.
fn values_fit(
    record: &GroupRecord,
    wanted: &MemberRecordWire,
    components: MemberComponents,
) -> bool {
    let parameters = &record.parameters;
    let demands = Demands::of(wanted, components);
    demands.mtu.is_none_or(|(selector, value)| selector.accepts(parameters.mtu.code(), value))
        && demands.rate.is_none_or(|(selector, value)| {
            let value = RateCode::new(value).and_then(rate_mbps);
            selector.accepts(rate_mbps(parameters.rate), value)
        })
        && demands
            .life_time
            .is_none_or(|(selector, value)| selector.accepts(parameters.packet_life_time, value))
}

/// What a request demands of MTU, rate and packet life time.
pub(super) struct Demands {
    pub(super) mtu: Option<(crate::mad::Selector, u8)>,
    pub(super) rate: Option<(crate::mad::Selector, u8)>,
    pub(super) life_time: Option<(crate::mad::Selector, u8)>,
}

impl Demands {
    pub(super) fn of(wanted: &MemberRecordWire, components: MemberComponents) -> Self {
        let of = |selector, value, byte| {
            demand(components.contains(selector), components.contains(value), byte)
        };
        Self {
            mtu: of(MemberComponents::MTU_SELECTOR, MemberComponents::MTU, wanted.mtu),
            rate: of(MemberComponents::RATE_SELECTOR, MemberComponents::RATE, wanted.rate),
            life_time: of(
                MemberComponents::LIFE_TIME_SELECTOR,
                MemberComponents::LIFE_TIME,
                wanted.life_time,
            ),
        }
    }
}

/// Whether the P_Key of a request is of this partition, in either form of membership.
fn is_partition(wanted: &MemberRecordWire, pkey: Pkey) -> bool {
    Pkey::new(wanted.pkey.get()).is_some_and(|wanted| wanted.full() == pkey.full())
}

/// The status of a request whose PortGID is not the requester's. This SA takes no proxy joins.
pub(super) fn foreign_port(is_known: bool, is_member: bool) -> Status {
    refused(match (is_known, is_member) {
        (false, _) => SaRefusal::RequestInvalidGid,
        // IBA o15-0.2.1: a record without ProxyJoin is changed by its own port only.
        (true, true) => SaRefusal::RequestInvalid,
        (true, false) => SaRefusal::RequestDenied,
    })
}
