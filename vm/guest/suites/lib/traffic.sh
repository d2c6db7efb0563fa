# shellcheck shell=sh
# What suites send. A host that is sent to is named by its number and by one of its addresses.
#
#   datagram_arrives FROM TO ADDRESS BYTES  one UDP datagram arrives as it was sent
#   transfers FROM TO ADDRESS BYTES         the same, of so many bytes by TCP
#   is_told_mtu FROM ADDRESS MTU            a ping that must not be fragmented is told the MTU
#   flood_udp FROM HOSTS ADDRESS COUNT      so many datagrams of up to 16384 bytes
#   flood_ping FROM COUNT ARGUMENT...       so many echo requests, as fast as they can be sent

# A port for each transfer: the last one may still be in use.
traffic_port=9000
next_port() {
    traffic_port=$((traffic_port + 1))
}

is_what_was_sent() {
    echo "$(wc -c </tmp/sent) bytes were sent, $(wc -c </tmp/arrived) arrived"
    [ "$(sha256 -q /tmp/sent)" = "$(sha256 -q /tmp/arrived)" ]
}

datagram_arrives() {
    next_port
    on "$2" nc -u -l "$3" "$traffic_port" >/tmp/arrived &
    sleep 1
    head -c "$4" /dev/random >/tmp/sent
    on "$1" nc -u -w 1 "$3" "$traffic_port" </tmp/sent
    sleep 1
    pkill nc
    is_what_was_sent
}

transfers() {
    next_port
    on "$2" timeout 60 nc -l "$3" "$traffic_port" >/tmp/arrived &
    transfers_receiver=$!
    sleep 1
    head -c "$4" /dev/random >/tmp/sent
    on "$1" timeout 60 nc -N "$3" "$traffic_port" </tmp/sent
    transfers_result=$?
    # Whoever gave up left the other waiting.
    [ "$transfers_result" = 0 ] || pkill nc
    wait "$transfers_receiver"
    is_what_was_sent
}

is_told_mtu() {
    on "$1" ping -D -c 2 -i 0.2 -W 1000 -s 12000 "$2" >/tmp/told 2>&1
    grep -q "frag needed and DF set (MTU $3)" /tmp/told
}

# In bursts, lest all is sent before whatever a suite does meanwhile has happened often enough.
FLOOD_BURSTS=100
flood_bytes() {
    for _ in $(seq "$FLOOD_BURSTS"); do
        head -c "$(($1 / FLOOD_BURSTS))" /dev/zero
        sleep 0.2
    done
}

# nc(1) makes a datagram of whatever it reads at once, which is 16384 bytes.
flood_udp() {
    next_port
    for flood_to in $2; do
        on "$flood_to" nc -u -l "$3" "$traffic_port" >/dev/null &
    done
    sleep 1
    flood_bytes "$(($4 * 16384))" | on "$1" nc -u -w 3 "$3" "$traffic_port"
    pkill nc
    return 0
}

flood_ping() {
    flood_from=$1
    flood_count=$2
    shift 2
    on "$flood_from" ping -q -i 0.001 -W 1 -c "$flood_count" "$@" >/tmp/flood 2>&1
    # 2: there were no answers.
    [ $? -le 2 ] && grep "^$flood_count packets transmitted" /tmp/flood
}
