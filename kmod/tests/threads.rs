//! Everything at once, in threads of the host: for the sanitizers, and what the fake kernel itself
//! finds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fake_kernel::ofed::{self, Hca, Stack, kpi_port_event};
use fake_kernel::{ifnet, kenv, log, mbuf, sysctl};

#[path = "common/entry.rs"]
mod entry;

const NEIGHBORS: u8 = 6;

/// Half of the neighbours have connections.
fn neighbor(host: u8) -> [u8; 20] {
    let mut address = [0; 20];
    (address[0], address[3]) = (if host.is_multiple_of(2) { 0x80 } else { 0 }, host);
    (address[4], address[5], address[19]) = (0xfe, 0x80, host);
    address
}

/// Does something again and again until it is told to stop.
fn until<R>(stopped: &AtomicBool, mut something: impl FnMut() -> R) {
    while !stopped.load(Ordering::Relaxed) {
        something();
        thread::yield_now();
    }
}

fn send() {
    for host in 1..=NEIGHBORS {
        for interface in ["ib0", "ib1"] {
            let mut packet = vec![0x5a; 500 + 300 * usize::from(host)];
            packet[0] = 0x45;
            ifnet::transmit(interface, &neighbor(host), 0x0800, &packet);
        }
    }
}

fn receive(stack: &Stack) {
    let mut datagram = vec![0; 144];
    (datagram[0], datagram[6], datagram[7]) = (0x60, 0x1b, 64);
    (datagram[40], datagram[41], datagram[44]) = (0x08, 0, 0x45);
    for pair in stack.queue_pairs() {
        stack.receive_if_there(pair.qpn, &datagram);
    }
}

fn administer(round: u32) {
    for interface in ["ib0", "ib1"] {
        let mode = if round.is_multiple_of(2) { "connected" } else { "datagram" };
        let _ = sysctl::write_text(&format!("net.link.ipoib.{interface}.mode"), mode);
        let _ = sysctl::read_text(&format!("net.link.ipoib.{interface}.neighbors"));
        let _ = ifnet::counter(interface, 6);
        if round.is_multiple_of(7) {
            ifnet::set_up(interface, !round.is_multiple_of(14));
        }
    }
}

fn torment(stack: &Stack, hca: &Hca, span: Duration) {
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| until(&stopped, send));
        scope.spawn(|| until(&stopped, || receive(stack)));
        scope.spawn(|| until(&stopped, ofed::step));
        scope.spawn(|| {
            let mut round = 0;
            until(&stopped, || {
                administer(round);
                round += 1;
                thread::sleep(Duration::from_millis(1));
            });
        });
        scope.spawn(|| {
            until(&stopped, || {
                hca.port_event(1, kpi_port_event::KPI_PORT_CLIENT_REREGISTER);
                hca.port_event(2, kpi_port_event::KPI_PORT_LID_CHANGED);
                thread::sleep(Duration::from_millis(3));
            });
        });
        thread::sleep(span);
        stopped.store(true, Ordering::Relaxed);
    });
}

#[test]
fn everything_happens_at_once_and_the_adapter_goes_in_the_middle() {
    let packets = mbuf::count();
    let begin = Instant::now();
    for round in 0..10 {
        let stack = Stack::start();
        stack.be_automatic(true);
        for name in ["send_queue_size", "recv_queue_size"] {
            kenv::set(&format!("hw.ipoib.{name}"), "16");
        }
        kenv::set("hw.ipoib.max_connections", "4");
        let module = entry::load().expect("it loads");
        let hca = stack.add_device();
        ifnet::set_up("ib0", true);
        ifnet::set_up("ib1", true);
        torment(&stack, &hca, Duration::from_millis(100));
        // Senders and adapters go on while it goes.
        let stopped = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| until(&stopped, send));
            scope.spawn(|| until(&stopped, ofed::step));
            if round % 2 == 0 {
                hca.remove();
                entry::unload(module);
            } else {
                entry::unload(module);
                hca.remove();
            }
            stopped.store(true, Ordering::Relaxed);
        });
        assert_eq!((ifnet::count(), mbuf::count()), (0, packets), "round {round}");
        let lines = log::take_lines();
        assert!(!lines.iter().any(|line| line.contains("leaked")), "{lines:?}");
    }
    println!("{:?}", begin.elapsed());
}
