# shellcheck shell=sh
# ipoib_rs.ko is unloaded 100 times under pings, TCP and UDP between two jails, every tenth time
# after its adapters: softib.ko goes first. --set cycles=N for another number.
# Time: 3000 s

driver=ipoib_rs
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/memory.sh
. /vm/suites/lib/memory.sh
# shellcheck source=vm/guest/suites/lib/endless.sh
. /vm/suites/lib/endless.sh

# Until what is made once was made.
WARM_UP_CYCLES=3

hosts="0 2"
cycles=$(option cycles 100)

load() {
    kldstat -q -n softib.ko || kldload /boot/modules/softib.ko || return 1
    kldload /boot/modules/ipoib_rs.ko
}

unload() {
    if [ "$(($1 % 10))" -eq 0 ]; then
        kldunload softib && kldunload ipoib_rs
    else
        kldunload ipoib_rs
    fi
}

# NUMBER: odd ones by connections, even ones by datagrams.
cycle() {
    load || return 1
    for host in $hosts; do
        make_host "$host" || return 1
        [ "$(($1 % 2))" -eq 0 ] || sysctl "net.link.ipoib.ib$host.mode=connected" >/dev/null
    done
    forget_sockets
    start_traffic
    within 20 flows || {
        echo "cycle $1: no traffic"
        return 1
    }
    # The moment is another one each time.
    sleep "0.$(($1 * 37 % 90 + 10))"
    unload "$1" || return 1
    stop_traffic || {
        echo "cycle $1: a program is stuck"
        return 1
    }
    for host in $hosts; do
        jail -r "h$host" || return 1
    done
}

# FIRST LAST
cycle_from_to() {
    for number in $(seq "$1" "$2"); do
        cycle "$number" || return 1
        [ "$((number % 10))" -ne 0 ] || note "$number cycles"
    done
}

# Jails and what is closed are given back later.
settle() {
    kldunload softib 2>/dev/null
    within "$JAIL_SECONDS" no_dying_jail || note "jails that do not go: $(jls -d jid dying)"
    sleep 5
}

sysctl -q debug.debugger_on_panic=0 debug.trace_on_panic=1 \
    "kern.panic_reboot_wait_time=$PANIC_SECONDS" >/dev/null
if ! missing=$(need jail jexec kldload sysctl ping ifconfig nc pkill vmstat); then
    skip "all checks" "$missing"
    exit
fi
touch /tmp/said /tmp/before /tmp/after /tmp/bare_before /tmp/bare_after /tmp/bare
count_jails "$((cycles * 2))"
expect "the first $WARM_UP_CYCLES times" cycle_from_to 1 "$WARM_UP_CYCLES"
settle
count_memory /tmp/after
count_memory /tmp/before
expect "$cycles times unloaded under traffic" \
    cycle_from_to "$((WARM_UP_CYCLES + 1))" "$((WARM_UP_CYCLES + cycles))"
settle
count_memory /tmp/after
grown=$(grown /tmp/before /tmp/after "$cycles")
if [ -z "$grown" ]; then
    ok "nothing stays in use"
else
    not_ok "nothing stays in use" "$grown"
fi
left=$(left_over)
expect "softib.ko leaves no memory behind" test -z "$left"
