#!/bin/sh
# Every check and test of the repository, from a clean clone, on Debian or FreeBSD.
#
#   scripts/test.sh                 all of it
#   SEEDS=0..50 scripts/test.sh     fewer (or more) runs of the simulator's swarm
#
# One line per step; what programs say is shown only if they fail. The last line counts checks and
# tests: "N passed, N failed, N skipped". What cannot run here is skipped and says what it needs.
# The exit code is 0 if nothing failed.
set -u

REPO=$(cd "$(dirname "$0")/.." && pwd) || exit 1
cd "$REPO" || exit 1
# shellcheck source=scripts/setup.sh
. "$REPO/scripts/setup.sh"

SEEDS=${SEEDS:-0..1000}
# No step may take longer than this.
STEP_SECONDS_MAX=900

passed=0
failed=0
skipped=0
log=$(mktemp) || fail "no room for a temporary file"
trap 'rm -f "$log"' EXIT

# NAME COMMAND...: what a command says goes to the log; its time into $seconds.
logged() {
    started=$(date +%s)
    timeout "$STEP_SECONDS_MAX" "$@" >"$log" 2>&1 </dev/null
    code=$?
    seconds=$(($(date +%s) - started))
    return "$code"
}

report_failure() {
    cat "$log"
    printf 'FAILED   %s (code %s, %s s)\n' "$1" "$code" "$seconds"
}

# NAME COMMAND...: a check; it passes if the command does.
check() {
    name=$1
    shift
    if logged "$@"; then
        passed=$((passed + 1))
        printf 'ok       %s (%s s)\n' "$name" "$seconds"
    else
        failed=$((failed + 1))
        report_failure "$name"
    fi
}

# NAME WHAT: a check that cannot run here.
skip() {
    skipped=$((skipped + 1))
    printf 'skipped  %s: %s\n' "$1" "$2"
}

# Prints "PASSED FAILED SKIPPED" as the log of cargo test or cargo nextest counts them. A test that
# finds that it cannot run prints "SKIPPED" and passes.
test_counts() {
    awk '
        { gsub(/\033\[[0-9;]*m/, "") }
        /^test result: / || /^ +Summary \[/ {
            for (i = 2; i <= NF; i++) {
                word = $i; sub(/[;,.]$/, "", word)
                if (word == "passed") passed += $(i - 1)
                if (word == "failed" || word == "timed") failed += $(i - 1)
                if (word == "ignored" || word == "skipped") skipped += $(i - 1)
            }
        }
        /^SKIPPED / { passed--; skipped++ }
        END { print passed + 0, failed + 0, skipped + 0 }
    ' "$log"
}

# NAME COMMAND...: tests; each counts. A command that fails without naming a test counts as one, and
# so does one that runs no test at all.
tests() {
    name=$1
    shift
    logged "$@"
    # Three numbers: the list is to be split.
    # shellcheck disable=SC2046
    set -- $(test_counts)
    if [ "$code" -ne 0 ] || [ "$2" -ne 0 ] || [ $(($1 + $3)) -eq 0 ]; then
        [ "$2" -ne 0 ] || set -- "$1" 1 "$3"
        report_failure "$name"
    else
        printf 'ok       %s: %s tests (%s s)\n' "$name" "$1" "$seconds"
        sed -n 's/^SKIPPED/skipped /p' "$log"
    fi
    passed=$((passed + $1))
    failed=$((failed + $2))
    skipped=$((skipped + $3))
}

# PROGRAM: installs it if need be and possible; says whether it is there.
can_run() {
    have "$1" || (setup_tools "$1") >/dev/null 2>&1
    have "$1"
}

# ARGUMENT...: the tests of the packages that the arguments choose.
run_tests() {
    if "$CARGO" nextest --version >/dev/null 2>&1; then
        set -- "$CARGO" nextest run --locked --no-fail-fast --status-level none \
            --final-status-level fail "$@"
    else
        set -- "$CARGO" test --locked --no-fail-fast "$@"
    fi
    tests "$test_name" "$@"
}

check_sources() {
    if "$CARGO" fmt --version >/dev/null 2>&1; then
        check "format" "$CARGO" fmt --all --check
    else
        skip "format" "needs rustfmt"
    fi
    if "$CARGO" clippy --version >/dev/null 2>&1; then
        check "clippy without a warning" "$CARGO" clippy --locked --all-targets -- \
            -D warnings
    else
        skip "clippy without a warning" "needs clippy"
    fi
    check "documentation without a warning" env RUSTDOCFLAGS="-D warnings" \
        "$CARGO" doc --locked --no-deps
    bare=x86_64-unknown-none
    if [ -d "$("${RUSTC:-rustc}" --print target-libdir --target $bare 2>/dev/null)" ]; then
        check "core and fabric without a standard library" \
            "$CARGO" build --locked --package ipoib_rs --package fabric --lib --target $bare
    else
        skip "core and fabric without a standard library" "needs the Rust target $bare"
    fi
    if can_run shellcheck; then
        check "shellcheck" shellcheck --external-sources scripts/*.sh .ci/run vm/guest/rc \
            vm/guest/*.sh vm/guest/suites/*.sh
    else
        skip "shellcheck" "needs shellcheck"
    fi
    pages=$(find . -path ./target -prune -o -type f -name '*.[1-9]' -print)
    if [ -z "$pages" ]; then
        :
    elif can_run mandoc; then
        # File names of this repository have no blanks: the list is to be split.
        # shellcheck disable=SC2086
        check "manual pages" mandoc -T lint -W warning $pages
    else
        skip "manual pages" "needs mandoc"
    fi
}

# Sets $llvm to the version of LLVM that the compiler has; says whether its tools are there.
can_measure_coverage() {
    llvm=$("${RUSTC:-rustc}" -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
    have "llvm-cov-$llvm" || (install_packages "llvm-$llvm") >/dev/null 2>&1
    have "llvm-cov-$llvm" && have "llvm-profdata-$llvm"
}

# The tests of the core, instrumented if possible: then it prints how many lines of src/, unit tests
# included, they execute. No figure is required.
run_core_tests() {
    test_name="tests of the core"
    if ! can_measure_coverage; then
        run_tests --package ipoib_rs
        skip "coverage" "needs llvm-cov-$llvm and llvm-profdata-$llvm"
        return
    fi
    profiles=${CARGO_TARGET_DIR:-$REPO/target}/profiles
    rm -rf "$profiles"
    # Not nextest, which does not say what it runs.
    tests "$test_name" env RUSTC_WORKSPACE_WRAPPER="$REPO/scripts/instrument.sh" \
        LLVM_PROFILE_FILE="$profiles/%4m.profraw" \
        "$CARGO" test --locked --no-fail-fast --package ipoib_rs --tests
    [ "$code" -eq 0 ] || return
    # The first is an argument of its own, each other one that of an option.
    objects=$(sed -n 's/^ *Running .*(\(.*\))$/-object \1/p' "$log")
    objects=${objects#-object }
    # The objects are words without blanks inside: the list is to be split.
    # shellcheck disable=SC2086
    "llvm-profdata-$llvm" merge -sparse -o "$profiles/all" "$profiles"/*.profraw &&
        "llvm-cov-$llvm" report -instr-profile "$profiles/all" $objects -sources "$REPO/src" >"$log"
    lines=$(awk '/^TOTAL/ { print $10 }' "$log")
    printf '         %s of the lines of src/ are covered\n' "${lines:-an unknown part}"
}

run_workspace_tests() {
    run_core_tests
    test_name="tests of the fabric, the simulator and the software adapter"
    run_tests --package fabric --package sim --package softib
    test_name="tests of the core, optimised"
    run_tests --release --package ipoib_rs
    check "what the core costs by itself" "$CARGO" bench --locked --quiet --bench core
    [ "$code" -ne 0 ] || sed 's/^/         /' "$log"
    check "examples in the documentation" "$CARGO" test --locked --doc
    check "swarm of the simulator, seeds $SEEDS, each twice" \
        "$CARGO" run --locked --quiet --release --package sim -- --seeds "$SEEDS"
    [ "$code" -ne 0 ] || sed 's/^/         /' "$log"
}

# Its tests need root and TUN devices, and say so themselves where there is neither.
run_lab_tests() {
    if [ "$(uname -s)" != Linux ]; then
        skip "tests of the lab" "need Linux"
        return
    fi
    for tool in ip ping tracepath iperf3 tshark; do
        can_run "$tool" || printf '         %s is missing\n' "$tool"
    done
    # Not nextest, which keeps what passing tests say to itself.
    tests "tests of the lab" "$CARGO" test --locked --no-fail-fast --package lab
}

# Without the sources of FreeBSD, the modules are built as far as the headers of its base system go.
run_kernel_checks() {
    if ! (setup_kernel_tools) >"$log" 2>&1; then
        skip "kernel modules" "need clang, lld, llvm, libclang and the sources of Rust's library"
        return
    fi
    check "kernel modules, built with the headers of FreeBSD's base system" scripts/build-kmod.sh
    [ "$code" -ne 0 ] || sed 's/^/         /' "$log"
    check "each gate for modules refuses a bad object" scripts/check-kmod.sh --self-test
    check "the modules pass the gates" scripts/check-kmod.sh target/kmod/ipoib_rs target/kmod/softib
    [ "$code" -ne 0 ] || sed 's/^/         /' "$log"
    tests "tests of the module and its wrappers on a fake kernel" scripts/test-kpi.sh
    needs="needs a nightly toolchain of rustup with the component"
    if scripts/test-kpi.sh --can-miri; then
        tests "those of the wrappers and some of the module under Miri" scripts/test-kpi.sh --miri
    else
        skip "those of the wrappers and some of the module under Miri" "$needs miri, and rust-src"
    fi
    if scripts/test-kpi.sh --can-threads; then
        tests "those with threads under ThreadSanitizer" scripts/test-kpi.sh --threads
    else
        skip "those with threads under ThreadSanitizer" "$needs rust-src"
    fi
    if "$CARGO" clippy --version >/dev/null 2>&1; then
        # Flags and host are those of the tests before, whose bindgen is taken.
        host=$("${RUSTC:-rustc}" -vV | sed -n 's/^host: //p')
        check "clippy without a warning, crates for the kernel" env RUSTC_BOOTSTRAP=1 \
            KMOD_FLAGS="${CARGO_TARGET_DIR:-$REPO/target}/kpi-tests/flags" "$CARGO" clippy \
            --locked --target "$host" --package sys-bindings --package kpi --package fake-kernel \
            --package kmod --all-targets -- -D warnings
    else
        skip "clippy without a warning, crates for the kernel" "needs clippy"
    fi
}

# What is kept to compile less the next time costs time and room, and there is no next time in a
# clean clone.
export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
setup_rust
check "dependencies" "$CARGO" fetch --locked
check_sources
run_workspace_tests
run_lab_tests
run_kernel_checks

printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
