//! A server and a client as two processes on a core each, connected by the kernel's loopback in a
//! network namespace of its own.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ferrowarp_tests::netns::{Namespace, ip};
use ferrowarp_tests::process::{Running, TempDir, temp_dir};

/// Address on the loopback interface (benchmark range).
pub const ADDRESS: &str = "198.18.0.1";
/// Congestion control of the kernel: the default of Linux, whatever that of this host.
pub const CONGESTION_CONTROL: &str = "cubic";
/// Time until a server listens.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time allowed for a client beyond its measured time.
const RUN_TIMEOUT_MARGIN: Duration = Duration::from_secs(30);

/// The namespace, and the cores of server and client.
pub struct Loopback {
    namespace: Namespace,
    cores: [usize; 2],
    dir: TempDir,
}

impl Loopback {
    /// Creates the namespace.
    ///
    /// # Errors
    /// If `ip` fails, as it does without root.
    pub fn new(cores: [usize; 2]) -> Result<Self> {
        let namespace = Namespace::new()?;
        let name = namespace.name();
        ip(&["-n", name, "addr", "add", &format!("{ADDRESS}/32"), "dev", "lo"])?;
        // On the route: a namespace may not set every congestion control as its default.
        let route = ["route", "replace", "local", ADDRESS, "dev", "lo", "table", "local"];
        let control = ["src", ADDRESS, "congctl", CONGESTION_CONTROL];
        ip(&[&["-n", name], &route[..], &control[..]].concat())?;
        Ok(Self { namespace, cores, dir: temp_dir()? })
    }

    /// Returns a folder for files of a run.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a command in the namespace, pinned to the core of the server (0) or client (1).
    fn command(&self, end: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.namespace.name()]);
        // Both `ip` and `taskset` become the program: its PID is theirs.
        command.args(["taskset", "-c", &self.cores[end].to_string()]).arg(program);
        command
    }

    /// Runs server and client; returns the client's output. The server is killed after that.
    ///
    /// # Errors
    /// If the server does not listen on `port`, or the client fails or does not end in time.
    pub fn run(&self, pair: &Pair, seconds: f64) -> Result<String> {
        let mut server = self.command(0, &pair.program);
        server.args(&pair.server).envs(pair.environment.iter().copied());
        let log = self.dir.path().join("server.log");
        let server = Running::start(&mut server, log.clone())
            .with_context(|| format!("cannot start {}", pair.program))?;
        let said = || fs::read_to_string(&log).unwrap_or_default();
        await_listener(server.id(), pair.port)
            .with_context(|| format!("the server: {}", last_line(&said())))?;
        let mut client = self.command(1, &pair.program);
        client.args(&pair.client).envs(pair.environment.iter().copied());
        let client = Running::start(&mut client, self.dir.path().join("client.log"))?;
        let limit = RUN_TIMEOUT_MARGIN + Duration::from_secs_f64(seconds);
        let result = client.finish(limit)?;
        match result.status {
            None => bail!("not finished within {} s", limit.as_secs()),
            Some(status) if status.success() => Ok(result.output),
            Some(status) => {
                bail!("{status}: {}; the server: {}", last_line(&result.output), last_line(&said()))
            }
        }
    }
}

/// A program that is both server and client.
#[derive(Clone, Debug, Default)]
pub struct Pair {
    /// The program.
    pub program: String,
    /// Arguments of the server.
    pub server: Vec<String>,
    /// Arguments of the client.
    pub client: Vec<String>,
    /// Environment of both.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Port on which the server listens.
    pub port: u16,
}

/// Splits a command line at spaces.
#[must_use]
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Returns the version that a program prints: the first word with a digit and a period in it.
///
/// # Errors
/// With the Debian package to install, if the program is absent.
pub fn version(program: &str, arguments: &[&str], package: &str) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|_| format!("absent: apt-get install {package}"))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    Ok(version_in(&text).unwrap_or("unknown").to_owned())
}

fn version_in(text: &str) -> Option<&str> {
    let is_version =
        |word: &&str| word.contains('.') && word.contains(|c: char| c.is_ascii_digit());
    text.split([' ', '\n', '#']).find(is_version)
}

fn last_line(text: &str) -> &str {
    text.trim().lines().last().unwrap_or_default()
}

/// Waits until a socket listens on `port` in the namespace of the process `pid`.
fn await_listener(pid: u32, port: u16) -> Result<()> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        let tables =
            ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")));
        ensure!(tables.iter().any(Result::is_ok), "it ended at once");
        if tables.iter().flatten().any(|table| has_listener(table, port)) {
            return Ok(());
        }
        // A process that has ended and was not waited for still has its folder.
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        ensure!(!state.contains(") Z "), "it ended at once");
        ensure!(Instant::now() < deadline, "it does not listen on port {port}");
        sleep(Duration::from_millis(5));
    }
}

/// True if a table of sockets (`man 5 proc_pid_net`) has a listener on `port`.
fn has_listener(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let local = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_local = fields.next().is_some_and(|address| address.ends_with(&local));
        is_local && fields.nth(1) == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt
   0: 010012C6:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 010012C6:1451 010012C6:9000 01 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 010012C6:9000 010012C6:1452 01 00000000:00000000 00:00000000 00000000     0        0 3 1
";

    #[test]
    fn listener_is_found_by_port_and_state() {
        assert!(has_listener(TABLE, 0x1451));
        assert!(!has_listener(TABLE, 0x9000), "an established connection");
        assert!(!has_listener(TABLE, 0x1452), "a port of the peer");
    }

    #[test]
    fn version_is_found_in_what_programs_print() {
        assert_eq!(version_in("# Version 1.13.1\n# Git branch"), Some("1.13.1"));
        assert_eq!(version_in("iperf 3.12 (cJSON 1.7.15)\n"), Some("3.12"));
        assert_eq!(version_in("sockperf, version 3.7-no.git\n"), Some("3.7-no.git"));
        assert_eq!(version_in("fi_info: 1.17.0\n"), Some("1.17.0"));
        let absent = version("no-such-program", &[], "some-package").unwrap_err();
        assert_eq!(absent, "absent: apt-get install some-package");
    }

    #[test]
    fn process_that_ends_at_once_is_reported() {
        let mut child = Command::new("true").spawn().unwrap();
        let error = await_listener(child.id(), 1).unwrap_err();
        assert!(error.to_string().contains("ended at once"), "{error}");
        child.wait().unwrap();
    }
}
