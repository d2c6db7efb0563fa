#!/bin/sh
# The safe wrappers of the kernel's interface in user space, on a fake kernel (kpi/fake): their
# tests under AddressSanitizer and LeakSanitizer, and what must not compile.
#
#   scripts/test-kpi.sh             with the headers of FreeBSD's base system
#   scripts/test-kpi.sh --sys DIR   with those of these kernel sources
#
# Needs a Rust that has the run-time libraries of the sanitizers, as rustup's toolchains do;
# otherwise the tests run without sanitizers, and the script says so.
set -eu

REPO=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$REPO/scripts/setup.sh"

HOST=x86_64-unknown-linux-gnu
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

"$REPO/scripts/build-kmod.sh" "$@" --out "$out" --flags-only
if find_sanitizing_rust; then
    flags=-Zsanitizer=address
else
    find_cargo || fail "there is no Rust of version $RUST_MIN or later"
    flags=
    step "no Rust here has sanitizers: the tests run without them"
fi
export RUSTC
step "Rust: $("$CARGO" --version)"
# The compiler takes options that are not stable from those who ask for it.
KMOD_FLAGS=$out/flags
RUSTC_BOOTSTRAP=1
export KMOD_FLAGS RUSTC_BOOTSTRAP
set -- test --manifest-path "$REPO/Cargo.toml" --locked --package kpi --package kmod \
    --target "$HOST" --no-fail-fast
RUSTFLAGS=$flags "$CARGO" "$@" --target-dir "$out/cargo" --lib --tests
# rustdoc does not know the options of the compiler.
"$CARGO" "$@" --target-dir "$out/cargo-doc" --doc
