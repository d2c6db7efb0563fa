# A table of what two drivers did, from the lines of judge.awk: a row for each check that was made
# of our driver in suite NAME and of the base system's in suite stock-NAME.
#
#   awk -f table.awk CHECKS

$1 ~ /^(ok|FAILED|skipped|observed)$/ { take() }

END {
    print "| suite | check | ipoib_rs | ipoib |"
    print "| --- | --- | --- | --- |"
    for (i = 1; i <= count; i++)
        row(order[i])
    for (i = 1; i <= suites; i++)
        rest_of(suite_order[i])
}

# Rows that say the same of both are told by their number.
function row(check,    suite) {
    suite = suite_of[check]
    if (!ran["stock-" suite])
        return
    if (!(check in stock) && ours[check] == "ok")
        not_reached[suite]++
    else if (check in stock && ours[check] == stock[check])
        alike[suite]++
    else
        printf "| %s | %s | %s |\n", check, ours[check], check in stock ? stock[check] : "not reached"
}

function rest_of(suite) {
    if (alike[suite])
        printf "| %s | %d more | ok | ok |\n", suite, alike[suite]
    if (not_reached[suite])
        printf "| %s | %d more | ok | not reached |\n", suite, not_reached[suite]
}

function take(    line, suite, check, what, colon) {
    line = $0
    sub(/^[a-zA-Z]+ +/, "", line)
    colon = index(line, ": ")
    suite = substr(line, 1, colon - 1)
    check = substr(line, colon + 2)
    what = $1 == "FAILED" ? "fails" : $1
    if ($1 != "ok") {
        colon = index(check, ": ")
        what = $1 == "observed" ? result(substr(check, colon + 2)) : what
        check = substr(check, 1, colon - 1)
    }
    if (!ran[suite]++ && suite !~ /^stock-/)
        suite_order[++suites] = suite
    if (sub(/^stock-/, "", suite))
        stock[suite " | " check] = what
    else {
        suite_of[suite " | " check] = suite
        order[++count] = suite " | " check
        ours[suite " | " check] = what
    }
}

# In one cell: that it failed is said by the check, how it panicked is worth a word.
function result(text) {
    # Of a file, its name below the sources of the kernel says enough.
    gsub(/ \/[^ ]*\/sys\//, " sys/", text)
    if (text == "ok" || text ~ /^panic/ || text == "the time is over")
        return text
    return "fails: " text
}
