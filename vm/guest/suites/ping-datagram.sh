# shellcheck shell=sh
# Two hosts reach each other in datagram mode: IPv4 and IPv6, small, as large as a datagram, larger.
# Time: 240 s

# shellcheck source=vm/guest/hosts.sh
. /vm/hosts.sh

hosts_up
expect "IPv4" from_a ping -c 3 10.0.0.2
expect "IPv4, as large as the MTU, whole" from_a ping -D -c 3 -s 2016 10.0.0.2
refuse "IPv4, one byte more, whole" "too long" from_a ping -D -c 1 -s 2017 10.0.0.2
expect "IPv4, 30000 bytes, in fragments" from_a ping -c 3 -s 30000 10.0.0.2
expect "IPv6" from_a ping -c 3 fd00::2
expect "IPv6, 3000 bytes, in fragments" from_a ping -c 3 -s 3000 fd00::2
expect "a hundred pings at 10 ms" from_a ping -q -c 100 -i 0.01 10.0.0.2
transfer "TCP"
no_oversize
hosts_down
