# shellcheck shell=sh
# Interfaces that move between network stacks under traffic, and more than one FIB, with
# ipoib_rs.ko on softib.ko.
# Time: 1800 s

CYCLES=100
JAILS=10
driver=ipoib_rs
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/memory.sh
. /vm/suites/lib/memory.sh

in_use() {
    types_in_use
    zones_in_use
}

# Host 2 is made and unmade here; its interface is ib2.
guest_up() {
    on 2 ifconfig ib2 inet "$(address 2)/24" up
}

guest_reaches() {
    on 2 ping -c 1 -W 500 -q "$(address 0)"
}

is_here() {
    ifconfig "$1" >/dev/null 2>&1
}

# Into the jail, there for as long as it takes to reach another host, and back.
move() {
    ifconfig ib2 vnet h2 || return 1
    guest_up || return 1
    within 20 guest_reaches || return 1
    ifconfig ib2 -vnet h2
}

# The jail ends with the interface inside, which comes back by itself.
end_jail() {
    jail -c name=h2 vnet persist vnet.interface=ib2 || return 1
    guest_up || return 1
    within 20 guest_reaches || return 1
    jail -r h2 || return 1
    within 20 is_here ib2
}

# The same with an interface of the kernel's own: what stays in use is not ours then.
end_other_jail() {
    jail -c name=other vnet persist vnet.interface=epair9b || return 1
    jexec other ifconfig epair9b inet 10.0.9.2/24 up || return 1
    within 20 jexec other ping -c 1 -W 500 -q 10.0.9.1 || return 1
    jail -r other || return 1
    within 20 is_here epair9b
}

# NAME COMMAND: does it $JAILS times; what stays in use goes to /tmp/NAME.
jails() {
    in_use >/tmp/before
    in_use >/tmp/before
    repeat "$JAILS" "$2" || return 1
    sleep 3
    in_use >/tmp/after
    grown /tmp/before /tmp/after "$JAILS" | tr ',' '\n' | sed 's/^ *//' | sort >"/tmp/$1"
}

# COUNT COMMAND
repeat() {
    times_left=$1
    while [ "$times_left" -gt 0 ]; do
        "$2" || return 1
        times_left=$((times_left - 1))
    done
}

no_jail_is_dying() {
    [ -z "$(jls -d dying jid | awk '$1 != "false" && $1 != 0')" ]
}

# Programs that are stuck, apart from threads of the kernel.
stuck() {
    ps -axo state,pid,comm | awk '$1 ~ /^D/ && $1 !~ /L/ && $2 > 20 && $3 !~ /^\[/'
}

if ! missing=$(need vmstat ps jls route); then
    skip "all checks" "$missing"
    exit
fi
[ ! -f /boot/kernel/if_vlan.ko ] || kldload /boot/kernel/if_vlan.ko
set_up "$driver" 2
set_mode connected

# Somebody sends to the interface all the time, wherever it is, and to a neighbour beside it.
start_traffic() {
    on 0 ping -q -i 0.02 "$(address 2)" >/dev/null 2>&1 &
    sender=$!
    on 1 ping -q -i 0.02 -s 8000 "$(address 0)" >/dev/null 2>&1 &
    neighbor=$!
}

stop_traffic() {
    kill "$sender" "$neighbor"
    wait
    sleep 5
}

start_traffic
jail -c name=h2 vnet persist
expect "an interface moves into a jail and back" move
stop_traffic
touch /tmp/said /tmp/before /tmp/after
in_use >/tmp/after
in_use >/tmp/before
start_traffic
expect "moved $CYCLES times under traffic" repeat "$CYCLES" move
stop_traffic
in_use >/tmp/after
grown=$(grown /tmp/before /tmp/after "$CYCLES")
if [ -z "$grown" ]; then
    ok "nothing stays in use"
else
    not_ok "nothing stays in use" "$grown"
fi
jail -r h2

# A network stack that ends leaves some things behind in any case.
jails_end() {
    expect "a jail ends with the interface inside" end_jail
    expect "$JAILS jails end with an interface of the kernel inside" jails others end_other_jail
    expect "$JAILS jails end with the interface inside" jails ours end_jail
    note "stays in use after $JAILS jails: $(tr '\n' ' ' </tmp/others)"
    more=$(awk '
        { count = $NF; sub(/ [+][0-9]+$/, "") }
        NR == FNR { others[$0] = count; next }
        count + 0 > others[$0] + 0 { print $0, count, "instead of", others[$0] + 0 }
    ' /tmp/others /tmp/ours)
    if [ -z "$more" ]; then
        ok "with ours, no more stays in use than with one of the kernel"
    else
        not_ok "with ours, no more stays in use than with one of the kernel" "$more"
    fi
    expect "no jail is left dying" within 20 no_jail_is_dying
}

# FreeBSD 14.0 may not end a jail for minutes, whatever was in it.
if [ ! -f /boot/kernel/if_epair.ko ]; then
    skip "$JAILS jails end with the interface inside" "needs if_epair.ko in the kernel's folder"
else
    kldload /boot/kernel/if_epair.ko
    ifconfig epair9 create >/dev/null
    ifconfig epair9a inet 10.0.9.1/24 up
    if end_other_jail >/tmp/said 2>&1; then
        jails_end
    else
        skip "$JAILS jails end with the interface inside" \
            "needs a kernel that ends a jail with an epair(4) in less than a minute"
    fi
    ifconfig epair9a destroy
fi
jail -c name=h2 vnet persist
on 2 ifconfig lo0 inet 127.0.0.1/8 up
expect "moved again after that" move
stuck=$(stuck)
expect "no program is stuck" test -z "$stuck"

# The answer to a packet that is too large is made where the sender is.
ifconfig ib2 vnet h2
guest_up
sysctl net.link.ipoib.ib2.mode=connected net.link.ipoib.ib0.mode=datagram >/dev/null
expect "it reaches the other in connected mode" within 20 guest_reaches
sleep 2
refuse "a packet that is too large is answered in the jail" "frag needed.*MTU 2044" \
    on 2 ping -D -c 1 -s 12000 "$(address 0)"

# A child moves by itself.
if [ -f /boot/kernel/if_vlan.ko ]; then
    for host in 0 2; do
        sysctl "hw.softib.$(port_of "$host").pkeys=0xffff 0x8002" >/dev/null
    done
    on 0 ifconfig ib0.2 create
    on 0 ifconfig ib0.2 inet 10.0.1.10/24 up
    ifconfig ib2 -vnet h2
    ifconfig ib2.2 create
    child_moves() {
        ifconfig ib2.2 vnet h2 || return 1
        on 2 ifconfig ib2.2 inet 10.0.1.12/24 up || return 1
        within 20 on 2 ping -c 1 -W 500 -q 10.0.1.10 || return 1
        ifconfig ib2.2 -vnet h2
    }
    expect "a child moves, and its parent stays" repeat 10 child_moves
    ifconfig ib2.2 vnet h2
    ifconfig ib2 vnet h2
    refuse "a child ends when its parent moves away" "unknown oid" \
        sysctl net.link.ipoib.ib2_8002.state
    ifconfig ib2.2 -vnet h2
    ifconfig ib2.2 destroy
else
    skip "a child moves, and its parent stays" "needs if_vlan.ko in the folder of the kernel"
fi

# Host 1 knows the way back to 10.9.9.1 only in FIB 1.
on 0 ifconfig lo0 inet 10.9.9.1/32 alias
on 1 sysctl net.fibs=2 >/dev/null
on 1 ifconfig ib1 inet "$(address 1)" delete
on 1 ifconfig ib1 fib 1
on 1 ifconfig ib1 inet "$(address 1)/24"
on 1 route -q add -fib 1 -host 10.9.9.1 "$(address 0)"
from_far() {
    on 0 ping -c 2 -i 0.2 -W 500 -q -S 10.9.9.1 "$(address 1)"
}
expect "what comes in has the FIB of its interface" within 10 from_far
on 1 ifconfig ib1 fib 0
refuse "and with another FIB there is no way back" "100.0% packet loss" from_far
on 1 ifconfig ib1 fib 1
expect "and with the first one there is again" within 10 from_far

# Interfaces inside jails, and sent to.
on 1 ping -q -i 0.02 "$(address 0)" >/dev/null 2>&1 &
expect "the driver unloads with interfaces in jails" kldunload "$driver"
kill $!
wait
expect "the driver loads again" kldload "/boot/modules/$driver.ko"
for host in 0 1 2; do
    ifconfig "ib$host" vnet "h$host"
done
hosts="0 1 2"
tear_down
