# shellcheck shell=sh
# InfiniBand laggs: what ifconfig(8) makes of them, what is refused, what comes back.
# Time: 300 s

# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/lagg.sh
. /vm/suites/lib/lagg.sh

EINVAL=22
ENOENT=2
EPERM=1
EEXIST=17
EBUSY=16
EFAULT=14
EPROTONOSUPPORT=43

shows() {
    here ifconfig "$1" >/tmp/shown
    cat /tmp/shown
    grep -q -e "$2" /tmp/shown
}

unchanged() {
    ifconfig lagg0 | grep lagg >/tmp/now
    cat /tmp/now
    [ "$(cat /tmp/before)" = "$(cat /tmp/now)" ]
}

is_not_loaded() {
    ! kldstat -q -n "$1"
}

# PORT: the lagg says that it is one.
is_port() {
    here ifconfig lagg0 | grep "laggport: $1 "
}

is_no_port() {
    ! is_port "$1"
}

load ipoib_rs
before_ib0=$(ifconfig ib0)
expect "laggs are called lagg" test "$(sysctl -n hw.ipoib.lagg)" = lagg
expect "there is a module of that name" kldstat -q -m lagg
refuse "a lagg of Ethernet is refused, and it is said why" "laggtype infiniband only" \
    ifconfig lagg0 create
refuse "ifconfig says so too" "Protocol not supported" ifconfig lagg0 create laggtype ethernet
expect "one of InfiniBand is made" ifconfig lagg0 create laggtype infiniband
expect "nothing else was loaded for it" is_not_loaded if_lagg.ko
refuse "if_lagg cannot come beside it" "already loaded" kldload if_lagg
expect "it gets ports, an address, and is up" ifconfig lagg0 laggproto failover \
    laggport ib0 laggport ib2 1.1.1.1/24 up
expect "the first port carries" within 10 is_active lagg0 ib0
expect "it is the primary" shows lagg0 'laggport: ib0 flags=5<MASTER,ACTIVE>'
expect "the other one stands by" shows lagg0 'laggport: ib2 flags=0<>'
expect "it wears the address of the port" wears lagg0 ib0
expect "it has the MTU of its ports" shows lagg0 'mtu 2044'
expect "a lagg has a carrier" within 5 has_link lagg0
peer b ib1 1.1.1.2
expect "the peer is reached" within 10 ping -q -c 2 -i 0.2 -W 500 1.1.1.2

ifconfig lagg0 | grep lagg >/tmp/before
ifconfig lagg1 create laggtype infiniband
errno "a port twice" $EEXIST add lagg0 ib0
errno "a port of another lagg" $EBUSY add lagg1 ib0
errno "a lagg in itself" $EINVAL add lagg0 lagg0
errno "a lagg in another" $EINVAL add lagg0 lagg1
errno "an interface that is no InfiniBand one" $EPROTONOSUPPORT add lagg0 lo0
if ifconfig epair0 create >/dev/null 2>&1; then
    errno "an Ethernet port" $EPROTONOSUPPORT add lagg0 epair0a
    ifconfig epair0a destroy
else
    skip "an Ethernet port" "needs if_epair"
fi
errno "an interface that is not there" $EINVAL add lagg0 ib77
errno "a name without an end" $EINVAL add lagg0 @
errno "a port that is none goes" $ENOENT del lagg0 ib3
errno "a port that is none is asked for" $ENOENT port lagg0 ib3
errno "a port is asked for" 0 port lagg0 ib0
errno "a port is asked itself" 0 port ib0 ib0
errno "nobody may add a port" $EPERM user add lagg0 ib3
errno "nobody may take one away" $EPERM user del lagg0 ib0
errno "nobody may set the protocol" $EPERM user proto lagg0 2
errno "nobody may set the hash" $EPERM user hash lagg0 1
errno "nobody may set options" $EPERM user opts lagg0 1
errno "anybody may look" 0 user get lagg0 4096
for protocol in 0 1 3 4 5 6 4294967295; do
    errno "protocol $protocol" $EPROTONOSUPPORT proto lagg0 $protocol
done
errno "failover again" 0 proto lagg0 2
errno "a hash of nothing" $EINVAL hash lagg0 0
errno "a hash of layer 2" 0 hash lagg0 1
expect "it is shown" shows lagg0 'lagghash l2$'
errno "a hash of all" 0 hash lagg0 7
errno "an option of LACP" $EINVAL opts lagg0 16
errno "the use of flow numbers" 0 opts lagg0 1
errno "a request that is cut" $EINVAL short lagg0
errno "memory that is not there" $EFAULT bad lagg0
expect "a huge buffer gets what there is" \
    test "$($LAGGCTL get lagg0 9223372036854775807)" = "0 2 144"
expect "a buffer for one port gets one" test "$($LAGGCTL get lagg0 100)" = "0 1 72"
expect "a buffer for none gets none" test "$($LAGGCTL get lagg0 71)" = "0 0 0"
expect "all of that changed nothing" unchanged
ifconfig lagg1 destroy

refuse "the MTU of a port is for the lagg to say" "Invalid argument" ifconfig ib0 mtu 1500
expect "it says it" ifconfig lagg0 mtu 1500
expect "ports have it" test "$(ifconfig ib2 | grep -c 'mtu 1500')" = 1
refuse "what a port does not take, none gets" "Invalid argument" ifconfig lagg0 mtu 4000
expect "it has the MTU that it had" shows lagg0 'mtu 1500'
expect "back to the old one" ifconfig lagg0 mtu 2044

sent_before=$(netstat -I lagg0 -b -n | awk 'NR == 2 { print $8 }')
expect "the primary goes" ifconfig lagg0 -laggport ib0
expect "the other port is the primary, and carries" shows lagg0 \
    'laggport: ib2 flags=5<MASTER,ACTIVE>'
expect "it wears the address of that" wears lagg0 ib2
sent_after=$(netstat -I lagg0 -b -n | awk 'NR == 2 { print $8 }')
expect "what was counted is kept" test "$sent_after" -ge "$sent_before"
expect "a port that is none goes as before, by itself" ifconfig ib0 inet 1.1.9.1/24 up
ifconfig ib0 inet 1.1.9.1 delete
expect "it comes back, behind the other" ifconfig lagg0 laggport ib0
expect "it is not the primary" shows lagg0 'laggport: ib0 flags=0<>'

expect "a port moves to another vnet" ifconfig ib0 vnet b
expect "it is a port no more" is_no_port ib0
expect "it comes back from there" ifconfig ib0 -vnet b
expect "it can be a port again" ifconfig lagg0 laggport ib0
tcpdump -n -c 1 -i lagg0 icmp >/tmp/tcpdump 2>&1 &
tcpdump_pid=$!
sleep 1
ping -q -c 3 -i 0.2 1.1.1.2 >/dev/null
wait $tcpdump_pid
expect "tcpdump sees packets of the lagg" grep -q "1.1.1.1 > 1.1.1.2" /tmp/tcpdump
expect "the lagg goes" ifconfig lagg0 destroy
ifconfig ib0 down
expect "a port is what it was before" test "$(ifconfig ib0)" = "$before_ib0"
end_jail b ib1
expect "ipoib_rs.ko unloads" kldunload ipoib_rs
if sysctl -q debug.witness.watch >/dev/null; then
    expect "WITNESS says nothing of laggs" test "$(lagg_reversals)" = 0
else
    skip "WITNESS says nothing of laggs" "needs a kernel with WITNESS"
fi
expect "the names are free again" kldload if_lagg

# What if_lagg itself does, reversals included, is its own affair.
expect "beside if_lagg it loads as well" kldload /boot/modules/ipoib_rs.ko
expect "laggs are called iblagg" test "$(sysctl -n hw.ipoib.lagg)" = iblagg
expect "one is made" ifconfig iblagg0 create laggtype infiniband
expect "it gets ports" ifconfig iblagg0 laggproto failover laggport ib0 laggport ib2 1.1.1.1/24 up
expect "ifconfig shows them" within 10 shows iblagg0 'laggport: ib0 flags=5<MASTER,ACTIVE>'
observe
ifconfig lagg0 create
judge
errno "a port of ours in a stock lagg" $EPROTONOSUPPORT add lagg0 ib0
make_jail b ib1 ib3
observe
ifconfig lagg0 destroy
lagg_of b lagg0 1.1.1.2 ib1 ib3
judge
expect "interfaces of ours in an InfiniBand lagg of if_lagg" within 10 \
    shows lagg0 'laggport: ib1 flags=5<MASTER,ACTIVE>'
lagg_host=
expect "both laggs reach each other" within 10 ping -q -c 2 -i 0.2 -W 500 1.1.1.2
fault 0.1.link 0
fault 0.2.link 0
expect "and by their other ports" within 10 ping -q -c 2 -i 0.2 -W 500 1.1.1.2
fault 0.1.link 1
fault 0.2.link 1
observe
jexec b ifconfig lagg0 destroy
ifconfig lagg0 create laggtype infiniband
judge
errno "a port of ours in a stock lagg of InfiniBand" $EPROTONOSUPPORT add lagg0 ib0
end_jail b ib1
expect "a port comes back from a jail" ifconfig ib1
observe
ifconfig lagg0 laggport ib1
judge
errno "a port of a stock lagg in ours" $EBUSY add iblagg0 ib1
observe
ifconfig lagg0 destroy
judge
expect "ipoib_rs.ko unloads with a lagg" kldunload ipoib_rs
observe
kldunload if_lagg
judge
expect "softib.ko unloads" kldunload softib
