# shellcheck shell=sh
# Pings by datagrams between three hosts: two ports of one adapter, and one of another.

set_up "${driver:?}" 3
set_mode datagram
for to in 1 2; do
    expect_pings "IPv4 to host $to" 0 "$(address "$to")"
    # The largest that one datagram holds: 2044 with the headers of IPv4 and ICMP.
    expect_pings "2044 bytes to host $to" 0 "$(address "$to")" -s 2016
    expect_pings "IPv6 to host $to" 0 "$(address6 "$to")"
done
expect_pings "from another adapter" 2 "$(address 0)"
tear_down
