//! Packets per second from TUN to TUN: through core, fabric and core, and beside it through a loop
//! that does nothing but copy.
//!
//! Both are fed by the same generator and counted by the same counter, the receiving kernel's own,
//! and they take turns, so that whatever else the machine does slows both.

mod traffic;

use std::time::Duration;

use crate::cli;
use crate::console::Console;
use crate::error::Error;
use crate::lease::Registry;
use crate::namespace::{self, Namespace};
use crate::signals::Signals;
use crate::table::Table;
use crate::tun::Tun;
use crate::world::{HostId, World, WorldConfig};

use traffic::{Tally, Traffic};

/// Sizes of the IP packets that are measured.
const PACKET_BYTES: [usize; 2] = [64, 2044];
const MTU: usize = 2044;
const PACKET_BYTES_MAX: usize = 65_536;
/// A turn of one of the two loops.
const TURN: Duration = Duration::from_millis(200);
const LINK_UP_MAX: Duration = Duration::from_secs(20);

/// Runs the benchmark and prints a table.
///
/// # Errors
///
/// Whatever keeps the hosts from being made; [`Error::Interrupted`].
pub(crate) fn run(arguments: &cli::Bench, signals: &Signals) -> Result<(), Error> {
    let mut console = Console::new();
    console.line("one way, TUN to TUN, one core; packets per second")?;
    let prefix = &arguments.naming.prefix;
    let copy = CopyLoop::new(&format!("{prefix}copy-"))?;
    let config = WorldConfig { prefix, host_count: 2, port_count: 1, captures: None };
    let mut world = World::start(config, signals)?;
    let span = Duration::from_secs(arguments.seconds);
    let result = measure_all(&copy, &mut world, span, signals);
    world.stop()?;
    console.line(result?)
}

fn measure_all(
    copy: &CopyLoop,
    world: &mut World<'_>,
    span: Duration,
    signals: &Signals,
) -> Result<Table<5>, Error> {
    if !world.run_until(LINK_UP_MAX, World::are_links_up)? {
        return Err(Error::Interface("the interfaces do not come up".to_owned()));
    }
    let titles = ["packet bytes", "copy", "core", "ratio", "lost by core"];
    let mut table = Table::new(2, titles);
    for packet_bytes in PACKET_BYTES {
        let (copied, carried) = measure(copy, world, packet_bytes, span, signals)?;
        let lost = carried.sent.saturating_sub(carried.received);
        table.push([
            packet_bytes.to_string(),
            format!("{:.0}", copied.rate()),
            format!("{:.0}", carried.rate()),
            format!("{:.2}", carried.rate() / copied.rate()),
            format!("{lost} of {}", carried.sent),
        ]);
    }
    Ok(table)
}

/// Lets both loops carry the same packets, in turns.
fn measure(
    copy: &CopyLoop,
    world: &mut World<'_>,
    packet_bytes: usize,
    span: Duration,
    signals: &Signals,
) -> Result<(Tally, Tally), Error> {
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    let mut copy_traffic = Traffic::new(&copy.from.host, &copy.to.host, packet_bytes)?;
    let [from, to] = HostId::BOTH.map(|id| world.namespace(id));
    let mut core_traffic = Traffic::new(from?, to?, packet_bytes)?;
    // The first packets resolve the address.
    core_traffic.measure(Duration::from_millis(1), || world.drain())?;
    world.run_for(Duration::from_millis(50))?;
    let (mut copied, mut carried) = (Tally::default(), Tally::default());
    while copied.spent < span {
        signals.poll()?;
        copied += copy_traffic.measure(TURN, || copy.drain(&mut buffer))?;
        carried += core_traffic.measure(TURN, || world.drain())?;
    }
    Ok((copied, carried))
}

/// The bare loop: two devices and a buffer.
struct CopyLoop {
    from: CopyHost,
    to: CopyHost,
}

struct CopyHost {
    tun: Tun,
    host: Namespace,
}

impl CopyLoop {
    fn new(prefix: &str) -> Result<Self, Error> {
        let names = [format!("{prefix}a"), format!("{prefix}b")];
        let mut hosts = namespace::create_all(&Registry::system(), &names)?.into_iter();
        let mut next = |id: HostId| {
            let host = hosts.next();
            let host = host.ok_or_else(|| Error::Interface("no namespace".to_owned()))?;
            CopyHost::new(host, id)
        };
        Ok(Self { from: next(HostId::A)?, to: next(HostId::B)? })
    }

    fn drain(&self, buffer: &mut [u8]) -> Result<(), Error> {
        while let Some(length) = self
            .from
            .tun
            .read(buffer)
            .map_err(|source| Error::system("reading a TUN device", source))?
        {
            self.to.tun.write(&buffer[..length]);
        }
        Ok(())
    }
}

impl CopyHost {
    fn new(host: Namespace, id: HostId) -> Result<Self, Error> {
        const PREFIX_BITS: u8 = 24;
        let tun = host.within(|| Tun::create("ib0"))??;
        tun.set_mtu(MTU)?;
        tun.set_carrier(true)?;
        host.ip(&["link", "set", "ib0", "txqueuelen", "1000", "up"])?;
        host.add_address("ib0", id.ipv4().into(), PREFIX_BITS)?;
        Ok(Self { tun, host })
    }
}
