# shellcheck shell=sh
# The module loads, shows itself, unloads, and leaves nothing behind; it is refused beside the stock
# driver and by a kernel that it was not built for.

CYCLES=100

module=/boot/modules/ipoib_rs.ko
stock=/boot/kernel/ipoib.ko
foreign=/boot/foreign/ipoib_rs.ko

# Prints "KIND NAME<tab>COUNT" for the allocations of each type of malloc(9) and the items of each
# zone of uma(9) that are in use.
in_use() {
    vmstat -m | awk '{
        for (i = 2; i < NF; i++)
            if ($i ~ /^[0-9]+$/ && $(i + 1) ~ /^[0-9]+K?$/)
                break
        if (i >= NF)
            next
        name = $1
        for (j = 2; j < i; j++)
            name = name " " $j
        print "type " name "\t" $i
    }'
    vmstat -z | awk -F '[:,]' 'NF > 4 { gsub(/ /, "", $4); print "zone " $1 "\t" $4 }'
}

# BEFORE AFTER: prints what is in use more than before, in one line, except for what userland
# itself makes come and go.
grown() {
    awk -F '\t' '
        # Files and their pages that a program touched for the first time, processes that are not
        # reaped yet, and caches of the allocator itself.
        /^zone (VNODE|VM OBJECT|MAP ENTRY|VMSPACE|PROC|THREAD|PGRP|namei|NAMEI|Files|filedesc0)/ ||
        /^zone (RADIX NODE|PVENTRY|buf free cache|cl_savebuf|FFS|STS VFS|S VFS|L VFS|LTS VFS)/ ||
        /^zone (UMA |KMAP ENTRY|vmem|[0-9]+ Bucket|malloc-|VM page|cpuset|TURNSTILE|SLEEPQUEUE)/ ||
        /^zone (ksiginfo|itimer|procdesc|pipe|ttyinq|ttyoutq|DIRHASH|bridge|audit|tmpfs|TMPFS)/ ||
        /^type (filedesc|temp|subproc|proc|proc-args|session|pgrp|cred|plimit|uidinfo|sigio|file)/ ||
        /^type (UMAHash|DEVFS|vnodes|bio_buf|pagedep|inodedep|bmsafemap|newblk|vm_pgdata|tmpfs)/ {
            next
        }
        NR == FNR { before[$1] = $2; next }
        $2 > before[$1] { grown = grown sprintf("%s%s +%d", sep, $1, $2 - before[$1]); sep = ", " }
        END { print grown }
    ' "$1" "$2"
}

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

expect "the module loads" kldload "$module"
expect "kldstat shows the file" kldstat -q -n ipoib_rs.ko
expect "kldstat shows the module" kldstat -q -m ipoib_rs
expect "there is hw.ipoib" sysctl -N hw.ipoib
expect "there is net.link.ipoib" sysctl -N net.link.ipoib
expect "the module unloads" kldunload ipoib_rs
refuse "hw.ipoib is gone" "unknown oid" sysctl -N hw.ipoib

# Once before the count, so that what is made once for all modules is there.
load_and_unload >/dev/null 2>&1
in_use >/tmp/before
in_use >/tmp/before
expect "$CYCLES times loaded and unloaded" cycle
in_use >/tmp/after
grown=$(grown /tmp/before /tmp/after)
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
fi

if [ -f "$foreign" ]; then
    refuse "a module for another FreeBSD is refused" "version mismatch" kldload "$foreign"
else
    skip "a module for another FreeBSD is refused" "needs --foreign"
fi
