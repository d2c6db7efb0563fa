# shellcheck shell=sh
# The commands of docs/softib.md, one after the other. tests/vm.rs compares the two.
# Time: 300 s

sysctl -q debug.debugger_on_panic=0 debug.trace_on_panic=1 kern.panic_reboot_wait_time=1 >/dev/null
if ! missing=$(need jail jexec kldload kldunload sysctl ping ifconfig arp); then
    skip "all checks" "$missing"
    exit
fi

# What a command says is for whoever reads the console.
run() {
    sh -c "$1" >/tmp/ran 2>&1
    run_code=$?
    sed 's/^/@vm note   /' /tmp/ran >/dev/console
    cat /tmp/ran
    return "$run_code"
}

while read -r command; do
    note "# $command"
    expect "$command" run "$command"
done <<'END'
kldload softib
kldload ipoib_rs
jail -c name=left vnet persist vnet.interface=ib0
jail -c name=right vnet persist vnet.interface=ib1
jexec left ifconfig ib0 inet 10.0.0.1/24 up
jexec right ifconfig ib1 inet 10.0.0.2/24 up
jexec left ping -c 3 10.0.0.2
jexec left arp -an
sysctl net.link.ipoib.ib0.mode=connected
sysctl net.link.ipoib.ib1.mode=connected
jexec left ping -c 3 -D -s 60000 10.0.0.2
sysctl net.link.ipoib.ib0.neighbors
sysctl net.link.ipoib.ib0.stats
sysctl hw.softib.0.2.link=0
sleep 1
jexec right ifconfig ib1
sysctl hw.softib.0.2.link=1
sleep 2
jexec left ping -c 3 10.0.0.2
jail -r left
jail -r right
kldunload ipoib_rs
kldunload softib
END
