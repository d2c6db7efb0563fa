# shellcheck shell=sh
# Children of ipoib_rs.ko: interfaces of vlan(4), each in a partition of its own, on softib.ko.
# Time: 300 s

driver=ipoib_rs
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh

# The tag 2 is the P_Key 0x8002.
TAG=2

# HOST PKEYS: the table of its port.
set_pkeys() {
    sysctl "hw.softib.$(port_of "$1").pkeys=$2" >/dev/null
}

child_address() {
    echo "10.0.1.1$1"
}

# CHILD STATE
is_in_state() {
    [ "$(sysctl -n "net.link.ipoib.$1.state")" = "$2" ]
}

says() {
    dmesg | grep -q "$1"
}

has_child_carrier() {
    dmesg | grep "^ib$1.$TAG: link state changed to" | tail -n 1 | grep -q UP
}

no_child_carrier() {
    ! has_child_carrier "$1"
}

make_child() {
    on "$1" ifconfig "ib$1.$TAG" create || return 1
    on "$1" ifconfig "ib$1.$TAG" inet "$(child_address "$1")/24" up
    on "$1" ifconfig "ib$1.$TAG" inet6 -ifdisabled no_dad
    on "$1" ifconfig "ib$1.$TAG" inet6 "fd00:1::1$1/64"
}

# FROM TO
child_reaches() {
    on "$1" ping -c 2 -i 0.2 -W 500 -q "$(child_address "$2")" >/tmp/reach &&
        ! grep -q ' [1-9][0-9.]*% packet loss' /tmp/reach
}

# FROM TO
child_misses() {
    ! on "$1" ping -c 3 -i 0.2 -W 500 -q "$(child_address "$2")"
}

# FROM TO
transfers() {
    head -c 2000000 /dev/random >/tmp/sent
    on "$2" nc -l "$(child_address "$2")" 5001 >/tmp/arrived &
    sleep 1
    on "$1" timeout 60 nc -N "$(child_address "$2")" 5001 </tmp/sent || return 1
    wait
    [ "$(md5 -q /tmp/sent)" = "$(md5 -q /tmp/arrived)" ]
}

# HOST NAME: one counter of netstat(1) for an interface, of packets in.
packets_in() {
    on "$1" netstat -n -I "$2" -b | awk 'NR == 2 { print $(NF - 7) }'
}

if ! missing=$(need netstat nc md5) || [ ! -f /boot/kernel/if_vlan.ko ]; then
    skip "all checks" "${missing:-needs if_vlan.ko in the folder of the kernel}"
    exit
fi
kldload /boot/kernel/if_vlan.ko
set_up "$driver" 2
set_pkeys 0 "0xffff 0x8002"
set_pkeys 1 "0xffff"

expect "a child is made" make_child 0
expect "a child of a port without its P_Key is made" make_child 1
expect "with the P_Key, there is a carrier" within 10 has_child_carrier 0
expect "without the P_Key, it waits for it" is_in_state ib1_8002 awaiting-pkey
expect "without the P_Key, there is no carrier" no_child_carrier 1
set_pkeys 1 "0xffff 0x8002"
expect "when the P_Key comes, there is a carrier" within 10 has_child_carrier 1
expect "a child has an address of its own" \
    test "$(on 0 ifconfig ib0.2 | grep lladdr)" != "$(on 0 ifconfig ib0 | grep lladdr)"
expect_pings "IPv4 by the children" 0 "$(child_address 1)"
expect_pings "IPv6 by the children" 0 fd00:1::11
expect_pings "the largest datagram by the children" 0 "$(child_address 1)" -s 2016
before=$(packets_in 1 ib1)
expect "100 pings by the children" on 0 ping -c 100 -i 0.01 -q "$(child_address 1)"
expect "none of them by the parents" test "$(($(packets_in 1 ib1) - before))" -lt 50
expect "TCP by the children" transfers 0 1
sysctl net.link.ipoib.ib0_8002.mode=connected net.link.ipoib.ib1_8002.mode=connected >/dev/null
sleep 2
expect "the children connect" within 10 on 0 ping -c 1 -W 2000 -s 30000 "$(child_address 1)"
expect_pings "30000 bytes by the children in connected mode" 0 "$(child_address 1)" -s 30000
expect "TCP by the children in connected mode" transfers 1 0
sysctl net.link.ipoib.ib0_8002.mode=datagram net.link.ipoib.ib1_8002.mode=datagram >/dev/null
sleep 2
expect "the parents go on" on 0 ping -c 3 -i 0.2 -q "$(address 1)"

# Another mode gives the parent another address, which vlan(4) gives to the child too.
sysctl net.link.ipoib.ib0.mode=connected >/dev/null
sleep 2
expect "a child keeps its address when the parent's changes" within 10 child_reaches 0 1
sysctl net.link.ipoib.ib0.mode=datagram >/dev/null
# The link of a port is not that of its child.
on 0 ifconfig ib0 down
sleep 1
expect "a child goes on while its parent is down" within 10 child_reaches 0 1
on 0 ifconfig ib0 up
expect "the parent is up again" within 10 has_carrier 0

set_pkeys 1 "0xffff"
expect "when the P_Key goes, so does the carrier" within 10 no_child_carrier 1
expect "and nobody is reached" child_misses 0 1
set_pkeys 1 "0xffff 0x8002"
expect "when the P_Key comes back, so does the carrier" within 10 has_child_carrier 1
expect "and the other one is reached" within 20 child_reaches 0 1
set_pkeys 1 "0xffff 0x8005 0x8002"
expect "a P_Key at another place of the table" within 20 child_reaches 0 1

# A limited member and a full one reach each other, two limited ones do not.
set_pkeys 1 "0xffff 0x0002"
expect "a limited member reaches a full one" within 20 child_reaches 1 0
set_pkeys 0 "0xffff 0x0002"
expect "two limited members have carriers" within 10 has_child_carrier 0
sleep 2
on 0 arp -d -a >/dev/null 2>&1
on 1 arp -d -a >/dev/null 2>&1
expect "two limited members do not reach each other" child_misses 0 1
set_pkeys 0 "0xffff 0x8002"
set_pkeys 1 "0xffff 0x8002"
expect "full members reach each other again" within 20 child_reaches 0 1

refuse "a second child with the same P_Key" "already exists" \
    on 0 ifconfig vlan7 create vlan 2 vlandev ib0
refuse "a tag above 4094" "invalid vlan tag" on 0 ifconfig ib0.4095 create
# The first free place of the table is that of the P_Key of the port.
set_pkeys 0 "0x8003 0x8002"
sleep 1
on 0 ifconfig ib0.3 create
expect "the P_Key of the parent is refused with a message" \
    says 'P_Key 0x8003 is that of the interface itself: not added'
on 0 ifconfig ib0.3 inet 10.0.3.1/24 up
refuse "and such an interface carries nothing" "No route to host\|Network is down" \
    on 0 ping -c 1 10.0.3.2
on 0 ifconfig ib0.3 destroy
set_pkeys 0 "0xffff 0x8002"
expect "the parent reaches the other again" within 20 on 0 ping -c 1 -W 500 "$(address 1)"

# By the name of vlan(4), moved to another tag, off and on again.
set_pkeys 0 "0xffff 0x8002 0x8004"
on 0 ifconfig vlan9 create
on 0 ifconfig vlan9 vlan 4 vlandev ib0
on 0 ifconfig vlan9 inet 10.0.4.1/24 up
expect "a child of another name joins" within 10 is_in_state ib0_8004 joined
on 0 ifconfig vlan9 -vlandev
refuse "one that was taken off is gone" "unknown oid" sysctl net.link.ipoib.ib0_8004.state
on 0 ifconfig vlan9 vlan 4 vlandev ib0
expect "one that was put on again joins" within 10 is_in_state ib0_8004 joined

cycle() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        on 0 ifconfig ib0.2 destroy || return 1
        make_child 0 || return 1
    done
}
on 0 ping -q -i 0.02 -c 400 "$(child_address 1)" >/dev/null 2>&1 &
expect "10 times destroyed and made under traffic" cycle
expect "and reaches the other" within 20 child_reaches 0 1

# The parent goes with children on it.
on 1 ifconfig ib1.2 down
expect "the driver unloads with children" kldunload "$driver"
expect "the interface of vlan(4) is left, without a parent" on 0 ifconfig ib0.2
refuse "and carries nothing" "No route to host\|Network is down" \
    on 0 ping -c 1 -W 500 "$(child_address 1)"
on 0 ifconfig ib0.2 destroy
on 0 ifconfig vlan9 destroy
on 1 ifconfig ib1.2 destroy
wait
expect "the driver loads again" kldload "/boot/modules/$driver.ko"
for host in 0 1; do
    ifconfig "ib$host" vnet "h$host"
    on "$host" ifconfig "ib$host" up
done
tear_down
