# shellcheck shell=sh
# What goes wrong in a fabric: traffic goes on afterwards.

# Seconds until a host can be reached again.
RECOVERY_SECONDS=30

# FROM TO: whether two pings in a row are answered.
reaches() {
    on "$1" ping -c 2 -i 0.2 -W 500 -q "$(address "$2")" >/tmp/reach &&
        ! grep -q ' [1-9][0-9.]*% packet loss' /tmp/reach
}

# NAME: host 0 and host 2 reach each other before long.
expect_recovery() {
    expect "$1: host 0 reaches host 2" within "$RECOVERY_SECONDS" reaches 0 2
    expect "$1: host 2 reaches host 0" within "$RECOVERY_SECONDS" reaches 2 0
}

no_carrier() {
    ! has_carrier "$1"
}

set_up "${driver:?}" 3
set_mode connected
expect_recovery "at first"

fault "$(port_of 2).link" 0
expect "a port without a link has no carrier" within 5 no_carrier 2
fault "$(port_of 2).link" 1
expect "a port with a link has one again" within 10 has_carrier 2
expect_recovery "after a port was down"

fault "$(port_of 2).lid" 0
expect_recovery "after another LID"
fault sm.restart 1
expect_recovery "after another subnet manager"
fault sm.reregister 1
expect_recovery "after all had to register again"
for event in client_reregister gid_change lid_change pkey_change port_active sm_change; do
    fault "$(port_of 2).event" "$event"
    expect_recovery "after a false event, $event"
done

fault "$(port_of 0).loss" 100000
on 0 ping -c 30 -i 0.1 -q "$(address 2)" >/tmp/lossy
note "$(grep 'packet loss' /tmp/lossy)"
expect "a link that is to lose packets does" test "$(sysctl -n hw.softib.lost)" -gt 0
fault "$(port_of 0).loss" 0
expect_recovery "after losses"

# The failure of one datagram stops the send queue (IBA 10.3.1). The stock driver never starts it
# again.
case $driver in
ipoib) skip "after a send failed" "the stock driver sends nothing any more" ;;
*)
    set_mode datagram
    fault "$(port_of 0).fail_sends" 1
    on 0 ping -c 1 -W 500 -q "$(address 2)" >/tmp/failing
    expect "a send failed" within 5 test "$(sysctl -n "hw.softib.$(port_of 0).fail_sends")" = 0
    expect_recovery "after a send failed"
    set_mode connected
    ;;
esac

fault drop_requests 1
for host in 0 2; do
    on "$host" ifconfig "ib$host" down
    on "$host" ifconfig "ib$host" up
done
expect "carriers are back" within 10 all_carriers
expect_recovery "while no connection can be made"
fault drop_requests 0
expect_recovery "after connections can be made again"
tear_down
