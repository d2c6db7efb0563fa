# shellcheck shell=sh
# The machine itself, without a module of ours: what the other suites stand on. Two jails with
# network stacks of their own, joined by a pair of Ethernet interfaces, reach each other.

programs="arp dd ifconfig jail jexec kldload nc ndp netstat ping route sha256 tcpdump"
# The list is to be split.
# shellcheck disable=SC2086
if ! missing=$(need $programs); then
    skip "all checks" "$missing"
    exit
fi
if [ ! -f /boot/kernel/if_epair.ko ] && ! kldstat -q -m if_epair; then
    skip "all checks" "needs if_epair"
    exit
fi
kldstat -q -m if_epair || kldload /boot/kernel/if_epair.ko

expect "a pair of interfaces is made" ifconfig epair0 create
for host in a b; do
    expect "jail $host has its own stack" jail -c name=$host vnet persist
    expect "an interface moves into jail $host" ifconfig "epair0$host" vnet $host
    jexec $host ifconfig lo0 127.0.0.1/8 up
done
expect "jail a has an IPv4 address" jexec a ifconfig epair0a inet 10.0.0.1/24 up
expect "jail b has an IPv4 address" jexec b ifconfig epair0b inet 10.0.0.2/24 up
# Duplicate address detection would make the first packets wait.
for host in a b; do
    jexec $host sysctl net.inet6.ip6.dad_count=0 >/dev/null
done
expect "jail a has an IPv6 address" jexec a ifconfig epair0a inet6 fd00::1/64
expect "jail b has an IPv6 address" jexec b ifconfig epair0b inet6 fd00::2/64
expect "a pings b with IPv4" jexec a ping -c 3 -t 10 10.0.0.2
expect "a pings b with IPv6" jexec a ping -6 -c 3 -t 10 fd00::2

# HOST TEXT COMMAND...: whether what the command says in a host's jail has the text in it.
says() {
    says_host=$1
    says_text=$2
    shift 2
    jexec "$says_host" "$@" >/tmp/words 2>&1
    cat /tmp/words
    grep -q -e "$says_text" /tmp/words
}
expect "arp shows b" says a 10.0.0.2 arp -an
expect "ndp shows b" says a fd00::2 ndp -an
expect "netstat shows the route" says a 10.0.0.0/24 netstat -rn
expect "route shows the way to b" says a epair0a route -n get 10.0.0.2
expect "a route is added" jexec a route add -net 10.9.0.0/16 10.0.0.2

jexec b tcpdump -n -c 1 -i epair0b icmp >/tmp/seen 2>&1 &
tcpdump_pid=$!
sleep 2
jexec a ping -c 3 -t 10 10.0.0.2 >/dev/null 2>&1
wait $tcpdump_pid
expect "tcpdump sees the ping" grep -q "10.0.0.1 > 10.0.0.2" /tmp/seen

dd if=/dev/random of=/tmp/sent bs=64k count=16 2>/dev/null
jexec b nc -l 10.0.0.2 5000 >/tmp/got &
nc_pid=$!
sleep 1
jexec a nc -N 10.0.0.2 5000 </tmp/sent
wait $nc_pid
if [ "$(sha256 -q /tmp/sent)" = "$(sha256 -q /tmp/got)" ]; then
    ok "a MiB goes over TCP unchanged"
else
    not_ok "a MiB goes over TCP unchanged" "$(wc -c </tmp/got) bytes came"
fi

expect "jail a goes" jail -r a
expect "jail b goes" jail -r b
