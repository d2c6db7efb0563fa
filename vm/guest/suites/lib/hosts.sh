# shellcheck shell=sh
# Hosts on the software fabric: vnet jails, each with one interface of softib.ko. Sourced by suites.
#
#   set_up DRIVER COUNT  loads softib and a driver (ipoib or ipoib_rs), makes hosts 0 to COUNT - 1
#   tear_down            takes all of it down again, with a check that nothing is left
#   on HOST COMMAND...   runs a command on a host
#   set_mode MODE        datagram or connected, for all hosts
#   observe_stock        the driver of the base system is not judged from here on
#   address HOST         its IPv4 address; address6 HOST: its IPv6 address
#   port_of HOST         its port, as below hw.softib
#   fault NAME VALUE     sets hw.softib.NAME
#
# Host N has interface ibN, which is port N % 2 + 1 of adapter N / 2.

PANIC_SECONDS=1
# FreeBSD 14 takes minutes to end a jail, whatever was in it.
JAIL_SECONDS=300

on() {
    on_host=h$1
    shift
    jexec "$on_host" "$@"
}

address() {
    echo "10.0.0.1$1"
}

address6() {
    echo "fd00::1$1"
}

port_of() {
    echo "$(($1 / 2)).$(($1 % 2 + 1))"
}

fault() {
    sysctl "hw.softib.$1=$2" >/dev/null
}

# INTERFACE: whether it has a carrier. ifconfig(8) does not say so for interfaces without media, but
# the kernel says when it changes.
has_link() {
    dmesg | grep "^$1: link state changed to" | tail -n 1 | grep -q UP
}

# HOST: whether its interface has a carrier.
has_carrier() {
    has_link "ib$1"
}

# SECONDS COMMAND...: waits until a command succeeds.
within() {
    within_steps=$(($1 * 5))
    shift
    while ! "$@" >/dev/null 2>&1; do
        [ "$within_steps" -gt 0 ] || return 1
        within_steps=$((within_steps - 1))
        sleep 0.2
    done
}

all_carriers() {
    for carrier_host in $hosts; do
        has_carrier "$carrier_host" || return 1
    done
}

make_host() {
    jail -c "name=h$1" vnet persist "vnet.interface=ib$1" || return 1
    on "$1" sysctl net.inet.icmp.bmcastecho=1 >/dev/null
    on "$1" ifconfig lo0 inet 127.0.0.1/8 up
    on "$1" ifconfig "ib$1" inet6 -ifdisabled auto_linklocal no_dad
    on "$1" ifconfig "ib$1" inet "$(address "$1")/24" up
    on "$1" ifconfig "ib$1" inet6 "$(address6 "$1")/64"
}

# The module of a driver: one of ours, or one of the kernel's.
module_of() {
    case $1 in
    ipoib) echo /boot/kernel/ipoib.ko ;;
    *) echo "/boot/modules/$1.ko" ;;
    esac
}

set_up() {
    driver=$1
    hosts=
    # seq(1) would count down to -1.
    [ "$2" -eq 0 ] || hosts=$(seq 0 $(($2 - 1)))
    # A panic ends the machine, with a backtrace.
    sysctl -q debug.debugger_on_panic=0 debug.trace_on_panic=1 \
        "kern.panic_reboot_wait_time=$PANIC_SECONDS" >/dev/null
    if ! set_up_missing=$(need jail jexec kldload sysctl ping ifconfig); then
        skip "all checks" "$set_up_missing"
        exit
    fi
    for set_up_module in softib "$driver"; do
        if [ ! -f "$(module_of "$set_up_module")" ]; then
            skip "all checks" "needs $set_up_module.ko"
            exit
        fi
        case $set_up_module in
        softib) set_up_name="softib.ko loads" ;;
        *) set_up_name="the driver loads" ;;
        esac
        expect "$set_up_name" kldload "$(module_of "$set_up_module")"
        kldstat -q -n "$set_up_module.ko" || exit
    done
    for set_up_host in $hosts; do
        if ! make_host "$set_up_host"; then
            not_ok "host $set_up_host is made" "no jail with ib$set_up_host"
            exit
        fi
    done
    expect "all hosts have a carrier" within 10 all_carriers
}

# Without RC in its address, a port of the stock driver is to others one that takes no connections.
# Its MTU is that of connections, whatever its neighbours are. What it knows of a neighbour it keeps
# until the interface goes down, even if the neighbour's address changes.
set_stock_mode() {
    case $2 in
    datagram) set -- "$1" 1 2044 ;;
    connected) set -- "$1" 0 65520 ;;
    esac
    fault "$(port_of "$1").hide_rc" "$2"
    on "$1" ifconfig "ib$1" down
    on "$1" ifconfig "ib$1" mtu "$3"
    on "$1" ifconfig "ib$1" up
    # Of FreeBSD 14, it joins no group but that of broadcast again, unless it is asked to.
    fault "$(port_of "$1").event" client_reregister
    on "$1" arp -d -a >/dev/null 2>&1
}

set_mode() {
    for mode_host in $hosts; do
        case $driver in
        ipoib) set_stock_mode "$mode_host" "$1" ;;
        # The host of the jails has the settings of all interfaces.
        *) sysctl "net.link.ipoib.ib$mode_host.mode=$1" >/dev/null ;;
        esac
    done
    expect "all hosts have a carrier, $1" within 10 all_carriers
}

# A type of malloc(9) of softib with something in use, if there is one.
left_over() {
    vmstat -m | awk '$1 ~ /^softib/ && $2 > 0 { print $1, $2 }'
}

is_fabric_empty() {
    test "$(sysctl -n hw.softib.packets)" = 0
}

observe_stock() {
    [ "$driver" != ipoib ] || observe
}

# The stock driver panics now and then when an interface goes down or its module is unloaded, which
# is not what suites are about: they have made their checks by then.
tear_down() {
    observe_stock
    try "interfaces go down"
    for down_host in $hosts; do
        on "$down_host" ifconfig "ib$down_host" down
    done
    # The stock driver reaps what it had posted.
    sleep 1
    for down_host in $hosts; do
        jail -r "h$down_host"
    done
    sleep 1
    ok "interfaces go down"
    judge
    expect "no packet is left in the fabric" within 5 is_fabric_empty
    expect "no datagram was longer than the MTU" \
        test "$(sysctl -n hw.softib.oversize_datagrams)" = 0
    observe_stock
    expect "the driver unloads" kldunload "$driver"
    judge
    expect "softib.ko unloads" kldunload softib
    tear_down_left=$(left_over)
    expect "softib.ko leaves no memory behind" test -z "$tear_down_left"
}

# NAME FROM TO ARGUMENT...: pings that are all answered.
expect_pings() {
    pings_name=$1
    pings_from=$2
    pings_to=$3
    shift 3
    expect "$pings_name" on "$pings_from" ping -c 5 -i 0.2 -q "$@" "$pings_to"
    if grep -q ' [1-9][0-9.]*% packet loss' /tmp/said; then
        not_ok "$pings_name without loss" "$(grep 'packet loss' /tmp/said)"
    fi
}
