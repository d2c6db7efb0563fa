# A table of what two drivers did, from the lines of judge.awk: a row for each check that was made
# of our driver in suite NAME and of the base system's in suite stock-NAME.
#
#   awk -f table.awk CHECKS

$1 ~ /^(ok|FAILED|skipped|observed)$/ { take() }

END {
    print "| suite | check | ipoib_rs | ipoib |"
    print "| --- | --- | --- | --- |"
    for (i = 1; i <= count; i++)
        if (order[i] in ours && order[i] in stock)
            printf "| %s | %s | %s |\n", order[i], ours[order[i]], stock[order[i]]
        else if (order[i] in ours && ran["stock-" suite_of[order[i]]])
            # The machine did not get so far.
            printf "| %s | %s | not reached |\n", order[i], ours[order[i]]
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
    ran[suite] = 1
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
    if (text == "ok" || text ~ /^panic/ || text == "the time is over")
        return text
    return "fails: " text
}
