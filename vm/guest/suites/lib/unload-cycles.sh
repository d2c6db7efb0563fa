# shellcheck shell=sh
# The driver, or the adapter below it, is unloaded while interfaces with connections are up.

CYCLES=100
SECONDS_MAX=480

load_and_connect() {
    ifconfig ib1 vnet h1 || return 1
    ifconfig ib0 inet 10.0.0.10/24 up
    on 1 ifconfig ib1 inet 10.0.0.11/24 up
    case $driver in
    ipoib) ;;
    *) sysctl net.link.ipoib.ib0.mode=connected net.link.ipoib.ib1.mode=connected >/dev/null ;;
    esac
    within 20 ping -q -c 1 -W 500 10.0.0.11 && sleep 0.3
}

unload_driver() {
    kldunload "$driver" && kldload "$(module_of "$driver")"
}

# The interfaces go with their ports, and come back with them.
unload_adapters() {
    kldunload softib && kldload "$(module_of softib)"
}

# COMMAND
cycles() {
    began=$(date +%s)
    for cycle in $(seq "$CYCLES"); do
        load_and_connect || return 1
        "$1" || return 1
        echo "$cycle times in $(($(date +%s) - began)) s"
        [ $(($(date +%s) - began)) -lt "$SECONDS_MAX" ] || break
    done
    [ "$cycle" = "$CYCLES" ]
}

set_up "${driver:?}" 0
jail -c name=h1 vnet persist
on 1 ifconfig lo0 inet 127.0.0.1/8 up
hosts=
observe_stock
expect "$CYCLES times the driver is unloaded" cycles unload_driver
note "$(last_line /tmp/said)"
expect "$CYCLES times the adapters are unloaded" cycles unload_adapters
note "$(last_line /tmp/said)"
jail -r h1
tear_down
