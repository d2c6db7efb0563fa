# shellcheck shell=sh
# A request for a connection that the adapter refuses to send.

set_up "${driver:?}" 2
set_mode connected
fault refuse_requests 1
observe_stock
expect_pings "datagrams go all the same" 0 "$(address 1)"
expect_pings "fragments go all the same" 0 "$(address 1)" -s 12000
fault refuse_requests 0
# Whoever was refused waits before it asks again.
expect "once requests can be sent, 30000 bytes go whole" \
    within 30 on 0 ping -D -q -c 1 -W 1000 -s 30000 "$(address 1)"
tear_down
