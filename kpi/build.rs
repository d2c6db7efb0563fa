//! Compiles the kernel that tests have on a host, if the feature `fake` asks for it.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=fake");
    if env::var_os("CARGO_FEATURE_FAKE").is_none() {
        return;
    }
    let files = ["base", "object", "stack", "verbs"].map(|name| format!("fake/{name}.c"));
    cc::Build::new()
        .files(files)
        .includes(["fake/include", "fake", "c"])
        .std("gnu17")
        .flag("-Wextra")
        .warnings_into_errors(true)
        .compile("kpi_fake");
}
