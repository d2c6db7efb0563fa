# shellcheck shell=sh
# The very first packet to a neighbour is larger than a datagram of the fabric.

# shellcheck source=vm/guest/suites/lib/traffic.sh
. /vm/suites/lib/traffic.sh

set_up "${driver:?}" 2
set_mode connected
observe_stock
expect "the first packet, UDP of 8000 bytes, arrives whole" \
    datagram_arrives 0 1 "$(address 1)" 8000
expect "60000 bytes, whole" on 0 ping -D -q -c 3 -s 60000 "$(address 1)"
expect "TCP" transfers 0 1 "$(address 1)" 4000000
tear_down
