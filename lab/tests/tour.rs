//! The guided tour, and what tshark makes of its captures.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "shared by several test binaries")]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Directory, Prefix, can_run_labs, lab, skip};

#[test]
fn two_hosts_ping_each_other_and_tshark_reads_every_packet() {
    const NAME: &str = "two_hosts_ping_each_other_and_tshark_reads_every_packet";
    if !can_run_labs(NAME) {
        return;
    }
    let prefix = Prefix::new("tour");
    let directory = Directory::new("tour");
    let captures = directory.0.to_str().unwrap();
    run_scenario("ping-datagram", &prefix, &["--pcap", captures]);
    let files = captures_in(&directory.0);
    assert_eq!(files.len(), 3, "two hosts and the subnet manager: {files:?}");
    if Command::new("tshark").arg("--version").output().is_err() {
        return skip(NAME, "tshark is not installed");
    }
    for file in &files {
        assert_clean(file);
    }
    assert_eq!(captures_with(&files, "arp.opcode == 1").len(), 2, "the hosts' links");
    let hosts = captures_with(&files, "icmp.type == 8");
    assert_eq!(hosts.len(), 2, "echo requests on the hosts' links");
    for file in hosts {
        assert_arp_is_infiniband(file);
        assert_sa_is_dissected(file);
        assert_fragments_fit(file);
    }
}

#[test]
fn every_scenario_passes() {
    if !can_run_labs("every_scenario_passes") {
        return;
    }
    let list = lab(&["demo", "--list"]).stdout;
    let list = String::from_utf8(list).unwrap();
    let names = list.lines().filter_map(|line| line.split(' ').next());
    // The test above runs it.
    for name in names.filter(|name| *name != "ping-datagram") {
        run_scenario(name, &Prefix::new(name), &[]);
    }
}

/// Runs a scenario; all its checks pass, its tables are there, nothing is left.
fn run_scenario(name: &str, prefix: &Prefix, more: &[&str]) {
    let mut arguments = vec!["demo", "--only", name, "--prefix", &prefix.0];
    arguments.extend_from_slice(more);
    let output = lab(&arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}\n{text}{stderr}");
    let checks = text.lines().filter(|line| line.starts_with("  ok ")).count();
    assert!(checks > 0, "{text}");
    let last = text.lines().last().unwrap_or_default();
    // What needs a program that is not installed was skipped.
    assert!(last.starts_with(&format!("{checks} passed, 0 failed")), "{last}");
    for host in ['a', 'b'] {
        let mtu = match (name, host) {
            ("ping-connected" | "tcp-connected" | "connections" | "mode-switch", _)
            | ("mixed", 'b')
            | ("pmtu", 'a')
            | ("lagg-failover", _) => 65_520,
            ("arp-flap", _) => 40_950,
            _ => 2044,
        };
        let title = format!("{} ib0: state joined, carrier up, mtu {mtu},", prefix.host(host));
        assert!(text.contains(&title), "{title}\n{text}");
    }
    prefix.assert_nothing_left();
}

fn captures_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn captures_with<'a>(files: &'a [PathBuf], filter: &str) -> Vec<&'a PathBuf> {
    let has_packets = |file: &&PathBuf| !tshark(file, filter, &["frame.number"]).is_empty();
    files.iter().filter(has_packets).collect()
}

/// The fields of the packets that match, a line each.
fn tshark(file: &Path, filter: &str, fields: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-Y", filter, "-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn assert_clean(file: &Path) {
    let all = tshark(file, "frame", &["frame.number"]);
    assert!(!all.is_empty(), "{}", file.display());
    let is_infiniband = tshark(file, "infiniband", &["frame.number"]);
    assert_eq!(all.len(), is_infiniband.len(), "{}", file.display());
    for trouble in ["_ws.malformed", "_ws.expert.severity == error", "_ws.short"] {
        let packets = tshark(file, trouble, &["frame.number"]);
        assert!(packets.is_empty(), "{trouble} in {}: {packets:?}", file.display());
    }
}

fn assert_arp_is_infiniband(file: &Path) {
    let packets = tshark(file, "arp", &["arp.hw.type", "arp.hw.size", "arp.opcode"]);
    for packet in &packets {
        assert!(packet.starts_with("32\t20\t"), "{packet:?}");
    }
    for opcode in ["\t1", "\t2"] {
        let has_opcode = packets.iter().any(|packet| packet.ends_with(opcode));
        assert!(has_opcode, "no ARP packet with {opcode:?}: {packets:?}");
    }
}

fn assert_sa_is_dissected(file: &Path) {
    let class_sa = "infiniband.mad.mgmtclass == 0x03";
    let infos = tshark(file, class_sa, &["_ws.col.Info"]);
    for name in [
        "SubnAdmGet(ClassPortInfo)",
        "SubnAdmGetResp(ClassPortInfo)",
        "SubnAdmSet(MCMemberRecord)",
        "SubnAdmGetResp(MCMemberRecord)",
        "SubnAdmGet(PathRecord)",
        "SubnAdmGetResp(PathRecord)",
    ] {
        let is_there = infos.iter().any(|info| info.ends_with(name));
        assert!(is_there, "no {name} in {infos:?}");
    }
}

/// No IP packet is longer than the MTU, and some are as long.
fn assert_fragments_fit(file: &Path) {
    let lengths = tshark(file, "ip", &["ip.len"]);
    let lengths = lengths.iter().filter_map(|line| line.split(',').next()?.parse().ok());
    assert_eq!(lengths.max(), Some(2044u16));
}
