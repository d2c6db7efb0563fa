# shellcheck shell=sh
# An interface with the MTU of connections, a neighbour that takes none, and packets that are too
# long for it.

# Packets of each kind that are too long.
COUNT=10000
# What the fabric carries in one datagram.
DATAGRAM_MTU=2044

# shellcheck source=vm/guest/suites/lib/traffic.sh
. /vm/suites/lib/traffic.sh

# All mbufs in use, whatever is attached to them.
mbufs() {
    vmstat -z | awk -F '[:,]' '
        $1 == "mbuf" || $1 == "mbuf_packet" { used += $4 }
        END { print used }
    '
}

# The mbufs that were in use before, give or take what waits in queues.
mbufs_are_back() {
    mbufs_now=$(mbufs)
    echo "$mbufs_before mbufs were in use, and now $mbufs_now"
    [ "$mbufs_now" -lt $((mbufs_before + COUNT / 10)) ]
}

# ICMP errors that host 0 made.
unreachables() {
    on 0 netstat -s -p icmp | awk '
        /histogram/ { is_output = /Output/ }
        is_output && /destination unreachable/ { made = $NF }
        END { print made + 0 }
    '
}

set_up "${driver:?}" 2
set_mode connected
fault "$(port_of 1).hide_rc" 1
on 0 arp -d -a >/dev/null
on 0 ndp -c >/dev/null
observe_stock
to=$(address 1)
to6=$(address6 1)
expect_pings "small packets" 0 "$to"
expect_pings "small packets, IPv6" 0 "$to6"
expect "IPv4 that must not be fragmented is answered with the MTU" \
    is_told_mtu 0 "$to" "$DATAGRAM_MTU"
# The first packet is answered with the MTU, by which the stack then goes.
on 0 ping -6 -q -u -b 65536 -c 1 -W 500 -s 12000 "$to6" >/dev/null
expect_pings "IPv6 of 12000 bytes, once the stack was told the MTU" 0 "$to6" -u -b 65536 -s 12000
expect "TCP goes on" transfers 0 1 "$to" 4000000
expect "TCP goes on, IPv6" transfers 0 1 "$to6" 4000000

mbufs_before=$(mbufs)
unreachables_before=$(unreachables)
expect "$COUNT of IPv4 that must not be fragmented" flood_ping 0 "$COUNT" -D -s 12000 "$to"
expect "each of them is answered once" test "$(($(unreachables) - unreachables_before))" = "$COUNT"
# The stack is to forget the MTU, so that all packets are too long.
on 0 sysctl net.inet.tcp.hostcache.enable=0 >/dev/null
expect "$COUNT of IPv6" flood_ping 0 "$COUNT" -u -b 65536 -s 12000 "$to6"
on 0 sysctl net.inet.tcp.hostcache.enable=1 >/dev/null
on 0 route -q add -net 224.0.0.0/4 -interface ib0
expect "$COUNT of IPv4 to a group" flood_ping 0 "$COUNT" -D -L -s 12000 224.0.0.1
expect "$COUNT of IPv6 to a group" flood_ping 0 "$COUNT" -uu -b 65536 -s 12000 ff02::1%ib0
expect_pings "small packets, after these" 0 "$to"
# Last, because the stock driver gets no further.
expect_pings "IPv4 of 12000 bytes, in fragments" 0 "$to" -s 12000
expect "UDP of 8000 bytes arrives, in fragments" datagram_arrives 0 1 "$to" 8000
expect "$COUNT UDP datagrams of IPv4" flood_udp 0 1 "$to" "$COUNT"
expect_pings "small packets, after all" 0 "$to"
expect "no mbuf is lost" within 10 mbufs_are_back
tear_down
