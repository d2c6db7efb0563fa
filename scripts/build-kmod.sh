#!/bin/sh
# Builds the kernel modules on Linux, or on FreeBSD without its makefiles.
#
#   scripts/build-kmod.sh                  with the headers of the PyPI package ziglang, which are
#                                          those of a FreeBSD base system: what needs the InfiniBand
#                                          headers is left out, and said so
#   scripts/build-kmod.sh --sys DIR        with the kernel sources of FreeBSD below DIR (usually
#                                          /usr/src/sys): complete modules for that kernel
#   scripts/build-kmod.sh --out DIR        results go there (default: target/kmod)
#   scripts/build-kmod.sh --module NAME    only the module of this folder (kmod, softib)
#   scripts/build-kmod.sh --rust-only      only the Rust halves, as NAME-rust.o: what the makefiles
#                                          of FreeBSD cannot build (kmod/Makefile)
#   scripts/build-kmod.sh --flags-only     only the headers, and the file "flags" for bindgen
#
# Prints one line per step, and each module with its size. Needs clang, lld, llvm, libclang, and a
# Rust with the sources of its library; on Debian it installs them.
set -eu

REPO=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$REPO/scripts/setup.sh"

TARGET=x86_64-unknown-none
# The release whose headers the package ziglang has.
WHEEL_VERSION=0.17.1
WHEEL_FREEBSD_VERSION=1500068
# The options of a kernel configuration that headers ask for.
OPTION_HEADERS="acpi bpf bus_dma cam ddb device_polling global hwpmc_hooks hwt_hooks inet inet6 \
    kern_tls kstack_usage_prof ktrace mac netlink ofed platform printf ratelimit route rss sched \
    vlan witness wlan"

# Without a PLT, calls of other objects would go through a GOT, and the kernel's linker knows none.
RUST_FLAGS="-Crelocation-model=static -Ccode-model=kernel -Cno-redzone=yes -Zplt=yes \
    -Zemit-stack-sizes -Cforce-frame-pointers=yes"

usage() {
    sed -n '4,14s/^# *//p' "$0" >&2
    exit 2
}

# One for all kernels, so that the library of Rust is built once.
cargo_target=${CARGO_TARGET_DIR:-$REPO/target}/kmod-build
system=
out=$REPO/target/kmod
modules=
rust_only=
flags_only=
while [ $# -gt 0 ]; do
    case "$1" in
    --sys) system=${2:?} && shift ;;
    --out) out=${2:?} && shift ;;
    --module) modules="$modules ${2:?}" && shift ;;
    --rust-only) rust_only=1 ;;
    --flags-only) flags_only=1 ;;
    *) usage ;;
    esac
    shift
done

# The folder that holds the headers of a processor: beside all others, or below arch/.
architecture() {
    for folder in "$system/$1" "$system/arch/$1"; do
        if [ -d "$folder/include" ]; then
            echo "$folder"
            return
        fi
    done
    fail "$system has no headers for $1"
}

# PATH: writes what is read to a file, unless that is what it holds already: what cargo sees to be
# newer is built again.
update() {
    cat >"$1.new"
    if cmp -s "$1.new" "$1"; then
        rm "$1.new"
    else
        mv "$1.new" "$1"
    fi
}

# Headers that a kernel's build makes from tables, with that kernel's own tools.
generate_headers() {
    scratch=$(mktemp -d)
    (
        cd "$scratch"
        for interface in kern/device_if kern/bus_if dev/pci/pci_if; do
            awk -f "$system/tools/makeobjops.awk" "$system/$interface.m" -h
        done
        for part in p q h; do
            awk -f "$system/tools/vnode_if.awk" "$system/kern/vnode_if.src" "-$part"
        done
        for header in *.h; do
            update "$out/include/$header" <"$header"
        done
    )
    rm -r "$scratch"
    ln -sfn "$(architecture amd64)/include" "$out/include/machine"
    ln -sfn "$(architecture i386)/include" "$out/include/i386"
    ln -sfn "$system/x86/include" "$out/include/x86"
}

# What kernel configurations set, as far as headers ask for it. An option's header that is empty is
# an option that is not set.
write_options() {
    for option in $OPTION_HEADERS; do
        case "$option" in
        bpf) echo '#define DEV_BPF 1' ;;
        global)
            printf '#define %s 1\n' MAC SMP VIMAGE
            # What every configuration of this processor includes.
            [ -z "$system" ] || awk '$1 == "options" && $2 !~ /GEOM_/ { print "#define", $2, 1 }' \
                "$(architecture amd64)/conf/DEFAULTS"
            ;;
        inet) echo '#define INET 1' ;;
        inet6) echo '#define INET6 1' ;;
        esac | update "$out/include/opt_$option.h"
    done
}

# Headers of a FreeBSD base system from a package that is on every registry of Python.
fetch_wheel() {
    wheel=$REPO/.tools/ziglang-$WHEEL_VERSION
    if [ ! -d "$wheel/lib/libc/include/generic-freebsd" ]; then
        setup_tools python3 pip libck
        step "fetching the headers of FreeBSD in ziglang $WHEEL_VERSION"
        rm -rf "$wheel.new"
        mkdir -p "$wheel.new"
        quietly python3 -m pip download --quiet --no-deps --dest "$wheel.new" \
            "ziglang==$WHEEL_VERSION"
        quietly python3 "$REPO/scripts/unpack-headers.py" "$wheel.new"/*.whl "$wheel.new"
        rm "$wheel.new"/*.whl
        mv "$wheel.new" "$wheel"
    fi
    for header in /usr/include/ck_*.h /usr/include/gcc; do
        ln -sfn "$header" "$out/include/"
    done
}

# The flags of the C half, of which bindgen takes its own: one a line.
write_flags() {
    if [ -n "$system" ]; then
        version=$(awk '/^#define[ \t]+__FreeBSD_version/ { print $3 }' "$system/sys/param.h")
    else
        version=$WHEEL_FREEBSD_VERSION
    fi
    major=$((version / 100000))
    {
        cat <<EOF
-target
x86_64-unknown-freebsd$major
-std=gnu17
-nostdinc
-ffreestanding
-D_KERNEL
-DKLD_MODULE
-DHAVE_KERNEL_OPTION_HEADERS
-include
opt_global.h
-I$out/include
EOF
        if [ -n "$system" ]; then
            printf '%s\n' "-I$system" "-I$system/contrib/ck/include"
        else
            headers=$wheel/lib/libc/include
            printf '%s\n' "-D__FreeBSD_version=$version" \
                "-I$headers/x86_64-freebsd-none" "-I$headers/generic-freebsd"
        fi
    } | update "$out/flags"
    {
        cat "$out/flags"
        cat <<EOF
-I$out
-mcmodel=kernel
-mno-red-zone
-mno-mmx
-mno-sse
-msoft-float
-mno-aes
-mno-avx
-fno-asynchronous-unwind-tables
-fno-common
-fno-omit-frame-pointer
-fno-stack-protector
-ffunction-sections
-fdata-sections
-fstack-size-section
-fno-strict-aliasing
-fwrapv
-O2
-g
-Wall
-Werror
-Wmissing-prototypes
-Wno-pointer-sign
-Wstrict-prototypes
EOF
        # The modules of the InfiniBand stack are wanted where there is something that uses them.
        [ -z "$system" ] || echo -DKPI_OFED
    } >"$out/flags-c"
    { cat "$out/flags-c"; ofed_flags; } >"$out/flags-ofed"
}

# Of the files that include headers of ofed or LinuxKPI.
ofed_flags() {
    [ -n "$system" ] || return 0
    printf '%s\n' "-I$system/ofed/include" "-I$system/ofed/include/uapi" \
        "-I$system/compat/linuxkpi/common/include"
    # Since FreeBSD 15.
    kconfig=$system/compat/linuxkpi/common/include/linux/kconfig.h
    [ ! -e "$kconfig" ] || printf '%s\n' -include "$kconfig"
    dummy=$system/compat/linuxkpi/dummy/include
    [ ! -d "$dummy" ] || printf '%s\n' "-I$dummy"
}

needs_ofed() {
    grep -q '#include <\(rdma\|linux\)/' "$1"
}

# The name of the module that a folder makes.
name_of() {
    case "$1" in
    kmod) echo ipoib_rs ;;
    *) echo "$1" ;;
    esac
}

# FOLDER NAME: the Rust half, as one object.
build_rust() {
    step "$1: Rust for $TARGET"
    quietly env \
        RUSTC_BOOTSTRAP=1 \
        KMOD_FLAGS="$out/flags" \
        CARGO_TARGET_X86_64_UNKNOWN_NONE_RUSTFLAGS="$RUST_FLAGS" \
        "$CARGO" rustc --manifest-path "$REPO/Cargo.toml" --quiet --locked \
        -Zbuild-std=core,alloc --target "$TARGET" --profile kernel --package "$1" \
        --target-dir "$cargo_target" --lib --crate-type staticlib
    # The crates are one object. The compiler's support library stays outside: what is wanted of it
    # (memcpy and the like), the kernel has.
    archive=$out/$2-rust.a
    cp "$cargo_target/$TARGET/kernel/lib$1.a" "$archive"
    support=$("$AR" t "$archive" | grep '^compiler_builtins-')
    # Names of objects have no blanks: the list is to be split.
    # shellcheck disable=SC2086
    quietly "$AR" d "$archive" $support
    quietly "$LLD" -m elf_x86_64_fbsd -r --whole-archive -o "$out/$2-rust.o" "$archive"
    rm "$archive"
}

# FOLDER NAME: the C half, one object per file. What needs headers that are not there is named.
build_c() {
    mkdir -p "$out/$2"
    rm -f "$out/$2"/*.o
    left_out=
    : >"$out/$2.left-out"
    for source in $(find "$REPO/kpi/c" "$REPO/$1/c" -name "*.c" | sort); do
        if needs_ofed "$source" && [ -z "$system" ]; then
            left_out="$left_out ${source#"$REPO/"}"
            # What the module wants in vain, for check-kmod.sh.
            grep -oE '(rust_helper|softib_c)_[a-z0-9_]*' "$source" | sort -u >>"$out/$2.left-out"
            continue
        fi
        object=$out/$2/$(echo "${source#"$REPO/"}" | tr / - | sed 's/c$/o/')
        flags=$out/flags-c
        if needs_ofed "$source"; then
            flags=$out/flags-ofed
        fi
        # Flags hold no blanks but those of paths that are given: one a line.
        quietly "$CLANG" "@$flags" "-DKPI_MODULE=\"$2\"" "-I$REPO/kpi/c" "-I$REPO/$1/c" \
            -c "$source" -o "$object"
    done
    step "$1: C compiled$([ -z "$left_out" ] || echo ", left out for want of InfiniBand headers:")"
    for source in $left_out; do
        printf '     %s\n' "$source"
    done
}

# FOLDER NAME: the module.
link_module() {
    # With a section for each function: what check-kmod.sh looks into.
    quietly "$LLD" -m elf_x86_64_fbsd -r -o "$out/$2.o" "$out/$2"/*.o "$out/$2-rust.o"
    quietly "$LLD" -m elf_x86_64_fbsd -r -T "$REPO/scripts/kmod.ld" -o "$out/$2.full" "$out/$2.o"
    # Like a module of the base system, it exports nothing, and has a symbol table for backtraces.
    quietly "$OBJCOPY" --strip-debug --remove-section=.stack_sizes --keep-global-symbol=none \
        "$out/$2.full" "$out/$2.ko"
    step "$out/$2.ko: $(wc -c <"$out/$2.ko") bytes"
}

mkdir -p "$out/include"
out=$(CDPATH='' cd -- "$out" && pwd)
setup_kernel_tools
if [ -n "$system" ]; then
    [ ! -d "$system/sys/sys" ] || system=$system/sys
    [ -e "$system/sys/param.h" ] || fail "no kernel sources in $system"
    system=$(CDPATH='' cd -- "$system" && pwd)
    step "headers of $system"
    generate_headers
else
    fetch_wheel
    step "headers of a FreeBSD base system, without InfiniBand"
fi
write_options
write_flags
[ -z "$flags_only" ] || exit 0
for folder in ${modules:-kmod softib}; do
    if [ -d "$REPO/$folder" ]; then
        name=$(name_of "$folder")
        build_rust "$folder" "$name"
        if [ -z "$rust_only" ]; then
            build_c "$folder" "$name"
            link_module "$folder" "$name"
        fi
    fi
done
