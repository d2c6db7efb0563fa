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
#
# and below a failure of the kernel's own what the console says about it, indented. Besides what the
# suite checked, these are checks of every run: the suite came to its end with at least one
# result, the kernel did not panic, lock orders were kept (WITNESS), nothing leaked.

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
    CONTINUATION = "^ [123](st|nd|rd) |^lock order |^#[0-9]+ |^KDB: stack|^stack backtrace|^---|" \
        "^exclusive |^shared |^[a-z_A-Z0-9]+\\(\\) at "
}

{ sub(/\r$/, "") }

FILENAME == ARGV[2] { console() }
FILENAME == ARGV[1] && $1 == "@vm" { result() }

END {
    judge_end()
    judge_console("the kernel does not panic", panic_text)
    if (has_witness)
        judge_console("lock orders are kept", witness_text)
    else
        skipped("lock orders are kept", "needs a kernel with WITNESS")
    judge_console("nothing leaks, says the kernel", leak_text)
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

function rest(from,    text, i) {
    text = $from
    for (i = from + 1; i <= NF; i++)
        text = text " " $i
    return text
}

function result(    text, colon) {
    text = rest(3)
    colon = index(text, ": ")
    if ($2 == "ok") {
        ok(text)
        results++
    } else if ($2 == "not_ok" && colon) {
        failed(substr(text, 1, colon - 1), substr(text, colon + 2))
        results++
    } else if ($2 == "skip" && colon) {
        skipped(substr(text, 1, colon - 1), substr(text, colon + 2))
        results++
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
    # All that follows a panic belongs to it.
    if (topic == "panic" || $0 ~ PANIC)
        topic = "panic"
    else if ($0 ~ WITNESS)
        topic = in_suite ? "witness" : ""
    else if ($0 ~ LEAK)
        topic = in_suite ? "leak" : ""
    else if ($0 !~ CONTINUATION)
        topic = ""
    if (topic == "panic")
        panic_text = added(panic_text)
    else if (topic == "witness")
        witness_text = added(witness_text)
    else if (topic == "leak")
        leak_text = added(leak_text)
}

# A line that only repeats the one before is left out.
function added(text) {
    if ($0 == added_before)
        return text
    added_before = $0
    return text "         | " $0 "\n"
}

function judge_end() {
    if (has_ended && results)
        ok("the suite comes to its end")
    else if (has_ended)
        failed("the suite comes to its end", "it checked nothing")
    else if (ended == "time")
        failed("the suite comes to its end", "the time is over")
    else if (!has_begun)
        failed("the suite comes to its end", "it was not started")
    else
        failed("the suite comes to its end", "the machine ended before")
}

# The text is shown up to the limit.
function judge_console(name, text,    lines, count, i) {
    if (text == "") {
        ok(name)
        return
    }
    count = split(text, lines, "\n") - 1
    failed(name, substr(lines[1], 12))
    for (i = 1; i <= count && i <= SHOWN_MAX; i++)
        print lines[i]
    if (count > SHOWN_MAX)
        printf "         | ... %d lines more in the console log\n", count - SHOWN_MAX
}
