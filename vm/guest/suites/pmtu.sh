# shellcheck shell=sh
# pmtu with ipoib_rs.ko, on softib.ko.
# Time: 1200 s

driver=ipoib_rs
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/pmtu.sh
. /vm/suites/lib/pmtu.sh
