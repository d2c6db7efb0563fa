//! What the tests of the binary share.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The binary under test.
pub(crate) const LAB: &str = env!("CARGO_BIN_EXE_ipoib-lab");

/// Whether this machine can run a lab. If not, says that the test `name` was skipped.
pub(crate) fn can_run_labs(name: &str) -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
    let has_tun = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok();
    if !is_root || !has_tun {
        skip(name, "needs root and /dev/net/tun");
    }
    is_root && has_tun
}

/// Says that a test was skipped. The line is counted by `scripts/test.sh`.
pub(crate) fn skip(name: &str, reason: &str) {
    // Not println!: the test harness would swallow it.
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
}

/// Runs the lab to its end.
pub(crate) fn lab(arguments: &[&str]) -> Output {
    Command::new(LAB).args(arguments).output().unwrap()
}

/// Asserts the exit code and that the reason is one line on standard error which contains `words`.
#[track_caller]
pub(crate) fn assert_refused(output: &Output, code: i32, words: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains(words), "{stderr}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

/// A prefix that no other test uses, and the check that nothing of it is left.
pub(crate) struct Prefix(pub(crate) String);

impl Prefix {
    pub(crate) fn new(test: &str) -> Self {
        Self(format!("t{}-{test}-", std::process::id()))
    }

    pub(crate) fn host(&self, letter: char) -> String {
        format!("{}{letter}", self.0)
    }

    pub(crate) fn exists(&self, letter: char) -> bool {
        Path::new("/run/netns").join(self.host(letter)).exists()
    }

    #[track_caller]
    pub(crate) fn assert_nothing_left(&self) {
        for directory in ["/run/netns", "/run/ipoib-lab"] {
            let Ok(entries) = fs::read_dir(directory) else {
                continue;
            };
            for entry in entries {
                let name = entry.unwrap().file_name();
                let is_ours = name.to_string_lossy().starts_with(&self.0);
                assert!(!is_ours, "{directory}/{} is left", name.display());
            }
        }
    }
}

/// A namespace of somebody else.
pub(crate) struct Foreign(String);

impl Foreign {
    pub(crate) fn create(name: String) -> Self {
        let status = Command::new("ip").args(["netns", "add", &name]).status();
        assert!(status.unwrap().success());
        Self(name)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

/// A running lab. Killed with the value.
pub(crate) struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn up(prefix: &Prefix) -> Self {
        Self::up_with(prefix, &[])
    }

    pub(crate) fn up_with(prefix: &Prefix, more: &[&str]) -> Self {
        let mut arguments = vec!["up", "--prefix", &prefix.0];
        arguments.extend_from_slice(more);
        Self::spawn(&arguments, "ready")
    }

    /// Runs the lab up to the first line that starts with `words`.
    pub(crate) fn spawn(arguments: &[&str], words: &str) -> Self {
        let mut child = Command::new(LAB)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut lab = Self { child, output };
        lab.wait_for(words);
        lab
    }

    /// Reads up to the next line that starts with `words`.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, words: &str) -> String {
        loop {
            let mut line = String::new();
            let count = self.output.read_line(&mut line).unwrap();
            assert_ne!(count, 0, "it ended before it said {words:?}");
            if line.starts_with(words) {
                return line;
            }
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status();
        assert!(status.unwrap().success());
    }

    /// Sends a signal and gives the exit code; `None` if the signal killed it.
    pub(crate) fn end(mut self, signal: &str) -> Option<i32> {
        self.signal(signal);
        let give_up = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < give_up, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that is removed with the value, and that everybody may enter.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ipoib-lab-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
