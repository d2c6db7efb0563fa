# shellcheck shell=sh
# smoke
# Time: 200 s
kldload /boot/modules/softib.ko
kldload /boot/modules/ipoib_rs.ko
sysctl hw.ipoib.lagg net.link.ipoib.lagg
kldstat -v | grep lagg
ifconfig lagg0 create
expect "created" ifconfig lagg0 create laggtype infiniband
ifconfig lagg0
kldstat
expect "configured" ifconfig lagg0 laggproto failover laggport ib0 laggport ib2 1.1.1.1/24 up
sleep 2
ifconfig lagg0
ifconfig -v lagg0
ifconfig ib0
sysctl net.link.ipoib.lagg0.ports net.link.ipoib.lagg0.groups
sysctl net.link.ipoib.lagg0.stats | grep -v ': 0$'
jail -c name=b vnet persist vnet.interface=ib1
jexec b ifconfig ib1 1.1.1.2/24 up
sleep 2
expect "ping" ping -c 3 -i 0.2 1.1.1.2
netstat -I lagg0 -b
sysctl hw.softib.0.1.link=0
sleep 0.3
expect "ping after" ping -c 3 -i 0.2 1.1.1.2
ifconfig lagg0
sysctl hw.softib.0.1.link=1
sleep 2
ifconfig lagg0
expect "ping after" ping -c 3 -i 0.2 1.1.1.2
kldload if_lagg
ifconfig lagg0 -laggport ib0
ifconfig lagg0
ifconfig ib0
netstat -I lagg0 -b
expect "destroyed" ifconfig lagg0 destroy
ifconfig ib2
jail -r b
expect "unload" kldunload ipoib_rs
expect "unload" kldunload softib
dmesg | tail -40
