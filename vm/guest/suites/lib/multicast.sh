# shellcheck shell=sh
# Multicast and broadcast reach every host.

# TARGET COUNT: whether so many different hosts answer.
answered_by() {
    on 0 ping -c 4 -i 0.5 "$1" >/tmp/answers
    answers=$(sed -n 's/^[0-9]* bytes from \([^ ]*\)[:,] .*/\1/p' /tmp/answers | sort -u)
    count=$(echo "$answers" | grep -c .)
    echo "answered by $count: $(echo "$answers" | tr '\n' ' ')"
    [ "$count" -ge "$2" ]
}

set_up "${driver:?}" 3
# Without a default route, this says where groups are.
on 0 route -q add -net 224.0.0.0/4 -interface ib0
expect "broadcast" answered_by 10.0.0.255 2
expect "all hosts, IPv4" answered_by 224.0.0.1 2
expect "all hosts, IPv6" answered_by "ff02::1%ib0" 2
joins=$(sysctl -n hw.softib.sm.joins)
expect "the subnet manager was asked to join" test "$joins" -ge 6
tear_down
