//! Compiles the InfiniBand stack of the fake kernel.

fn main() {
    for folder in ["c", "../c/ofed"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    cc::Build::new()
        .files(["object", "stack", "verbs"].map(|name| format!("c/{name}.c")))
        .includes(["c", "../c"])
        .std("gnu17")
        .flag("-Wextra")
        .warnings_into_errors(true)
        .compile("fake_ofed");
}
