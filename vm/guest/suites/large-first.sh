# shellcheck shell=sh
# large-first with ipoib_rs.ko, on softib.ko.
# Time: 300 s

driver=ipoib_rs
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/large-first.sh
. /vm/suites/lib/large-first.sh
