# shellcheck shell=sh
# if_lagg.ko of the base system is unloaded while a lagg of it is in the network stack of a jail.
# Time: 300 s

# No port is in the lagg: softib.ko is here to be seen to have no part in it.
driver=ipoib
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh

if [ ! -f /boot/kernel/if_lagg.ko ]; then
    skip "all checks" "needs if_lagg.ko"
    exit
fi
set_up "$driver" 2
observe_stock
expect "if_lagg.ko loads" kldload /boot/kernel/if_lagg.ko
expect "a lagg is made" ifconfig lagg0 create laggtype infiniband
expect "it moves to a jail" ifconfig lagg0 vnet h0
expect "if_lagg.ko unloads" kldunload if_lagg
tear_down
