# shellcheck shell=sh
# What the suites in the test machine are written with. POSIX sh; sourced by /etc/rc.
#
#   ok NAME              a check that passed
#   not_ok NAME WHY      a check that failed
#   skip NAME WHY        a check that cannot run here
#   expect NAME COMMAND...  a check that passes if the command does
#   refuse NAME TEXT COMMAND...  ... if the command fails, and says TEXT or makes the kernel say it
#   need PROGRAM...      whether all of these programs are there; says which is not
#   keep FILE            copies a file of some KiB out of the machine, see vm.sh
#   observe              what follows is about somebody else's driver: found, and not judged
#   judge                ends that
#   note TEXT            a line for whoever reads the console
#   option NAME DEFAULT  prints what scripts/vm.sh --set says of NAME, or the default
#
# A name has no colon in it. Results go to the second serial port, which nobody else writes to, and
# to the console for those who read it.

# Closing the port waits until what was written has left the machine: a panic right after a result
# does not lose it.
report() {
    printf '@vm %s\n' "$*" >/dev/cuau1
    printf '@vm %s\n' "$*" >/dev/console
}

ok() {
    report ok "$1"
}

not_ok() {
    report not_ok "$1: $2"
}

skip() {
    report skip "$1: $2"
}

# The base system has no program that makes text of any file, but cmp(1) says which bytes are not 0.
keep() {
    {
        printf '@file %s %s\n' "$(basename "$1")" "$(wc -c <"$1" | tr -d ' ')"
        cmp -l "$1" /dev/zero 2>/dev/null | awk '{ print "@byte", $1, $2 }'
        echo "@end"
    } >/dev/cuau1
}

# Names the check that is being made, for the case that the machine does not survive it.
try() {
    report try "$1"
}

observe() {
    report observe
}

judge() {
    report judge
}

note() {
    printf '@vm note %s\n' "$*" >/dev/console
}

option() {
    kenv -q "vm.$1" || echo "$2"
}

# The last line that a command said, for a reason in one line.
last_line() {
    tail -n 1 "$1"
}

expect() {
    expect_name=$1
    shift
    try "$expect_name"
    if "$@" >/tmp/said 2>&1; then
        ok "$expect_name"
    else
        expect_code=$?
        not_ok "$expect_name" "code $expect_code from $*, which said '$(last_line /tmp/said)'"
    fi
}

refuse() {
    refuse_name=$1
    refuse_text=$2
    shift 2
    try "$refuse_name"
    refuse_lines=$(dmesg | wc -l)
    if "$@" >/tmp/said 2>&1; then
        not_ok "$refuse_name" "$* was not refused"
        return
    fi
    # The kernel's message buffer holds far more than one suite says: lines are only added.
    dmesg | tail -n "+$((refuse_lines + 1))" >>/tmp/said
    if grep -q -e "$refuse_text" /tmp/said; then
        ok "$refuse_name"
    else
        not_ok "$refuse_name" "refused without '$refuse_text', but with '$(last_line /tmp/said)'"
    fi
}

need() {
    for need_program in "$@"; do
        if ! command -v "$need_program" >/dev/null 2>&1; then
            echo "needs $need_program"
            return 1
        fi
    done
}
