# shellcheck shell=sh
# TCP in both modes, with checksums of what was sent and of what arrived.

MIB=16
PORT=5001

# FROM TO
transfer() {
    rm -f /tmp/got
    (on "$2" nc -l "$(address "$2")" "$PORT" | sha256 >/tmp/got) &
    receiver=$!
    sleep 1
    on "$1" timeout 120 nc -N "$(address "$2")" "$PORT" </tmp/data || return 1
    wait "$receiver"
    sent=$(sha256 </tmp/data)
    [ "$sent" = "$(cat /tmp/got)" ] || {
        echo "what arrived is not what was sent"
        return 1
    }
}

if ! missing=$(need nc sha256 dd timeout); then
    skip "all checks" "$missing"
    exit
fi
set_up "${driver:?}" 3
dd if=/dev/random of=/tmp/data bs=1m count="$MIB" 2>/dev/null
for mode in datagram connected; do
    set_mode "$mode"
    expect "$MIB MiB between ports of one adapter, $mode" transfer 0 1
    expect "$MIB MiB between two adapters, $mode" transfer 2 1
done
tear_down
