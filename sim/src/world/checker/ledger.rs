//! Every buffer and every object has one owner, and in the end none.

use crate::world::World;
use crate::world::links::Links;
use crate::world::station::Attached;

/// The packets that are out are those that somebody holds; the fabric saw no violation.
pub(super) fn check(world: &World) -> Result<(), String> {
    let violations = world.fabric.violations();
    if violations.oversize_ud > 0 {
        return Err("a datagram was larger than the MTU".to_owned());
    }
    if violations.missing_handles > 0 {
        return Err("an address handle was destroyed while a send used it".to_owned());
    }
    for site in 0..world.sites.len() {
        check_queue_pairs(world, site)?;
    }
    let stations = world.stations.iter().map(|station| {
        let attached = station
            .attached
            .as_ref()
            .map_or(0, |attached| attached.waiting.len() + attached.queued);
        attached + station.host.packets_held()
    });
    let held =
        stations.sum::<usize>() + world.fabric.packets_held() + world.in_flight + world.hoard.len();
    let outstanding = world.fabric.pool().outstanding();
    if outstanding != held {
        return Err(format!("{outstanding} packets are out, and {held} are held"));
    }
    Ok(())
}

/// The queue pairs of an adapter are QP1, and those of the interfaces and their connections.
fn check_queue_pairs(world: &World, site: usize) -> Result<(), String> {
    let stations = world.stations.iter().filter(|station| station.site == site);
    let attached = stations.filter_map(|station| station.attached.as_ref());
    let known: usize = attached.map(|attached| 1 + connections(attached)).sum();
    let there = world.fabric.qp_count(world.sites[site].hca);
    if there == 1 + known {
        return Ok(());
    }
    Err(format!("site {site} has {there} queue pairs, QP1 included, and {known} are in use"))
}

fn connections(attached: &Attached) -> usize {
    attached.adapter.links.as_ref().map_or(0, Links::len)
}

/// A detached interface has given everything back.
pub(super) fn check_removed(station: usize, attached: &Attached) -> Result<(), String> {
    let handles = attached.adapter.handles.len();
    let groups = attached.adapter.groups.len();
    let posted = attached.adapter.posted.len();
    let links = connections(attached);
    let operations = &attached.operations;
    let queued = attached.interface.packets_queued();
    if handles + groups + posted + links + operations.len() + queued as usize > 0 {
        return Err(format!(
            "station {station} is detached with {handles} address handles, {groups} attached \
             groups, {posted} posted sends, {links} connections, operations {operations:?} and \
             {queued} queued packets"
        ));
    }
    Ok(())
}

/// After every interface was removed nothing is left on the adapters and at the subnet manager.
pub(super) fn check_closed(world: &mut World) -> Result<(), String> {
    for site in &mut world.sites {
        site.gsi.poll(&mut world.fabric);
    }
    world.subnet.poll(&mut world.fabric);
    for station in &mut world.stations {
        if station.attached.is_some() {
            return Err(format!("station {} is still attached", station.index));
        }
        station.host.clear(world.fabric.pool_mut());
    }
    for site in &world.sites {
        let port = site.port;
        let Some(status) = world.fabric.query_port(port) else {
            continue;
        };
        let names = site.cm.connections_len();
        let shared_queues = world.fabric.srq_count(site.hca);
        if names + shared_queues + site.requests.len() > 0 {
            return Err(format!(
                "port {}: {names} connections have names, {shared_queues} shared queues and {} \
                 requests are left",
                port.index(),
                site.requests.len()
            ));
        }
        let handles = world.fabric.ah_count(status.hca);
        let attachments = world.fabric.attachment_count(port);
        if handles + attachments > 0 {
            return Err(format!(
                "port {}: {handles} address handles and {attachments} attached groups are left",
                port.index()
            ));
        }
        let manager = world.subnet.manager();
        let membership = manager
            .groups()
            .find(|group| manager.members(group.record.mgid).any(|(member, _)| member == port));
        if let Some(group) = membership {
            let mgid = group.record.mgid;
            return Err(format!("port {} is still a member of {mgid}", port.index()));
        }
    }
    let outstanding = world.fabric.pool().outstanding();
    let in_flight = world.in_flight;
    if outstanding != in_flight {
        return Err(format!("{outstanding} packets are out, and {in_flight} are in flight"));
    }
    Ok(())
}
