//! SubnAdmGet(PathRecord) (IBA 15.2.5.16).

use ipoib_rs::action::{GlobalRoute, PathRecord, SaRefusal};
use ipoib_rs::ib::{Gid, IbMtu, Lid, Pkey, RateCode};

use super::{Outcome, demand, refused};
use crate::mad::{Attribute, PathComponents, PathRecordWire, SaMad, Selector, Status, rate_mbps};
use crate::sm::SubnetManager;
use crate::sm::ports::{LinkState, PortView};

impl<P: Copy + Ord> SubnetManager<P> {
    /// There is one path between two ports. Components that name something else than this path has,
    /// or something that paths here do not have, find no record; RawTraffic, QoSClass, ServiceID
    /// and Preference are not looked at.
    pub(super) fn answer_path(&self, mad: &SaMad, requester: &PortView<P>) -> Outcome {
        let components = PathComponents::from_bits_truncate(mad.component_mask.get());
        let wanted: PathRecordWire = mad.record();
        check_values(&wanted, components)?;
        let source = self.path_end(
            components.contains(PathComponents::SOURCE).then_some(wanted.source),
            components.contains(PathComponents::SOURCE_LID).then_some(wanted.source_lid.get()),
        )?;
        let destination = self.path_end(
            components.contains(PathComponents::DESTINATION).then_some(wanted.destination),
            components
                .contains(PathComponents::DESTINATION_LID)
                .then_some(wanted.destination_lid.get()),
        )?;
        let no_records = refused(SaRefusal::NoRecords);
        // IBA 15.4.1: a requester learns only of ports that it shares a partition with.
        if requester.pkeys.shared_key(&source.pkeys).is_none()
            || requester.pkeys.shared_key(&destination.pkeys).is_none()
        {
            return Err(no_records);
        }
        let pkey = if components.contains(PathComponents::PKEY) {
            let pkey = Pkey::new(wanted.pkey.get()).ok_or(no_records)?;
            let keys = source.pkeys.key_of(pkey).zip(destination.pkeys.key_of(pkey));
            // IBA 10.9.3: two limited members cannot talk to each other.
            keys.is_some_and(|(ours, theirs)| ours.matches(theirs)).then_some(pkey)
        } else {
            source.pkeys.shared_key(&destination.pkeys)
        };
        let pkey = pkey.ok_or(no_records)?;
        let mut record = self.path(&source, &destination);
        if !fits(&record, self.config.packet_life_time, &wanted, components) {
            return Err(no_records);
        }
        if let Some(route) = &mut record.global {
            if components.contains(PathComponents::FLOW_LABEL) {
                route.flow_label = wanted.flow_label();
            }
            if components.contains(PathComponents::TRAFFIC_CLASS) {
                route.traffic_class = wanted.traffic_class;
            }
        }
        let answer = PathRecordWire::answer(
            &record,
            (source.config.gid, source.lid),
            pkey,
            self.config.packet_life_time,
        );
        Ok(mad.answer(Attribute::PathRecord, &answer))
    }

    /// One end of a path, by GID, by LID, or by both if they are of one port.
    fn path_end(&self, gid: Option<Gid>, lid: Option<u16>) -> Result<PortView<P>, Status> {
        let by_gid = gid.map(|gid| self.ports.find_gid(gid));
        let by_lid = lid.map(|lid| Lid::new(lid).and_then(|lid| self.ports.find_lid(lid)));
        let port = match (by_gid, by_lid) {
            (Some(by_gid), Some(by_lid)) => {
                let same = |port: &&PortView<P>| Some(port.lid) == by_lid.map(|other| other.lid);
                by_gid.filter(same)
            }
            (Some(port), None) | (None, Some(port)) => port,
            // All paths from or to somewhere: more than one record, which a Get does not ask for.
            (None, None) => return Err(refused(SaRefusal::InsufficientComponents)),
        };
        port.filter(|port| port.link == LinkState::Active)
            .copied()
            .ok_or(refused(SaRefusal::NoRecords))
    }

    fn path(&self, source: &PortView<P>, destination: &PortView<P>) -> PathRecord {
        let slower = |a: RateCode, b: RateCode| if rate_mbps(a) <= rate_mbps(b) { a } else { b };
        PathRecord {
            destination: destination.config.gid,
            lid: destination.lid,
            sl: self.config.sl,
            mtu: source.config.mtu.min(destination.config.mtu),
            rate: slower(source.config.rate, destination.config.rate),
            global: (self.config.hop_limit > 0).then(|| GlobalRoute {
                hop_limit: self.config.hop_limit,
                ..GlobalRoute::default()
            }),
        }
    }
}

/// IBA 15.2.7: a reserved value in a request is ERR_REQ_INVALID, not a record that is not there.
fn check_values(wanted: &PathRecordWire, components: PathComponents) -> Result<(), Status> {
    let (_, mtu) = Selector::unpack(wanted.mtu);
    let (_, rate) = Selector::unpack(wanted.rate);
    let mtu_is_bad = components.contains(PathComponents::MTU) && IbMtu::from_code(mtu).is_none();
    let rate_is_bad = components.contains(PathComponents::RATE)
        && RateCode::new(rate).and_then(rate_mbps).is_none();
    if mtu_is_bad || rate_is_bad {
        return Err(refused(SaRefusal::RequestInvalid));
    }
    Ok(())
}

/// Whether the path has what the request demands.
fn fits(
    record: &PathRecord,
    life_time: u8,
    wanted: &PathRecordWire,
    components: PathComponents,
) -> bool {
    let demands = |selector, value, byte| {
        demand(components.contains(selector), components.contains(value), byte)
    };
    let mtu = demands(PathComponents::MTU_SELECTOR, PathComponents::MTU, wanted.mtu);
    let rate = demands(PathComponents::RATE_SELECTOR, PathComponents::RATE, wanted.rate);
    let life =
        demands(PathComponents::LIFE_TIME_SELECTOR, PathComponents::LIFE_TIME, wanted.life_time);
    let hop_limit = record.global.map_or(0, |route| route.hop_limit);
    mtu.is_none_or(|(selector, value)| selector.accepts(record.mtu.code(), value))
        && rate.is_none_or(|(selector, value)| {
            let value = RateCode::new(value).and_then(rate_mbps);
            selector.accepts(rate_mbps(record.rate), value)
        })
        && life.is_none_or(|(selector, value)| selector.accepts(life_time, value))
        && (!components.contains(PathComponents::SERVICE_LEVEL)
            || wanted.service_level() == record.sl)
        && (!components.contains(PathComponents::HOP_LIMIT) || wanted.hop_limit() == hop_limit)
}
