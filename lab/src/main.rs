//! `ipoib-lab`: see `docs/lab.md`.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    lab::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    const UNSUPPORTED: u8 = 11;
    eprintln!("ipoib-lab: needs Linux: network namespaces and TUN devices");
    ExitCode::from(UNSUPPORTED)
}
