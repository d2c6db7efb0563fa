# shellcheck shell=sh
# Two hosts on the software adapter: jails a and b with a network stack each, ib0 in the one and ib2
# in the other. Sourced by suites.
#
#   hosts_up       loads softib and the driver ($driver: ipoib_rs, or ipoib for the stock one)
#   hosts_down     takes everything down again, each step a check
#   mode MODE...   changes the mode of a, and of b; only ipoib_rs can
#   transfer NAME  sends $DATA_KB by TCP from a to b, and compares what arrived

driver=${driver:-ipoib_rs}
DATA_KB=4000

hosts_up() {
    # A panic is to end the machine, and to show where.
    sysctl debug.debugger_on_panic=0 debug.trace_on_panic=1 kern.panic_reboot_wait_time=1 \
        >/dev/null
    expect "softib loads" kldload /boot/modules/softib.ko
    case "$driver" in
    ipoib) expect "$driver loads" kldload /boot/kernel/ipoib.ko ;;
    *) expect "$driver loads" kldload "/boot/modules/$driver.ko" ;;
    esac
    host_up a ib0 1
    host_up b ib2 2
    await "a has a link" has_link a ib0
    await "b has a link" has_link b ib2
}

# NAME INTERFACE NUMBER
host_up() {
    jail -c name="$1" vnet persist
    ifconfig "$2" vnet "$1"
    # Errors of ICMP need a way back to the host itself.
    jexec "$1" ifconfig lo0 127.0.0.1/8 up
    jexec "$1" ifconfig "$2" "10.0.0.$3/24" up
    jexec "$1" ifconfig "$2" inet6 "fd00::$3/64" -ifdisabled
}

has_link() {
    jexec "$1" ifconfig "$2" | grep -q LOWER_UP
}

# NAME COMMAND...: a check that passes if the command does within 10 seconds.
await() {
    await_name=$1
    shift
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        if "$@"; then
            ok "$await_name"
            return
        fi
        sleep 1
    done
    not_ok "$await_name" "not within 10 s: $*"
}

mode() {
    sysctl "net.link.ipoib.ib0.mode=$1" "net.link.ipoib.ib2.mode=${2:-$1}" >/dev/null
    # Peers hear of the address at once; their stacks take a moment.
    sleep 2
}

# MODULE...: a counter of a, 0 if there is none.
counter() {
    sysctl -n "net.link.ipoib.ib0.stats.$1"
}

from_a() {
    jexec a "$@"
}

transfer() {
    dd if=/dev/random of=/tmp/sent bs=1k count="$DATA_KB" 2>/dev/null
    jexec b nc -l 9000 >/tmp/arrived &
    sleep 1
    from_a timeout 60 nc -N 10.0.0.2 9000 </tmp/sent
    wait
    if [ "$(md5 -q /tmp/sent)" = "$(md5 -q /tmp/arrived)" ]; then
        ok "$1"
    else
        not_ok "$1" "$(wc -c </tmp/arrived) of $((DATA_KB * 1024)) bytes arrived as they were sent"
    fi
}

no_oversize() {
    oversize=$(sysctl -n hw.softib.oversize_datagrams)
    if [ "$oversize" -eq 0 ]; then
        ok "no datagram is larger than the MTU of the fabric"
    else
        not_ok "no datagram is larger than the MTU of the fabric" "$oversize are"
    fi
}

hosts_down() {
    jail -r a
    jail -r b
    # The interfaces come back to the host.
    await "the interfaces are back" ifconfig ib2
    expect "$driver unloads" kldunload "$driver"
    expect "softib unloads" kldunload softib
    left=$(vmstat -m | grep -E '^ *(softib|ipoib)' | awk '$2 != 0')
    if [ -z "$left" ]; then
        ok "no memory of the modules is left"
    else
        not_ok "no memory of the modules is left" "$left"
    fi
}
