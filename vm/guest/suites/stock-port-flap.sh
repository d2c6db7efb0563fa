# shellcheck shell=sh
# port-flap with the stock driver, on softib.ko.
# Time: 300 s

driver=ipoib
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/port-flap.sh
. /vm/suites/lib/port-flap.sh
