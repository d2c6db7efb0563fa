//! Hosts that stay up.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "shared by several test binaries")]
mod common;

use std::process::Command;

use common::{Prefix, Running, can_run_labs};

#[test]
fn every_host_reaches_every_other() {
    const HOSTS: [char; 4] = ['a', 'b', 'c', 'd'];
    if !can_run_labs("every_host_reaches_every_other") {
        return;
    }
    let prefix = Prefix::new("mesh");
    let up = Running::up_with(&prefix, &["--hosts", "4"]);
    for from in HOSTS {
        for (number, _) in (1..).zip(HOSTS) {
            for target in [format!("10.77.0.{number}"), format!("fd00:77::{number}")] {
                let output = Command::new("ip")
                    .args(["netns", "exec", &prefix.host(from)])
                    .args(["ping", "-n", "-c", "1", "-w", "10", &target])
                    .output()
                    .unwrap();
                assert!(output.status.success(), "{from} {target} {output:?}");
            }
        }
    }
    assert_eq!(up.end("-TERM"), Some(0));
    prefix.assert_nothing_left();
}

#[test]
fn the_tables_are_shown_on_request() {
    if !can_run_labs("the_tables_are_shown_on_request") {
        return;
    }
    let prefix = Prefix::new("tables");
    let mut up = Running::up(&prefix);
    for _ in 0..2 {
        up.signal("-USR1");
        for host in ['a', 'b'] {
            let line = up.wait_for(&prefix.host(host));
            assert!(line.contains(" ib0: state "), "{line}");
        }
        up.wait_for("fabric: 0 datagrams above the MTU");
    }
    assert_eq!(up.end("-INT"), Some(0));
    prefix.assert_nothing_left();
}
