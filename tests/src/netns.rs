//! Network namespaces, which isolate tests from the network of the machine.

use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::process;

const INSIDE: &str = "FERROWARP_TEST_NETNS";

/// A namespace; drop removes it and kills the processes in it.
#[derive(Debug)]
pub struct Namespace(String);

impl Namespace {
    /// Creates a namespace with its loopback interface up. The name contains the PID.
    ///
    /// # Errors
    /// If `ip` fails.
    pub fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let count = NEXT.fetch_add(1, Ordering::Relaxed);
        let namespace = Self(format!("fw-test-{}-{count}", std::process::id()));
        ip(&["netns", "add", &namespace.0])?;
        ip(&["-n", &namespace.0, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // All processes in this namespace were started by the test that created it.
        let output = Command::new("ip").args(["netns", "pids", &self.0]).output();
        for pid in output.iter().flat_map(|o| o.stdout.split(|byte| *byte == b'\n')) {
            if let Ok(pid) = str::from_utf8(pid).unwrap_or_default().parse::<u32>() {
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            }
        }
        let _ = ip(&["netns", "del", &self.0]);
    }
}

/// Runs `ip` with these arguments.
///
/// # Errors
/// With its output, unless it exited with status 0.
pub fn ip(arguments: &[&str]) -> io::Result<()> {
    let result = process::run(Command::new("ip").args(arguments), Duration::from_secs(20))?;
    if result.success() {
        return Ok(());
    }
    let text = format!("ip {}: {}", arguments.join(" "), result.output.trim());
    Err(io::Error::other(text))
}

/// Returns a prerequisite of namespaces that this process lacks.
#[must_use]
pub fn missing_prerequisite() -> Option<&'static str> {
    if !process::is_installed("ip") {
        return Some("no `ip` program; install iproute2");
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let root = status.lines().any(|line| {
        line.strip_prefix("Uid:").is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0"))
    });
    (!root).then_some("not root, and only root may make a network namespace")
}

/// Path of the enclosing test in the test harness.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        $crate::netns::test_path(std::any::type_name_of_val(&here))
    }};
}

/// Path of a test within its binary; `here` is the name of a function in the test's body.
#[doc(hidden)]
#[must_use]
pub fn test_path(here: &'static str) -> &'static str {
    let path = here.strip_suffix("::here").unwrap_or(here);
    path.split_once("::").map_or(path, |(_, path)| path)
}

/// True inside the namespace. Outside it, runs the test `name` of this binary
/// ([`test_name!`](crate::test_name)) again in a namespace of its own, asserts that it passed
/// there, and returns false; likewise, after reporting the test as skipped, when namespaces cannot
/// be made. So a test begins with `if !netns::inside(test_name!()) { return; }`.
///
/// # Panics
/// If the test failed inside, or did not end within two minutes.
#[must_use]
pub fn inside(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if let Some(reason) = missing_prerequisite() {
        crate::skip(reason);
        return false;
    }
    let namespace = Namespace::new().expect("a namespace can be made");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name()]).arg(process::this_program());
    process::run_test(command.env(INSIDE, namespace.name()), name, Duration::from_secs(120));
    false
}
