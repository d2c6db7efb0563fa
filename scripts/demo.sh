#!/bin/sh
# The guided tour: installs what is missing, builds the lab, runs `ipoib-lab demo` with the
# arguments given. POSIX sh. Needs root for the network namespaces; asks sudo for it where it is
# not root.
#
#   scripts/demo.sh                                        all scenarios
#   scripts/demo.sh --list                                 their names
#   scripts/demo.sh --only ping-datagram --pcap captures   one scenario, with captures
#
# Exit codes are those of the lab (docs/lab.md), and 1 if the set-up fails.

set -eu

REPO=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$REPO/scripts/setup.sh"

setup_tools ip ping tracepath iperf3 tshark
setup_rust
setup_build --locked --release --package lab
target=${CARGO_TARGET_DIR:-$REPO/target}
step "running: ipoib-lab demo $*"
as_root "$target/release/ipoib-lab" demo "$@"
