# shellcheck shell=sh
# Laggs on the software fabric. Sourced by suites, after hosts.sh.
#
#   load MODULE...          loads softib and others; ends the suite if one does not load
#   make_jail NAME INTERFACE...  makes a vnet jail with these interfaces
#   peer NAME INTERFACE ADDRESS  the same, with one interface that has an address
#   lagg_of NAME LAGG ADDRESS PORT...  makes a lagg in a jail, with an address, and up
#   end_jail NAME [INTERFACE]  removes a jail; waits until the interface is back from it
#   is_active LAGG PORT     whether a port carries, on the host "lagg_host", or here without one
#   errno NAME NUMBER WORD...  a check that laggctl says this errno

LAGGCTL=/vm/laggctl

lagg_host=
# What ifconfig is run with.
here() {
    if [ -n "$lagg_host" ]; then
        jexec "$lagg_host" "$@"
    else
        "$@"
    fi
}

load() {
    sysctl -q debug.debugger_on_panic=0 debug.trace_on_panic=1 kern.panic_reboot_wait_time=1 \
        >/dev/null
    if ! load_missing=$(need jail jexec kldload sysctl ping ifconfig tcpdump awk); then
        skip "all checks" "$load_missing"
        exit
    fi
    for load_module in softib "$@"; do
        case $load_module in
        if_lagg | ipoib) load_file=/boot/kernel/$load_module.ko ;;
        *) load_file=/boot/modules/$load_module.ko ;;
        esac
        if [ ! -f "$load_file" ]; then
            skip "all checks" "needs $load_module.ko"
            exit
        fi
        if ! kldload "$load_file"; then
            not_ok "$load_module.ko loads" "it does not"
            exit
        fi
    done
}

# HOST INTERFACE...
make_jail() {
    make_jail_name=$1
    shift
    jail -c "name=$make_jail_name" vnet persist allow.raw_sockets || return 1
    for make_jail_interface in "$@"; do
        ifconfig "$make_jail_interface" vnet "$make_jail_name"
    done
    jexec "$make_jail_name" ifconfig lo0 inet 127.0.0.1/8 up
    jexec "$make_jail_name" sysctl net.inet6.ip6.dad_count=0 >/dev/null
    # All pings are answered, and not only some hundred in a second.
    jexec "$make_jail_name" sysctl net.inet.icmp.icmplim=0 >/dev/null
}

# NAME INTERFACE ADDRESS
peer() {
    make_jail "$1" "$2"
    jexec "$1" ifconfig "$2" inet "$3/24" up
}

# HOST LAGG ADDRESS PORT...
lagg_of() {
    lagg_host=$1
    lagg_name=$2
    lagg_address=$3
    shift 3
    here ifconfig "$lagg_name" create laggtype infiniband || return 1
    lagg_ports=
    for lagg_port in "$@"; do
        # if_lagg of FreeBSD 14 leaves that to the administrator.
        here ifconfig "$lagg_port" up
        lagg_ports="$lagg_ports laggport $lagg_port"
    done
    # The list is to be split.
    # shellcheck disable=SC2086
    here ifconfig "$lagg_name" laggproto failover $lagg_ports "$lagg_address/24" up
}

# LAGG PORT
is_active() {
    here ifconfig "$1" | grep -q "laggport: $2 flags=[0-9a-f]*<.*ACTIVE"
}

# LAGG PORT: the lagg has the address of the port.
wears() {
    [ "$(here ifconfig "$1" | awk '$1 == "lladdr" { print $2 }')" = \
        "$(here ifconfig "$2" | awk '$1 == "lladdr" { print $2 }')" ]
}

# LAGG NAME: a counter of a lagg of ours.
lagg_stat() {
    sysctl -n "net.link.ipoib.$1.stats.$2"
}

# NAME NUMBER COMMAND...
errno() {
    errno_name=$1
    errno_number=$2
    shift 2
    errno_said=$(here "$LAGGCTL" "$@")
    if [ "${errno_said%% *}" = "$errno_number" ]; then
        ok "$errno_name"
    else
        not_ok "$errno_name" "errno $errno_said instead of $errno_number"
    fi
}

# What the kernel does when a vnet ends, reversals of its own locks included, is its own affair.
end_jail() {
    observe
    jail -r "$1"
    [ $# = 1 ] || within "$JAIL_SECONDS" ifconfig "$2" || note "$2 does not come back"
    sleep 1
    judge
}

# What WITNESS says of laggs, as FreeBSD's own test looks for it, in one line.
lagg_reversals() {
    sysctl -n debug.witness.badstacks 2>/dev/null | grep -c 'lagg'
}

# SECONDS COMMAND...: again and again, in the background; "$!" is its number.
again() {
    again_until=$(($(date +%s) + $1))
    shift
    while [ "$(date +%s)" -lt "$again_until" ]; do
        "$@" >/dev/null 2>&1
    done
}
