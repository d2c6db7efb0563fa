# shellcheck shell=sh
# A lagg of children, which is a partition over two ports; one of interfaces of the stock driver.
# Time: 240 s

# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/lagg.sh
. /vm/suites/lib/lagg.sh

load ipoib_rs
if ! kldload /boot/kernel/if_vlan.ko; then
    skip "a lagg of children" "needs if_vlan.ko"
else
    for host in 0 1 2; do
        fault "$(port_of $host).pkeys" "0xffff 0x8002"
    done
    for port in ib0 ib1 ib2; do
        ifconfig $port up
        ifconfig $port.2 create
    done
    make_jail b ib1.2
    jexec b ifconfig ib1.2 inet 1.1.1.2/24 up
    ifconfig lagg0 create laggtype infiniband
    expect "children become ports" ifconfig lagg0 laggproto failover \
        laggport ib0.2 laggport ib2.2 1.1.1.1/24 up
    expect "the first one carries" within 10 is_active lagg0 ib0.2
    expect "the peer is reached in the partition" within 10 ping -q -c 2 -i 0.2 -W 500 1.1.1.2
    fault 0.1.link 0
    expect "and by the other port" within 5 ping -q -c 2 -i 0.2 -W 500 1.1.1.2
    expect "which carries" is_active lagg0 ib2.2
    fault 0.1.link 1
    expect "the primary carries again" within 10 is_active lagg0 ib0.2
    expect "a child goes" ifconfig ib2.2 destroy
    expect "it is a port no more" test "$(ifconfig lagg0 | grep -c laggport)" = 1
    expect "the other child loses its parent" ifconfig ib0.2 -vlandev
    expect "and is a port no more either" test "$(ifconfig lagg0 | grep -c laggport)" = 0
    jexec b ifconfig ib1.2 -vnet b
    end_jail b
fi
expect "ipoib_rs.ko unloads with children" kldunload ipoib_rs

if [ ! -f /boot/kernel/ipoib.ko ]; then
    skip "a lagg of interfaces of the stock driver" "needs ipoib.ko"
else
    kenv hw.ipoib.devices=none >/dev/null
    kldload /boot/modules/ipoib_rs.ko
    kldload /boot/kernel/ipoib.ko
    ifconfig lagg0 create laggtype infiniband
    expect "interfaces of the stock driver become ports" ifconfig lagg0 laggproto failover \
        laggport ib0 laggport ib2 1.1.1.1/24 up
    expect "one of them carries" within 10 is_active lagg0 ib0
    peer b ib1 1.1.1.2
    expect "the peer is reached" within 10 ping -q -c 2 -i 0.2 -W 500 1.1.1.2
    fault 0.1.link 0
    expect "and by the other one" within 10 ping -q -c 2 -i 0.2 -W 500 1.1.1.2
    fault 0.1.link 1
    expect "the lagg goes" ifconfig lagg0 destroy
    expect "ipoib_rs.ko unloads" kldunload ipoib_rs
    observe
    jexec b ifconfig ib1 down
    for port in ib0 ib2 ib3; do
        ifconfig $port down
    done
    sleep 6
    jail -r b
    sleep 1
    kldunload ipoib
    judge
fi
