//! Generates the bindings from `bindings.h` with the options of `bindgen.options`.
//!
//! Which kernel they are for is said by a file of compiler flags, one per line, whose path is in
//! the environment as `KMOD_FLAGS`: the same flags with which the C half is compiled.
//! `scripts/build-kmod.sh` writes it.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    for variable in ["KMOD_FLAGS", "LIBCLANG_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let flags_path = env::var("KMOD_FLAGS").expect(
        "KMOD_FLAGS names no file of compiler flags: \
         crates for the kernel are built by scripts/build-kmod.sh",
    );
    println!("cargo::rerun-if-changed={flags_path}");
    let bindings = generate(&root, &read(Path::new(&flags_path)));
    fs::write(out.join("bindings.rs"), &bindings).expect("the bindings cannot be written");
    // For kpi/c/layout.c, which is compiled with the same flags.
    let header = Path::new(&flags_path).with_file_name("rust_layout.h");
    fs::write(header, layout_header(&bindings)).expect("rust_layout.h cannot be written");
}

fn generate(root: &Path, flags: &str) -> String {
    let mut builder = bindgen::builder()
        .header(root.join("bindings.h").to_str().expect("a plain path"))
        .clang_args(flags.lines())
        .clang_arg(format!("-I{}", root.join("../kpi/c").display()))
        .use_core()
        .formatter(bindgen::Formatter::None)
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()));
    let options = root.join("bindgen.options");
    println!("cargo::rerun-if-changed={}", options.display());
    for (option, value) in options_of(&read(&options)) {
        builder = match option {
            "allow-function" => builder.allowlist_function(value),
            "allow-type" => builder.allowlist_type(value),
            "allow-constant" => builder.allowlist_var(value),
            "enum-module" => builder.constified_enum_module(value),
            "opaque" => builder.opaque_type(value),
            "rust-version" => builder.rust_target(value.parse().expect("a Rust version")),
            _ => panic!("bindgen.options has an unknown option: {option}"),
        };
    }
    builder.generate().expect("bindgen failed").to_string()
}

/// The options with their values, without comments.
fn options_of(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter_map(|line| line.split_once(' '))
        .map(|(option, value)| (option, value.trim()))
}

/// The sizes and alignments that Rust relies on, as the C half is to check them: every constant
/// whose name begins with `KPI_SIZEOF_` or `KPI_ALIGNOF_`.
fn layout_header(bindings: &str) -> String {
    let mut header =
        String::from("/* What Rust takes the layouts of the kernel's types to be. */\n");
    for item in bindings.split("pub const ").skip(1) {
        let Some((name, rest)) = item.split_once(':') else { continue };
        let Some((_, value)) = rest.split_once('=') else { continue };
        let Some((value, _)) = value.split_once(';') else { continue };
        if ["KPI_SIZEOF_", "KPI_ALIGNOF_"].iter().any(|kind| name.starts_with(kind)) {
            header.push_str(&format!("#define RUST_{} {}\n", name.trim(), value.trim()));
        }
    }
    header
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}
