# shellcheck shell=sh
# Children of the stock driver, on softib.ko: whether they reach each other.
# Time: 300 s

driver=ipoib
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh

if [ ! -f /boot/kernel/if_vlan.ko ]; then
    skip "all checks" "needs if_vlan.ko in the folder of the kernel"
    exit
fi
kldload /boot/kernel/if_vlan.ko
set_up "$driver" 2
for host in 0 1; do
    sysctl "hw.softib.$(port_of "$host").pkeys=0xffff 0x8002" >/dev/null
done
for host in 0 1; do
    on "$host" ifconfig "ib$host.2" create
    on "$host" ifconfig "ib$host.2" inet "10.0.1.1$host/24" up
done
observe
expect "IPv4 by the children" on 0 ping -c 5 -i 0.5 -q 10.0.1.11
expect_pings "the parents go on" 0 "$(address 1)"
for host in 0 1; do
    on "$host" ifconfig "ib$host.2" destroy
done
tear_down
