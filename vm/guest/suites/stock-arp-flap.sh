# shellcheck shell=sh
# arp-flap with the stock driver, on softib.ko.
# Time: 900 s

driver=ipoib
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/arp-flap.sh
. /vm/suites/lib/arp-flap.sh
