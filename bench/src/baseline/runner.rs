//! Runs `iwperf` and parses its JSON.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::plan::Topology;

/// Addresses of two processes.
const SERVER: &str = "198.18.0.1";
const CLIENT: &str = "198.18.0.2";
/// Time allowed for a run beyond its measured time: start and exit of both ends.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(40);

/// Result of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Confirmed bytes, in Gb/s.
    pub gbit_s: f64,
    /// Messages, in millions per second.
    pub rate_mops: f64,
    /// Latency, median and 99th percentile, in microseconds; 0 for bandwidth.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
    /// Method of the TCP and IP checksums.
    pub checksum: String,
}

impl Sample {
    /// Returns the figures as a JSON object.
    #[must_use]
    pub fn figures(&self) -> Value {
        let Self { gbit_s, rate_mops, p50_us, p99_us, .. } = self;
        json!({ "gbit_s": gbit_s, "rate_mops": rate_mops, "p50_us": p50_us, "p99_us": p99_us })
    }
}

/// The program `iwperf`, and a folder for its files.
#[derive(Clone, Debug)]
pub struct Iwperf {
    /// Path of the program.
    pub program: PathBuf,
    /// Folder for results and sockets.
    pub scratch: PathBuf,
}

impl Iwperf {
    /// Returns the program given, or else the one beside this program.
    ///
    /// # Errors
    /// If it is absent.
    pub fn new(program: Option<&Path>, scratch: &Path) -> Result<Self> {
        let program = match program {
            Some(program) => program.to_owned(),
            None => std::env::current_exe()?.with_file_name("iwperf"),
        };
        ensure!(program.exists(), "{} is absent: build ferrowarp-apps first", program.display());
        Ok(Self { program, scratch: scratch.to_owned() })
    }

    /// Runs one test with further options.
    ///
    /// # Errors
    /// If the program fails, hangs, or does not report exactly one result without errors.
    pub fn run(
        &self,
        test: &str,
        topology: &Topology,
        mtu: u16,
        size: u64,
        seconds: f64,
        options: &[&str],
    ) -> Result<Sample> {
        let text = self.run_with(test, topology, mtu, size, seconds, options)?;
        sample(&serde_json::from_str(&text)?)
    }

    /// As [`Iwperf::run`]; returns the JSON that the program has written.
    ///
    /// # Errors
    /// If the program fails, hangs, or writes no results.
    pub fn run_with(
        &self,
        test: &str,
        topology: &Topology,
        mtu: u16,
        size: u64,
        seconds: f64,
        options: &[&str],
    ) -> Result<String> {
        let limit = STARTUP_TIMEOUT + Duration::from_secs_f64(seconds);
        let json = self.scratch.join("result.json");
        let _ = fs::remove_file(&json);
        let mut client = Command::new(&self.program);
        let mut server = None;
        match topology {
            Topology::OneCore(core) => {
                client.args(["loop", test, "--cores", &core.to_string()]);
            }
            Topology::TwoCores([a, b]) => {
                client.args(["loop", test, "--cores", &format!("{a},{b}")]);
            }
            Topology::Shards(cores) => {
                let names: Vec<String> = cores.iter().map(usize::to_string).collect();
                client.args(["loop", test, "--shards", &cores.len().to_string()]);
                client.args(["--cores", &names.join(",")]);
            }
            Topology::Memif(cores) => {
                server = Some(self.meet_at_socket(MEMIF, *cores, mtu, client.arg(test))?);
            }
            Topology::Vhost(cores) => {
                server = Some(self.meet_at_socket(VHOST, *cores, mtu, client.arg(test))?);
            }
        }
        client.args(["--mtu", &mtu.to_string(), "--size", &size.to_string()]);
        client.args(["--duration", &seconds.to_string()]).arg("--json").arg(&json);
        client.args(options);
        let client = spawn(&mut client)?;
        client.wait_success(limit)?;
        if let Some(server) = server {
            server.wait_success(STARTUP_TIMEOUT)?;
        }
        fs::read_to_string(&json).context("no results were written")
    }

    /// Starts a server for one client, and gives `client`, whose test is set, what it needs to
    /// reach that.
    fn meet_at_socket(
        &self,
        ends: Ends,
        [at_server, at_client]: [usize; 2],
        mtu: u16,
        client: &mut Command,
    ) -> Result<ChildProcess> {
        let socket = self.scratch.join("iwperf.sock");
        let [server, device] = devices(ends, &socket);
        client.args([SERVER, "--ip", &format!("{CLIENT}/24")]);
        client.arg("--dev").arg(device).args(["--cores", &at_client.to_string()]);
        self.start_server(&server, &socket, mtu, at_server)
    }

    /// Starts a server for one client, and waits for the socket of its device.
    fn start_server(
        &self,
        device: &OsStr,
        socket: &Path,
        mtu: u16,
        core: usize,
    ) -> Result<ChildProcess> {
        let _ = fs::remove_file(socket);
        let mut server = Command::new(&self.program);
        server.args(["server", "--once", "--ip", &format!("{SERVER}/24")]);
        server.arg("--dev").arg(device);
        server.args(["--mtu", &mtu.to_string(), "--cores", &core.to_string()]);
        let mut server = spawn(&mut server)?;
        let limit = Instant::now() + STARTUP_TIMEOUT;
        while !socket.exists() {
            ensure!(server.child.try_wait()?.is_none(), "the server exited at once");
            ensure!(Instant::now() < limit, "the server created no socket");
            sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

/// Devices of server and client, before and after the path of the socket at which they meet.
type Ends = [(&'static str, &'static str); 2];
const MEMIF: Ends = [("memif:", ",server"), ("memif:", ",client")];
const VHOST: Ends = [("vhost:", ""), ("virtio-user:", "")];

fn devices(ends: Ends, socket: &Path) -> [OsString; 2] {
    ends.map(|(before, after)| {
        let mut device = OsString::from(before);
        device.push(socket);
        device.push(after);
        device
    })
}

/// A child process, killed on drop.
struct ChildProcess {
    child: Child,
}

fn spawn(command: &mut Command) -> Result<ChildProcess> {
    let name = command.get_program().to_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().with_context(|| format!("cannot start {}", name.display()))?;
    Ok(ChildProcess { child })
}

impl ChildProcess {
    /// Waits for a successful exit.
    fn wait_success(mut self, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < end, "not finished within {} s", limit.as_secs());
            sleep(Duration::from_millis(10));
        };
        if !status.success() {
            let stderr = self.child.stderr.take().map(std::io::read_to_string);
            let stderr = stderr.transpose()?.unwrap_or_default();
            bail!("{status}: {}", stderr.trim().lines().last().unwrap_or_default());
        }
        Ok(())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // No effect on a process that has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parses the only result of a run.
fn sample(report: &Value) -> Result<Sample> {
    let results = report["results"].as_array().context("no list of results")?;
    let [result] = results.as_slice() else { bail!("{} results instead of one", results.len()) };
    ensure!(result["errors"] == 0, "{} errors", result["errors"]);
    let number = |value: &Value| value.as_f64().context("a number is missing");
    let latency = &result["lat_us"];
    let of_latency = |name: &str| if latency.is_null() { Ok(0.0) } else { number(&latency[name]) };
    Ok(Sample {
        gbit_s: number(&result["bw_gbit_s"])?,
        rate_mops: number(&result["msg_rate_mops"])?,
        p50_us: of_latency("p50")?,
        p99_us: of_latency("p99")?,
        checksum: result["checksum"].as_str().unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_result_without_errors_is_accepted() {
        let result = json!({
            "bw_gbit_s": 12.5, "msg_rate_mops": 0.02, "lat_us": {"p50": 1.5, "p99": 3},
            "checksum": "none", "errors": 0,
        });
        let found = sample(&json!({ "results": [&result] })).unwrap();
        assert_eq!((found.gbit_s, found.p50_us, found.p99_us), (12.5, 1.5, 3.0));
        assert_eq!(found.checksum, "none");
        assert!(sample(&json!({ "results": [&result, &result] })).is_err());
        assert!(sample(&json!({ "results": [{ "errors": 1 }] })).is_err());
        assert!(sample(&json!({ "failure": "no device" })).is_err());
    }

    #[test]
    fn ends_of_two_processes_meet_at_a_socket() {
        let of = |ends| devices(ends, Path::new("/x.sock"));
        assert_eq!(of(MEMIF), ["memif:/x.sock,server", "memif:/x.sock,client"]);
        assert_eq!(of(VHOST), ["vhost:/x.sock", "virtio-user:/x.sock"]);
    }

    #[test]
    fn failing_program_reports_exit_status() {
        let scratch = std::env::temp_dir();
        let iwperf = Iwperf { program: PathBuf::from("/bin/false"), scratch };
        let error = iwperf.run("write-bw", &Topology::OneCore(0), 1500, 64, 0.1, &[]).unwrap_err();
        assert!(error.to_string().contains("exit status: 1"), "{error}");
    }
}
