//! SubnAdmSet(MCMemberRecord): joins, and creates what does not exist (IBA 15.2.5.17).

use ipoib_rs::action::{GlobalRoute, GroupParameters, GroupRecord, SaRefusal};
use ipoib_rs::ib::{IbMtu, Mgid, Pkey, Qkey, RateCode};

use super::member::{Demands, foreign_port, matches, member_record};
use super::{Outcome, refused};
use crate::mad::{
    Attribute, JoinState, MemberComponents, MemberRecordWire, SaMad, Status, rate_mbps,
};
use crate::sm::groups::is_valid_mgid;
use crate::sm::ports::{PortConfig, PortView};
use crate::sm::{Command, SubnetManager};

impl<P: Copy + Ord> SubnetManager<P> {
    /// Lets a port into a group.
    pub(super) fn answer_join(&mut self, mad: &SaMad, requester: &PortView<P>) -> Outcome {
        let components = MemberComponents::from_bits_truncate(mad.component_mask.get());
        let request: MemberRecordWire = mad.record();
        if !components.contains(MemberComponents::JOIN) {
            return Err(refused(SaRefusal::InsufficientComponents));
        }
        let mgid = Mgid::new(request.mgid).ok_or(refused(SaRefusal::RequestInvalidGid))?;
        if let Some(refusal) = self.faults.group_refusal(mgid) {
            return Err(refused(refusal));
        }
        let port = requester.port;
        if request.port_gid != requester.config.gid {
            let other = self.ports.find_gid(request.port_gid);
            let is_member =
                other.is_some_and(|other| !self.groups.membership(mgid, other.port).is_empty());
            return Err(foreign_port(other.is_some(), is_member));
        }
        let join_state = self.check_join_state(request.join_state())?;
        // Before a group is created, so that none is left over without a member.
        if !self.groups.has_room(mgid, port) {
            return Err(refused(SaRefusal::NoResources));
        }
        let record = match self.groups.find(mgid).copied() {
            Some(record) => {
                check_existing(&record, &request, components, requester)?;
                record
            }
            None => self.create_for(mgid, &request, components, requester)?,
        };
        let addition = self.groups.join(mgid, port, join_state);
        if addition.started_receiving {
            let mlid = record.mlid;
            self.command(Command::AddMember { mlid, port });
        }
        let answer = member_record(&record, requester.config.gid, addition.join_state);
        Ok(mad.answer(Attribute::MemberRecord, &answer))
    }

    /// IBA o15-0.2.4, 3: JoinState is not all zeros. The bit of send-only full members is reserved
    /// for an SA that does not know them.
    fn check_join_state(&self, join_state: JoinState) -> Result<JoinState, Status> {
        let is_unknown = join_state.contains(JoinState::SEND_ONLY_FULL)
            && !self.config.capabilities.send_only_full_member;
        if join_state.is_empty() || is_unknown {
            return Err(refused(SaRefusal::RequestInvalid));
        }
        Ok(join_state)
    }

    /// Creates the group that a join asks for.
    fn create_for(
        &mut self,
        mgid: Mgid,
        request: &MemberRecordWire,
        components: MemberComponents,
        requester: &PortView<P>,
    ) -> Result<GroupRecord, Status> {
        let invalid = refused(SaRefusal::RequestInvalid);
        // IBA o15-0.1.9: only a member that keeps it alive creates a group.
        if !request.join_state().keeps_alive() {
            return Err(invalid);
        }
        if !components.contains(MemberComponents::CREATE) {
            return Err(refused(SaRefusal::InsufficientComponents));
        }
        if !is_valid_mgid(mgid) {
            return Err(refused(SaRefusal::RequestInvalidGid));
        }
        let scope = mgid.gid().0[1] & 0x0F;
        if components.contains(MemberComponents::SCOPE) && request.scope() != scope {
            return Err(invalid);
        }
        let pkey = Pkey::new(request.pkey.get()).ok_or(invalid)?;
        if requester.pkeys.key_of(pkey).is_none() {
            return Err(invalid);
        }
        let parameters =
            choose_parameters(&self.config.group, request, components, &requester.config)?;
        let created = self.groups.create(mgid, pkey.full(), parameters, false);
        let record = created.ok_or(refused(SaRefusal::NoResources))?;
        self.counters.groups_created += 1;
        Ok(record)
    }
}

/// Whether a port may join a group that exists.
fn check_existing<P>(
    record: &GroupRecord,
    request: &MemberRecordWire,
    components: MemberComponents,
    requester: &PortView<P>,
) -> Result<(), Status> {
    let config = &requester.config;
    // o15-0.2.4, 5: every component that is filled in must be the group's. The group must be
    // realizable by the port, and the port in its partition.
    let fits = matches(record, request, components)
        && config.mtu >= record.parameters.mtu
        && rate_mbps(config.rate) >= rate_mbps(record.parameters.rate)
        && requester.pkeys.key_of(record.pkey).is_some();
    if fits { Ok(()) } else { Err(refused(SaRefusal::RequestInvalid)) }
}

/// The parameters of a group to be created: as demanded, else as configured, and such that the port
/// can carry them. Of several that would do, the best.
fn choose_parameters(
    default: &GroupParameters,
    request: &MemberRecordWire,
    components: MemberComponents,
    port: &PortConfig,
) -> Result<GroupParameters, Status> {
    let invalid = refused(SaRefusal::RequestInvalid);
    let demands = Demands::of(request, components);
    let mtu = match demands.mtu {
        None => Some(default.mtu.min(port.mtu)),
        Some((selector, value)) => (0..=port.mtu.code())
            .filter_map(IbMtu::from_code)
            .rfind(|mtu| selector.accepts(mtu.code(), value)),
    };
    let realizable = |rate: &RateCode| {
        let speed = rate_mbps(*rate);
        speed.is_some() && speed <= rate_mbps(port.rate)
    };
    let rate = match demands.rate {
        None if realizable(&default.rate) => Some(default.rate),
        None => Some(port.rate),
        Some((selector, value)) => {
            let wanted = RateCode::new(value).and_then(rate_mbps);
            (0..64)
                .filter_map(RateCode::new)
                .filter(realizable)
                .filter(|rate| selector.accepts(rate_mbps(*rate), wanted))
                .max_by_key(|rate| rate_mbps(*rate))
        }
    };
    let packet_life_time = match demands.life_time {
        None => Some(default.packet_life_time),
        Some((selector, value)) => (0..64)
            .filter(|life_time| selector.accepts(*life_time, value))
            .min_by_key(|life_time| life_time.abs_diff(default.packet_life_time)),
    };
    let hop_limit = if components.contains(MemberComponents::HOP_LIMIT) {
        request.hop_limit()
    } else {
        default.global.hop_limit
    };
    Ok(GroupParameters {
        qkey: Qkey(request.qkey.get()),
        mtu: mtu.ok_or(invalid)?,
        rate: rate.ok_or(invalid)?,
        sl: request.service_level(),
        packet_life_time: packet_life_time.ok_or(invalid)?,
        global: GlobalRoute {
            flow_label: request.flow_label(),
            hop_limit,
            traffic_class: request.traffic_class,
        },
    })
}
