# shellcheck shell=sh
# softib.ko loads, shows itself to ibcore, refuses what it cannot do, unloads, and leaves nothing.
# Time: 300 s

CYCLES=20

# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh

module=/boot/modules/softib.ko
class=sys.class.infiniband

load_and_unload() {
    kldload "$module" && kldunload softib
}

cycle() {
    for _ in $(seq "$CYCLES"); do
        load_and_unload || return 1
    done
}

# NAME VALUE: whether a sysctl reads so.
is() {
    is_value=$(sysctl -n "$1")
    echo "$1 is $is_value"
    [ "$is_value" = "$2" ]
}

if ! missing=$(need kldload kldunload sysctl vmstat kenv); then
    skip "all checks" "$missing"
    exit
fi
expect "it loads" kldload "$module"
for device in 0 1; do
    for port in 1 2; do
        name=$class.softib$device.ports.$port
        expect "softib$device port $port is active" is "$name.state" "4: ACTIVE"
        expect "softib$device port $port is of InfiniBand" is "$name.link_layer" InfiniBand
        expect "softib$device port $port has a counter of packets" \
            is "$name.counters.port_xmit_packets" 0
    done
done
expect "a P_Key is added" sysctl hw.softib.0.1.pkeys="0xffff 0x8001"
expect "the P_Key table is shown" is hw.softib.0.1.pkeys "0xffff 0x8001"
expect "ibcore sees the P_Key" within 5 is "$class.softib0.ports.1.pkeys.1" 0x8001
expect "a link is taken away" sysctl hw.softib.0.2.link=0
expect "ibcore sees that" is "$class.softib0.ports.2.state" "1: DOWN"
expect "a LID is changed" sysctl hw.softib.1.1.lid=77
expect "ibcore sees the LID" is "$class.softib1.ports.1.lid" 0x4d
refuse "a LID that is taken is refused" "Invalid argument" sysctl hw.softib.1.2.lid=77
refuse "a loss above a million is refused" "Invalid argument" sysctl hw.softib.0.1.loss=1000001
refuse "an event that is none is refused" "Invalid argument" sysctl hw.softib.0.1.event=earthquake
refuse "a P_Key that is none is refused" "Invalid argument" sysctl hw.softib.0.1.pkeys=0
expect "it unloads" kldunload softib
refuse "hw.softib is gone" "unknown oid" sysctl -N hw.softib

kenv hw.softib.devices=3 >/dev/null
kldload "$module"
expect "three adapters" is "$class.softib2.ports.2.state" "4: ACTIVE"
kldunload softib
kenv hw.softib.devices=17 >/dev/null
refuse "too many adapters are refused" "softib: cannot start" kldload "$module"
kenv -u hw.softib.devices >/dev/null

expect "$CYCLES times loaded and unloaded" cycle
left=$(left_over)
expect "no memory is left" test -z "$left"
