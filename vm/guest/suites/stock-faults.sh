# shellcheck shell=sh
# faults with the stock driver, on softib.ko.
# Time: 900 s

driver=ipoib
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/faults.sh
. /vm/suites/lib/faults.sh
