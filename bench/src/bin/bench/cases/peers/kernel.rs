//! Peers over the kernel's TCP: a program that is server and client, its command lines, and where
//! its output has the figures.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{LATENCIES, Peer, Test, rate};
use crate::iwperf;
use crate::launch::{Network, Pair, version};
use crate::runner::Figures;

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
const PERCENTILES: [&str; 3] = ["50.0", "99.0", "99.9"];

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

/// Returns a program over a network.
pub(crate) fn peer(program: Program, network: &Rc<Network>) -> Peer {
    let ucx = || version("ucx_info", &["-v"], "ucx-utils");
    let (name, about, version) = match program {
        Program::UcxPut => {
            let about = "`ucx_perftest -t ucp_put_bw`, `ucp_put_lat`, `UCX_TLS=tcp`";
            ("UCX tcp, put", about, ucx())
        }
        Program::UcxTag => {
            ("UCX tcp, tag", "`ucx_perftest -t tag_bw`, `tag_lat`, `UCX_TLS=tcp`", ucx())
        }
        Program::UcxShm => {
            let about = "`ucx_perftest -t ucp_put_bw`, `ucp_put_lat`, `UCX_TLS=shm,self`";
            ("UCX shm, put", about, ucx())
        }
        Program::Libfabric => {
            let about = "`fi_write` on endpoints of type `FI_EP_MSG` of the provider `tcp`, by \
                         `fabric_end.c`, which does the same as `iwperf`";
            ("libfabric tcp, write", about, compile_fabric_end(network.dir()))
        }
        Program::Iperf3 => {
            let about = "`iperf3 -l SIZE -P CONNECTIONS`, received bytes: a stream";
            ("iperf3", about, version("iperf3", &["--version"], "iperf3"))
        }
        Program::Sockperf => {
            let about = "`sockperf throughput --tcp -m SIZE`, sent messages; `sockperf ping-pong \
                         --tcp --nonblocked`: both ends poll their socket";
            ("sockperf", about, version("sockperf", &["--version"], "sockperf"))
        }
    };
    let network = Rc::clone(network);
    Peer {
        name,
        about: about.to_owned(),
        is_ours: false,
        version,
        supports: Box::new(move |test| match (program, test) {
            (Program::Iperf3, Test::PingPong { .. }) => false,
            (Program::Iperf3, Test::Stream { size, connections }) => {
                size <= 1 << 20 && connections <= 128
            }
            (Program::Sockperf, Test::Stream { size, .. }) => size <= SOCKPERF_SIZE_MAX + 1,
            (Program::Sockperf | Program::Libfabric, _) => true,
            // A connection takes a thread that polls, and each end has one core.
            (_, Test::Stream { connections, .. }) => connections == 1,
            _ => true,
        }),
        run: Box::new(move |test, seconds| {
            // iperf3 and sockperf take whole seconds.
            let whole = seconds.ceil().max(1.0);
            match program {
                Program::Iperf3 => iperf3(&network, test, whole, 0.0),
                Program::Sockperf => sockperf(&network, test, whole),
                Program::Libfabric => libfabric(&network, test, seconds),
                _ => ucx_perftest(program, &network, test, seconds),
            }
        }),
    }
}

/// Returns size, number of connections, and one of the two words by the kind of test.
fn parameters<'a>(test: Test, of_stream: &'a str, of_ping_pong: &'a str) -> (u64, u16, &'a str) {
    match test {
        Test::Stream { size, connections } => (size, connections, of_stream),
        Test::PingPong { size } => (size, 1, of_ping_pong),
    }
}

fn libfabric(network: &Network, test: Test, seconds: f64) -> Result<Figures> {
    let (size, connections, kind) = parameters(test, "bw", "lat");
    let (address, port, program) = (network.address, 47592, network.dir().join("fabric_end"));
    let client = format!("client {address} {port} {kind} {size} {connections} {seconds}");
    let server = format!("server {address} {port}");
    let pair = Pair::new(&program.display().to_string(), &server, &client, port);
    iwperf::parse(&network.run(&pair, seconds)?, None)
}

fn ucx_perftest(program: Program, network: &Network, test: Test, seconds: f64) -> Result<Figures> {
    let (operation, transports) = match program {
        Program::UcxTag => ("tag", "tcp"),
        Program::UcxShm => ("ucp_put", "shm,self"),
        _ => ("ucp_put", "tcp"),
    };
    let (size, _, suffix) = parameters(test, "bw", "lat");
    let messages = (UCX_BYTES / size as f64).min(UCX_MESSAGES_MAX) * seconds;
    let (messages, address) = (messages.max(200.0).round(), network.address);
    let run = |percentile: &str| {
        let client = format!(
            "{address} -f -v -t {operation}_{suffix} -s {size} -n {messages} -w 100 -R {percentile}"
        );
        let mut pair = Pair::new("ucx_perftest", "", &client, 13337);
        pair.environment = vec![
            ("UCX_TLS", transports.to_owned()),
            // Each end takes the one it has.
            ("UCX_NET_DEVICES", network.interfaces.join(",")),
            ("UCX_LOG_LEVEL", "error".to_owned()),
        ];
        network.run(&pair, seconds)
    };
    if suffix == "bw" {
        return Ok(rate(ucx_value(&run("50.0")?, "overall_mr")?, size));
    }
    let figure =
        |(figure, percentile)| Ok((figure, ucx_value(&run(percentile)?, "percentile_lat")?));
    LATENCIES.into_iter().zip(PERCENTILES).map(figure).collect()
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

fn sockperf(network: &Network, test: Test, whole: f64) -> Result<Figures> {
    let (size, connections, kind) = parameters(test, "throughput", "ping-pong");
    let (size, address) = (size.min(SOCKPERF_SIZE_MAX), network.address);
    let mut to = format!("--tcp -i {address} -p {SOCKPERF_PORT} -m {size}");
    if connections > 1 {
        // More than one are in a file.
        let list = (0..connections).map(|at| format!("T:{address}:{}\n", SOCKPERF_PORT + at));
        let path = network.dir().join("sockperf.list");
        std::fs::write(&path, list.collect::<String>())?;
        to = format!("-f {} -F epoll -m {size}", path.display());
    }
    if kind == "ping-pong" {
        to += " --nonblocked";
    }
    let client = format!("{kind} {to} -t {whole}");
    let pair = Pair::new("sockperf", &format!("server {to}"), &client, SOCKPERF_PORT);
    let output = network.run(&pair, whole)?;
    if kind == "ping-pong" {
        return sockperf_percentiles(&output);
    }
    let per_second = number(&output, "Summary: Message Rate is ", "[msg/sec]");
    Ok(rate(per_second.context("no rate")?, size))
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
        assert_eq!(LATENCIES.map(|figure| found[figure]), [3.83, 4.616, 16.854]);
        assert!(sockperf_percentiles("sockperf: Summary: Latency is 3.940 usec\n").is_err());
    }
}
