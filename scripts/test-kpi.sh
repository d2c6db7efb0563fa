#!/bin/sh
# The safe wrappers of the kernel's interface and the module in user space, on a fake kernel
# (kpi/fake): their tests under AddressSanitizer and LeakSanitizer, and what must not compile.
#
#   scripts/test-kpi.sh             with the headers of FreeBSD's base system
#   scripts/test-kpi.sh --sys DIR   with those of these kernel sources
#   scripts/test-kpi.sh --miri      all of the wrappers and some of the module under Miri instead
#   scripts/test-kpi.sh --threads   those with threads under ThreadSanitizer instead
#
# Needs a Rust that has the run-time libraries of the sanitizers, as rustup's toolchains do;
# otherwise the tests run without sanitizers, and the script says so. Miri and ThreadSanitizer need
# a nightly toolchain of rustup with the components miri and rust-src: --can-miri and --can-threads
# say by their exit code whether there is one, and run nothing.
set -eu

REPO=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$REPO/scripts/setup.sh"

HOST=x86_64-unknown-linux-gnu
NIGHTLY=nightly-$HOST
out=${CARGO_TARGET_DIR:-$REPO/target}/kpi-tests

# Sets RUSTC and CARGO to the first pair that is recent enough and has sanitizers.
find_sanitizing_rust() {
    for folder in "" "${HOME:-/root}/.cargo/bin/" /usr/local/bin/ /usr/bin/; do
        RUSTC=${folder}rustc
        CARGO=${folder}cargo
        if is_recent "$CARGO" && is_recent "$RUSTC"; then
            libraries=$("$RUSTC" --print sysroot)/lib/rustlib/$HOST/lib
            for library in "$libraries"/librustc-*_rt.asan.a; do
                [ ! -e "$library" ] || return 0
            done
        fi
    done
    return 1
}

# Prints the folder of the nightly toolchain; fails if there is none.
nightly() {
    folder=${RUSTUP_HOME:-${HOME:-/root}/.rustup}/toolchains/$NIGHTLY
    [ -x "$folder/bin/cargo" ] && echo "$folder"
}

can_miri() {
    toolchain=$(nightly) && [ -x "$toolchain/bin/cargo-miri" ] &&
        [ -d "$toolchain/lib/rustlib/src/rust" ]
}

can_threads() {
    toolchain=$(nightly) && [ -d "$toolchain/lib/rustlib/src/rust" ] &&
        ls "$toolchain/lib/rustlib/$HOST/lib"/librustc-*_rt.tsan.a >/dev/null 2>&1
}

# The programs of tests for Miri, as arguments of cargo.
miri_programs() {
    for name in traffic late attach children; do
        echo "--package kmod --test $name"
    done
    echo "--package kpi --test ofed"
    echo "--package kpi --lib --test mbuf --test sync --test sysctl --test worker"
}

under=sanitizers
headers=
while [ $# -gt 0 ]; do
    case "$1" in
    --sys) headers=${2:?} && shift ;;
    --miri) under=miri ;;
    --threads) under=threads ;;
    --can-miri) can_miri && exit 0 || exit 1 ;;
    --can-threads) can_threads && exit 0 || exit 1 ;;
    *) fail "unknown argument: $1" ;;
    esac
    shift
done

if [ -n "$headers" ]; then
    set -- --sys "$headers"
fi
"$REPO/scripts/build-kmod.sh" "$@" --out "$out" --flags-only
KMOD_FLAGS=$out/flags
# The compiler takes options that are not stable from those who ask for it.
RUSTC_BOOTSTRAP=1
export KMOD_FLAGS RUSTC_BOOTSTRAP
set -- --manifest-path "$REPO/Cargo.toml" --locked --no-fail-fast

case "$under" in
miri)
    can_miri || fail "needs a nightly toolchain of rustup with the components miri and rust-src"
    PATH=$toolchain/bin:$PATH
    # Addresses that an adapter is given are numbers. To forget borrows less often takes less time.
    MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-provenance-gc=50000"
    export PATH MIRIFLAGS
    step "Miri: $(cargo-miri miri --version)"
    set -- "$@" --target-dir "$out/cargo-miri"
    cargo miri test "$@" --package kpi --package kmod --lib --tests --no-run
    # Miri has one processor for a program of tests: so many programs run at a time, those that take
    # longest first. Of the module, the tests that are tests for Miri.
    # The inner shell has the arguments.
    # shellcheck disable=SC2016
    miri_programs | xargs -P "$(nproc)" -I PROGRAM sh -c '
        log=$(mktemp) || exit 1
        # The name of a program is two arguments or more.
        cargo miri test "$@" PROGRAM >"$log" 2>&1
        code=$?
        cat "$log"
        rm "$log"
        exit "$code"
    ' sh "$@"
    ;;
threads)
    can_threads || fail "needs a nightly toolchain of rustup with the component rust-src"
    step "ThreadSanitizer: $(PATH=$toolchain/bin:$PATH rustc --version)"
    # The library of Rust, too, is compiled for it: it would find races there that are none.
    PATH=$toolchain/bin:$PATH RUSTFLAGS=-Zsanitizer=thread cargo test "$@" \
        --target-dir "$out/cargo-tsan" --target "$HOST" -Zbuild-std \
        --package kpi --test worker --test sync --package kmod --test threads
    ;;
sanitizers)
    if find_sanitizing_rust; then
        flags=-Zsanitizer=address
    else
        find_cargo || fail "there is no Rust of version $RUST_MIN or later"
        flags=
        step "no Rust here has sanitizers: the tests run without them"
    fi
    export RUSTC
    step "Rust: $("$CARGO" --version)"
    set -- test "$@" --target "$HOST" --package kpi --package kmod
    # In the folder of all other builds, whose bindgen is taken.
    RUSTFLAGS=$flags "$CARGO" "$@" --lib --tests
    # rustdoc does not know the options of the compiler.
    "$CARGO" "$@" --doc
    ;;
esac
