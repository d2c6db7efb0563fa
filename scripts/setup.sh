# shellcheck shell=sh
# Set-up shared by the scripts of this folder. POSIX sh; to be sourced, with REPO set to the root of
# the repository. Prints one line per step; what programs say goes to a log that is shown only if
# they fail.
#
#   setup_tools PROGRAM...   installs the packages of the programs that are missing
#   setup_rust               sets CARGO to a cargo of at least RUST_MIN, installing one if need be
#   setup_build ARGUMENT...  cargo build ARGUMENT...
#   setup_kernel_tools       for modules of the kernel: sets CARGO and RUSTC to ones that have the
#                            sources of their library, and CLANG, LLD, AR and OBJCOPY
#   as_root COMMAND...       runs a command as root, by sudo if this is not root
#   step TEXT, fail TEXT     a line for a step; a line for an error and the end

RUST_MIN=1.95

: "${REPO:?set REPO before sourcing setup.sh}"

step() {
    printf '== %s\n' "$*"
}

fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

have() {
    command -v "$1" >/dev/null 2>&1
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        fail "root is needed to run $1: become root, or install sudo"
    fi
}

# Runs a command silently; shows what it said if it fails.
quietly() {
    quiet_log=$(mktemp) || fail "no room for a temporary file"
    if "$@" >"$quiet_log" 2>&1 </dev/null; then
        rm -f "$quiet_log"
    else
        quiet_code=$?
        cat "$quiet_log" >&2
        rm -f "$quiet_log"
        fail "this failed with code $quiet_code: $*"
    fi
}

# The package that a program is in. Prints nothing if the base system has it.
package_of() {
    case "$(uname -s)/$1" in
    Linux/ip) echo iproute2 ;;
    Linux/ping) echo iputils-ping ;;
    Linux/tracepath) echo iputils-tracepath ;;
    Linux/cc) echo gcc libc6-dev ;;
    Linux/certificates) echo ca-certificates ;;
    Linux/rust) echo rustc-web cargo-web ;;
    Linux/rust-src) echo rustc-web cargo-web rust-web-src ;;
    Linux/ld.lld) echo lld ;;
    Linux/libclang) echo libclang-dev ;;
    Linux/libck) echo libck-dev ;;
    Linux/pip) echo python3-pip ;;
    FreeBSD/ip | FreeBSD/ping | FreeBSD/cc) ;;
    FreeBSD/certificates) echo ca_root_nss ;;
    FreeBSD/rust) echo rust ;;
    FreeBSD/clang | FreeBSD/ld.lld) ;;
    FreeBSD/libclang) echo llvm ;;
    FreeBSD/libck) echo concurrencykit ;;
    FreeBSD/pip) echo py311-pip ;;
    */*) echo "$1" ;;
    esac
}

install_packages() {
    case "$(uname -s)" in
    Linux)
        have apt-get || fail "these packages are missing and there is no apt-get: $*"
        if [ -z "${APT_IS_FRESH:-}" ]; then
            quietly as_root apt-get update
            APT_IS_FRESH=1
        fi
        quietly as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install --yes --no-install-recommends "$@"
        ;;
    FreeBSD)
        quietly as_root pkg install --yes "$@"
        ;;
    *)
        fail "these packages are missing, and this system is neither Debian nor FreeBSD: $*"
        ;;
    esac
}

is_there() {
    case "$1" in
    certificates)
        [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/ssl/cert.pem ] ||
            [ -n "${SSL_CERT_FILE:-}" ]
        ;;
    libck) [ -e /usr/include/ck_epoch.h ] || [ -e /usr/local/include/ck_epoch.h ] ;;
    libclang) find /usr/lib /usr/local -name 'libclang*.so*' 2>/dev/null | grep -q . ;;
    llvm) llvm_tool objcopy >/dev/null ;;
    pip) python3 -m pip --version >/dev/null 2>&1 ;;
    # ip(8) is often where only root looks.
    *) have "$1" || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] ;;
    esac
}

setup_tools() {
    missing=
    for program in "$@"; do
        is_there "$program" || missing="$missing $(package_of "$program")"
    done
    # Package names have no blanks: the list is to be split.
    # shellcheck disable=SC2086
    set -- $missing
    if [ $# -gt 0 ]; then
        step "installing $*"
        install_packages "$@"
    fi
}

# Whether the command given prints a version of at least RUST_MIN as its second word.
is_recent() {
    found=$("$@" --version 2>/dev/null | awk '{ print $2; exit }')
    [ -n "$found" ] || return 1
    printf '%s %s\n' "$found" "$RUST_MIN" | awk '{
        split($1, have, /[.-]/); split($2, want, ".")
        exit !(have[1] > want[1] || (have[1] == want[1] && have[2] >= want[2]))
    }'
}

# Sets CARGO to the first cargo that is recent enough and has a compiler that is, too.
find_cargo() {
    CARGO=cargo
    if is_recent "$CARGO" && is_recent "${RUSTC:-rustc}"; then
        return 0
    fi
    # One that PATH does not name, or an older one that comes first there.
    for directory in "${HOME:-/root}/.cargo/bin" /usr/bin /usr/local/bin; do
        CARGO=$directory/cargo
        if is_recent "$CARGO" && is_recent "$directory/rustc"; then
            RUSTC=$directory/rustc
            export RUSTC
            return 0
        fi
    done
    return 1
}

setup_rust() {
    setup_tools cc certificates
    if ! find_cargo; then
        # The packages' names are two words on Debian.
        # shellcheck disable=SC2046
        set -- $(package_of rust)
        step "installing $*"
        install_packages "$@"
        find_cargo || fail "the packages $* have no Rust of version $RUST_MIN or later;" \
            "install one from https://rustup.rs"
    fi
    step "Rust: $("$CARGO" --version)"
}

# NAME: the newest llvm-NAME.
llvm_tool() {
    for tool in "llvm-$1" $(find /usr/lib/llvm-* /usr/local/llvm* -name "llvm-$1" 2>/dev/null |
        sort -rV); do
        if have "$tool"; then
            echo "$tool"
            return
        fi
    done
    return 1
}

# Sets RUSTC and CARGO to the first pair that is recent enough and can build its library anew.
find_kernel_rust() {
    for folder in "" /usr/bin/ /usr/local/bin/ "${HOME:-/root}/.cargo/bin/"; do
        RUSTC=${folder}rustc
        CARGO=${folder}cargo
        if is_recent "$CARGO" && is_recent "$RUSTC" &&
            [ -e "$("$RUSTC" --print sysroot)/lib/rustlib/src/rust/library/core/Cargo.toml" ]; then
            export RUSTC
            return 0
        fi
    done
    return 1
}

setup_kernel_tools() {
    setup_tools cc certificates clang ld.lld libclang llvm
    if ! find_kernel_rust; then
        # The packages' names are several words.
        # shellcheck disable=SC2046
        install_packages $(package_of rust-src)
        find_kernel_rust || fail "no Rust of version $RUST_MIN or later has the sources of its" \
            "library; with rustup: rustup component add rust-src"
    fi
    # Those who asked for them use them.
    CLANG=clang
    # shellcheck disable=SC2034
    LLD=ld.lld
    # shellcheck disable=SC2034
    AR=$(llvm_tool ar)
    # shellcheck disable=SC2034
    OBJCOPY=$(llvm_tool objcopy)
    step "Rust: $("$RUSTC" --version), C: $("$CLANG" --version | head -n 1)"
}

setup_build() {
    step "building: cargo build $*"
    quietly "$CARGO" build --manifest-path "$REPO/Cargo.toml" --quiet "$@"
}
