//! Communication management in the world: messages between sites, and what they mean for stations.

use fabric::cm::{self, Event};
use fabric::mad::cm::{self as message, RejectReason};
use fabric::qp::QpId;
use ipoib_rs::action::ConnectError;

use super::site::Tag;
use super::{Item, Visit, World};
use crate::trace::Kind;

impl World {
    /// Takes everything out of the communication managers. Whether there was anything.
    pub(super) fn drive_cms(&mut self) -> bool {
        let mut is_busy = false;
        for site in 0..self.sites.len() {
            is_busy |= self.drive_cm(site);
        }
        is_busy
    }

    fn drive_cm(&mut self, site: usize) -> bool {
        let mut is_busy = false;
        loop {
            while let Some(event) = self.sites[site].cm.poll_event() {
                is_busy = true;
                self.handle_cm_event(site, event);
            }
            // The rest waits for the completions of those under way.
            if !self.sites[site].gsi.has_room(&mut self.fabric) {
                return is_busy;
            }
            let Some(mad) = self.sites[site].cm.poll_mad() else {
                return is_busy;
            };
            is_busy = true;
            // One that is not sent is as good as lost, and what matters is repeated.
            let _ = self.sites[site].gsi.send(&mut self.fabric, &mad.to, &mad.bytes);
        }
    }

    /// The messages that arrived for a communication manager.
    pub(super) fn receive_cm_messages(&mut self, site: usize) {
        let agent = self.sites[site].cm_agent;
        while let Some(mad) = self.sites[site].gsi.poll_mad(agent) {
            let parsed = message::parse(&mad.bytes);
            let attribute = parsed.map(|one| one.message.attribute());
            let is_lost = self.faults.loses_cm_message();
            let words = [site as u64, attribute.map_or(0, |one| u64::from(one.code()))];
            self.trace.record(self.now, if is_lost { Kind::Drop } else { Kind::Contact }, &words);
            self.trace.note(
                self.now,
                format_args!("port of site {site}: {attribute:?}, lost: {is_lost}"),
            );
            if !is_lost {
                self.sites[site].cm.handle_mad(self.now, mad.source, &mad.bytes);
                self.drive_cm(site);
            }
        }
    }

    fn handle_cm_event(&mut self, site: usize, event: Event<Tag>) {
        self.trace.record(self.now, Kind::Contact, &[site as u64]);
        self.trace.record_debug(&event);
        match event {
            Event::Requested { request, from: _, demand } => {
                if let Err(reason) = self.admit(site, request, &demand) {
                    self.trace.note(self.now, format_args!("site {site} refuses: {reason:?}"));
                    // An error only says that the peer has given up.
                    let _ = self.sites[site].cm.refuse(request, reason);
                }
            }
            Event::Replied { tag, reply } => {
                self.with_station(tag.station, |station, ground| {
                    station.finish_open(ground, tag.connection, &reply);
                });
            }
            Event::Rejected { tag, rejection } => {
                self.end_connection(tag, ConnectError::Rejected(rejection.code));
            }
            Event::TimedOut { tag } => self.end_connection(tag, ConnectError::TimedOut),
            Event::Disconnected { tag, cause: _ } => {
                self.end_connection(tag, ConnectError::Unusable);
            }
            // The interface knows from its answer to the REQ; accepting a withdrawn one fails.
            Event::Established { .. } | Event::Withdrawn { .. } => {}
            // The tag was given back before: queue pairs are not used twice.
            Event::TimeWaitExited { .. } => {}
        }
    }

    /// Asks the interface that listens whether it wants a connection.
    fn admit(
        &mut self,
        site: usize,
        request: cm::RequestId,
        demand: &message::Request,
    ) -> Result<(), RejectReason> {
        if let Some(reason) = self.faults.refusal() {
            return Err(reason);
        }
        let listens = |&station: &usize| {
            let station = &self.stations[station];
            let service = station.links().and_then(|links| links.service);
            station.site == site && service == Some(demand.service)
        };
        let station = (0..self.stations.len()).find(listens);
        let station = station.ok_or(RejectReason::InvalidServiceId)?;
        self.with_station(station, |station, ground| station.admit(ground, request, demand))
    }

    fn end_connection(&mut self, tag: Tag, error: ConnectError) {
        let Tag { station, epoch, connection } = tag;
        if self.is_current(Visit { station, epoch }) {
            self.trace.note(self.now, format_args!("station {station}: {connection:?} {error:?}"));
            self.with_station(station, |station, ground| {
                station.end_connection(ground, connection, error);
            });
        }
    }

    /// Tells an interface that its adapter took the last receive for a queue pair, in its own time
    /// or not at all.
    pub(super) fn spread_last_wqe(&mut self, qp: QpId) {
        if self.faults.loses_last_wqe() {
            return;
        }
        if let Some(station) = self.owner_of(qp) {
            let visit = self.visit(station);
            let delay = self.faults.action_delay();
            self.agenda.add(self.now + delay, Item::LastWqe(visit, qp));
        }
    }

    /// Lets the queue pair of some connection fail. Its owner hears of it, or finds out.
    pub(super) fn fail_queue_pair(&mut self, station: usize) {
        let links = self.stations[station].links();
        let qps: Vec<QpId> =
            links.map(|links| links.iter().map(|(_, link)| link.qp).collect()).unwrap_or_default();
        let Some(&qp) = self.random.pick(&qps) else {
            return;
        };
        let result = self.fabric.modify_qp(qp, &fabric::qp::QpChange::Error);
        debug_assert!(result.is_ok(), "the way to ERR is open from INIT on");
        if self.random.chance(500) {
            let visit = self.visit(station);
            let delay = self.faults.action_delay();
            self.agenda.add(self.now + delay, Item::QueuePairFailed(visit, qp));
        }
    }

    fn owner_of(&self, qp: QpId) -> Option<usize> {
        let owns = |station: &usize| {
            let links = self.stations[*station].links();
            links.is_some_and(|links| links.find(qp).is_some())
        };
        (0..self.stations.len()).find(owns)
    }
}
