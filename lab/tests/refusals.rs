//! Bad input: a one-line error, an exit code of its own, nothing left behind.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "shared by several test binaries")]
mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{Directory, Foreign, LAB, Prefix, Running, assert_refused, can_run_labs, lab};

#[test]
fn an_unknown_scenario_is_refused() {
    let output = lab(&["demo", "--only", "no-such-scenario"]);
    assert_refused(&output, 7, "no-such-scenario");
}

#[test]
fn a_bad_prefix_is_refused() {
    let output = lab(&["demo", "--prefix", "../x"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_host_count_out_of_range_is_refused() {
    for count in ["1", "27", "many"] {
        let output = lab(&["up", "--hosts", count]);
        assert_eq!(output.status.code(), Some(2), "{count}");
    }
}

#[test]
fn the_scenarios_are_listed_without_root() {
    let output = lab(&["demo", "--list"]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.lines().any(|line| line.starts_with("ping-datagram ")), "{text}");
}

#[test]
fn a_user_who_is_not_root_is_refused() {
    if !can_run_labs("a_user_who_is_not_root_is_refused") {
        return;
    }
    // The build folder may be closed to others.
    let directory = Directory::new("not-root");
    let copy = directory.0.join("ipoib-lab");
    fs::copy(LAB, &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(&copy).arg("demo").uid(65_534).gid(65_534).output().unwrap();
    assert_refused(&output, 3, "root");
}

#[test]
fn a_machine_without_tun_is_refused() {
    if !can_run_labs("a_machine_without_tun_is_refused") {
        return;
    }
    let prefix = Prefix::new("notun");
    let script = format!("mount -t tmpfs none /dev/net && exec {LAB} demo --prefix {}", prefix.0);
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    assert_refused(&output, 4, "/dev/net/tun");
    prefix.assert_nothing_left();
}

#[test]
fn a_machine_without_iproute_is_refused() {
    if !can_run_labs("a_machine_without_iproute_is_refused") {
        return;
    }
    let output = Command::new(LAB).arg("demo").env("PATH", "/nonexistent").output().unwrap();
    assert_refused(&output, 9, "\"ip\"");
}

#[test]
fn a_capture_directory_that_cannot_be_is_refused() {
    if !can_run_labs("a_capture_directory_that_cannot_be_is_refused") {
        return;
    }
    let prefix = Prefix::new("pcap");
    let output = lab(&["demo", "--prefix", &prefix.0, "--pcap", "/dev/null/captures"]);
    assert_refused(&output, 8, "/dev/null/captures");
    prefix.assert_nothing_left();
}

#[test]
fn a_name_of_somebody_else_is_refused_and_left_alone() {
    if !can_run_labs("a_name_of_somebody_else_is_refused_and_left_alone") {
        return;
    }
    let prefix = Prefix::new("taken");
    let foreign = Foreign::create(prefix.host('b'));
    let output = lab(&["demo", "--only", "ping-datagram", "--prefix", &prefix.0]);
    assert_eq!(output.status.code(), Some(5));
    assert!(prefix.exists('b'), "it deleted what is not its own");
    assert!(!prefix.exists('a'), "it left a namespace behind");
    drop(foreign);
    prefix.assert_nothing_left();
}

#[test]
fn a_second_lab_of_the_same_name_is_refused() {
    if !can_run_labs("a_second_lab_of_the_same_name_is_refused") {
        return;
    }
    let prefix = Prefix::new("second");
    let first = Running::up(&prefix);
    let output = lab(&["up", "--prefix", &prefix.0]);
    assert_refused(&output, 6, "running lab");
    assert!(prefix.exists('a') && prefix.exists('b'));
    assert_eq!(first.end("-TERM"), Some(0));
    prefix.assert_nothing_left();
}

#[test]
fn an_interrupted_lab_leaves_nothing() {
    if !can_run_labs("an_interrupted_lab_leaves_nothing") {
        return;
    }
    for signal in ["-INT", "-TERM", "-HUP"] {
        let prefix = Prefix::new("interrupted");
        let up = Running::up(&prefix);
        assert!(prefix.exists('a') && prefix.exists('b'));
        assert_eq!(up.end(signal), Some(0));
        prefix.assert_nothing_left();
    }
}

#[test]
fn an_interrupted_tour_leaves_nothing_and_says_by_which_signal() {
    if !can_run_labs("an_interrupted_tour_leaves_nothing_and_says_by_which_signal") {
        return;
    }
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let prefix = Prefix::new("cut");
        // This scenario has a ping running for two seconds after its first check.
        let arguments = ["demo", "--only", "sm-restart", "--prefix", &prefix.0];
        let tour = Running::spawn(&arguments, "  ok ");
        assert!(prefix.exists('a') && prefix.exists('b'));
        assert_eq!(tour.end(signal), Some(code));
        prefix.assert_nothing_left();
    }
}

#[test]
fn what_a_killed_lab_left_is_removed_at_the_next_start() {
    if !can_run_labs("what_a_killed_lab_left_is_removed_at_the_next_start") {
        return;
    }
    let prefix = Prefix::new("killed");
    assert_eq!(Running::up(&prefix).end("-KILL"), None);
    assert!(prefix.exists('a') && prefix.exists('b'));
    let next = Running::up(&prefix);
    assert_eq!(next.end("-TERM"), Some(0));
    prefix.assert_nothing_left();
}
