//! What `scripts/vm.sh` makes of a run of the virtual machine, without a virtual machine.
//!
//! Each way in which a run can fail has a sample here that has to be found; a judge that passes
//! everything would go unnoticed otherwise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What a suite reports in which all is well.
const RESULTS: &str = "@vm begin load\r\n@vm ok the module loads\r\n@vm end load\r\n";
/// What a kernel says meanwhile.
const CONSOLE: &str = "\
WARNING: WITNESS option enabled, expect reduced performance.\r
lock order reversal:\r
 1st 0xf000 ufs (ufs, lockmgr) @ boot.c:1\r
 2nd 0xf001 devfs (devfs, lockmgr) @ boot.c:2\r
Trying to mount root from ufs:/dev/md0 []...\r
@vm begin load\r
ipoib_rs: loaded\r
@vm ok the module loads\r
@vm end load\r
Uptime: 9s\r
";

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// An empty folder for one test.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("vm-{test}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The lines that the judge prints.
fn judge(test: &str, ended: &str, results: &str, console: &str) -> Vec<String> {
    let folder = folder(test);
    fs::write(folder.join("results"), results).unwrap();
    fs::write(folder.join("console"), console).unwrap();
    let output = Command::new("awk")
        .arg("-f")
        .arg(repository().join("vm/judge.awk"))
        .args(["-v", "suite=load", "-v", &format!("ended={ended}")])
        .args([folder.join("results"), folder.join("console")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The one failed check of a run.
#[track_caller]
fn failure(lines: &[String]) -> &str {
    let mut failures = lines.iter().filter(|line| line.starts_with("FAILED"));
    let failure = failures.next().expect("a check fails");
    assert_eq!(failures.next(), None, "only one check fails");
    failure
}

#[test]
fn run_without_fault_passes() {
    let lines = judge("passes", "exit", RESULTS, CONSOLE);
    let expected = [
        "ok       load: the module loads",
        "ok       load: the suite comes to its end",
        "ok       load: the kernel does not panic",
        "ok       load: lock orders are kept",
        "ok       load: nothing leaks, says the kernel",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn failed_and_skipped_checks_are_told_with_their_reasons() {
    let results = RESULTS.replace(
        "@vm end",
        "@vm not_ok it unloads: code 1: busy\r\n@vm skip it stays: needs time\r\n@vm end",
    );
    let lines = judge("reasons", "exit", &results, CONSOLE);
    assert_eq!(failure(&lines), "FAILED   load: it unloads: code 1: busy");
    assert!(lines.contains(&"skipped  load: it stays: needs time".to_owned()));
}

#[test]
fn panic_is_shown_with_its_backtrace() {
    let results = RESULTS.replace("@vm end load\r\n", "");
    let console = CONSOLE.replace(
        "@vm end load\r\n",
        "panic: destroyed while held\r\ncpuid = 1\r\nKDB: stack backtrace:\r\n\
         ipoib_rs_unload() at ipoib_rs_unload+0x1f/frame 0xfe00\r\n",
    );
    let lines = judge("panic", "exit", &results, &console);
    let expected = [
        "FAILED   load: the kernel does not panic: panic: destroyed while held",
        "         | panic: destroyed while held",
        "         | cpuid = 1",
        "         | KDB: stack backtrace:",
        "         | ipoib_rs_unload() at ipoib_rs_unload+0x1f/frame 0xfe00",
        "         | Uptime: 9s",
    ];
    assert!(lines.windows(6).any(|window| window == expected), "{lines:#?}");
    let unfinished =
        "FAILED   load: the suite comes to its end: the machine ended before".to_owned();
    assert!(lines.contains(&unfinished));
}

#[test]
fn trap_is_a_panic() {
    let console = CONSOLE.replace("Uptime", "Fatal trap 12: page fault while in kernel mode\r\nUp");
    let lines = judge("trap", "exit", RESULTS, &console);
    assert!(failure(&lines).contains("the kernel does not panic: Fatal trap 12"));
}

#[test]
fn panic_before_the_suite_is_one_as_well() {
    let lines = judge("early", "panic", "", "panic: no root\r\n");
    assert!(lines.iter().any(|line| line.contains("does not panic: panic: no root")));
    assert!(lines.iter().any(|line| line.contains("comes to its end: it was not started")));
}

#[test]
fn suite_that_hangs_fails() {
    let lines = judge("hangs", "time", "@vm begin load\r\n@vm ok the module loads\r\n", CONSOLE);
    assert_eq!(failure(&lines), "FAILED   load: the suite comes to its end: the time is over");
}

#[test]
fn suite_that_checks_nothing_fails() {
    let lines = judge("nothing", "exit", "@vm begin load\r\n@vm end load\r\n", CONSOLE);
    assert_eq!(failure(&lines), "FAILED   load: the suite comes to its end: it checked nothing");
}

#[test]
fn result_that_cannot_be_read_fails() {
    let results = RESULTS.replace("@vm end", "@vm not_ok without a reason\r\n@vm end");
    let lines = judge("unreadable", "exit", &results, CONSOLE);
    assert!(failure(&lines).contains("results can be read"));
}

#[test]
fn lock_order_reversal_in_a_suite_fails_and_is_shown() {
    let reversal = "lock order reversal:\r\n 1st 0xf002 ours (ours, sleep mutex) @ a.c:1\r\n";
    let console = CONSOLE.replace("ipoib_rs: loaded\r\n", reversal);
    let lines = judge("reversal", "exit", RESULTS, &console);
    assert_eq!(failure(&lines), "FAILED   load: lock orders are kept: lock order reversal:");
    let shown = "         |  1st 0xf002 ours (ours, sleep mutex) @ a.c:1".to_owned();
    assert!(lines.contains(&shown), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("devfs")), "that of the boot is not shown");
}

#[test]
fn what_a_suite_says_of_lock_orders_is_no_complaint_of_witness() {
    let said = "@vm ok no lock order reversal is new\r\n";
    let console = CONSOLE.replace("@vm end", &format!("{said}@vm end"));
    assert!(console.contains(said));
    let lines = judge("said", "exit", RESULTS, &console);
    assert!(lines.iter().all(|line| line.starts_with("ok ")), "{lines:?}");
}

#[test]
fn every_complaint_of_witness_fails() {
    let complaints = [
        "acquiring duplicate lock of same type: \"ours\"",
        "Sleeping with the following non-sleepable locks held:",
        "exclusive lock of (sleep mutex) ours @ a.c:1",
        "while share locked from b.c:2",
        "witness_lock_list_get: witness exhausted",
    ];
    for (index, complaint) in complaints.iter().enumerate() {
        let console = CONSOLE.replace("ipoib_rs: loaded", complaint);
        let lines = judge(&format!("complaint-{index}"), "exit", RESULTS, &console);
        if complaint.starts_with("exclusive lock of") {
            // The first of two lines; the second is the one to find.
            assert!(!lines.iter().any(|line| line.starts_with("FAILED")));
        } else {
            assert!(failure(&lines).ends_with(complaint), "{complaint}: {lines:#?}");
        }
    }
}

#[test]
fn leak_that_the_kernel_reports_fails() {
    let leaks = [
        "Warning: memory type ours leaked memory on destroy (1 allocations, 64 bytes leaked).",
        "Freed UMA keg (ours) was not empty (1 items).  Lost 1 pages of memory.",
    ];
    for (index, leak) in leaks.iter().enumerate() {
        let console = CONSOLE.replace("ipoib_rs: loaded", leak);
        let lines = judge(&format!("leak-{index}"), "exit", RESULTS, &console);
        assert!(failure(&lines).contains("nothing leaks, says the kernel"), "{lines:#?}");
    }
}

#[test]
fn kernel_without_witness_skips_its_check() {
    let console = CONSOLE.replace("WARNING: WITNESS option enabled", "no such option");
    let lines = judge("no-witness", "exit", RESULTS, &console);
    let skipped = "skipped  load: lock orders are kept: needs a kernel with WITNESS".to_owned();
    assert!(lines.contains(&skipped), "{lines:#?}");
}

/// A run in which somebody else's driver is watched.
const OBSERVED_RESULTS: &str = "@vm begin load\r\n@vm ok the module loads\r\n@vm observe\r\n\
    @vm try it sends\r\n@vm not_ok it sends: code 1\r\n@vm try it unloads\r\n";
const OBSERVED_CONSOLE: &str = "@vm begin load\r\n@vm observe\r\n\
    panic: refcount wraparound\r\nKDB: stack backtrace:\r\nvpanic() at vpanic+0x1/frame 0x1\r\n\
    ipoib_path_free() at ipoib_path_free+0x1/frame 0x1\r\n\
    softib_post_send() at softib_post_send+0x1/frame 0x1\r\n";

#[test]
fn what_somebody_elses_driver_does_is_observed_and_no_failure() {
    let lines = judge("observed", "panic", OBSERVED_RESULTS, OBSERVED_CONSOLE);
    assert!(!lines.iter().any(|line| line.starts_with("FAILED")), "{lines:#?}");
    let expected = [
        "ok       load: the module loads",
        "observed load: it sends: code 1",
        "observed load: it unloads: panic in ipoib_path_free(): panic: refcount wraparound",
        "         | panic: refcount wraparound",
    ];
    assert_eq!(lines[..4], expected);

    let hangs = judge("observed-hang", "time", OBSERVED_RESULTS, "@vm begin load\r\n");
    assert!(!hangs.iter().any(|line| line.starts_with("FAILED")), "{hangs:#?}");
    assert!(hangs.contains(&"observed load: it unloads: the time is over".to_owned()));
}

#[test]
fn panic_of_ours_is_never_only_observed() {
    for ours in ["softib_detach", "ipoib_rs_modevent", "_RNvNtCs5JeDCq0PSLX_6softib5world"] {
        let console = OBSERVED_CONSOLE.replace("ipoib_path_free", ours);
        let lines = judge(&format!("ours-{ours}"), "panic", OBSERVED_RESULTS, &console);
        let panic = "FAILED   load: the kernel does not panic: panic: refcount wraparound";
        assert!(lines.contains(&panic.to_owned()), "{lines:#?}");
    }
}

#[test]
fn what_follows_after_somebody_elses_driver_is_judged_again() {
    let results = OBSERVED_RESULTS.to_owned() + "@vm judge\r\n@vm not_ok it is empty: 1\r\n";
    let lines = judge("judged", "exit", &(results + "@vm end load\r\n"), CONSOLE);
    assert_eq!(failure(&lines), "FAILED   load: it is empty: 1");
}

#[test]
fn check_that_the_machine_did_not_survive_is_named() {
    let results = "@vm begin load\r\n@vm ok a\r\n@vm try it unloads\r\n";
    let lines = judge("unsurvived", "exit", results, CONSOLE);
    assert!(failure(&lines).ends_with("the machine ended in 'it unloads'"));
}

#[test]
fn table_shows_where_two_drivers_differ() {
    let checks = folder("table").join("checks");
    let lines = "ok       flap: it loads\nFAILED   flap: it stays: code 1\nok       flap: it goes\n\
        ok       load: it loads\nobserved stock-flap: it loads: ok\n\
        observed stock-flap: it stays: panic in f(): panic: x at /usr/src/sys/net/if.c:1\n\
        \u{20}        | panic: x at /usr/src/sys/net/if.c:1\n";
    fs::write(&checks, lines).unwrap();
    let output = Command::new("awk")
        .arg("-f")
        .arg(repository().join("vm/table.awk"))
        .arg(&checks)
        .output()
        .unwrap();
    let expected = "| suite | check | ipoib_rs | ipoib |\n| --- | --- | --- | --- |\n\
        | flap | it stays | fails | panic in f(): panic: x at sys/net/if.c:1 |\n\
        | flap | 1 more | ok | ok |\n| flap | 1 more | ok | not reached |\n";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn commands_of_the_tutorial_are_those_that_its_suite_runs() {
    let read = |path: &str| fs::read_to_string(repository().join(path)).unwrap();
    let (text, suite) = (read("docs/softib.md"), read("vm/guest/suites/tutorial.sh"));
    let shown: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("    # ")).collect();
    let run = suite.lines().skip_while(|line| !line.ends_with("<<'END'")).skip(1);
    let run: Vec<&str> = run.take_while(|&line| line != "END").collect();
    assert!(shown.len() > 10, "{shown:?}");
    assert_eq!(shown, run);
}

/// Runs `scripts/vm.sh` with programs of the base system only.
fn vm(path: &str, arguments: &[&str]) -> Output {
    Command::new("/bin/sh")
        .arg(repository().join("scripts/vm.sh"))
        .args(arguments)
        .env("PATH", path)
        .output()
        .unwrap()
}

#[track_caller]
fn assert_refused(output: &Output, code: i32, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(why), "{said}");
}

#[test]
fn wrong_arguments_are_told_with_code_2() {
    let path = "/usr/bin:/bin";
    assert_refused(&vm(path, &[]), 2, "--kernel is not given");
    assert_refused(&vm(path, &["--kernal", "/"]), 2, "--kernal is not known");
    assert_refused(&vm(path, &["--kernel"]), 2, "--kernel wants a value");
}

#[test]
fn missing_inputs_are_told_with_code_3_and_missing_tools_with_code_4() {
    let folder = folder("inputs");
    let inside = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (kernel, base, modules) = (inside("kernel"), inside("base"), inside("modules"));
    for made in [&kernel, &base, &modules, &inside("base/sbin"), &inside("tools")] {
        fs::create_dir_all(made).unwrap();
    }
    let arguments = ["--kernel", &kernel, "--base", &base, "--modules", &modules];
    let path = "/usr/bin:/bin";

    assert_refused(&vm(path, &["--kernel", &inside("none")]), 3, "there is no such folder");
    assert_refused(&vm(path, &arguments), 3, "has no file named kernel");
    fs::write(inside("kernel/kernel"), "").unwrap();
    assert_refused(&vm(path, &arguments), 3, "has no sbin/init");
    let init = inside("base/sbin/init");
    fs::copy("/bin/sh", &init).unwrap();
    let suite = [&arguments[..], &["--suite", "none"]].concat();
    assert_refused(&vm(path, &suite), 2, "there is no such suite");
    let time = [&arguments[..], &["--time", "long"]].concat();
    assert_refused(&vm(path, &time), 2, "not a number of seconds");

    // A PATH with what a shell script needs, and none of the tools.
    for program in ["dirname", "basename"] {
        let found = ["/bin", "/usr/bin"].map(|place| Path::new(place).join(program));
        let found = found.iter().find(|place| place.exists()).unwrap();
        std::os::unix::fs::symlink(found, inside(&format!("tools/{program}"))).unwrap();
    }
    let without_tools = vm(&inside("tools"), &arguments);
    assert_refused(&without_tools, 4, "is missing; on Debian, apt-get install");
}
