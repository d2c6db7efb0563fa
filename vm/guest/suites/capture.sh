# shellcheck shell=sh
# What tcpdump(1) sees of ipoib_rs.ko, of both link types. The captures leave the machine, and
# vm/host/capture.sh has tshark look at them.
# Time: 300 s

driver=ipoib_rs
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh

# NAME LINK-TYPE: captures on host 0 from now on.
capture() {
    on 0 tcpdump -i ib0 -y "$2" -U -s 256 -w "/tmp/$1.pcap" 2>"/tmp/$1.said" &
}

is_capturing() {
    grep -q "^listening on\|^tcpdump: listening on" "/tmp/$1.said"
}

end_captures() {
    sleep 1
    pkill -INT tcpdump
    wait
}

forget() {
    for forget_host in 0 1; do
        on "$forget_host" arp -d -a >/dev/null 2>&1
        on "$forget_host" ndp -c >/dev/null 2>&1
    done
}

# NAME: what tcpdump(1) makes of a capture.
reads() {
    on 0 tcpdump -n -r "/tmp/$1.pcap" 2>&1
}

# NAME TEXT
shows() {
    reads "$1" | grep -q "$2"
}

if ! missing=$(need tcpdump ndp cmp pkill nc); then
    skip "all checks" "$missing"
    exit
fi
set_up "$driver" 2
forget
for name in ethernet ipoib; do
    case $name in
    ethernet) capture ethernet EN10MB ;;
    ipoib) capture ipoib IPOIB ;;
    esac
    expect "tcpdump captures, $name" within 10 is_capturing "$name"
done
expect_pings "IPv4" 0 "$(address 1)"
expect_pings "IPv6" 0 "$(address6 1)"
on 1 nc -l "$(address 1)" 5001 >/tmp/arrived &
sleep 1
echo hello | on 0 timeout 30 nc -N "$(address 1)" 5001
end_captures
for name in ethernet ipoib; do
    expect "ARP is seen, $name" shows "$name" "who-has $(address 1) "
    expect "ICMP is seen, $name" shows "$name" "ICMP echo reply"
    expect "neighbor discovery is seen, $name" shows "$name" "neighbor advertisement"
    expect "TCP is seen, $name" shows "$name" "Flags \[S\]"
    keep "/tmp/$name.pcap"
done

# The address of host 0, as host 1 knows it from neighbour discovery; leading zeros apart.
known_address() {
    on 1 ndp -an | awk -v of="$(address6 0)" '$1 == of { print $2 }' | canonical
}

own_address() {
    on 0 ifconfig ib0 | awk '$1 == "lladdr" { print $2 }' | canonical
}

canonical() {
    tr . : | sed 's/\<0\([0-9a-f]\)/\1/g'
}

knows() {
    [ -n "$(known_address)" ] && [ "$(known_address)" = "$(own_address)" ]
}

expect "what a neighbour knows is the address" knows
# Without it, options have the form of FreeBSD; both forms are understood.
sysctl net.link.ipoib.ib0.normalize_nd=0 >/dev/null
forget
capture raw IPOIB
expect "tcpdump captures, raw" within 10 is_capturing raw
on 0 ndp -c >/dev/null 2>&1
on 0 ping -c 3 -i 0.2 -q "$(address6 1)" >/dev/null 2>&1 &
pings=$!
# Soon: it finds out that it is not answered.
expect "a neighbour understands the form of FreeBSD as well" within 5 knows
wait "$pings"
end_captures
keep /tmp/raw.pcap
refuse "but the stack itself does not understand that of the RFC" "100.0% packet loss" \
    on 0 ping -c 3 -i 0.2 -q "$(address6 1)"
sysctl net.link.ipoib.ib1.normalize_nd=0 >/dev/null
forget
expect "two stacks without it understand each other" on 0 ping -c 3 -q "$(address6 1)"
sysctl net.link.ipoib.ib0.normalize_nd=1 net.link.ipoib.ib1.normalize_nd=1 >/dev/null
forget
expect "as do two with it" on 0 ping -c 3 -q "$(address6 1)"
tear_down
