# shellcheck shell=sh
# Checksums that are left to an adapter, with ipoib_rs.ko on a softib.ko that makes them.
# Time: 300 s

driver=ipoib_rs
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh

# INTERFACE OPTION
has() {
    on 0 ifconfig "$1" | grep -q "options=.*[<,]$2[,>]"
}

lacks() {
    ! has "$1" "$2"
}

# FROM TO-ADDRESS TO PORT
transfer() {
    on "$3" nc -l "$2" "$4" >/tmp/arrived &
    sleep 1
    on "$1" timeout 60 nc -N "$2" "$4" </tmp/sent || return 1
    wait $!
    [ "$(md5 -q /tmp/sent)" = "$(md5 -q /tmp/arrived)" ]
}

# WORD: of the TCP packets that host 0 sends, tcpdump(1) says so. What is left to an adapter is not
# right yet.
sends() {
    on 0 tcpdump -n -vv -i ib0 -c 8 "src $(address 0) and tcp" >/tmp/seen 2>/dev/null &
    sends_tcpdump=$!
    sleep 2
    transfer 0 "$(address 1)" 1 "$2" || return 1
    wait "$sends_tcpdump"
    grep -q "cksum 0x[0-9a-f]* (.*correct" /tmp/seen || return 1
    case $1 in
    incorrect) grep -q "(incorrect" /tmp/seen ;;
    correct) ! grep -q "(incorrect" /tmp/seen ;;
    esac
}

bad_checksums() {
    for bad_host in 0 1; do
        on "$bad_host" netstat -s -p tcp | awk '/discarded for bad checksum/ { print $1 }'
        on "$bad_host" netstat -s -p udp | awk '/with bad checksum/ { print $1 }'
        on "$bad_host" netstat -s -p ip | awk '/bad header checksum/ { print $1 }'
    done | awk '{ sum += $1 } END { print sum + 0 }'
}

large_datagram() {
    on 1 nc -u -l 5009 >/tmp/arrived &
    sleep 1
    on 0 nc -u -w 1 "$(address 1)" 5009 </tmp/datagram
    sleep 1
    pkill nc
    [ "$(md5 -q /tmp/datagram)" = "$(md5 -q /tmp/arrived)" ]
}

if ! missing=$(need kenv nc md5 tcpdump netstat pkill); then
    skip "all checks" "$missing"
    exit
fi
kenv hw.softib.checksums=1 >/dev/null
[ ! -f /boot/kernel/if_vlan.ko ] || kldload /boot/kernel/if_vlan.ko
set_up "$driver" 2
set_mode datagram
head -c 1000000 /dev/random >/tmp/sent
head -c 8000 /dev/random >/tmp/datagram
expect "an interface has RXCSUM" has ib0 RXCSUM
expect "an interface has TXCSUM" has ib0 TXCSUM
expect "TCP, and its checksums are left to the adapter" sends incorrect 5001
expect "a UDP datagram in fragments" large_datagram
on 0 ifconfig ib0 -txcsum
expect "TXCSUM is taken off" lacks ib0 TXCSUM
expect "TCP, with checksums of the stack" sends correct 5002
on 0 ifconfig ib0 txcsum
on 1 ifconfig ib1 -rxcsum
expect "TCP, and what the adapter made is right to the stack" sends incorrect 5003
on 1 ifconfig ib1 rxcsum
set_mode connected
expect "TCP by connections, with checksums of the stack" sends correct 5004
expect "a UDP datagram by a connection" large_datagram
set_mode datagram
expect "TCP, left to the adapter again" sends incorrect 5005

# A child follows its parent, and makes what a connection needs by itself.
if [ -f /boot/kernel/if_vlan.ko ]; then
    for host in 0 1; do
        sysctl "hw.softib.$(port_of "$host").pkeys=0xffff 0x8002" >/dev/null
        on "$host" ifconfig "ib$host.2" create
        on "$host" ifconfig "ib$host.2" inet "10.0.1.1$host/24" up
    done
    expect "the children reach each other" within 10 on 0 ping -c 1 -W 500 10.0.1.11
    expect "a child has TXCSUM" has ib0.2 TXCSUM
    expect "TCP by the children" transfer 0 10.0.1.11 1 5006
    sysctl net.link.ipoib.ib0_8002.mode=connected net.link.ipoib.ib1_8002.mode=connected >/dev/null
    sleep 2
    expect "TCP by connections of the children" transfer 0 10.0.1.11 1 5007
    for host in 0 1; do
        on "$host" ifconfig "ib$host.2" destroy
    done
else
    skip "a child has TXCSUM" "needs if_vlan.ko in the folder of the kernel"
fi
bad=$(bad_checksums)
expect "nobody found a checksum wrong" test "$bad" = 0
tear_down
