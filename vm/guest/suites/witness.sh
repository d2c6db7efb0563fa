# shellcheck shell=sh
# Lock orders: what an idle boot has seen, against what WITNESS has seen after ipoib_rs.ko and
# softib.ko did all that they can do. The reversals that the kernel prints meanwhile fail a suite
# anyhow; this one asks for its whole list, in which those of before the suite stand as well.
# Time: 1200 s

driver=ipoib_rs
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/endless.sh
. /vm/suites/lib/endless.sh

# Names of our locks and functions. Those of LinuxKPI have an "l" in front of "kpi".
OURS='ipoib|softib|"kpi |[^a-z]kpi_|rust_helper|_RN[a-zA-Z]'

# Prints the reversals that WITNESS knows, one a line: the two locks.
reversals() {
    sysctl -n debug.witness.badstacks | sed -n 's/^Lock order reversal between \(.*\)!$/\1/p' |
        sort -u
}

exercise() {
    start_traffic
    within 20 flows || return 1
    for mode in connected datagram connected; do
        for host in $hosts; do
            sysctl "net.link.ipoib.ib$host.mode=$mode" >/dev/null
        done
        sleep 2
    done
    port=$(port_of 2)
    fault "$port.link" 0
    sleep 1
    fault "$port.link" 1
    fault "$port.lid" 0
    fault sm.restart 1
    fault "$(port_of 0).loss" 100000
    sleep 2
    fault "$(port_of 0).loss" 0
    for host in $hosts; do
        on "$host" ifconfig "ib$host" down
        on "$host" ifconfig "ib$host" mtu 1500
        on "$host" ifconfig "ib$host" up
        on "$host" arp -d -a >/dev/null 2>&1
        on "$host" ndp -c >/dev/null 2>&1
    done
    sysctl net.link.ipoib hw.ipoib hw.softib >/dev/null
    on 0 netstat -i >/dev/null
    # Out of its jail and into it again.
    ifconfig ib1 -vnet h1
    ifconfig ib1 vnet h1
    on 1 ifconfig ib1 inet "$(address 1)/24" up
    within 30 flows
}

if ! sysctl -n debug.witness.badstacks >/tmp/idle_list 2>&1; then
    skip "all checks" "needs a kernel with WITNESS"
    exit
fi
reversals >/tmp/idle
note "an idle boot has $(wc -l </tmp/idle) reversals"
set_up "$driver" 3
expect "traffic, faults and changes" exercise
expect "traffic ends" stop_traffic
tear_down
sysctl -n debug.witness.badstacks >/tmp/busy_list
reversals >/tmp/busy
note "now there are $(wc -l </tmp/busy) reversals"
expect "WITNESS still watches" test "$(sysctl -n debug.witness.watch)" -gt 0
new=$(grep -v -x -F -f /tmp/idle /tmp/busy | tr '\n' ';')
if [ -z "$new" ]; then
    ok "no lock order reversal is new"
else
    not_ok "no lock order reversal is new" "$new"
fi
ours=$(grep -E "$OURS" /tmp/busy_list | head -n 3 | tr '\n' ';')
if [ -z "$ours" ]; then
    ok "no lock order reversal names this driver or adapter"
else
    not_ok "no lock order reversal names this driver or adapter" "$ours"
fi
