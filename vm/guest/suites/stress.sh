# shellcheck shell=sh
# Everything at random, under traffic: modes, MTUs, up and down, links, LIDs, subnet managers,
# losses, partitions, moves between jails, unloading. Then all is put in order, and traffic flows.
# --set seconds=N for another time, --set seed=N for what another run did.
# Time: 1500 s

driver=ipoib_rs
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/memory.sh
. /vm/suites/lib/memory.sh
# shellcheck source=vm/guest/suites/lib/endless.sh
. /vm/suites/lib/endless.sh

RECOVERY_SECONDS=60

hosts="0 1 2"
seconds=$(option seconds 600)
seed=$(option seed "$(date +%s)")
random=$seed

# Sets $drawn to a number from 0 to $1 - 1. 31 bits, of which the high ones are used (the constants
# are those of the C standard's example of rand).
draw() {
    random=$(((random * 1103515245 + 12345) % 2147483648))
    drawn=$((random / 65536 % $1))
}

draw_host() {
    draw 3
    host=$drawn
    port=$(port_of "$host")
}

# HOST: what an administrator gives an interface that appears.
configure() {
    ifconfig "ib$1" vnet "h$1" 2>/dev/null
    on "$1" ifconfig "ib$1" inet6 -ifdisabled auto_linklocal no_dad
    on "$1" ifconfig "ib$1" inet "$(address "$1")/24" up
    on "$1" ifconfig "ib$1" inet6 "$(address6 "$1")/64"
}

configure_all() {
    for configure_host in $hosts; do
        configure "$configure_host" || return 1
    done
}

reload_driver() {
    kldunload ipoib_rs && kldload /boot/modules/ipoib_rs.ko && configure_all
}

# The adapters go first, and come to a driver that is there.
reload_adapters() {
    kldunload softib && kldload /boot/modules/softib.ko && configure_all
}

move() {
    ifconfig "ib$host" -vnet "h$host" && configure "$host"
}

set_mode_of() {
    sysctl "net.link.ipoib.ib$1.mode=$2" >/dev/null
}

# One change. What it says goes to the console; what fails ends the run.
change() {
    draw_host
    draw 20
    case $drawn in
    0 | 1) what="mode connected" && set_mode_of "$host" connected ;;
    2 | 3) what="mode datagram" && set_mode_of "$host" datagram ;;
    4)
        draw 60000
        what="connected_mtu $((drawn + 2044))"
        sysctl "net.link.ipoib.ib$host.connected_mtu=$((drawn + 2044))" >/dev/null
        ;;
    5)
        draw 1700
        what="mtu $((drawn + 300))"
        on "$host" ifconfig "ib$host" mtu "$((drawn + 300))" >/dev/null 2>&1 || :
        ;;
    6) what="down" && on "$host" ifconfig "ib$host" down ;;
    7 | 8) what="up" && on "$host" ifconfig "ib$host" up ;;
    9) what="link 0" && fault "$port.link" 0 ;;
    10 | 11) what="link 1" && fault "$port.link" 1 ;;
    12) what="lid" && fault "$port.lid" 0 ;;
    13) what="sm.restart" && fault sm.restart 1 ;;
    14)
        draw 3
        what="loss $((drawn * 20000))"
        fault "$port.loss" "$((drawn * 20000))"
        ;;
    15)
        draw 2
        what="drop_requests $drawn"
        fault drop_requests "$drawn"
        ;;
    16)
        draw 2
        what="pkeys, with or without the default"
        if [ "$drawn" -eq 0 ]; then
            fault "$port.pkeys" "0xffff 0x8001"
        else
            fault "$port.pkeys" "0x8001"
        fi
        ;;
    17)
        what="neighbours forgotten, all sysctls read"
        on "$host" arp -d -a >/dev/null 2>&1
        on "$host" ndp -c >/dev/null 2>&1
        sysctl net.link.ipoib hw.softib >/dev/null
        ;;
    18) what="moved out of its jail and back" && move ;;
    19)
        draw 4
        case $drawn in
        0) what="driver reloaded" && reload_driver ;;
        1) what="adapters reloaded" && reload_adapters ;;
        *) what="registration asked for" && fault sm.reregister 1 ;;
        esac
        ;;
    esac
}

change_until_the_end() {
    changes=0
    end=$(($(date +%s) + seconds))
    while [ "$(date +%s)" -lt "$end" ]; do
        if ! change; then
            echo "change $changes at seed $seed failed: host $host, $what"
            return 1
        fi
        changes=$((changes + 1))
        note "$changes host $host: $what"
        draw 20
        sleep "$((drawn / 10)).$((drawn % 10))"
    done
}

# What there is to see, for whoever looks for the reason.
tell_all() {
    for host in $hosts; do
        on "$host" ifconfig "ib$host"
        on "$host" arp -a -n
        sysctl "net.link.ipoib.ib$host" "hw.softib.$(port_of "$host")" | grep -v ': 0$'
    done
}

put_in_order() {
    fault drop_requests 0
    for host in $hosts; do
        port=$(port_of "$host")
        fault "$port.link" 1 && fault "$port.loss" 0 && fault "$port.pkeys" 0xffff &&
            set_mode_of "$host" connected && configure "$host" || return 1
    done
}

# TCP, with a checksum.
transfer() {
    on 1 nc -l "$(address 1)" 7001 >/tmp/got &
    sleep 1
    on 0 timeout 60 nc -N "$(address 1)" 7001 </tmp/data || return 1
    wait "$!"
    cmp /tmp/data /tmp/got
}

# One life of all there is, without changes, so that what is made once was made.
warm_up() {
    for module in softib ipoib_rs; do
        kldload "/boot/modules/$module.ko" || return 1
    done
    for host in $hosts; do
        make_host "$host" || return 1
    done
    forget_sockets
    start_traffic
    within 20 flows
    end_all
}

end_all() {
    stop_traffic || return 1
    for host in $hosts; do
        jail -r "h$host" || return 1
    done
    kldunload ipoib_rs && kldunload softib || return 1
    within "$JAIL_SECONDS" no_dying_jail || note "jails that do not go: $(jls -d jid dying)"
    sleep 5
}

note "seed $seed"
touch /tmp/said /tmp/before /tmp/after /tmp/bare_before /tmp/bare_after /tmp/bare
count_jails 3
head -c 1000000 /dev/random >/tmp/data
expect "all can be made and taken down" warm_up
expect "and once more" warm_up
count_memory /tmp/after
count_memory /tmp/before
set_up "$driver" 3
forget_sockets
start_traffic
expect "$seconds s of changes at random, seed $seed" change_until_the_end
note "$changes changes"
expect "all can be put in order" put_in_order
expect "traffic flows again" within "$RECOVERY_SECONDS" flows
flows || tell_all
expect "traffic ends" stop_traffic
expect "TCP carries what was sent" transfer
expect "no packet is left in the fabric" within 10 test "$(sysctl -n hw.softib.packets)" = 0
expect "no datagram was longer than the MTU" test "$(sysctl -n hw.softib.oversize_datagrams)" = 0
expect "all can be taken down" end_all
count_memory /tmp/after
grown=$(grown /tmp/before /tmp/after "$changes")
if [ -z "$grown" ]; then
    ok "nothing stays in use"
else
    not_ok "nothing stays in use" "$grown"
fi
