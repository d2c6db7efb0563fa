# shellcheck shell=sh
# What FreeBSD's own tests of lagg(4) do to it, with InfiniBand: status, creation, destruction, up
# and down, links, all against each other, with tcpdump(1) opening and closing the lagg all the
# time.
# --set seconds=N for how long each of them goes on, instead of 60.
# Time: 900 s

# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/lagg.sh
. /vm/suites/lib/lagg.sh

seconds=$(option seconds 60)

create() {
    ifconfig lagg0 create laggtype infiniband
}

destroy() {
    ifconfig lagg0 destroy
}

create_and_destroy() {
    create
    destroy
}

status() {
    ifconfig -am
    ifconfig -v lagg0
    $LAGGCTL get lagg0 4096
    netstat -I lagg0 -b -n
    sysctl net.link.ipoib.lagg0
}

up() {
    ifconfig lagg0 up laggport ib0 laggport ib1 laggport ib2 laggport ib3
}

# A lagg with ports, and its end some milliseconds later.
make_up() {
    create
    up &
    up_pid=$!
    $LAGGCTL flap hw.softib.0.1.link 2 $((up_pid % 7))
    destroy
    wait $up_pid
}

break_links() {
    $LAGGCTL flap hw.softib.0.1.link 2 5
    $LAGGCTL flap hw.softib.1.1.link 2 5
}

with_ports() {
    create
    ifconfig lagg0 up laggport ib0 laggport ib2
    sleep 0.2
    destroy
}

watch() {
    timeout 1 tcpdump -n -c 1 -i lagg0
}

traffic() {
    ping -q -c 20 -i 0.01 -W 100 1.1.1.2
}

# NAME COMMAND...: all commands at once, for some seconds, tcpdump among them.
stress() {
    stress_name=$1
    shift
    try "$stress_name"
    stress_pids=
    for stress_command in watch "$@"; do
        again "$seconds" "$stress_command" &
        stress_pids="$stress_pids $!"
    done
    # The list is to be split.
    # shellcheck disable=SC2086
    wait $stress_pids
    ifconfig lagg0 destroy >/dev/null 2>&1
    ok "$stress_name, $seconds s"
}

load ipoib_rs
if ! sysctl -q debug.witness.watch >/dev/null; then
    skip "WITNESS says nothing of laggs" "needs a kernel with WITNESS"
fi
stress "status against creation and destruction" status create destroy
stress "creation against destruction" create destroy
stress "created, up with four ports, and destroyed" make_up status
stress "links against destruction" with_ports break_links
peer b ib1 1.1.1.2
create
ifconfig lagg0 laggport ib0 laggport ib2 1.1.1.1/24 up
stress "links against traffic" break_links traffic status
end_jail b ib1
$LAGGCTL set hw.softib.0.1.link 1 >/dev/null
$LAGGCTL set hw.softib.1.1.link 1 >/dev/null

# Laggs of other vnets when the module goes: one that was made there, and one that is lent.
make_jail made ib1
make_jail lent
jexec made ifconfig lagg7 create laggtype infiniband
jexec made ifconfig lagg7 laggport ib1 1.1.1.7/24 up
ifconfig lagg8 create laggtype infiniband
ifconfig lagg8 laggport ib2 up
ifconfig lagg8 vnet lent
jexec lent ifconfig lagg8 inet 1.1.1.8/24 up
expect "a lagg of a vnet and one that is lent to another reach each other" \
    within 10 jexec made ping -q -c 2 -i 0.2 -W 500 1.1.1.8
expect "ipoib_rs.ko unloads with laggs in other vnets" kldunload ipoib_rs
end_jail made
end_jail lent
expect "it loads again" kldload /boot/modules/ipoib_rs.ko
make_jail made ib1
jexec made ifconfig lagg7 create laggtype infiniband
jexec made ifconfig lagg7 laggport ib1 1.1.1.7/24 up
end_jail made ib1
expect "a vnet goes with its lagg, and the port is back" ifconfig ib1
ifconfig lagg8 create laggtype infiniband
ifconfig lagg8 laggport ib0 laggport ib2 up
expect "the adapters go before the lagg" kldunload softib
expect "the lagg is there, without ports" test "$(ifconfig lagg8 | grep -c laggport)" = 0
expect "ipoib_rs.ko unloads" kldunload ipoib_rs
expect "no memory of interfaces is left" \
    test -z "$(vmstat -m | awk '$1 ~ /^(ib_ifnet|ipoib_rs)$/ && $2 > 0 { print $1, $2 }')"
if sysctl -q debug.witness.watch >/dev/null; then
    expect "WITNESS says nothing of laggs" test "$(lagg_reversals)" = 0
fi
