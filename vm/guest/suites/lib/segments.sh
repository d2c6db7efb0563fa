# shellcheck shell=sh
# An adapter that says it takes more segments in a receive than a packet of 64 KiB needs.

kenv "hw.softib.max_srq_sge=${segments:?}" >/dev/null
observe_stock
set_up "${driver:?}" 2
# With the MTU that the stock driver makes of it.
[ "$driver" = ipoib ] || set_mode connected
expect_pings "small packets" 0 "$(address 1)"
expect_pings "12000 bytes, whole" 0 "$(address 1)" -D -s 12000
expect_pings "60000 bytes, whole" 0 "$(address 1)" -D -s 60000
tear_down
