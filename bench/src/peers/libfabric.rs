//! libfabric's provider `tcp`: `fi_pingpong` of Debian's `libfabric-bin`, and RDMA Writes by
//! `fabric_end.c`, for which Debian's `libfabric-dev` is needed.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::launch::{ADDRESS, Loopback, Pair, words};
use super::sample::{Latency, Sample};
use super::{Peer, Test};

/// Port of `fi_pingpong` and, by choice, of `fabric_end`.
const PORT: u16 = 47592;
/// Time of an iteration that `fi_pingpong` is assumed to take, in microseconds.
const PING_PONG_US: u128 = 20;

/// RDMA Writes of `fabric_end`.
pub struct Writes {
    program: PathBuf,
    loopback: Rc<Loopback>,
    /// Whether the program was compiled.
    built: Result<(), String>,
}

impl Writes {
    /// Compiles `fabric_end` into the folder of `loopback`.
    #[must_use]
    pub fn new(loopback: Rc<Loopback>) -> Self {
        let program = loopback.dir().join("fabric_end");
        let built = compile(&program);
        Self { program, loopback, built }
    }
}

fn compile(program: &std::path::Path) -> Result<(), String> {
    let source = program.with_extension("c");
    std::fs::write(&source, include_str!("fabric_end.c")).map_err(|error| error.to_string())?;
    let mut command = Command::new("gcc");
    command.args(["-O2", "-o"]).arg(program).arg(&source).arg("-lfabric");
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(_) => Err("absent: apt-get install libfabric-dev".to_owned()),
        Err(_) => Err("absent: apt-get install gcc libfabric-dev".to_owned()),
    }
}

impl Peer for Writes {
    fn name(&self) -> &'static str {
        "libfabric tcp, write"
    }

    fn description(&self) -> String {
        "`fi_write` on endpoints of type `FI_EP_MSG` of the provider `tcp`, by \
         `bench/src/peers/fabric_end.c`, which does what `iwperf` does: Debian has no fabtests"
            .to_owned()
    }

    fn version(&self) -> Result<String, String> {
        self.built.clone()?;
        super::launch::version("fi_info", &["--version"], "libfabric-bin")
    }

    fn supports(&self, _test: Test) -> bool {
        true
    }

    fn run(&mut self, test: Test, seconds: f64) -> Result<Sample> {
        let (kind, size, connections) = match test {
            Test::Stream { size, connections } => ("bw", size, connections),
            Test::PingPong { size } => ("lat", size, 1),
        };
        let client = format!("client {ADDRESS} {PORT} {kind} {size} {connections} {seconds}");
        let output = self.loopback.run(
            &Pair {
                program: self.program.display().to_string(),
                server: words(&format!("server {ADDRESS} {PORT}")),
                client: words(&client),
                environment: vec![],
                port: PORT,
            },
            seconds,
        )?;
        Sample::from_iwperf(&output)
    }
}

/// `fi_pingpong`.
pub struct PingPong {
    loopback: Rc<Loopback>,
}

impl PingPong {
    /// Creates the peer.
    #[must_use]
    pub const fn new(loopback: Rc<Loopback>) -> Self {
        Self { loopback }
    }
}

impl Peer for PingPong {
    fn name(&self) -> &'static str {
        "libfabric tcp, fi_pingpong"
    }

    fn description(&self) -> String {
        "`fi_pingpong -p tcp -e msg`: one message at a time, mean only".to_owned()
    }

    fn version(&self) -> Result<String, String> {
        super::launch::version("fi_info", &["--version"], "libfabric-bin")
    }

    fn supports(&self, test: Test) -> bool {
        matches!(test, Test::PingPong { .. })
    }

    fn run(&mut self, test: Test, seconds: f64) -> Result<Sample> {
        let (Test::Stream { size, .. } | Test::PingPong { size }) = test;
        let iterations = (Duration::from_secs_f64(seconds).as_micros() / PING_PONG_US).max(100);
        let line = format!("-p tcp -e msg -I {iterations} -S {size}");
        let output = self.loopback.run(
            &Pair {
                program: "fi_pingpong".to_owned(),
                server: words(&line),
                client: words(&format!("{line} {ADDRESS}")),
                environment: vec![("FI_TCP_IFACE", "lo")],
                port: PORT,
            },
            seconds,
        )?;
        let mean = Some(parse(&output)?);
        Ok(Sample::of_latency(Latency { mean, ..Latency::default() }))
    }
}

/// Returns the value under `usec/xfer`: half a round trip.
fn parse(output: &str) -> Result<f64> {
    let mut lines = output.lines().skip_while(|line| !line.contains("usec/xfer"));
    let titles = lines.next().context("no titles")?.split_whitespace();
    let values = lines.next().context("no values")?.split_whitespace();
    let (_, value) =
        titles.zip(values).find(|(title, _)| *title == "usec/xfer").context("no latency")?;
    value.parse().context("the latency is no number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_of_fi_pingpong_is_parsed() {
        let output = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      5k      =5k      625k        0.06s     10.48       6.11       0.16
";
        assert_eq!(parse(output).unwrap(), 6.11);
        assert!(parse("[error] util/pingpong.c:568 : ctrl/read: no data\n").is_err());
    }
}
