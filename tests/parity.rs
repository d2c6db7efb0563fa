//! `docs/parity.md` says what became of each function of the stock driver: the functions that it
//! names are there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const TABLE: &str = "docs/parity.md";
/// Files that are part of the stock driver, and how many functions each has, by name.
const STOCK: &[(&str, usize)] = &[
    ("ipoib.h", 23),
    ("ipoib_cm.c", 39),
    ("ipoib_ethtool.c", 8),
    ("ipoib_fs.c", 15),
    ("ipoib_ib.c", 39),
    ("ipoib_main.c", 45),
    ("ipoib_multicast.c", 23),
    ("ipoib_verbs.c", 5),
    ("ipoib_vlan.c", 3),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn table() -> String {
    fs::read_to_string(root().join(TABLE)).expect("the table is there")
}

/// What stands between backquotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// A function of ours: its file and its name.
fn reference(text: &str) -> Option<(&str, &str)> {
    let (path, function) = text.split_once("::")?;
    (path.ends_with(".rs") || path.ends_with(".c")).then_some((path, function))
}

/// Whether a file has a function.
fn defines(path: &str, function: &str) -> bool {
    let Ok(text) = fs::read_to_string(root().join(path)) else { return false };
    let is_end = |rest: &str| rest.starts_with(['(', '<']);
    text.lines().any(|line| {
        if path.ends_with(".rs") {
            let mut parts = line.match_indices("fn ");
            return parts.any(|(at, _)| line[at + 3..].strip_prefix(function).is_some_and(is_end));
        }
        // style(9) has the name of a function at the beginning of its line.
        line.strip_prefix(function).is_some_and(is_end)
    })
}

/// A row of a function of the stock driver: its file, its name, what became of it, and the rest.
struct Row<'a> {
    file: &'a str,
    function: &'a str,
    verdict: &'a str,
    ours: &'a str,
    why: &'a str,
}

fn rows(table: &str) -> Vec<Row<'_>> {
    let mut file = "";
    let mut rows = Vec::new();
    for line in table.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            file = title;
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, verdict, ours, why, _] = cells[..] else { continue };
        if let Some(function) = quoted(name).next()
            && file.starts_with("ipoib")
        {
            rows.push(Row { file, function, verdict, ours, why });
        }
    }
    rows
}

#[test]
fn every_function_of_ours_that_is_named_exists() {
    let table = table();
    let named: BTreeSet<(&str, &str)> =
        table.lines().flat_map(quoted).filter_map(reference).collect();
    assert!(named.len() > 100, "{} functions are named", named.len());
    let lost: Vec<_> = named.iter().filter(|(path, name)| !defines(path, name)).collect();
    assert!(lost.is_empty(), "{TABLE} names functions that are not there: {lost:?}");
}

#[test]
fn a_function_that_does_not_exist_would_be_found() {
    assert!(defines("tests/parity.rs", "defines"));
    assert!(!defines("tests/parity.rs", "define"));
    assert!(!defines("tests/no_such_file.rs", "defines"));
    assert!(defines("kpi/c/time.c", "rust_helper_sbinuptime"));
    assert!(!defines("kpi/c/time.c", "sbinuptime"));
}

#[test]
fn every_function_of_the_stock_driver_has_one_row() {
    let table = table();
    let rows = rows(&table);
    for (file, count) in STOCK {
        let names: Vec<&str> =
            rows.iter().filter(|row| row.file == *file).map(|row| row.function).collect();
        let different: BTreeSet<&&str> = names.iter().collect();
        assert_eq!((names.len(), different.len()), (*count, *count), "{file}");
    }
    let files: BTreeSet<&str> = rows.iter().map(|row| row.file).collect();
    assert_eq!(files.len(), STOCK.len(), "{files:?}");
}

#[test]
fn every_row_says_what_became_of_it_and_where_or_why() {
    let table = table();
    for Row { file, function, verdict, ours, why } in rows(&table) {
        let is_somewhere = quoted(ours).filter_map(reference).count() == 1;
        let is_right = match verdict {
            "kept" | "changed" => is_somewhere,
            "dropped" => ours.is_empty() && !why.is_empty(),
            // wildcard: words of a document.
            _ => false,
        };
        assert!(is_right, "{file}: {function}: {verdict}");
    }
}
