# shellcheck shell=sh
# segments-34 with ipoib_rs.ko, on softib.ko.
# Time: 300 s

driver=ipoib_rs
segments=34
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/segments.sh
. /vm/suites/lib/segments.sh
