# shellcheck shell=sh
# Failover under pings, 1000 of them a second: how long it takes from the loss of a link to the
# first answer by the other port, for a lagg of ours and for one of if_lagg, over the same ports, in
# the same boot.
# Time: 600 s

# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/lagg.sh
. /vm/suites/lib/lagg.sh

TRIALS=20
# What ours may take.
MS_MAX=100
FLAPS=20

primary=hw.softib.0.1.link
PEER=1.1.1.9

# Prints the milliseconds from a loss of the primary's link to the first answer by the other port,
# on which none comes before; and those of the longest silence on it from then on, for a second.
trial() {
    jexec a tcpdump -n -tt -l -i ib2 "icmp[icmptype] == icmp-echoreply" >/tmp/answers 2>/dev/null &
    trial_tcpdump=$!
    jexec a ping -q -i 0.001 "$PEER" >/dev/null 2>&1 &
    trial_ping=$!
    sleep 1
    trial_at=$($LAGGCTL set $primary 0)
    within 5 test -s /tmp/answers
    sleep 1
    kill $trial_ping
    kill $trial_tcpdump
    wait $trial_ping $trial_tcpdump 2>/dev/null
    awk -v at="$trial_at" '
        function ms(time) {
            split(time, parts, ".")
            return (parts[1] - base) * 1000 + substr(parts[2] "000000", 1, 6) / 1000
        }
        BEGIN { split(at, whole, "."); base = whole[1]; span = -1 }
        /ICMP echo reply/ {
            now = ms($1)
            if (span < 0)
                span = now - ms(at)
            else if (now - before > silence)
                silence = now - before
            before = now
        }
        END { printf "%.1f %.1f\n", span, silence }
    ' /tmp/answers
}

restore() {
    $LAGGCTL set $primary 1 >/dev/null
    within 10 is_active "$1" ib0 || return 1
    within 10 wears "$1" ib0
}

# COLUMN: sets minimum, median and maximum of it in /tmp/spans.
summarize() {
    awk -v column="$1" '{ print $column }' /tmp/spans | sort -n >/tmp/sorted
    median=$(awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }' /tmp/sorted)
    maximum=$(tail -n 1 /tmp/sorted)
    minimum=$(head -n 1 /tmp/sorted)
}

# LAGG: 20 trials; leaves what they were until the first answer in the variables of `summarize`.
trials() {
    : >/tmp/spans
    for trials_number in $(seq "$TRIALS"); do
        trial >>/tmp/spans
        restore "$1" || note "trial $trials_number: the primary does not carry again"
    done
    summarize 2
    note "$1: longest silence after the first answer, median $median ms, maximum $maximum ms"
    summarize 1
    note "$1: $TRIALS trials, median $median ms, maximum $maximum ms, all:" \
        "$(tr '\n' ' ' </tmp/sorted)"
}

at_most() {
    awk -v value="$1" -v limit="$2" 'BEGIN { exit !(value >= 0 && value <= limit) }'
}

# LAGG: pings while the primary takes over again.
returns_without_loss() {
    $LAGGCTL set $primary 0 >/dev/null
    within 10 is_active "$1" ib2 || return 1
    sleep 1
    jexec a ping -q -c 300 -i 0.01 "$PEER" >/tmp/back &
    returns_ping=$!
    sleep 0.5
    restore "$1" || return 1
    wait $returns_ping
    cat /tmp/back
    grep -q ' 0.0% packet loss' /tmp/back
}

load if_lagg ipoib_rs
peer b ib1 $PEER
make_jail a ib0 ib2
observe
lagg_of a lagg0 1.1.1.1 ib0 ib2
judge
expect "the stock lagg is up" within 10 is_active lagg0 ib0
expect "it reaches the peer" within 10 jexec a ping -q -c 2 -i 0.2 -W 500 $PEER
observe
trials lagg0
stock="median $median ms, maximum $maximum ms"
jexec a ifconfig lagg0 destroy
judge
jexec b arp -d -a >/dev/null 2>&1

lagg_of a iblagg0 1.1.1.1 ib0 ib2
expect "the lagg of ours is up" within 10 is_active iblagg0 ib0
expect "it reaches the peer as well" within 10 jexec a ping -q -c 2 -i 0.2 -W 500 $PEER
trials iblagg0
ok "$TRIALS failovers of ours, median $median ms, maximum $maximum ms; of if_lagg, $stock"
expect "each of ours was measured" at_most 0 "$minimum"
expect "none of ours took longer than $MS_MAX ms" at_most "$maximum" $MS_MAX
expect "back to the primary, no ping is lost" returns_without_loss iblagg0

changes=$(lagg_stat iblagg0 address_changes)
announcements=$(lagg_stat iblagg0 announcements)
$LAGGCTL flap $primary $((2 * FLAPS)) $((1000 / FLAPS / 2))
sleep 2
changes=$(($(lagg_stat iblagg0 address_changes) - changes))
announcements=$(($(lagg_stat iblagg0 announcements) - announcements))
expect "$FLAPS flaps in a second, $changes changes of the address, $announcements announcements" \
    test "$announcements" -le "$changes"
expect "the primary carries in the end" within 5 is_active iblagg0 ib0
expect "its address is worn" wears iblagg0 ib0
expect "and the peer knows" within 5 jexec a ping -q -c 2 -i 0.2 -W 500 $PEER

# The two machines of FreeBSD's review, each with a lagg of two ports.
jexec a ifconfig iblagg0 destroy
end_jail b ib1
lagg_of a iblagg0 1.1.1.1 ib0 ib2
make_jail b ib1 ib3
lagg_of b iblagg1 1.1.1.2 ib1 ib3
expect "machine A and machine B" within 10 jexec a ping -q -c 2 -i 0.2 -W 500 1.1.1.2
for port in 0.1 0.2; do
    fault $port.link 0
    sleep 1
    expect "the master of $port loses its link, A reaches B" \
        within 5 jexec a ping -q -c 3 -i 0.2 -W 500 1.1.1.2
    expect "and B reaches A" within 5 jexec b ping -q -c 3 -i 0.2 -W 500 1.1.1.1
    fault $port.link 1
    sleep 2
    expect "the master of $port is back, A reaches B" \
        within 5 jexec a ping -q -c 3 -i 0.2 -W 500 1.1.1.2
    expect "and B reaches A then" within 5 jexec b ping -q -c 3 -i 0.2 -W 500 1.1.1.1
done
jexec a ifconfig ib0 down
sleep 1
expect "the master is marked down, A reaches B" \
    within 5 jexec a ping -q -c 3 -i 0.2 -W 500 1.1.1.2
jexec a ifconfig ib0 up
sleep 2
expect "and up again, A reaches B" within 5 jexec a ping -q -c 3 -i 0.2 -W 500 1.1.1.2
expect "with IPv6 addresses" jexec a ifconfig iblagg0 inet6 fd00::1/64
jexec b ifconfig iblagg1 inet6 fd00::2/64
expect "A reaches B by IPv6" within 10 jexec a ping -6 -q -c 2 -i 0.2 -W 500 fd00::2
fault 0.1.link 0
expect "and after a failover" within 5 jexec a ping -6 -q -c 2 -i 0.2 -W 500 fd00::2
fault 0.1.link 1
expect "ipoib_rs.ko unloads, with laggs in both vnets" kldunload ipoib_rs
# What the kernel does with a vnet that goes, and if_lagg with itself, is their own affair.
observe
jail -r a
jail -r b
kldunload if_lagg
judge
expect "softib.ko unloads" kldunload softib
