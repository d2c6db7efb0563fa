#!/bin/sh
# What a module must be before a kernel may load it.
#
#   scripts/check-kmod.sh FOLDER/NAME...    checks FOLDER/NAME.ko, with FOLDER/NAME.o beside it, as
#                                           scripts/build-kmod.sh made them
#   scripts/check-kmod.sh --self-test       each gate refuses an object that is bad in its way, and
#                                           accepts one that is not
#
# Gates, in this order: relocations, symbols, exports, registers, stack, panics. Prints one line for
# each, and ends with code 1 if one refused.
set -eu

REPO=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$REPO/scripts/setup.sh"

# What the kernel's linker knows of (sys/amd64/amd64/elf_machdep.c).
RELOCATIONS='R_X86_64_(NONE|64|32S|PC32|PLT32)'
# A thread of the kernel has a stack of 16 KiB, of which a packet's way through the network stack
# needs its share.
FRAME_BYTES_MAX=2048
# x87, MMX, SSE, AVX: the kernel does not save these registers for itself.
REGISTERS='%([xyz]?mm[0-9]+|st([^a-z]|$))'
REGISTERS="$REGISTERS|^(emms|f(ld|st|add|sub|mul|div|ild|ist|xch|com|init)[a-z0-9]*)\\b"

refused=0

# GATE RESULT [DETAIL]
report() {
    printf '%-8s %s: %s\n' "$2" "$1" "$3"
    if [ "$2" = refused ]; then
        refused=1
    fi
}

# GATE LIST TEXT: refuses if the list has something in it; otherwise says the text.
refuse_if_any() {
    if [ -s "$2" ]; then
        report "$1" refused "$(wc -l <"$2" | tr -d ' ') times, the first of them:"
        head -n 10 "$2" | sed 's/^/         /'
    else
        report "$1" ok "$3"
    fi
}

check_relocations() {
    "$READELF" --relocations --wide "$module.ko" | awk '$3 ~ /^R_/ { print $3 }' >"$scratch/all"
    grep -Evx "$RELOCATIONS" "$scratch/all" | sort | uniq -c >"$scratch/bad" || :
    refuse_if_any relocations "$scratch/bad" "$(wc -l <"$scratch/all" | tr -d ' ') of known kinds"
}

# A name that Rust calls and nobody defines is one of the C half, of which the build has left out
# what it could not compile.
check_symbols() {
    cat "$REPO/kmod/kernel.symbols" "$module.left-out" 2>/dev/null | grep -v '^#' |
        sort -u >"$scratch/known"
    "$NM" --undefined-only "$module.ko" | awk '{ print $NF }' | sort -u >"$scratch/all"
    comm -23 "$scratch/all" "$scratch/known" >"$scratch/bad"
    refuse_if_any symbols "$scratch/bad" "$(wc -l <"$scratch/all" | tr -d ' ') wanted of the kernel"
}

# Names that collide with those of another module would be found instead of them.
check_exports() {
    name=$(basename "$module")
    "$NM" --defined-only --extern-only "$module.ko" | awk '{ print $NF }' |
        grep -Ev "^(${name}_|lagg_)" >"$scratch/bad" || :
    refuse_if_any exports "$scratch/bad" "nothing without the prefix of the module"
}

check_registers() {
    # An address may look like the name of an instruction.
    "$OBJDUMP" --disassemble --no-show-raw-insn "$module.ko" |
        sed -n 's/^ *[0-9a-f]*:[[:space:]]*//p' >"$scratch/all"
    instructions=$(wc -l <"$scratch/all" | tr -d ' ')
    grep -E "$REGISTERS" "$scratch/all" >"$scratch/bad" || :
    if [ "$instructions" -eq 0 ]; then
        report registers refused "there are no instructions to look at"
    else
        refuse_if_any registers "$scratch/bad" \
            "$instructions instructions use none that are not saved"
    fi
}

# The compilers say what each function takes.
check_stack() {
    "$READELF" --stack-sizes "$module.o" 2>/dev/null | awk '$1 ~ /^[0-9]+$/ { print $1, $2 }' |
        sort -rn >"$scratch/all"
    awk -v max="$FRAME_BYTES_MAX" '$1 > max' "$scratch/all" >"$scratch/bad"
    functions=$(wc -l <"$scratch/all" | tr -d ' ')
    "$NM" --defined-only "$module.o" | awk '$2 ~ /^[tTwW]$/' >"$scratch/text"
    if [ "$functions" -eq 0 ] || [ "$functions" -lt "$(wc -l <"$scratch/text")" ]; then
        report stack refused "$functions frames are known of $(wc -l <"$scratch/text") functions"
    else
        refuse_if_any stack "$scratch/bad" \
            "$functions functions, the largest frame has $(head -n 1 "$scratch/all")"
    fi
}

# The graph of what refers to what, from the relocations: one line "FROM TO" for each reference,
# in names of functions and of data.
references() {
    "$READELF" --symbols --sections --relocations --wide "$1" | awk '
        # "[ 1] .text.a PROGBITS ...": a section.
        /^ *\[ *[0-9]+\]/ {
            line = $0; sub(/^ *\[ */, "", line); number = line + 0
            sub(/^[0-9]+\] */, "", line); split(line, words, / +/)
            section[number] = words[1]
            next
        }
        /^Relocation section/ { mode = "relocations"; from = $3; gsub(/\047/, "", from)
            sub(/^\.rela/, "", from); next }
        /^Symbol table/ { mode = "symbols"; next }
        # "12: 0000 24 FUNC LOCAL DEFAULT 7 name": a symbol and the section that it is in.
        mode == "symbols" && $1 ~ /^[0-9]+:$/ && $7 ~ /^[0-9]+$/ && $8 != "" {
            if ($4 == "FUNC" || !(section[$7] in owner)) owner[section[$7]] = $8
            home[$8] = section[$7]
            next
        }
        mode == "relocations" && $3 ~ /^R_/ { count++; source[count] = from; target[count] = $5 }
        END {
            for (i = 1; i <= count; i++) {
                to = target[i] in home ? home[target[i]] : target[i]
                a = source[i] in owner ? owner[source[i]] : source[i]
                b = to in owner ? owner[to] : to
                if (a !~ /^\.(stack_sizes|debug|llvm|eh_frame)/) print a, b
            }
        }'
}

# Functions of the library in which a panic begins. In names of Rust, a part is written with its
# length in front.
PANICS='4core9panicking[0-9]|4core6option[0-9]+(expect|unwrap)_failed'
PANICS="$PANICS|4core6result[0-9]+unwrap_failed|4core5slice5index[0-9]+slice_[a-z_]*fail"
PANICS="$PANICS|4core3str[0-9]+slice_error_fail|4core4cell[0-9]+panic_|8unwrap_or_panic"
PANICS="$PANICS|5alloc5alloc18handle_alloc_error|5alloc7raw_vec(12handle_error|17capacity_overflow)"
PANICS="($PANICS)"

# What follows from the entries of the data path in a graph, with the way there: "NAME FROM".
reachable() {
    awk -v roots="$1" '
        BEGIN {
            count = split(roots, queue, " ")
            for (i = 1; i <= count; i++) from[queue[i]] = "-"
        }
        { edges[$1] = edges[$1] " " $2 }
        END {
            for (i = 1; i <= count; i++) {
                print queue[i], from[queue[i]]
                last = split(edges[queue[i]], next_ones, " ")
                for (j = 1; j <= last; j++) {
                    if (!(next_ones[j] in from)) {
                        from[next_ones[j]] = queue[i]; queue[++count] = next_ones[j]
                    }
                }
            }
        }'
}

# Panics: none can be reached from an entry of the data path, and elsewhere there are no more places
# that refer to one than recorded.
check_panics() {
    name=$(basename "$module")
    references "$module.o" | sort -u >"$scratch/graph"
    awk '{ print $1 }' "$scratch/graph" | sort -u >"$scratch/names"
    patterns=$(listed "$name" "$REPO/kmod/datapath.entries")
    missing=$(for pattern in $patterns; do
        grep -Eq "$pattern" "$scratch/names" || echo "$pattern"
    done)
    entries=$(for pattern in $patterns; do
        grep -E "$pattern" "$scratch/names" || :
    done | tr '\n' ' ')
    reachable "$entries" <"$scratch/graph" >"$scratch/all"
    grep -E "^[^ ]*$PANICS" "$scratch/all" >"$scratch/bad" || :
    if [ -n "$missing" ]; then
        report "data path" refused "$missing is not there, or does nothing"
    else
        refuse_if_any "data path" "$scratch/bad" \
            "no panic in the $(wc -l <"$scratch/all" | tr -d ' ') things that it can reach"
    fi
    awk -v panics="$PANICS" '$2 ~ panics && $1 !~ panics' "$scratch/graph" >"$scratch/bad"
    places=$(wc -l <"$scratch/bad" | tr -d ' ')
    budget=${PANICS_MAX:-$(listed "$name" "$REPO/kmod/panics.budget")}
    if [ "$places" -le "${budget:-0}" ]; then
        report panics ok "$places places refer to one, $budget are recorded"
    else
        refuse_if_any panics "$scratch/bad"
    fi
}

# NAME FILE: the second words of the lines that begin with a name.
listed() {
    awk -v name="$1" '$1 == name { print $2 }' "$2"
}

check_module() {
    module=$1
    for file in "$module.ko" "$module.o"; do
        [ -e "$file" ] || fail "there is no $file"
    done
    check_relocations
    check_symbols
    check_exports
    check_registers
    check_stack
    check_panics
}

# GATE: compiles what is read, and demands that this gate refuses it, or none if it is "none".
refuses() {
    module=$scratch/ipoib_rs
    cat >"$module.c"
    # The options that the gates are there to check are left to the sample.
    gate=$1
    shift
    quietly "$CLANG" -target x86_64-unknown-freebsd15 -ffreestanding -mcmodel=kernel -O1 \
        -fno-asynchronous-unwind-tables -ffunction-sections -fdata-sections -fstack-size-section \
        -fno-pic "$@" -c "$module.c" -o "$module.o"
    cp "$module.o" "$module.ko"
    refused=0
    check_module "$module" >"$scratch/said"
    found=$(awk '$1 == "refused" { sub(/^refused +/, ""); sub(/:.*/, ""); print }' "$scratch/said")
    if [ "${found:-none}" = "$gate" ]; then
        printf 'ok       refused as it should be: %s\n' "$gate"
    else
        failed=1
        cat "$scratch/said"
        printf 'FAILED   the object that is bad for %s is refused for %s\n' "$gate" \
            "${found:-nothing}"
    fi
}

# The entries of the data path in a sample, which do what is given.
sample_entries() {
    echo 'void free(void *, void *);'
    listed ipoib_rs "$REPO/kmod/datapath.entries" | sed 's/[.*$]//g' |
        awk -v body="${1:-}" '{
            printf "void ipoib_rs_e%d(void) __asm__(\"ipoib_rs_%s\");\n", NR, $1
            printf "void ipoib_rs_e%d(void) { free(0, 0); %s; }\n", NR, body
        }'
}

self_test() {
    failed=0
    sample_entries | refuses none
    { sample_entries; echo 'extern int panic; int ipoib_rs_a(void) { return panic; }'; } |
        refuses relocations -fPIC
    { sample_entries; echo 'void unheard_of(void); void ipoib_rs_a(void) { unheard_of(); }'; } |
        refuses symbols
    { sample_entries; echo 'void collides(void) { }'; } | refuses exports
    { sample_entries; echo 'double ipoib_rs_a(double *a) { return *a * *a; }'; } |
        refuses registers
    {
        sample_entries
        echo 'void ipoib_rs_a(void) { char a[4096]; __asm__ volatile("" :: "r"(a) : "memory"); }'
    } | refuses stack
    sample_entries | refuses stack -fno-stack-size-section
    panic='static void panics(void) __asm__("_RNvNtCs0_4core9panicking5panic");
        __attribute__((noinline)) static void panics(void) { __asm__ volatile(""); }'
    { echo "$panic"; sample_entries 'panics()'; } | PANICS_MAX=99 refuses "data path"
    { echo "$panic"; sample_entries; echo 'void ipoib_rs_a(void) { panics(); }'; } |
        PANICS_MAX=0 refuses panics
    return "$failed"
}

setup_tools clang llvm
CLANG=clang
READELF=$(llvm_tool readelf)
OBJDUMP=$(llvm_tool objdump)
NM=$(llvm_tool nm)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ "${1:-}" = --self-test ]; then
    self_test
    exit
fi
[ $# -gt 0 ] || fail "no module is given"
for one in "$@"; do
    printf '== %s.ko\n' "$one"
    check_module "$one"
done
exit "$refused"
