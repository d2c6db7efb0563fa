# shellcheck shell=sh
# Pings by connections between three hosts: two ports of one adapter, and one of another.

set_up "${driver:?}" 3
set_mode connected
for to in 1 2; do
    expect_pings "IPv4 to host $to" 0 "$(address "$to")"
    expect_pings "30000 bytes to host $to" 0 "$(address "$to")" -s 30000
    expect_pings "60000 bytes to host $to" 0 "$(address "$to")" -s 60000
    # -u: in one packet, and not in 25 fragments of 1280 bytes, of which the kernel would keep only
    # 16 until it knows the neighbour. -b: ping(8) wants to be told that its buffer may be so large.
    expect_pings "IPv6 to host $to, 30000 bytes" 0 "$(address6 "$to")" -u -b 65536 -s 30000
done
case $driver in
# It refuses to send what it cannot squeeze into fewer clusters than the adapter has segments.
ipoib) skip "65520 bytes in one packet" "the stock driver sends at most 15 clusters of 4096" ;;
*) expect_pings "65520 bytes in one packet" 0 "$(address 1)" -D -s 65492 ;;
esac
tear_down
