# shellcheck shell=sh
# request-fails with the stock driver, on softib.ko.
# Time: 300 s

driver=ipoib
# shellcheck source=vm/guest/suites/lib/hosts.sh
. /vm/suites/lib/hosts.sh
# shellcheck source=vm/guest/suites/lib/request-fails.sh
. /vm/suites/lib/request-fails.sh
