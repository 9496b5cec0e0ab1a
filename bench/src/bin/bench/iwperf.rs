//! Runs `iwperf` and parses its JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ferrowarp_tests::process::Running;
use serde_json::Value;

use crate::runner::Figures;

/// Addresses of two processes.
const ADDRESSES: [&str; 2] = ["198.18.0.1", "198.18.0.2"];
/// Time allowed for a run beyond its measured time: start and exit of both ends.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(40);

/// Placement of both ends on processes and cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// One process over `ring`: both ends on one core, or one on each of two.
    Ring(Vec<usize>),
    /// One process over `ring`, a shard of both ends on each core.
    Shards(Vec<usize>),
    /// Two processes over `memif`, an end on each core.
    Memif([usize; 2]),
    /// Two processes over vhost-user, the server as back end and the client as virtio driver.
    Vhost([usize; 2]),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Test {
    pub(crate) name: &'static str,
    /// `None`: the default of the program.
    pub(crate) mtu: Option<u16>,
    pub(crate) size: u64,
    pub(crate) options: Vec<String>,
    /// Method of the TCP and IP checksums that the report has to name.
    pub(crate) checksum: Option<&'static str>,
}

/// The program `iwperf`, and a folder for its files.
#[derive(Clone, Debug)]
pub(crate) struct Iwperf {
    pub(crate) program: PathBuf,
    pub(crate) scratch: PathBuf,
}

impl Iwperf {
    pub(crate) fn new(program: &Path, scratch: &Path) -> Result<Self> {
        ensure!(program.exists(), "{} is absent: build ferrowarp-apps first", program.display());
        Ok(Self { program: program.to_owned(), scratch: scratch.to_owned() })
    }

    /// Returns a measurement of one test.
    pub(crate) fn measure(
        self: &Rc<Self>,
        place: Place,
        test: Test,
    ) -> impl FnMut(f64) -> Result<Figures> + use<> {
        let iwperf = Rc::clone(self);
        move |seconds| iwperf.run(&place, &test, seconds)
    }

    /// Runs one test for so many seconds.
    pub(crate) fn run(&self, place: &Place, test: &Test, seconds: f64) -> Result<Figures> {
        let limit = STARTUP_TIMEOUT + Duration::from_secs_f64(seconds);
        let (json, socket) = (self.scratch.join("result.json"), self.scratch.join("iwperf.sock"));
        for file in [&json, &socket] {
            let _ = fs::remove_file(file);
        }
        let mtu = test.mtu.map_or_else(Vec::new, |mtu| vec!["--mtu".to_owned(), mtu.to_string()]);
        let list =
            |cores: &[usize]| cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let mut client = Command::new(&self.program);
        let mut server = None;
        match place {
            Place::Ring(cores) => {
                client.args(["loop", test.name, "--cores", &list(cores)]);
            }
            Place::Shards(cores) => {
                client.args(["loop", test.name, "--shards", &cores.len().to_string()]);
                client.args(["--cores", &list(cores)]);
            }
            Place::Memif(cores) | Place::Vhost(cores) => {
                let path = socket.display();
                let devices = match place {
                    Place::Memif(_) => {
                        [format!("memif:{path},server"), format!("memif:{path},client")]
                    }
                    _ => [format!("vhost:{path}"), format!("virtio-user:{path}")],
                };
                let of_end = |end: usize| {
                    format!(
                        "--ip {}/24 --dev {} --cores {}",
                        ADDRESSES[end], devices[end], cores[end]
                    )
                };
                let mut command = Command::new(&self.program);
                command.args(["server", "--once"]).args(&mtu).args(of_end(0).split(' '));
                let mut started = Running::start(&mut command, self.scratch.join("server.log"))?;
                let is_ready = || socket.exists();
                started
                    .wait_until(is_ready, STARTUP_TIMEOUT)
                    .context("the server has no socket")?;
                server = Some(started);
                client.args([test.name, ADDRESSES[0]]).args(of_end(1).split(' '));
            }
        }
        client.args(&mtu).args(["--size", &test.size.to_string()]);
        client.args(["--duration", &seconds.to_string()]).arg("--json").arg(&json);
        client.args(&test.options);
        finish(Running::start(&mut client, self.scratch.join("client.log"))?, limit)?;
        if let Some(server) = server {
            finish(server, STARTUP_TIMEOUT).context("the server")?;
        }
        parse(&fs::read_to_string(&json).context("no results were written")?, test.checksum)
    }
}

/// Waits for a successful exit; returns the output.
pub(crate) fn finish(program: Running, limit: Duration) -> Result<String> {
    let ended = program.finish(limit)?;
    match ended.status {
        None => bail!("not finished within {} s", limit.as_secs()),
        Some(status) if !status.success() => bail!("{status}: {}", last_line(&ended.output)),
        Some(_) => Ok(ended.output),
    }
}

pub(crate) fn last_line(text: &str) -> &str {
    text.trim().lines().last().unwrap_or_default()
}

/// Parses the only result of a run of `iwperf`, or of a program that imitates it.
pub(crate) fn parse(text: &str, checksum: Option<&str>) -> Result<Figures> {
    let report: Value = serde_json::from_str(text).context("no JSON")?;
    let results = report["results"].as_array().context("no list of results")?;
    let [result] = results.as_slice() else { bail!("{} results instead of one", results.len()) };
    ensure!(result["errors"] == 0, "{} errors", result["errors"]);
    let found = result["checksum"].as_str().unwrap_or_default();
    if let Some(wanted) = checksum {
        ensure!(found == wanted, "checksums: {found} instead of {wanted}");
    }
    let number = |value: &Value| value.as_f64().context("a number is missing");
    let latency = &result["lat_us"];
    if latency.is_null() {
        let (gbit_s, rate) = (number(&result["bw_gbit_s"])?, number(&result["msg_rate_mops"])?);
        return Ok(Figures::from([("Gb/s", gbit_s), ("M/s", rate)]));
    }
    let (p50, p99) = (number(&latency["p50"])?, number(&latency["p99"])?);
    let p999 = number(&latency["p999"])?;
    Ok([("us, p50", p50), ("us, p99", p99), ("us, p99.9", p999), (TAIL, p99 - p50)].into())
}

/// Distance from the median to the 99th percentile.
pub(crate) const TAIL: &str = "us, p99 - p50";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_result_without_errors_is_accepted() {
        let stream = r#"{"bw_gbit_s": 12.5, "msg_rate_mops": 0.02, "lat_us": null, "errors": 0,
            "checksum": "none"}"#;
        let one = format!(r#"{{"results": [{stream}]}}"#);
        let found = parse(&one, Some("none")).unwrap();
        assert_eq!((found["Gb/s"], found["M/s"]), (12.5, 0.02));
        let error = parse(&one, Some("software")).unwrap_err().to_string();
        assert_eq!(error, "checksums: none instead of software");
        let latency = r#"{"results": [{"errors": 0, "lat_us": {"p50": 2, "p99": 3, "p999": 9}}]}"#;
        let found = parse(latency, None).unwrap();
        assert_eq!((found["us, p50"], found["us, p99.9"], found[TAIL]), (2.0, 9.0, 1.0));
        for text in [
            "",
            "{}",
            &format!(r#"{{"results": [{stream}, {stream}]}}"#),
            r#"{"results": [{"errors": 1, "lat_us": null, "bw_gbit_s": 1, "msg_rate_mops": 1}]}"#,
        ] {
            assert!(parse(text, None).is_err(), "{text}");
        }
    }
}
