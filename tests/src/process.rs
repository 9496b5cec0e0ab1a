//! Temporary folders, and child processes with timeouts.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub use tempfile::TempDir;

/// An empty temporary folder, removed on drop; with `FERROWARP_KEEP_FILES` set it is kept, and its
/// path printed.
///
/// # Errors
/// If it cannot be created.
pub fn temp_dir() -> io::Result<TempDir> {
    let mut dir = tempfile::Builder::new().prefix("fw-test-").tempdir()?;
    if std::env::var_os("FERROWARP_KEEP_FILES").is_some() {
        eprintln!("kept: {}", dir.path().display());
        dir.disable_cleanup(true);
    }
    Ok(dir)
}

/// A child process, killed on drop.
#[derive(Debug)]
pub struct Running {
    child: Child,
    output: PathBuf,
}

/// Result of a child process.
#[derive(Debug)]
pub struct ProcessResult {
    /// Exit status; `None` if it was killed at the timeout.
    pub status: Option<ExitStatus>,
    /// Standard output and standard error, in the order written.
    pub output: String,
}

impl ProcessResult {
    /// True if it exited with status 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

impl Running {
    /// Starts `command` with both outputs going to the file `output`.
    ///
    /// # Errors
    /// If it cannot be started or the file cannot be created.
    pub fn start(command: &mut Command, output: PathBuf) -> io::Result<Self> {
        Self::spawn(command.stdin(Stdio::null()), output)
    }

    /// Starts `command` as [`start`](Self::start) does, with a pipe to its standard input.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_input(
        command: &mut Command,
        output: PathBuf,
    ) -> io::Result<(Self, ChildStdin)> {
        let mut running = Self::spawn(command.stdin(Stdio::piped()), output)?;
        let input = running.child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok((running, input))
    }

    fn spawn(command: &mut Command, output: PathBuf) -> io::Result<Self> {
        let file = File::create(&output)?;
        command.stdout(file.try_clone()?).stderr(file);
        Ok(Self { child: command.spawn()?, output })
    }

    /// Returns the PID.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// True once it has exited.
    ///
    /// # Errors
    /// I/O errors of waiting.
    pub fn has_exited(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Returns the output so far.
    ///
    /// # Errors
    /// I/O errors of reading the file.
    pub fn output(&self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.output)?).into_owned())
    }

    /// Waits until the output contains `text`.
    ///
    /// # Errors
    /// As [`Running::wait_until`].
    pub fn wait_for(&mut self, text: &str, timeout: Duration) -> io::Result<()> {
        let path = self.output.clone();
        let has_text =
            || String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).contains(text);
        self.wait_until(has_text, timeout)
            .map_err(|error| io::Error::new(error.kind(), format!("no '{text}' in: {error}")))
    }

    /// Waits until `is_ready`.
    ///
    /// # Errors
    /// `TimedOut` or, if the process exited first, `UnexpectedEof`; with the output so far.
    pub fn wait_until(
        &mut self,
        mut is_ready: impl FnMut() -> bool,
        timeout: Duration,
    ) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            let has_exited = self.has_exited()?;
            if is_ready() {
                return Ok(());
            }
            if has_exited || Instant::now() > deadline {
                let kind =
                    if has_exited { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::TimedOut };
                return Err(io::Error::new(kind, self.output()?));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends SIGINT.
    ///
    /// # Errors
    /// If `kill` cannot be run.
    pub fn interrupt(&self) -> io::Result<()> {
        self.signal("INT")
    }

    /// Sends a signal, by its name without `SIG`.
    ///
    /// # Errors
    /// If `kill` cannot be run.
    pub fn signal(&self, name: &str) -> io::Result<()> {
        Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status()?;
        Ok(())
    }

    /// Waits for the exit; kills the process after `timeout`.
    ///
    /// # Errors
    /// I/O errors of waiting and of reading the output.
    pub fn finish(mut self, timeout: Duration) -> io::Result<ProcessResult> {
        let deadline = Instant::now() + timeout;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break Some(status);
            }
            if Instant::now() > deadline {
                self.child.kill()?;
                self.child.wait()?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        Ok(ProcessResult { status, output: self.output()? })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `command` to its end, at most for `timeout`.
///
/// # Errors
/// If it cannot be started.
pub fn run(command: &mut Command, timeout: Duration) -> io::Result<ProcessResult> {
    let dir = temp_dir()?;
    Running::start(command, dir.path().join("output"))?.finish(timeout)
}

/// Returns the path of a program of this workspace, built with the profile of the running test, or
/// in the folder `FERROWARP_BIN`; `None` if it was not built.
///
/// # Panics
/// If a running program has no path.
#[must_use]
pub fn program(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("FERROWARP_BIN").map_or_else(
        || {
            // target/PROFILE/deps/test-0123 -> target/PROFILE
            let test = std::env::current_exe().expect("a running program has a path");
            test.ancestors().nth(2).expect("in two folders").to_path_buf()
        },
        PathBuf::from,
    );
    Some(folder.join(name)).filter(|path| path.is_file())
}

/// True if a program of this name is in `PATH`, or in a folder of system programs.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .any(|dir| dir.join(program).is_file())
}

/// Returns the path of this program.
pub(crate) fn this_program() -> PathBuf {
    std::env::current_exe().expect("a running program has a path")
}

/// Runs `command`, which must end in this program's path, with the arguments that select the test
/// `name`, and asserts that it passed.
pub(crate) fn run_test(command: &mut Command, name: &str, timeout: Duration) {
    let command = command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    let result = run(command, timeout).expect("the test can be started");
    print!("{}", result.output);
    for (_, reason) in result.output.lines().filter_map(|line| line.split_once("skipped: ")) {
        crate::report_skip(reason);
    }
    assert!(result.success(), "{name} in a process of its own: {:?}", result.status);
    assert!(result.output.contains("1 passed"), "no test is named {name}");
}

/// Bytes of resident memory of this process.
///
/// # Panics
/// If `/proc/self/statm` cannot be read.
#[must_use]
pub fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("the second number") * 4096
}

/// True in a process that runs only the test `name` ([`test_name!`](crate::test_name)). Otherwise
/// starts such a process, asserts that the test passed there, and returns false. For tests that
/// measure resources of the process: memory, threads, CPU time.
///
/// # Panics
/// If the test failed there, or did not end within ten minutes.
#[must_use]
pub fn isolated(name: &str) -> bool {
    const ISOLATED: &str = "FERROWARP_TEST_ISOLATED";
    if std::env::var_os(ISOLATED).is_some() {
        return true;
    }
    let mut command = Command::new(this_program());
    run_test(command.env(ISOLATED, name), name, Duration::from_secs(600));
    false
}
