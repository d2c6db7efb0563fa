//! Packets per second from TUN to TUN: through core, fabric and core, and beside it through a loop
//! that does nothing but copy.
//!
//! Both are fed by the same generator and counted by the same counter, the receiving kernel's own.

mod traffic;

use std::time::Duration;

use crate::cli;
use crate::console::Console;
use crate::error::Error;
use crate::lease::Registry;
use crate::namespace;
use crate::signals::Signals;
use crate::tun::Tun;

use traffic::Traffic;

/// Sizes of the IP packets that are measured.
const PACKET_BYTES: [usize; 2] = [64, 2044];
const MTU: usize = 2044;
const PACKET_BYTES_MAX: usize = 65_536;

/// Runs the benchmark and prints a table.
///
/// # Errors
///
/// Whatever keeps the hosts from being made; [`Error::Interrupted`].
pub(crate) fn run(arguments: &cli::Bench, signals: &Signals) -> Result<(), Error> {
    let mut console = Console::new();
    let span = Duration::from_secs(arguments.seconds);
    console.line("packet bytes   copy packets/s")?;
    for packet_bytes in PACKET_BYTES {
        let copied = measure_copy(&arguments.naming.prefix, packet_bytes, span, signals)?;
        console.line(format_args!("{packet_bytes:>12}   {copied:>14.0}"))?;
    }
    Ok(())
}

/// The bare loop: two devices and a buffer.
fn measure_copy(
    prefix: &str,
    packet_bytes: usize,
    span: Duration,
    signals: &Signals,
) -> Result<f64, Error> {
    let names = [format!("{prefix}a"), format!("{prefix}b")];
    let hosts = namespace::create_all(&Registry::system(), &names)?;
    let devices = hosts
        .iter()
        .zip(["10.77.0.1", "10.77.0.2"])
        .map(|(host, address)| {
            let tun = host.within(|| Tun::create("ib0"))??;
            tun.set_mtu(MTU)?;
            tun.set_carrier(true)?;
            host.ip(&["link", "set", "ib0", "up"])?;
            host.ip(&["address", "add", &format!("{address}/24"), "dev", "ib0"])?;
            Ok(tun)
        })
        .collect::<Result<Vec<Tun>, Error>>()?;
    let (from, to) = (&devices[0], &devices[1]);
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    let mut traffic = Traffic::new(&hosts[0], &hosts[1], packet_bytes)?;
    let tally = traffic.measure(span, || {
        signals.poll()?;
        while let Some(length) = from
            .read(&mut buffer)
            .map_err(|source| Error::system("reading a TUN device", source))?
        {
            to.write(&buffer[..length]);
        }
        Ok(())
    })?;
    eprintln!("{tally:?}");
    Ok(tally.rate())
}
