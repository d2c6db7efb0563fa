# shellcheck shell=sh
# ping-connected with the stock driver, on softib.ko.
# Time: 300 s

driver=ipoib
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/ping-connected.sh
. /vm/suites/lib/ping-connected.sh
