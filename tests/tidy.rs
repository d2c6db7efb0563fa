//! The rules of this repository that no compiler checks.
//!
//! Each rule comes with samples that it must refuse, so that a rule that stopped working is found
//! like any other bug.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/code.rs"]
mod code;

use code::{code_only, functions, has_word};

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_COLUMNS_MAX: usize = 100;

/// Files that may contain unsafe code, each with the reason.
const UNSAFE_FILES: &[(&str, &str)] = &[
    ("kmod/src/lib.rs", "the kernel's linker finds the entries of a module by their names"),
    ("softib/src/abi.rs", "the C half calls it, with pointers"),
    ("softib/src/memory.rs", "bytes are copied from and to where work requests say"),
    ("lab/src/tun.rs", "the ioctl that makes a TUN device has no safe wrapper"),
];

/// Folders whose files may contain unsafe code.
const UNSAFE_FOLDERS: &[&str] = &["kmod/tests/common/", "kpi/fake/src/", "kpi/src/", "kpi/tests/"];

/// Functions that may be longer than [`FUNCTION_LINES_MAX`], each with the reason.
const LONG_FUNCTIONS: &[(&str, &str, &str)] =
    &[("tests/drop_reasons.rs", "provoke", "one arm for each reason, side by side")];

/// Which crates of the workspace a crate may depend on: the layers point one way.
const LAYERS: &[(&str, &[&str])] = &[
    ("Cargo.toml", &[]),
    ("fabric/Cargo.toml", &["ipoib_rs"]),
    ("sim/Cargo.toml", &["fabric", "ipoib_rs"]),
    ("lab/Cargo.toml", &["fabric", "ipoib_rs", "sim"]),
    ("sys-bindings/Cargo.toml", &[]),
    ("kpi/Cargo.toml", &["ipoib_rs", "sys-bindings"]),
    ("kpi/fake/Cargo.toml", &["sys-bindings"]),
    ("kmod/Cargo.toml", &["ipoib_rs", "kpi"]),
    ("softib/Cargo.toml", &["fabric", "ipoib_rs", "kpi"]),
];
/// Crates that are linked into the kernel, and what from outside may be linked with them.
const KERNEL_CRATES: &[&str] = &[
    "Cargo.toml",
    "fabric/Cargo.toml",
    "sys-bindings/Cargo.toml",
    "kpi/Cargo.toml",
    "kmod/Cargo.toml",
    "softib/Cargo.toml",
];
const KERNEL_DEPENDENCIES: &[&str] = &["bitflags", "static_assertions", "zerocopy"];

/// Where everything has to happen again in the same order when a seed is given again.
const DETERMINISTIC: &[&str] = &["fabric/src/", "sim/src/", "src/"];

/// A file of the repository.
struct File {
    /// From the root of the repository, with slashes.
    path: String,
    text: String,
    /// `text` with comments and literals blanked, line for line; of Rust files only.
    code: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        let is_rust = path.ends_with(".rs");
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: if is_rust { code_only(text) } else { String::new() },
        }
    }

    fn is_below(&self, folders: &[&str]) -> bool {
        folders.iter().any(|folder| self.path.starts_with(folder))
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The numbers of the lines of code that hold `name` as a whole word.
    fn lines_with(&self, name: &str) -> Vec<usize> {
        numbered(&self.code)
            .filter(|(_, line)| has_word(line, name))
            .map(|(number, _)| number)
            .collect()
    }
}

/// A rule: the numbers of the lines of a file that break it.
struct Rule {
    name: &'static str,
    check: fn(&File) -> Vec<usize>,
    /// Path and text of files that break it.
    bad: &'static [(&'static str, &'static str)],
    /// Path and text of files that look like it and do not.
    good: &'static [(&'static str, &'static str)],
}

const RULES: &[Rule] = &[
    Rule {
        name: "only kpi names the raw bindings",
        check: |file| {
            if file.is_below(&["kpi/", "sys-bindings/"]) {
                Vec::new()
            } else {
                file.lines_with("sys_bindings")
            }
        },
        bad: &[("kmod/src/a.rs", "use sys_bindings::mtx;\n")],
        good: &[("kpi/src/a.rs", "use sys_bindings::mtx;\n")],
    },
    Rule {
        name: "unsafe code stands in the files of the list only",
        check: |file| {
            let is_listed = UNSAFE_FILES.iter().any(|(path, _)| *path == file.path);
            if is_listed || file.is_below(UNSAFE_FOLDERS) {
                Vec::new()
            } else {
                file.lines_with("unsafe")
            }
        },
        bad: &[
            ("sim/src/a.rs", "fn a() {\n    unsafe { b() }\n}\n"),
            ("src/a.rs", "unsafe impl Send for A {}\n"),
        ],
        good: &[
            ("src/a.rs", "#![forbid(unsafe_code)]\n// no unsafe here\n"),
            ("lab/src/tun.rs", "unsafe { a() }\n"),
        ],
    },
    Rule {
        name: "a file has at most 800 lines",
        check: |file| {
            let is_long = file.is_rust() && file.text.lines().count() > FILE_LINES_MAX;
            if is_long { vec![FILE_LINES_MAX + 1] } else { Vec::new() }
        },
        bad: &[("src/a.rs", LINES_801)],
        good: &[("src/a.rs", "// one\n")],
    },
    Rule {
        name: "a function has at most 70 lines",
        check: long_functions,
        bad: &[("src/a.rs", FUNCTION_OF_71_LINES)],
        good: &[("src/a.rs", "fn a() {\n    // short\n}\nfn b();\n")],
    },
    Rule {
        name: "a line has at most 100 columns",
        check: |file| {
            let has_limit =
                [".rs", ".sh", ".toml", ".ci/run"].iter().any(|end| file.path.ends_with(end));
            numbered(&file.text)
                .filter(|(_, line)| has_limit && line.chars().count() > LINE_COLUMNS_MAX)
                .map(|(number, _)| number)
                .collect()
        },
        bad: &[("scripts/a.sh", COLUMNS_101)],
        good: &[("docs/a.md", COLUMNS_101)],
    },
    Rule {
        name: "nothing is left unfinished",
        check: |file| {
            // In halves, because this file is checked as well.
            let marks = [
                concat!("TO", "DO"),
                concat!("FIX", "ME"),
                concat!("un", "implemented!"),
                concat!("to", "do!"),
                concat!("db", "g!"),
            ];
            numbered(&file.text)
                .filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)))
                .map(|(number, _)| number)
                .collect()
        },
        bad: &[
            ("src/a.rs", concat!("// TO", "DO: later\n")),
            ("src/a.rs", concat!("fn a() { un", "implemented!() }\n")),
            ("scripts/a.sh", concat!("# FIX", "ME\n")),
            ("sim/src/a.rs", concat!("let a = db", "g!(b);\n")),
        ],
        good: &[("src/a.rs", "fn todos() {}\n")],
    },
    Rule {
        name: "a wildcard arm of the core says over what it is",
        check: unexplained_wildcards,
        bad: &[
            ("src/a.rs", "match a {\n    A::B => 1,\n    _ => 2,\n}\n"),
            ("src/a.rs", "match a {\n    A::B => 1,\n    _ if b => 2,\n}\n"),
            ("src/a.rs", "match a {\n    (A::B, 1) => 1,\n    (_, _) => 2,\n}\n"),
        ],
        good: &[
            ("src/a.rs", "match a {\n    7 => 1,\n    _ => 2,\n}\n"),
            ("src/a.rs", "match a {\n    A::B => 1,\n    // wildcard: numbers.\n    _ => 2,\n}\n"),
            ("src/a.rs", "match a {\n    A::B => 1,\n    A::C(_) => 2,\n}\n"),
            ("sim/src/a.rs", "match a {\n    A::B => 1,\n    _ => 2,\n}\n"),
        ],
    },
    Rule {
        name: "collections are ordered where runs are repeated",
        check: |file| {
            if file.is_below(DETERMINISTIC) {
                [file.lines_with("HashMap"), file.lines_with("HashSet")].concat()
            } else {
                Vec::new()
            }
        },
        bad: &[
            ("sim/src/a.rs", "use std::collections::HashMap;\n"),
            ("fabric/src/a.rs", "let a: HashSet<u8> = b;\n"),
        ],
        good: &[("lab/src/a.rs", "use std::collections::HashMap;\n")],
    },
    Rule {
        name: "time is an argument where runs are repeated",
        check: |file| {
            let reads_clock =
                |line: &str| line.contains("Instant::now") || has_word(line, "SystemTime");
            numbered(&file.code)
                .filter(|(_, line)| file.is_below(DETERMINISTIC) && reads_clock(line))
                .map(|(number, _)| number)
                .collect()
        },
        bad: &[
            ("src/a.rs", "let a = Instant::now();\n"),
            ("fabric/src/a.rs", "use std::time::SystemTime;\n"),
        ],
        good: &[("lab/src/a.rs", "let a = Instant::now();\n")],
    },
    Rule {
        name: "a module is topic.rs and topic/, not mod.rs",
        check: |file| {
            // Cargo takes every other file below tests/ for a test of its own.
            let path = Path::new(&file.path);
            if path.ends_with("mod.rs") && !path.ends_with("tests/common/mod.rs") {
                vec![1]
            } else {
                Vec::new()
            }
        },
        bad: &[("src/path/mod.rs", "")],
        good: &[("lab/tests/common/mod.rs", ""), ("src/path.rs", "")],
    },
    Rule {
        name: "the core allocates in src/storage only",
        check: allocations,
        bad: &[
            ("src/path.rs", "use alloc::vec::Vec;\n"),
            ("src/path.rs", "let a = Box::new(b);\n"),
        ],
        good: &[
            ("src/storage.rs", "use alloc::vec::Vec;\n"),
            ("src/storage/ring.rs", "use alloc::vec::Vec;\n"),
            ("src/path.rs", "extern crate alloc;\nuse alloc::boxed::Box;\n"),
            ("src/path.rs", "#[cfg(test)]\nuse alloc::vec::Vec;\n"),
        ],
    },
    Rule {
        name: "crates depend on lower layers only, and the kernel on few others",
        check: forbidden_dependencies,
        bad: &[
            ("fabric/Cargo.toml", "[dependencies]\nsim.workspace = true\n"),
            ("Cargo.toml", "[dependencies]\nfabric.workspace = true\n"),
            ("fabric/Cargo.toml", "[dependencies]\nrand = \"1\"\n"),
            ("fabric/Cargo.toml", "[dependencies.rand]\nversion = \"1\"\n"),
            ("new/Cargo.toml", "[dependencies]\n"),
        ],
        good: &[
            ("sim/Cargo.toml", "[dependencies]\nfabric.workspace = true\nclap = \"4\"\n"),
            ("Cargo.toml", "[dependencies]\nzerocopy = \"1\"\n[dev-dependencies]\nsim = \"1\"\n"),
        ],
    },
    Rule {
        name: "a crate takes the lints of the workspace",
        check: |file| {
            let is_manifest = file.path.ends_with("Cargo.toml");
            let has_lints = file.text.contains("[lints]\nworkspace = true\n");
            if is_manifest && !has_lints { vec![1] } else { Vec::new() }
        },
        bad: &[("sim/Cargo.toml", "[package]\nname = \"sim\"\n")],
        good: &[("sim/Cargo.toml", "[lints]\nworkspace = true\n")],
    },
    Rule {
        name: "nothing names a folder of one machine",
        check: |file| {
            // In halves, because this file is checked as well.
            let folders = [
                concat!("/ho", "me/"),
                concat!("/ro", "ot/"),
                concat!("/wo", "rk/"),
                concat!("/Us", "ers/"),
            ];
            numbered(&file.text)
                .filter(|(_, line)| folders.iter().any(|folder| starts_path(line, folder)))
                .map(|(number, _)| number)
                .collect()
        },
        bad: &[
            ("scripts/a.sh", concat!("cd /ro", "ot/ipoib\n")),
            ("docs/a.md", concat!("see `/ho", "me/me/a`\n")),
        ],
        good: &[("docs/a.md", "https://example.org/home/a and ./work/a\n")],
    },
    Rule {
        name: "lines do not end in blanks",
        check: |file| {
            numbered(&file.text)
                .filter(|(_, line)| line.ends_with([' ', '\t']))
                .map(|(number, _)| number)
                .collect()
        },
        bad: &[("docs/a.md", "a \n")],
        good: &[("docs/a.md", " a\n")],
    },
];

#[test]
fn repository_is_tidy() {
    let files = repository();
    assert!(files.iter().any(|file| file.path == "src/lib.rs"), "the repository was not found");
    let mut broken = Vec::new();
    for rule in RULES {
        for file in &files {
            for line in (rule.check)(file) {
                broken.push(format!("{}:{line}: {}", file.path, rule.name));
            }
        }
    }
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn every_rule_refuses_its_bad_samples() {
    for rule in RULES {
        assert!(!rule.bad.is_empty(), "{} has no sample", rule.name);
        for (path, text) in rule.bad {
            let lines = (rule.check)(&File::new(path, text));
            assert!(!lines.is_empty(), "\"{}\" accepts {path}:\n{text}", rule.name);
        }
    }
}

#[test]
fn every_rule_accepts_its_good_samples() {
    for rule in RULES {
        for (path, text) in rule.good {
            let lines = (rule.check)(&File::new(path, text));
            assert!(lines.is_empty(), "\"{}\" refuses {path}:\n{text}", rule.name);
        }
    }
}

#[test]
fn every_exception_is_still_needed() {
    let files = repository();
    for (path, reason) in UNSAFE_FILES {
        let is_needed =
            files.iter().any(|file| file.path == *path && !file.lines_with("unsafe").is_empty());
        assert!(is_needed, "{path} needs no exception ({reason})");
    }
    for (path, name, reason) in LONG_FUNCTIONS {
        let is_needed = files.iter().filter(|file| file.path == *path).any(|file| {
            functions(&file.code)
                .iter()
                .any(|function| function.name == *name && function.lines > FUNCTION_LINES_MAX)
        });
        assert!(is_needed, "{name} in {path} needs no exception ({reason})");
    }
}

#[test]
fn comments_and_literals_are_no_code() {
    let text = "a /* b /* c */ d */ e // f\n\"g\\\" h\" i r#\"j\" k\"# l 'm' '\\'' n<'o> b'p'\n";
    let words: Vec<String> = code_only(text).split_whitespace().map(str::to_owned).collect();
    assert_eq!(words, ["a", "e", "i", "l", "n<'o>"]);
}

/// Every text file of the repository, without what is built or fetched.
fn repository() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a plain name");
            let path = folder.join(&name);
            let kind = entry.file_type().expect("a type");
            let is_foreign = name == "target" || name.starts_with('.') && name != ".ci";
            if kind.is_dir() && !is_foreign {
                folders.push(path);
            } else if kind.is_file() && is_text(&name) {
                let text = fs::read_to_string(root.join(&path)).expect("UTF-8");
                files.push(File::new(path.to_str().expect("a plain name"), &text));
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn is_text(name: &str) -> bool {
    let endings = [".c", ".h", ".md", ".rs", ".sh", ".toml", ".yml"];
    name == "run" || endings.iter().any(|ending| name.ends_with(ending))
}

/// The lines of `text` with their numbers, from 1.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// Whether an absolute path in `line` starts with `folder`, other than the path of a web address.
fn starts_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && !"._-~}".contains(c))
    })
}

fn long_functions(file: &File) -> Vec<usize> {
    functions(&file.code)
        .into_iter()
        .filter(|function| function.lines > FUNCTION_LINES_MAX)
        .filter(|function| {
            !LONG_FUNCTIONS
                .iter()
                .any(|(path, name, _)| *path == file.path && *name == function.name)
        })
        .map(|function| function.line)
        .collect()
}

/// Wildcard arms in the core that follow no arm with a literal and have no comment `wildcard:`
/// above.
///
/// Over an enum of ours, such an arm would swallow the variants that are added later.
fn unexplained_wildcards(file: &File) -> Vec<usize> {
    if !file.is_below(&["src/"]) {
        return Vec::new();
    }
    let texts: Vec<&str> = file.text.lines().collect();
    let lines: Vec<&str> = file.code.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let is_wildcard = |line: &str| {
        let pattern = line.trim_start();
        ["_ =>", "_ if ", "(_, _) =>", "(_, _, _) =>"]
            .iter()
            .any(|wildcard| pattern.starts_with(wildcard))
    };
    let is_explained = |index: usize| {
        let comments = texts[..index].iter().rev().map(|line| line.trim_start());
        let follows_literal = || {
            lines[..index]
                .iter()
                .zip(&texts[..index])
                .rev()
                .take_while(|(line, _)| {
                    line.trim().is_empty() || indent(line) >= indent(lines[index])
                })
                .find(|(line, _)| indent(line) == indent(lines[index]) && line.contains("=>"))
                .is_some_and(|(_, text)| {
                    let literal = text.trim_start().trim_start_matches(['b', '(', '[']);
                    literal.starts_with(|c: char| c.is_ascii_digit() || "'\"-".contains(c))
                })
        };
        comments.take_while(|line| line.starts_with("//")).any(|line| line.contains("wildcard:"))
            || follows_literal()
    };
    (0..lines.len())
        .filter(|&index| is_wildcard(lines[index]) && !is_explained(index))
        .map(|index| index + 1)
        .collect()
}

/// Lines of the core, tests apart, that may allocate. The type `Box` may be named everywhere: the
/// tables that attach makes are boxed slices.
fn allocations(file: &File) -> Vec<usize> {
    let is_core = file.is_below(&["src/"]) && !file.is_below(&["src/storage.rs", "src/storage/"]);
    let allocates = |line: &str| {
        let names_crate = has_word(line, "alloc") && line.contains("alloc::");
        names_crate && line.trim() != "use alloc::boxed::Box;" || line.contains("Box::new")
    };
    numbered(&file.code)
        .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
        .filter(|(_, line)| is_core && allocates(line))
        .map(|(number, _)| number)
        .collect()
}

fn forbidden_dependencies(file: &File) -> Vec<usize> {
    if !file.path.ends_with("Cargo.toml") {
        return Vec::new();
    }
    let Some((_, lower)) = LAYERS.iter().find(|(path, _)| *path == file.path) else {
        return vec![1];
    };
    let own = ["fabric", "fake-kernel", "ipoib_rs", "kmod", "kpi", "lab", "sim", "sys-bindings"];
    let is_allowed = |name: &str| {
        if own.contains(&name) {
            lower.contains(&name)
        } else {
            !KERNEL_CRATES.contains(&file.path.as_str()) || KERNEL_DEPENDENCIES.contains(&name)
        }
    };
    let mut section = "";
    let mut forbidden = Vec::new();
    for (number, line) in numbered(&file.text) {
        let name = if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            section.strip_prefix("dependencies.")
        } else if section == "dependencies" {
            line.split(['.', ' ', '=']).next().filter(|name| !name.is_empty())
        } else {
            None
        };
        if name.is_some_and(|name| !name.starts_with('#') && !is_allowed(name)) {
            forbidden.push(number);
        }
    }
    forbidden
}

const LINES_801: &str = ascii(&[b'\n'; FILE_LINES_MAX + 1]);
const COLUMNS_101: &str = ascii(&[b'a'; LINE_COLUMNS_MAX + 1]);
const FUNCTION_OF_71_LINES: &str = ascii(&FUNCTION);
const FUNCTION: [u8; 8 + FUNCTION_LINES_MAX + 1] = {
    let mut text = [b'\n'; 8 + FUNCTION_LINES_MAX + 1];
    *text.first_chunk_mut().expect("longer") = *b"fn a() {";
    *text.last_mut().expect("longer") = b'}';
    text
};

const fn ascii(bytes: &'static [u8]) -> &'static str {
    match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("not ASCII"),
    }
}
