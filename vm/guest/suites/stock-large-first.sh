# shellcheck shell=sh
# large-first with the stock driver, on softib.ko.
# Time: 300 s

driver=ipoib
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/large-first.sh
. /vm/suites/lib/large-first.sh
