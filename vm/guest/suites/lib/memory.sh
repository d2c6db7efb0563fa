# shellcheck shell=sh
# What of the kernel's memory is in use. Sourced by suites.
#
#   types_in_use          prints "type NAME<tab>COUNT" for each type of malloc(9)
#   zones_in_use          prints "zone NAME<tab>COUNT" for each zone of uma(9)
#   count_memory FILE     writes both to a file
#   grown BEFORE AFTER N  prints in one line what is in use more than before, N cycles later
#   count_jails N         finds out what the kernel itself loses with every jail, so that `grown`
#                         lets that pass, for N jails

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

# Several zones may have one name. A packet that is free keeps its cluster, which is not in use
# then, though its zone says so.
zones_in_use() {
    vmstat -z | awk -F '[:,]' '
        NF > 4 { used[$1] += $4 }
        $1 == "mbuf_packet" { used["mbuf_cluster"] -= $5 }
        END { for (name in used) print "zone " name "\t" used[name] }
    '
}

count_memory() {
    types_in_use >"$1"
    zones_in_use >>"$1"
}

# A jail with a network stack of its own, in which nobody but lo0 is.
bare_jail() {
    jail -c name=bare vnet persist || return 1
    jexec bare ifconfig lo0 inet 127.0.0.1/8 up
    jexec bare sysctl net.inet.icmp.bmcastecho=1 >/dev/null
    jail -r bare
}

BARE_JAILS=10

count_jails() {
    bare_jail
    sleep 3
    count_memory /tmp/bare_before
    for _ in $(seq "$BARE_JAILS"); do
        bare_jail || return 1
    done
    sleep 3
    count_memory /tmp/bare_after
    awk -F '\t' -v jails="$1" -v bare="$BARE_JAILS" '
        NR == FNR { before[$1] = $2; next }
        $2 - before[$1] >= bare { print $1 "\t" int(($2 - before[$1]) * jails / bare + 1) }
    ' /tmp/bare_before /tmp/bare_after >/tmp/bare
    note "the kernel loses for $1 jails: $(tr '\t\n' ' ;' </tmp/bare)"
}

# Some growth is not ours. The allocators take memory in steps, and keep books about it; LinuxKPI
# keeps the nodes of trees of numbers; what the kernel has for devd(8) stays, as there is none. And
# what belongs to processes and threads comes and goes with the programs of a suite; that may grow,
# but by less than one per cycle. What belongs to files goes with what a suite notes down.
grown() {
    touch /tmp/bare
    awk -F '\t' -v cycles="$3" '
        BEGIN {
            allocator = "^(type (vmem|idr)|zone (vm pgcache|vmem btag|UMA .*|[0-9]+ Bucket|" \
                "DEVCTL))$"
            process = "^(type (subproc|umtx|cred|filedesc|temp)|zone (THREAD|PROC|Files|VMSPACE|" \
                "TURNSTILE|SLEEPQUEUE|lkpicurr|ksiginfo|kstack_cache|FPU_save_area|rl_entry|" \
                "malloc-[0-9]+))$"
            file = "^(type tmpfs .*|zone (RADIX NODE|VM OBJECT|MAP ENTRY|VNODE|TMPFS node|" \
                "FFS.* d?inode|FFS inode|BUF TRIE|buf free cache|S VFS Cache))$"
            # As many as there are connections at the moment; what is lost is lost in every cycle.
            ours = "^type (softib|ipoib_rs)$"
        }
        FILENAME == "/tmp/bare" { lost[$1] = $2; next }
        FILENAME == ARGV[2] { before[$1] = $2; next }
        $1 ~ allocator { next }
        {
            more = $2 - before[$1] - lost[$1]
            allowed = $1 ~ process ? (cycles > 80 ? cycles / 2 : 40) : $1 ~ file ? 100 : \
                $1 ~ ours ? cycles / 5 : 0
        }
        more > allowed { text = text sep $1 " +" more; sep = ", " }
        END { print text }
    ' /tmp/bare "$1" "$2"
}
