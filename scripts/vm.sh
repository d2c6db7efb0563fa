#!/bin/sh
# Runs the suites of vm/guest/suites on a FreeBSD kernel in QEMU, on Debian or FreeBSD.
#
#   scripts/vm.sh --kernel DIR --base DIR --sys DIR      all suites
#
#   --kernel DIR    a kernel and its modules, like /boot/kernel of FreeBSD
#   --base DIR      the root of a FreeBSD system that programs and libraries are taken from
#   --sys DIR       the kernel's sources, which our modules are built with (scripts/build-kmod.sh)
#   --modules DIR   our modules, already built, instead of --sys
#   --foreign DIR   our modules built for another major version of FreeBSD, to see them refused
#   --suite NAME    this suite; may be given again. --list prints their names
#   --compare       every suite that there is for our driver and, as stock-NAME, for the one of the
#                   base system; or with --suite, those of them. Prints a table of both
#   --time SECONDS  the limit for one suite (default: the suite's own, or 600)
#   --set NAME=VALUE  an option of a suite, such as seed=7; may be given again
#   --out DIR       consoles and results are kept here (default: target/vm), and files that a
#                   suite keeps, as SUITE.NAME
#
# Every suite runs in a machine of its own. Prints a line for each check, and at the end "N passed,
# N failed, N skipped", and ", N observed" if checks were made of the driver of the base system only
# to see what it does. Exit codes: 0 nothing failed; 1 a check failed; 2 wrong arguments; 3 a
# folder or a file is missing; 4 a tool is missing; 5 the modules could not be built.
# docs/kernel-testing.md says where kernels and base systems come from.
set -u

REPO=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
VM=$REPO/vm

CODE_USAGE=2
CODE_INPUT=3
CODE_TOOL=4
CODE_BUILD=5

# Of the machine. Two processors, so that there are races.
MEMORY_MIB=1024
PROCESSORS=2
IMAGE_MIB=128
SECONDS_MAX=600
# For a backtrace to be printed after a panic, before the machine is ended.
PANIC_SECONDS=10

# What a suite may use. The first ones are needed by every suite.
PROGRAMS_NEEDED="init sh cat echo test [ mount ifconfig kenv dmesg grep tail reboot"
PROGRAMS="arp awk basename cmp cut date dd diff expr head id jail jexec jls kill kldload kldstat
    kldunload ln ls md5 mkdir mv nc ndp netstat pgrep ping pkill printf ps rm route sed seq sha256
    sleep sort stty sync sysctl tcpdump timeout top touch tr traceroute true umount uname uniq
    vmstat wc xargs"
# Modules of the kernel that suites load, if they are there.
KERNEL_MODULES="ipoib if_infiniband if_lagg if_vlan if_epair if_bridge bridgestp"

die() {
    die_code=$1
    shift
    printf 'vm.sh: %s\n' "$*" >&2
    exit "$die_code"
}

step() {
    printf '== %s\n' "$*"
}

suites() {
    for suite_file in "$VM"/guest/suites/*.sh; do
        basename "$suite_file" .sh
    done
}

# PROGRAM PACKAGE...: PACKAGE is Debian's.
need_tool() {
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] ||
        die "$CODE_TOOL" "$1 is missing; on Debian, apt-get install $2"
}

# Suites that there are for both drivers.
pairs() {
    for pair in ${1:-$(suites)}; do
        [ ! -f "$VM/guest/suites/stock-$pair.sh" ] || echo "$pair stock-$pair"
    done
}

need_folder() {
    [ -n "$2" ] || die "$CODE_USAGE" "$1 is not given; see the head of this script"
    [ -d "$2" ] || die "$CODE_INPUT" "$1 $2: there is no such folder"
}

kernel=
base=
sys=
modules=
foreign=
wanted=
compare=
limit=
options=
out=$REPO/target/vm
while [ $# -gt 0 ]; do
    case $1 in
    --list)
        suites
        exit 0
        ;;
    --compare)
        compare=1
        shift
        continue
        ;;
    --kernel | --base | --sys | --modules | --foreign | --suite | --time | --set | --out)
        [ $# -ge 2 ] || die "$CODE_USAGE" "$1 wants a value"
        ;;
    *) die "$CODE_USAGE" "$1 is not known; see the head of this script" ;;
    esac
    case $1 in
    --kernel) kernel=$2 ;;
    --base) base=$2 ;;
    --sys) sys=$2 ;;
    --modules) modules=$2 ;;
    --foreign) foreign=$2 ;;
    --suite) wanted="$wanted $2" ;;
    --time) limit=$2 ;;
    --set)
        case $2 in
        *[!A-Za-z0-9_=.]* | =* | *=) die "$CODE_USAGE" "--set $2: not NAME=VALUE" ;;
        *=*) options="$options vm.$2" ;;
        *) die "$CODE_USAGE" "--set $2: not NAME=VALUE" ;;
        esac
        ;;
    --out) out=$2 ;;
    esac
    shift 2
done

check_arguments() {
    need_folder --kernel "$kernel"
    need_folder --base "$base"
    [ -f "$kernel/kernel" ] || die "$CODE_INPUT" "$kernel has no file named kernel"
    [ -x "$base/sbin/init" ] || die "$CODE_INPUT" "$base has no sbin/init"
    if [ -n "$modules" ]; then
        need_folder --modules "$modules"
    else
        need_folder --sys "$sys"
    fi
    [ -z "$foreign" ] || need_folder --foreign "$foreign"
    case $limit in
    *[!0-9]*) die "$CODE_USAGE" "--time $limit: not a number of seconds" ;;
    esac
    for suite in $wanted; do
        [ -f "$VM/guest/suites/$suite.sh" ] ||
            die "$CODE_USAGE" "--suite $suite: there is no such suite; --list prints them"
    done
    need_tool qemu-system-x86_64 qemu-system-x86
    need_tool makefs makefs
    need_tool clang clang
    need_tool ld.lld lld
    need_tool readelf binutils
    PATH=$PATH:/usr/sbin
}

# Runs a command whose words are only of interest if it fails.
quietly() {
    if ! "$@" >"$out/build.log" 2>&1; then
        cat "$out/build.log" >&2
        return 1
    fi
}

build_modules() {
    [ -z "$modules" ] || return 0
    step "building the modules with $sys"
    modules=$out/modules
    "$REPO/scripts/build-kmod.sh" --sys "$sys" --out "$modules" ||
        die "$CODE_BUILD" "the modules could not be built"
}

build_stub() {
    for source in stub.c start.S; do
        quietly clang -target i386-elf -std=c99 -ffreestanding -O1 -fno-pic -fno-stack-protector \
            -mno-sse -Wall -Wextra -Werror -c "$VM/stub/$source" -o "$out/${source%.*}.o" ||
            die "$CODE_BUILD" "the boot stub does not compile"
    done
    quietly ld.lld -m elf_i386 -T "$VM/stub/stub.ld" -o "$out/stub.elf" \
        "$out/start.o" "$out/stub.o" || die "$CODE_BUILD" "the boot stub does not link"
}

# Programs of the test machine that are made here: with the kernel's interface and nothing else.
build_tools() {
    mkdir -p "$out/tools"
    for source in "$VM"/guest/tools/*.c; do
        tool=$out/tools/$(basename "$source" .c)
        quietly clang -target x86_64-unknown-freebsd14 -std=c99 -ffreestanding -O1 -fno-pic \
            -fno-stack-protector -Wall -Wextra -Werror -c "$source" -o "$tool.o" ||
            die "$CODE_BUILD" "$source does not compile"
        quietly ld.lld -m elf_x86_64_fbsd -static -o "$tool" "$tool.o" ||
            die "$CODE_BUILD" "$source does not link"
        rm "$tool.o"
    done
}

# FILE: prints the shared libraries that a program or library names.
libraries_of() {
    readelf -d "$1" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p'
}

# LIBRARY: copies it and those that it names.
copy_library() {
    for folder in lib usr/lib lib/casper; do
        [ -e "$base/$folder/$1" ] || continue
        [ ! -e "$root/$folder/$1" ] || return 0
        mkdir -p "$root/$folder"
        cp -L "$base/$folder/$1" "$root/$folder/$1"
        for library in $(libraries_of "$base/$folder/$1"); do
            # In a shell of its own, which keeps the variables of this one.
            (copy_library "$library") || return 1
        done
        return 0
    done
    printf 'vm.sh: %s has no %s\n' "$base" "$1" >&2
    return 1
}

# PROGRAM: copies it and its libraries; fails if the base system has no such program.
copy_program() {
    for folder in sbin bin usr/sbin usr/bin; do
        [ -e "$base/$folder/$1" ] || continue
        mkdir -p "$root/$folder"
        cp -L "$base/$folder/$1" "$root/$folder/$1"
        for library in $(libraries_of "$base/$folder/$1"); do
            copy_library "$library" || die "$CODE_INPUT" "$1 needs $library"
        done
        return 0
    done
    return 1
}

fill_root() {
    root=$out/root
    rm -rf "$root"
    mkdir -p "$root/dev" "$root/tmp" "$root/mnt" "$root/var/run" "$root/etc" "$root/libexec" \
        "$root/root" "$root/vm" "$root/boot/kernel" "$root/boot/modules" "$root/boot/foreign"
    for program in $PROGRAMS_NEEDED; do
        copy_program "$program" || die "$CODE_INPUT" "$base has no program $program"
    done
    for program in $PROGRAMS; do
        copy_program "$program" || :
    done
    [ ! -e "$base/libexec/ld-elf.so.1" ] || cp -L "$base/libexec/ld-elf.so.1" "$root/libexec/"
    for module in $KERNEL_MODULES; do
        [ ! -f "$kernel/$module.ko" ] || cp "$kernel/$module.ko" "$root/boot/kernel/"
    done
    cp "$modules"/*.ko "$root/boot/modules/" || die "$CODE_INPUT" "$modules has no modules"
    if [ -n "$foreign" ]; then
        cp "$foreign"/*.ko "$root/boot/foreign/" || die "$CODE_INPUT" "$foreign has no modules"
    fi
    cp "$VM/guest/rc" "$root/etc/rc"
    cp -R "$VM/guest/lib.sh" "$VM/guest/suites" "$root/vm/"
    cp "$out"/tools/* "$root/vm/"
    printf 'root::0:0::0:0:root:/root:/bin/sh\n' >"$root/etc/master.passwd"
    printf 'root:*:0:0:root:/root:/bin/sh\n' >"$root/etc/passwd"
    printf 'wheel:*:0:root\n' >"$root/etc/group"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
}

make_image() {
    fill_root
    # FreeBSD's kernel takes version 1 of FFS from every makefs; of Debian's, only that.
    quietly makefs -t ffs -o version=1 -s "${IMAGE_MIB}m" "$out/root.img" "$root" ||
        die "$CODE_INPUT" "the image could not be made (does all of it fit into $IMAGE_MIB MiB?)"
}

# SUITE: the kernel and its environment, then the image. QEMU splits at commas.
initrd() {
    printf '%s' "kernel console=comconsole vfs.root.mountfrom=ufs:/dev/md0" \
        " hint.uart.0.at=isa hint.uart.0.port=0x3F8 hint.uart.0.flags=0x10 hint.uart.0.irq=4" \
        " hint.uart.1.at=isa hint.uart.1.port=0x2F8 hint.uart.1.irq=3" \
        "$options vm.suite=$1,root.img"
}

# How a machine that still runs should end, as far as its console can tell.
stuck_in() {
    if grep -a -q '^db> ' "$console"; then
        echo debugger
    elif grep -a -q '^panic: ' "$console"; then
        echo panic
    fi
}

# SUITE: runs it; sets $ended.
run_machine() {
    console=$out/$1.console
    results=$out/$1.results
    : >"$console"
    : >"$results"
    seconds=${limit:-$(sed -n 's/^# Time: \([0-9]*\) s$/\1/p' "$VM/guest/suites/$1.sh")}
    seconds_left=${seconds:-$SECONDS_MAX}
    (
        # For names without commas and blanks.
        cd "$out" || exit
        exec qemu-system-x86_64 -accel tcg -cpu max -m "$MEMORY_MIB" -smp "$PROCESSORS" \
            -kernel stub.elf -initrd "$(initrd "$1")" -display none -monitor none -no-reboot \
            -nic none -serial "file:$1.console" -serial "file:$1.results"
    ) >"$out/$1.qemu" 2>&1 &
    machine=$!
    ended="exit"
    while kill -0 "$machine" 2>/dev/null; do
        if [ "$seconds_left" -le 0 ]; then
            ended="time"
            break
        fi
        stuck=$(stuck_in)
        if [ -n "$stuck" ] && [ "$ended" = exit ]; then
            ended=$stuck
            seconds_left=$PANIC_SECONDS
        fi
        sleep 1
        seconds_left=$((seconds_left - 1))
    done
    kill "$machine" 2>/dev/null
    wait "$machine" 2>/dev/null
    machine=
}

# SUITE: the files that it kept, as SUITE.NAME. A byte is its position, from 1, and an octal number;
# those that are 0 are left out.
unpack_files() {
    grep -a '^@' "$out/$1.results" | tr -d '\r' | awk '
        $1 == "@file" { name = $2; size = $3; at = 1 }
        $1 == "@byte" { fill($2); printf "\\0%03d", $3; at++ }
        $1 == "@end" { fill(size + 1); print " " name }
        function fill(end) { for (; at < end; at++) printf "\\0000" }
    ' | while read -r unpack_bytes unpack_name; do
        printf '%b' "$unpack_bytes" >"$out/$1.$unpack_name"
    done
}

# Ends the machine with the script.
machine=
trap '[ -z "$machine" ] || kill "$machine"' EXIT
trap 'exit 1' INT TERM HUP

check_arguments
mkdir -p "$out" || die "$CODE_INPUT" "--out $out: cannot be made"
out=$(CDPATH='' cd -- "$out" && pwd)
ln -sf "$(CDPATH='' cd -- "$kernel" && pwd)/kernel" "$out/kernel"
build_modules
build_stub
build_tools
make_image
[ -z "$compare" ] || wanted=$(pairs "$wanted")
: >"$out/checks"
for suite in ${wanted:-$(suites)}; do
    step "$suite"
    run_machine "$suite"
    awk -f "$VM/judge.awk" -v suite="$suite" -v ended="$ended" "$results" "$console" |
        tee -a "$out/checks"
    unpack_files "$suite"
    if [ -x "$VM/host/$suite.sh" ]; then
        "$VM/host/$suite.sh" "$out" | tee -a "$out/checks"
    fi
    [ ! -s "$out/$suite.qemu" ] || sed 's/^/         | qemu: /' "$out/$suite.qemu"
done
if [ -n "$compare" ]; then
    awk -f "$VM/table.awk" "$out/checks" >"$out/table.md"
    cat "$out/table.md"
fi
step "consoles and results are in $out"
awk '
    $1 == "ok" { passed++ }
    $1 == "FAILED" { failed++ }
    $1 == "skipped" { skipped++ }
    $1 == "observed" { observed++ }
    END {
        printf "%d passed, %d failed, %d skipped", passed, failed, skipped
        printf observed ? ", %d observed\n" : "\n", observed
        exit failed > 0 || passed + observed == 0
    }
' "$out/checks"
