//! Peers over the kernel's TCP: a program that is server and client, its command lines, and where
//! its output has the figures.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{LATENCIES, Peer, Test, rate};
use crate::iwperf;
use crate::launch::{Network, Pair, version};
use crate::runner::Figures;

/// A program over a network.
#[derive(Clone)]
pub(crate) struct KernelPeer {
    program: Program,
    network: Rc<Network>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// `ucp_put` over TCP, the counterpart of RDMA Write.
    UcxPut,
    /// Tagged messages over TCP: `ucp_put` is emulated there, these are often faster.
    UcxTag,
    /// `ucp_put` to shared memory: one end copies, the other takes no part.
    UcxShm,
    Libfabric,
    Iperf3,
    Sockperf,
}

/// Port on which `iperf3` listens.
const IPERF3_PORT: u16 = 5201;
/// First port of `sockperf`; each connection has its own.
const SOCKPERF_PORT: u16 = 11111;
/// Longest message of `sockperf`.
const SOCKPERF_SIZE_MAX: u64 = 1_048_575;
/// Bytes and messages of a run of `ucx_perftest` for each second, which takes no duration.
const UCX_BYTES: f64 = 512e6;
const UCX_MESSAGES_MAX: f64 = 100_000.0;
/// Percentiles of [`LATENCIES`]; `ucx_perftest` reports one of them in a run.
const PERCENTILES: [&str; 4] = ["50.0", "90.0", "99.0", "99.9"];

impl Program {
    pub(crate) const fn over(self, network: Rc<Network>) -> KernelPeer {
        KernelPeer { program: self, network }
    }
}

/// Compiles `fabric_end` into the folder of the network.
fn compile_fabric_end(folder: &Path) -> Result<String, String> {
    let (program, source) = (folder.join("fabric_end"), folder.join("fabric_end.c"));
    std::fs::write(&source, include_str!("fabric_end.c")).map_err(|error| error.to_string())?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-o"]).arg(program).arg(source).arg("-lfabric");
    if gcc.output().is_ok_and(|output| output.status.success()) {
        version("fi_info", &["--version"], "libfabric-bin")
    } else {
        Err("absent: apt-get install gcc libfabric-dev".to_owned())
    }
}

impl Peer for KernelPeer {
    fn name(&self) -> &'static str {
        match self.program {
            Program::UcxPut => "UCX tcp, put",
            Program::UcxTag => "UCX tcp, tag",
            Program::UcxShm => "UCX shm, put",
            Program::Libfabric => "libfabric tcp, write",
            Program::Iperf3 => "iperf3",
            Program::Sockperf => "sockperf",
        }
    }

    fn about(&self) -> String {
        match self.program {
            Program::UcxPut => "`ucx_perftest -t ucp_put_bw`, `ucp_put_lat`, `UCX_TLS=tcp`",
            Program::UcxTag => "`ucx_perftest -t tag_bw`, `tag_lat`, `UCX_TLS=tcp`",
            Program::UcxShm => "`ucx_perftest -t ucp_put_bw`, `ucp_put_lat`, `UCX_TLS=shm,self`",
            Program::Libfabric => {
                "`fi_write` on endpoints of type `FI_EP_MSG` of the provider `tcp`, by \
                 `fabric_end.c`, which does the same as `iwperf`"
            }
            Program::Iperf3 => "`iperf3 -l SIZE -P CONNECTIONS`, received bytes: a stream",
            Program::Sockperf => {
                "`sockperf throughput --tcp -m SIZE`, sent messages; `sockperf ping-pong --tcp \
                 --nonblocked`: both ends poll their socket"
            }
        }
        .to_owned()
    }

    fn version(&self) -> Result<String, String> {
        match self.program {
            Program::Libfabric => compile_fabric_end(self.network.dir()),
            Program::Iperf3 => version("iperf3", &["--version"], "iperf3"),
            Program::Sockperf => version("sockperf", &["--version"], "sockperf"),
            _ => version("ucx_info", &["-v"], "ucx-utils"),
        }
    }

    fn supports(&self, test: Test) -> bool {
        match (self.program, test) {
            (Program::Iperf3, Test::PingPong { .. }) => false,
            (Program::Iperf3, Test::Stream { size, connections }) => {
                size <= 1 << 20 && connections <= 128
            }
            (Program::Sockperf, Test::Stream { size, .. }) => size <= SOCKPERF_SIZE_MAX + 1,
            (Program::Sockperf | Program::Libfabric, _) => true,
            // A connection takes a thread that polls, and each end has one core.
            (_, Test::Stream { connections, .. }) => connections == 1,
            _ => true,
        }
    }

    fn run(&self, test: Test, seconds: f64) -> Result<Figures> {
        let address = self.network.address;
        // iperf3 and sockperf take whole seconds.
        let whole = seconds.ceil().max(1.0);
        match self.program {
            Program::Iperf3 => iperf3(&self.network, test, whole, 0.0),
            Program::Sockperf => {
                let Test::Stream { size, connections } = test else {
                    return sockperf_ping_pong(&self.network, test, whole);
                };
                let size = size.min(SOCKPERF_SIZE_MAX);
                let to = self.endpoints(connections)?;
                let client = format!("throughput {to} -m {size} -t {whole}");
                let server = format!("server {to} -m {size}");
                let pair = Pair::new("sockperf", &server, &client, SOCKPERF_PORT);
                let output = self.network.run(&pair, whole)?;
                let title = "Summary: Message Rate is ";
                let per_second = number(&output, title, "[msg/sec]").context("no rate")?;
                Ok(rate(per_second, size))
            }
            Program::Libfabric => {
                let (kind, size, connections) = match test {
                    Test::Stream { size, connections } => ("bw", size, connections),
                    Test::PingPong { size } => ("lat", size, 1),
                };
                let (port, program) = (47592, self.network.dir().join("fabric_end"));
                let client =
                    format!("client {address} {port} {kind} {size} {connections} {seconds}");
                let server = format!("server {address} {port}");
                let pair = Pair::new(&program.display().to_string(), &server, &client, port);
                iwperf::parse(&self.network.run(&pair, seconds)?, None)
            }
            _ => self.ucx(test, seconds),
        }
    }
}

impl KernelPeer {
    /// Returns `sockperf`'s options for so many connections; more than one are in a file.
    fn endpoints(&self, connections: u16) -> Result<String> {
        let address = self.network.address;
        if connections == 1 {
            return Ok(format!("--tcp -i {address} -p {SOCKPERF_PORT}"));
        }
        let mut list = String::new();
        for index in 0..connections {
            let _ = writeln!(list, "T:{address}:{}", SOCKPERF_PORT + index);
        }
        let path = self.network.dir().join("sockperf.list");
        std::fs::write(&path, list)?;
        Ok(format!("-f {} -F epoll", path.display()))
    }

    fn ucx(&self, test: Test, seconds: f64) -> Result<Figures> {
        let (operation, transports) = match self.program {
            Program::UcxTag => ("tag", "tcp"),
            Program::UcxShm => ("ucp_put", "shm,self"),
            _ => ("ucp_put", "tcp"),
        };
        let (size, suffix) = match test {
            Test::Stream { size, .. } => (size, "bw"),
            Test::PingPong { size } => (size, "lat"),
        };
        let messages = (UCX_BYTES / size as f64).min(UCX_MESSAGES_MAX) * seconds;
        let (messages, address) = (messages.max(200.0).round(), self.network.address);
        let run = |percentile: &str| {
            let client = format!(
                "{address} -f -v -t {operation}_{suffix} -s {size} -n {messages} -w 100 -R \
                 {percentile}"
            );
            let mut pair = Pair::new("ucx_perftest", "", &client, 13337);
            pair.environment = vec![
                ("UCX_TLS", transports),
                ("UCX_NET_DEVICES", self.network.interfaces[0]),
                ("UCX_LOG_LEVEL", "error"),
            ];
            self.network.run(&pair, seconds)
        };
        if suffix == "bw" {
            return Ok(rate(ucx_value(&run("50.0")?, "overall_mr")?, size));
        }
        let figure =
            |(figure, percentile)| Ok((figure, ucx_value(&run(percentile)?, "percentile_lat")?));
        LATENCIES.into_iter().zip(PERCENTILES).map(figure).collect()
    }
}

/// Runs `iperf3` for whole seconds after others that are omitted.
pub(crate) fn iperf3(network: &Network, test: Test, whole: f64, omitted: f64) -> Result<Figures> {
    let (Test::Stream { size, connections }, address) = (test, network.address) else {
        anyhow::bail!("no latency");
    };
    let client = format!("-c {address} -J -t {whole} -O {omitted} -l {size} -P {connections}");
    let pair = Pair::new("iperf3", &format!("-s -1 -B {address}"), &client, IPERF3_PORT);
    let report: Value = serde_json::from_str(&network.run(&pair, whole + omitted)?)?;
    // Not the sent ones, of which some never arrive.
    let received = &report["end"]["sum_received"]["bits_per_second"];
    Ok(rate(received.as_f64().context("no received bits")? / 8.0 / size as f64, size))
}

fn sockperf_ping_pong(network: &Network, test: Test, whole: f64) -> Result<Figures> {
    let (Test::Stream { size, .. } | Test::PingPong { size }) = test;
    let to = format!("--tcp -i {} -p {SOCKPERF_PORT} -m {size} --nonblocked", network.address);
    let client = format!("ping-pong {to} -t {whole}");
    let pair = Pair::new("sockperf", &format!("server {to}"), &client, SOCKPERF_PORT);
    sockperf_percentiles(&network.run(&pair, whole)?)
}

fn sockperf_percentiles(output: &str) -> Result<Figures> {
    let of = |(figure, percent): (&'static str, &str)| {
        let title = format!("---> percentile {:.3} =", percent.parse::<f64>()?);
        let value = number(output, &title, "\n");
        Ok((figure, value.with_context(|| format!("no percentile {percent}"))?))
    };
    LATENCIES.into_iter().zip(PERCENTILES).map(of).collect()
}

/// Returns the number in front of `unit` behind `title`.
fn number(output: &str, title: &str, unit: &str) -> Option<f64> {
    output.split(title).nth(1)?.split(unit).next()?.trim().parse().ok()
}

/// Returns a value of the last line of `ucx_perftest -f -v`: comma-separated after their titles.
fn ucx_value(output: &str, title: &str) -> Result<f64> {
    let mut lines = output.lines().skip_while(|line| !line.starts_with("iterations,"));
    let titles = lines.next().context("no titles")?.split(',');
    let values = lines.next().context("no values")?.split(',');
    let found = titles.zip(values).find(|(found, _)| found.ends_with(title));
    Ok(found.with_context(|| format!("no {title}"))?.1.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_the_programs_are_parsed() {
        let ucx = "[1763.1] parser.c:1911 UCX  WARN  unused env variable\n\
            iterations,99.9_percentile_lat,avg_lat,overall_lat,avg_mr,overall_mr\n\
            20000,11.106,11.358,11.360,88045,88046\n";
        assert_eq!(ucx_value(ucx, "percentile_lat").unwrap(), 11.106);
        assert_eq!(ucx_value(ucx, "overall_mr").unwrap(), 88046.0);
        assert!(ucx_value("Waiting for connection...\n", "overall_mr").is_err());
        let rate =
            "sockperf: Summary: Message Rate is 13799 [msg/sec], Packet Rate is about 620955";
        assert_eq!(number(rate, "Summary: Message Rate is ", "[msg/sec]"), Some(13799.0));
        let percentiles = "sockperf: Summary: Latency is 3.940 usec\n\
            sockperf: ---> percentile 99.999 =  460.165\n\
            sockperf: ---> percentile 99.900 =   16.854\n\
            sockperf: ---> percentile 99.000 =    4.616\n\
            sockperf: ---> percentile 90.000 =    3.900\n\
            sockperf: ---> percentile 50.000 =    3.830\n";
        let found = sockperf_percentiles(percentiles).unwrap();
        assert_eq!(LATENCIES.map(|figure| found[figure]), [3.83, 3.9, 4.616, 16.854]);
        assert!(sockperf_percentiles("sockperf: Summary: Latency is 3.940 usec\n").is_err());
    }
}
