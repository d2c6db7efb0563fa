#!/bin/sh
# Has tshark look at what the suite capture captured in the machine.
#
#   vm/host/capture.sh FOLDER    where vm.sh put capture.ethernet.pcap and the others
#
# Prints a line for each check, as the suite does.
set -u

folder=$1

ok() {
    printf 'ok       capture: %s\n' "$1"
}

# NAME WHY
not_ok() {
    printf 'FAILED   capture: %s: %s\n' "$1" "$2"
}

# FILE FILTER: how many packets there are.
count() {
    tshark -r "$folder/capture.$1.pcap" -Y "$2" 2>/dev/null | wc -l
}

# NAME FILE FILTER: there is such a packet.
some() {
    if [ "$(count "$2" "$3")" -gt 0 ]; then
        ok "$1"
    else
        not_ok "$1" "no packet with $3"
    fi
}

# NAME FILE FILTER: there is none.
none() {
    none_count=$(count "$2" "$3")
    if [ "$none_count" -eq 0 ]; then
        ok "$1"
    else
        not_ok "$1" "$none_count packets with $3"
    fi
}

if ! command -v tshark >/dev/null 2>&1; then
    printf 'skipped  capture: tshark reads the captures: needs tshark\n'
    exit
fi
BAD='_ws.malformed || ip.checksum.status == "Bad" || tcp.checksum.status == "Bad" ||
    icmp.checksum.status == "Bad" || icmpv6.checksum.status == "Bad"'
for name in ethernet ipoib; do
    some "tshark sees ARP, $name" "$name" "arp.opcode == 1"
    some "tshark sees replies of ARP, $name" "$name" "arp.opcode == 2"
    some "tshark sees ICMP, $name" "$name" "icmp.type == 0"
    some "tshark sees neighbor discovery, $name" "$name" "icmpv6.type == 136"
    some "tshark sees TCP, $name" "$name" "tcp.flags.fin == 1"
    none "tshark finds nothing malformed and no bad checksum, $name" "$name" "$BAD"
done
some "the link type is IPoIB" ipoib "ipoib"
some "ARP is for InfiniBand, with 20 bytes" ipoib "arp.hw.type == 32 && arp.hw.size == 20"
some "a broadcast goes to the broadcast group" ipoib \
    "arp.opcode == 1 && ipoib.daddr.qpn == 0xffffff"
# An option is its type, its length in units of 8 bytes, and the address: flags, queue pair and GID.
# RFC 4391 9.3 has two bytes of nothing before the address.
IN_FRONT='(?s)[\x01\x02]\x03\x00\x00[\x00\x80]...\xfe\x80'
BEHIND='(?s)[\x01\x02]\x03[\x00\x80]...\xfe\x80'
for name in ethernet ipoib; do
    some "a solicitation has the padding in front of the address, $name" "$name" \
        "icmpv6.type == 135 && frame matches \"$IN_FRONT\""
    some "an advertisement has it there, $name" "$name" \
        "icmpv6.type == 136 && frame matches \"$IN_FRONT\""
    none "nobody has it behind the address, $name" "$name" \
        "icmpv6.opt && frame matches \"$BEHIND\""
done
some "without normalize_nd, it is behind the address" raw \
    "icmpv6.type == 135 && frame matches \"$BEHIND\""
