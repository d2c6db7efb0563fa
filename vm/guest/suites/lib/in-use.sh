# shellcheck shell=sh
# What is in use in the kernel, before and after something was done a number of times. Sourced by
# suites.
#
#   in_use >FILE            writes down what is in use now
#   grown BEFORE AFTER      prints what of it is more, for CYCLES times
#
# The first run of each program fills caches of files, so begin after one cycle; and look twice,
# because the first look does so too.

# Prints "type NAME<tab>COUNT" for the allocations of each type of malloc(9) that are in use.
types_in_use() {
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
}

# Prints "zone NAME<tab>COUNT" for the items of the zones of uma(9) that are in use. Several zones
# may have one name.
zones_in_use() {
    vmstat -z | awk -F '[:,]' '
        NF > 4 { used[$1] += $4 }
        END { for (name in used) print "zone " name "\t" used[name] }
    '
}

# BEFORE AFTER: prints in one line what is in use more than before. Two kinds of growth are not
# ours. The allocators take memory in steps, and keep books about it, as events wait for devd(8). And what belongs to processes
# and files comes and goes with the programs of this suite; that may grow, but by less than one per
# load.
grown() {
    awk -F '\t' -v cycles="$CYCLES" '
        BEGIN {
            allocator = "^(type vmem|zone (DEVCTL|vm pgcache|vmem btag|UMA .*|[0-9]+ Bucket))$"
            process = "^(type (subproc|umtx|cred|filedesc|temp)|zone (THREAD|PROC|Files|VMSPACE|" \
                "TURNSTILE|SLEEPQUEUE|ksiginfo|kstack_cache|FPU_save_area|malloc-[0-9]+))$"
            file = "^(type tmpfs .*|zone (RADIX NODE|VM OBJECT|MAP ENTRY|VNODE|TMPFS node|" \
                "FFS.* d?inode|FFS inode|BUF TRIE|buf free cache|S VFS Cache))$"
        }
        NR == FNR { before[$1] = $2; next }
        $1 ~ allocator { next }
        {
            more = $2 - before[$1]
            allowed = $1 ~ process || $1 ~ file ? cycles / 2 : 0
        }
        more > allowed { text = text sep $1 " +" more; sep = ", " }
        END { print text }
    ' "$1" "$2"
}

in_use() {
    types_in_use
    zones_in_use
}
