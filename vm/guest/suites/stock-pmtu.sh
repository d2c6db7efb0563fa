# shellcheck shell=sh
# pmtu with the stock driver, on softib.ko.
# Time: 1200 s

driver=ipoib
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/pmtu.sh
. /vm/suites/lib/pmtu.sh
