//! What tshark makes of a capture.

use std::path::Path;

use crate::error::Error;
use crate::tools;

/// Whether tshark is installed.
pub(crate) fn is_installed() -> bool {
    tools::is_installed(tools::TSHARK)
}

/// The fields of the packets that match a filter: a line for each packet, with tabs between.
///
/// # Errors
///
/// [`Error::Program`] with its message.
pub(crate) fn fields(file: &Path, filter: &str, fields: &[&str]) -> Result<Vec<String>, Error> {
    let file = file.to_string_lossy();
    // Fragments one by one.
    let mut arguments = vec!["-n", "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"];
    arguments.extend(["-r", &file, "-Y", filter, "-T", "fields"]);
    for field in fields {
        arguments.extend(["-e", field]);
    }
    let text = tools::read(tools::TSHARK, &arguments)?;
    Ok(text.lines().map(str::to_owned).collect())
}
