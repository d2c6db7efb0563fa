# shellcheck shell=sh
# Large packets to a neighbour that takes them, to one that does not, and to one that changes its
# mind, with ipoib_rs.ko on softib.ko. The stock driver panics at the first of these checks.
# Time: 300 s

driver=ipoib_rs
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh

# HOST MODE
set_mode_of() {
    sysctl "net.link.ipoib.ib$1.mode=$2" >/dev/null
    # Peers hear of the address at once; their stacks take a moment.
    sleep 2
}

# PORT: one datagram of 8000 bytes arrives as it was sent.
sends_large() {
    on 1 nc -u -l "$1" >/tmp/arrived &
    sleep 1
    head -c 8000 /dev/random >/tmp/sent
    on 0 nc -u -w 1 "$(address 1)" "$1" </tmp/sent
    sleep 1
    pkill nc
    [ "$(md5 -q /tmp/sent)" = "$(md5 -q /tmp/arrived)" ]
}

# PORT: 4 MB by TCP.
transfers() {
    on 1 nc -l "$1" >/tmp/arrived &
    sleep 1
    head -c 4000000 /dev/random >/tmp/sent
    on 0 timeout 60 nc -N "$(address 1)" "$1" </tmp/sent
    wait
    [ "$(md5 -q /tmp/sent)" = "$(md5 -q /tmp/arrived)" ]
}

# COUNT: to datagram mode and back so often, under pings of which none is lost.
switches() {
    on 0 ping -q -i 0.01 -c $(($1 * 80)) "$(address 1)" >/tmp/pings &
    for _ in $(seq "$1"); do
        sysctl net.link.ipoib.ib0.mode=datagram >/dev/null || return 1
        sleep 0.2
        sysctl net.link.ipoib.ib0.mode=connected >/dev/null || return 1
        sleep 0.2
    done
    wait
    cat /tmp/pings
    grep -q ' 0.0% packet loss' /tmp/pings
}

set_up "$driver" 2
set_mode_of 0 connected
set_mode_of 1 connected
expect "the first packet is a UDP datagram of 8000 bytes and arrives whole" sends_large 9000
expect "60000 bytes, whole" on 0 ping -D -c 3 -s 60000 "$(address 1)"
expect "TCP" transfers 9001
expect "25 times to datagram mode and back, no ping lost" switches 25
set_mode_of 0 connected
set_mode_of 1 datagram
refuse "without connections there, whole, is answered with the MTU" "frag needed.*MTU 2044" \
    on 0 ping -D -c 1 -s 12000 "$(address 1)"
expect "without connections there, in fragments" on 0 ping -c 3 -s 12000 "$(address 1)"
expect "without connections there, UDP of 8000 bytes" sends_large 9002
expect "without connections there, TCP" transfers 9003
tear_down
