# shellcheck shell=sh
# The stock if_lagg with tcpdump(1): the reversal that it is known for is found, by the same words
# that the suites of our laggs look for. So the check can fail.
# Time: 120 s

# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/lagg.sh
. /vm/suites/lib/lagg.sh

load if_lagg ipoib_rs
if ! sysctl -q debug.witness.watch >/dev/null; then
    skip "all checks" "needs a kernel with WITNESS"
    exit
fi
expect "nothing is said of laggs before" test "$(lagg_reversals)" = 0
observe
ifconfig lagg0 create laggtype infiniband
ifconfig lagg0 laggport ib0 laggport ib2 1.1.1.1/24 up
timeout 2 tcpdump -n -c 1 -i lagg0 >/dev/null 2>&1
ifconfig lagg0 destroy
judge
expect "the reversal of if_lagg and bpf is found" test "$(lagg_reversals)" -gt 0
expect "ipoib_rs.ko unloads" kldunload ipoib_rs
