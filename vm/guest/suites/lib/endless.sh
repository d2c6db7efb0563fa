# shellcheck shell=sh
# Traffic between the hosts of lib/hosts.sh, which goes on until it is stopped. Sourced by suites.
#
#   start_traffic  pings of two sizes, TCP and UDP, each from every host to the next
#   stop_traffic   ends all of it; fails if a program does not end
#   flows          whether every host is answered by the next
#   forget_sockets has TCP give up soon what nobody is there for any more
#   no_dying_jail  whether all jails that were removed are gone

TRAFFIC_TCP=6001
TRAFFIC_UDP=6002

# HOST: the one behind it.
next_host() {
    for next_host_one in ${hosts:?}; do
        [ "$next_host_one" -le "$1" ] || {
            echo "$next_host_one"
            return
        }
    done
    echo 0
}

# COMMAND...: again and again, whatever comes of it.
repeat() {
    while [ -e /tmp/traffic ]; do
        "$@" >/dev/null 2>&1
        sleep 1
    done
}

serve() {
    on "$1" nc -l "$TRAFFIC_TCP"
}

serve_datagrams() {
    on "$1" nc -u -l "$TRAFFIC_UDP"
}

stream() {
    head -c 300000 /dev/zero | on "$1" nc -N -w 2 "$(address "$2")" "$TRAFFIC_TCP"
}

# More than one datagram holds, so that it is fragmented, or sent by a connection.
burst() {
    head -c 8000 /dev/zero | on "$1" nc -u -w 1 "$(address "$2")" "$TRAFFIC_UDP"
}

start_traffic() {
    touch /tmp/traffic
    for traffic_from in $hosts; do
        traffic_to=$(next_host "$traffic_from")
        repeat serve "$traffic_from" &
        repeat serve_datagrams "$traffic_from" &
        repeat stream "$traffic_from" "$traffic_to" &
        repeat burst "$traffic_from" "$traffic_to" &
        repeat on "$traffic_from" ping -q -i 0.05 -s 1000 "$(address "$traffic_to")" &
        repeat on "$traffic_from" ping -q -i 0.2 -s 5000 "$(address6 "$traffic_to")" &
    done
}

no_traffic() {
    pkill -x nc
    pkill -x ping
    ! pgrep -x 'nc|ping' >/dev/null
}

stop_traffic() {
    rm -f /tmp/traffic
    within 10 no_traffic || {
        ps -axl | awk '/nc|ping/'
        return 1
    }
    wait
}

flows() {
    for flows_from in $hosts; do
        flows_to=$(next_host "$flows_from")
        on "$flows_from" ping -c 1 -W 500 -q "$(address "$flows_to")" >/dev/null || return 1
    done
}

# A connection to a host that is gone keeps its jail as long as TCP repeats what it sent.
forget_sockets() {
    for forget_host in $hosts; do
        on "$forget_host" sysctl -q net.inet.tcp.msl=200 net.inet.tcp.retries=2 >/dev/null 2>&1
    done
}

no_dying_jail() {
    [ "$(jls -d dying | grep -c true)" = 0 ]
}
