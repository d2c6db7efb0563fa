# shellcheck shell=sh
# A port with connections loses its link and gets it back.

ROUNDS=5

no_carrier() {
    ! has_carrier "$1"
}

# Small packets first: large ones before there is a connection are the matter of another suite.
has_connections() {
    on 0 ping -q -c 1 -W 500 "$(address 1)" || return 1
    sleep 0.5
    on 0 ping -q -c 1 -W 500 -s 30000 "$(address 1)"
}

set_up "${driver:?}" 2
set_mode connected
observe_stock
for round in $(seq "$ROUNDS"); do
    expect "round $round, 30000 bytes arrive" within 10 has_connections
    fault "$(port_of 0).link" 0
    expect "round $round, the carrier goes with the link" within 5 no_carrier 0
    fault "$(port_of 0).link" 1
    expect "round $round, the carrier is back within a second" within 1 has_carrier 0
done
# The neighbour, whose port kept its link, learns with its next packet that its connection is gone.
expect "a ping is answered, after all" within 5 on 0 ping -q -c 1 -W 500 "$(address 1)"
expect_pings "small packets, after all" 0 "$(address 1)"
tear_down
