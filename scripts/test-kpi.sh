#!/bin/sh
# Tests of the wrappers of the kernel, on a host: over kpi/fake, a kernel whose objects check how
# they are used.
#
#   scripts/test-kpi.sh              as they are
#   scripts/test-kpi.sh --sanitize   with AddressSanitizer, which finds leaks as well (on Linux)
#
# What else is given goes to cargo test. Needs clang and libclang; on Debian it installs them.
set -eu

REPO=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$REPO/scripts/setup.sh"

setup_tools cc clang libclang
setup_rust
# A kernel has one set of headers, and so has this: build.rs of sys-bindings reads the flags.
target_dir=${CARGO_TARGET_DIR:-$REPO/target}
mkdir -p "$target_dir/kpi-fake"
printf '%s\n' "-I$REPO/kpi/fake/include" -std=gnu17 >"$target_dir/kpi-fake/flags.new"
if cmp -s "$target_dir/kpi-fake/flags.new" "$target_dir/kpi-fake/flags"; then
    rm "$target_dir/kpi-fake/flags.new"
else
    mv "$target_dir/kpi-fake/flags.new" "$target_dir/kpi-fake/flags"
fi
KMOD_FLAGS=$target_dir/kpi-fake/flags
CARGO_TARGET_DIR=$target_dir/kpi-fake
export KMOD_FLAGS CARGO_TARGET_DIR

if [ "${1-}" = --sanitize ]; then
    shift
    RUSTC_BOOTSTRAP=1
    RUSTFLAGS="-Zsanitizer=address ${RUSTFLAGS-}"
    export RUSTC_BOOTSTRAP RUSTFLAGS
    # With a target, what runs in the compiler is built without.
    host=$("${RUSTC:-rustc}" -vV | sed -n 's/^host: //p')
    set -- --target "$host" "$@"
fi
cd "$REPO"
exec "$CARGO" test --locked --package kpi --features fake --lib --tests "$@"
