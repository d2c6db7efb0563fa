# shellcheck shell=sh
# segments-17 with the stock driver, on softib.ko.
# Time: 300 s

driver=ipoib
segments=17
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/segments.sh
. /vm/suites/lib/segments.sh
