# shellcheck shell=sh
# The module loads, shows itself, unloads, and leaves nothing behind; it is refused beside the stock
# driver and by a kernel that it was not built for.

CYCLES=100

module=/boot/modules/ipoib_rs.ko
stock=/boot/kernel/ipoib.ko
foreign=/boot/foreign/ipoib_rs.ko

# shellcheck source=vm/guest/suites/lib/memory.sh
. /vm/suites/lib/memory.sh

load_and_unload() {
    kldload "$module" && kldunload ipoib_rs
}

cycle() {
    done_count=0
    while [ "$done_count" -lt "$CYCLES" ]; do
        load_and_unload || return 1
        done_count=$((done_count + 1))
    done
}

if ! missing=$(need kldload kldunload kldstat sysctl vmstat dmesg); then
    skip "all checks" "$missing"
    exit
fi

# All files are made now: they are in memory as well.
touch /tmp/said /tmp/before /tmp/after
types_in_use >/tmp/before
if [ "$(wc -l </tmp/before)" -lt 50 ]; then
    not_ok "what is in use can be told" "vmstat names only $(wc -l </tmp/before) types"
    exit
fi

expect "the module loads" kldload "$module"
expect "kldstat shows the file" kldstat -q -n ipoib_rs.ko
expect "kldstat shows the module" kldstat -q -m ipoib_rs
expect "there is hw.ipoib" sysctl -N hw.ipoib
expect "there is net.link.ipoib" sysctl -N net.link.ipoib
expect "the module unloads" kldunload ipoib_rs
refuse "hw.ipoib is gone" "unknown oid" sysctl -N hw.ipoib

# Types of malloc(9) count from before the first load. Zones of uma(9) count from here, because the
# first run of each program fills caches of files. Twice, because the first look does as well.
zones_in_use >/tmp/after
zones_in_use >>/tmp/before
expect "$CYCLES times loaded and unloaded" cycle
types_in_use >/tmp/after
zones_in_use >>/tmp/after
grown=$(grown /tmp/before /tmp/after "$CYCLES")
if [ -z "$grown" ]; then
    ok "nothing stays in use"
else
    not_ok "nothing stays in use" "$grown"
fi

if [ ! -f "$stock" ]; then
    skip "refused beside the stock driver" "needs ipoib.ko in the folder of the kernel"
elif ! kldload "$stock"; then
    not_ok "refused beside the stock driver" "the stock driver does not load"
else
    refuse "refused beside the stock driver" "error 17\|already loaded" kldload "$module"
    refuse "the message names the stock driver" "^ipoib_rs: .*kldunload ipoib" kldload "$module"
    expect "the stock driver still unloads" kldunload ipoib
    expect "loads after the stock driver" load_and_unload
    kldload "$module"
    refuse "the stock driver is refused beside it" "already loaded" kldload "$stock"
    refuse "the kernel names the file" "cannot register ipoib from ipoib.ko.*ipoib_rs.ko" \
        kldload "$stock"
    expect "it still unloads" kldunload ipoib_rs
    expect "the stock driver loads after it" kldload "$stock"
    expect "and unloads" kldunload ipoib
fi

if [ -f "$foreign" ]; then
    refuse "a module for another FreeBSD is refused" "version mismatch" kldload "$foreign"
else
    skip "a module for another FreeBSD is refused" "needs --foreign"
fi
