# shellcheck shell=sh
# down-up with the stock driver, on softib.ko.
# Time: 700 s

driver=ipoib
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/down-up.sh
. /vm/suites/lib/down-up.sh
