# Judges one run of a suite in the virtual machine.
#
#   awk -f judge.awk -v suite=NAME -v ended=HOW RESULTS CONSOLE
#
# RESULTS is what the suite reported (see guest/lib.sh), CONSOLE the console of the kernel, HOW the
# way in which the machine ended: "exit" by itself, "time" at the limit, "panic" after one,
# "debugger" in the kernel's debugger. Prints a line for each check,
#
#   ok       NAME
#   FAILED   NAME: why
#   skipped  NAME: why
#   observed NAME: what a driver of somebody else did, between "observe" and "judge"
#
# and below a failure of the kernel's own what the console says about it, indented. Besides what the
# suite checked, these are checks of every run: the suite came to its end with at least one
# result, the kernel did not panic, lock orders were kept (WITNESS), nothing leaked.
#
# Between "observe" and "judge" a suite has somebody else's driver do things that it may fail at. A
# panic in one of our modules is a failure even then.

BEGIN {
    # Lines of the console shown below a failure.
    SHOWN_MAX = 40
    # What WITNESS says about locks that were taken wrongly.
    WITNESS = "lock order reversal|acquiring duplicate lock|locks held:$|" \
        "while (exclusively|share) locked from|forbidden unlock|(shared|exclusive) unlock of|" \
        "witness exhausted|[Ww]itness disabled|unable to allocate a new witness"
    PANIC = "^panic: |^Fatal (double fault|trap)|^Fatal trap|^KDB: enter: panic"
    LEAK = "leaked memory on destroy|^Freed UMA keg .* was not empty|Memory modified after free|" \
        "can't re-use a leaf|^WARNING: .* is not unregistered"
    # Lines that belong to what was said before them.
    # Functions in a backtrace that are of our modules, and all functions of drivers.
    OURS = "softib|ipoib_rs"
    DRIVERS = "^(_R|ipoib|lagg|softib)"
    CONTINUATION = "^ [123](st|nd|rd) |^lock order |^#[0-9]+ |^KDB: stack|^stack backtrace|^---|" \
        "^exclusive |^shared |^[a-z_A-Z0-9]+\\(\\) at "
}

{ sub(/\r$/, "") }

FILENAME == ARGV[2] { console() }
FILENAME == ARGV[1] && $1 == "@vm" { result() }

END {
    if (text["panic", "observed"] != "" && panic_place !~ OURS)
        show_observed(trial == "" ? "the kernel does not panic" : trial,
            "panic" (panic_place == "" ? "" : " in " panic_place) ": " \
            first_line(text["panic", "observed"]), text["panic", "observed"])
    else {
        judge_end()
        judge_console("the kernel does not panic", "panic")
    }
    if (has_witness)
        judge_console("lock orders are kept", "witness")
    else
        skipped("lock orders are kept", "needs a kernel with WITNESS")
    judge_console("nothing leaks, says the kernel", "leak")
}

function ok(name) {
    printf "ok       %s: %s\n", suite, name
}

function failed(name, why) {
    printf "FAILED   %s: %s: %s\n", suite, name, why
}

function skipped(name, why) {
    printf "skipped  %s: %s: %s\n", suite, name, why
}

function observed(name, what) {
    printf "observed %s: %s: %s\n", suite, name, what
}

function rest(from,    text, i) {
    text = $from
    for (i = from + 1; i <= NF; i++)
        text = text " " $i
    return text
}

function result(    line, colon, name, why) {
    line = rest(3)
    colon = index(line, ": ")
    name = substr(line, 1, colon - 1)
    why = substr(line, colon + 2)
    if ($2 == "ok") {
        if (is_observed)
            observed(line, "ok")
        else
            ok(line)
        results++
        trial = ""
    } else if ($2 == "not_ok" && colon) {
        if (is_observed)
            observed(name, why)
        else
            failed(name, why)
        results++
        trial = ""
    } else if ($2 == "skip" && colon) {
        skipped(name, why)
        results++
    } else if ($2 == "try") {
        trial = line
    } else if ($2 == "observe" || $2 == "judge") {
        is_observed = $2 == "observe"
    } else if ($2 == "begin") {
        has_begun = 1
    } else if ($2 == "end") {
        has_ended = 1
    } else {
        failed("results can be read", "'" $0 "'")
    }
}

function console() {
    if ($0 ~ /^WARNING: WITNESS option enabled/)
        has_witness = 1
    if ($0 ~ /^@vm begin /)
        in_suite = 1
    if ($0 ~ /^@vm (observe|judge)/)
        side = $2 == "observe" ? "observed" : "judged"
    if (side == "")
        side = "judged"
    # All that follows a panic belongs to it.
    if (topic == "panic" || $0 ~ PANIC)
        topic = "panic"
    # What the suite says of itself is not the kernel's.
    else if ($0 ~ /^@vm /)
        topic = ""
    else if ($0 ~ WITNESS)
        topic = in_suite ? "witness" : ""
    else if ($0 ~ LEAK)
        topic = in_suite ? "leak" : ""
    else if ($0 !~ CONTINUATION)
        topic = ""
    if (topic != "")
        text[topic, side] = added(text[topic, side])
    if (topic == "panic" && panic_place == "" && $0 ~ /\(\) at / && $1 ~ DRIVERS)
        panic_place = $1
}

# A line that only repeats the one before is left out.
function added(said) {
    if ($0 == added_before)
        return said
    added_before = $0
    return said "         | " $0 "\n"
}

function judge_end() {
    if (has_ended && results)
        ok("the suite comes to its end")
    else if (has_ended)
        failed("the suite comes to its end", "it checked nothing")
    else if (ended == "time" && is_observed && trial != "")
        observed(trial, "the time is over")
    else if (ended == "time")
        failed("the suite comes to its end", "the time is over")
    else if (!has_begun)
        failed("the suite comes to its end", "it was not started")
    else if (trial != "")
        failed("the suite comes to its end", "the machine ended in '" trial "'")
    else
        failed("the suite comes to its end", "the machine ended before")
}

# What was said meanwhile about ours is never only observed.
function judge_console(name, topic,    said) {
    said = text[topic, "observed"]
    if (said != "" && said !~ OURS)
        show_observed(name, first_line(said), said)
    else
        text[topic, "judged"] = said text[topic, "judged"]
    said = text[topic, "judged"]
    if (said == "") {
        ok(name)
        return
    }
    failed(name, first_line(said))
    show(said)
}

function show_observed(name, what, said) {
    observed(name, what)
    show(said)
}

function first_line(said,    lines) {
    split(said, lines, "\n")
    return substr(lines[1], 12)
}

# Up to the limit.
function show(said,    lines, count, i) {
    count = split(said, lines, "\n") - 1
    for (i = 1; i <= count && i <= SHOWN_MAX; i++)
        print lines[i]
    if (count > SHOWN_MAX)
        printf "         | ... %d lines more in the console log\n", count - SHOWN_MAX
}
