# shellcheck shell=sh
# faults with ipoib_rs.ko, on softib.ko.
# Time: 900 s

driver=ipoib_rs
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/faults.sh
. /vm/suites/lib/faults.sh
