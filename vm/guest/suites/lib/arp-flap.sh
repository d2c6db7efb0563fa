# shellcheck shell=sh
# One IPv4 address that moves between two link-layer addresses all the time, of which one takes
# connections and the other does not, under packets up to the MTU of connections. First between two
# ports, then with the flag of one port.

MTU=40950
COUNT=10000
# Twice so many moves are seen for sure, while all the packets are sent.
MOVES_MIN=20

# shellcheck source=vm/guest/suites/lib/traffic.sh
. /vm/suites/lib/traffic.sh

# What moves.
moving=10.0.0.99

# HOST: takes the address and announces it.
take_address() {
    on "$1" ifconfig "ib$1" inet "$moving/32" -alias 2>/dev/null
    on "$1" ifconfig "ib$1" inet "$moving/32" alias
}

# HOST: whether host 0 believes the address to be there.
is_at() {
    is_at_own=$(on "$1" ifconfig "ib$1" | awk '$1 == "lladdr" { print $2 }')
    # Without the flags, which may be hidden.
    on 0 arp -n "$moving" | grep -q "${is_at_own#*.}"
}

move_to() {
    take_address "$1"
    within 5 is_at "$1"
}

# PID: until the process ends.
move_while() {
    moves=0
    while kill -0 "$1" 2>/dev/null; do
        for mover in 2 1; do
            move_to "$mover" || return 1
            moves=$((moves + 1))
        done
    done
    echo "moved $moves times"
    [ "$moves" -ge "$MOVES_MIN" ]
}

# COMMAND...: moves while it runs; it has to succeed as well.
moves_during() {
    "$@" >/tmp/during 2>&1 &
    during=$!
    move_while "$during" && wait "$during"
}

# VALUE: hides the flag of host 1's address, or shows it; then host 0 hears of it.
hide_flag() {
    fault "$(port_of 1).hide_rc" "$1"
    take_address 1
    sleep 0.2
}

# COUNT
flag_flips() {
    for _ in $(seq "$1"); do
        hide_flag 1
        is_told_mtu 0 "$moving" 2044 || return 1
        hide_flag 0
        on 0 ping -D -q -c 1 -W 2000 -s 40000 "$moving" >/dev/null || return 1
    done
}

set_up "${driver:?}" 3
set_mode connected
for host in $hosts; do
    expect "host $host has an MTU of $MTU" on "$host" ifconfig "ib$host" mtu "$MTU"
done
fault "$(port_of 2).hide_rc" 1
observe_stock
take_address 2
take_address 1
on 0 ping -q -c 1 -W 2000 "$moving" >/dev/null
expect "$COUNT that must not be fragmented, while it moves" \
    moves_during flood_ping 0 "$COUNT" -D -s 12000 "$moving"
expect "$COUNT that may be fragmented, while it moves" \
    moves_during flood_ping 0 "$COUNT" -s 12000 "$moving"
expect "it moves to the port that takes connections" move_to 1
expect_pings "40000 bytes, whole" 0 "$moving" -D -s 40000
expect "it moves to the port that takes none" move_to 2
expect "40000 bytes are answered with the MTU there" is_told_mtu 0 "$moving" 2044
# FreeBSD takes at most 16 fragments of one packet (net.inet.ip.maxfragsperpacket).
expect_pings "30000 bytes, in fragments" 0 "$moving" -s 30000
expect "TCP to the port that takes no connections" transfers 0 2 "$moving" 4000000
on 2 ifconfig ib2 inet "$moving/32" -alias
expect "it stays at the port that takes connections" move_to 1
expect "the flag goes and comes back, 20 times" flag_flips 20
# Last, because the stock driver gets no further.
expect "$COUNT UDP datagrams, while it moves" \
    moves_during flood_udp 0 "1 2" "$moving" "$COUNT"
on 2 ifconfig ib2 inet "$moving/32" -alias 2>/dev/null
expect "it moves back" move_to 1
expect_pings "40000 bytes, whole, after all" 0 "$moving" -D -s 40000
tear_down
