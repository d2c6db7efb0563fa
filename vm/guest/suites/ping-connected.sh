# shellcheck shell=sh
# Two hosts reach each other in connected mode, and the mode can be changed while they do.
# Time: 300 s

# shellcheck source=vm/guest/hosts.sh
. /vm/hosts.sh

# At the first packet there is no connection: the stock driver panics here.
first_is_large() {
    jexec b nc -u -l 9001 >/tmp/datagram &
    sleep 1
    head -c 8000 /dev/random >/tmp/large
    from_a nc -u -w 1 10.0.0.2 9001 </tmp/large
    sleep 1
    pkill nc
    [ "$(md5 -q /tmp/large)" = "$(md5 -q /tmp/datagram)" ]
}

# COUNT: changes the mode that often under traffic.
switch() {
    from_a ping -q -i 0.01 -c 2000 10.0.0.2 >/tmp/pings &
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

hosts_up
mode connected
expect "the first packet is a UDP datagram of 8000 bytes and arrives whole" first_is_large
expect "IPv4" from_a ping -c 3 10.0.0.2
expect "IPv4, 60000 bytes, whole" from_a ping -D -c 3 -s 60000 10.0.0.2
expect "IPv6" from_a ping -c 3 fd00::2
transfer "TCP"
expect "25 times to datagram mode and back, no ping lost" switch 25
mode connected datagram
# It learns of the MTU from the first.
refuse "to a host without connections, whole" "frag needed" from_a ping -D -c 1 -s 12000 10.0.0.2
expect "to a host without connections, in fragments" from_a ping -c 3 -s 12000 10.0.0.2
transfer "TCP to a host without connections"
no_oversize
hosts_down
