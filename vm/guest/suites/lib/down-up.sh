# shellcheck shell=sh
# An interface with connections goes down and up again, many times.

CYCLES=200
SECONDS_MAX=480

goes_down_and_up() {
    on 0 ifconfig ib0 down
    on 0 ifconfig ib0 up
    # The first ones may be lost. After them there are connections.
    within 20 on 0 ping -q -c 1 -W 500 "$(address 1)" && sleep 0.3
}

# Only if it is in the group that they ask.
is_found() {
    on 1 ndp -c >/dev/null
    on 1 ping -6 -q -c 1 -W 500 "$(address6 0)"
}

cycles() {
    began=$(date +%s)
    for cycle in $(seq "$CYCLES"); do
        goes_down_and_up || return 1
        echo "$cycle times in $(($(date +%s) - began)) s"
        [ $(($(date +%s) - began)) -lt "$SECONDS_MAX" ] || break
    done
    [ "$cycle" = "$CYCLES" ]
}

set_up "${driver:?}" 2
set_mode connected
observe_stock
expect "once down and up" goes_down_and_up
expect "IPv6 neighbours find the interface then" within 5 is_found
expect "$CYCLES times down and up, with connections" cycles
note "$(last_line /tmp/said)"
tear_down
