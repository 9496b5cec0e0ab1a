//! `sockperf`: messages and ping-pong over the kernel's TCP.

use std::fmt::Write as _;
use std::fs;
use std::rc::Rc;

use anyhow::{Context as _, Result};

use super::launch::{ADDRESS, Loopback, Pair, words};
use super::sample::{Latency, Sample};
use super::{Peer, Test};

/// First port; each connection has its own.
const PORT: u16 = 11111;
/// Longest message.
const SIZE_MAX: u64 = 1_048_575;

/// `sockperf`.
pub struct Sockperf {
    loopback: Rc<Loopback>,
}

impl Sockperf {
    /// Creates the peer.
    #[must_use]
    pub const fn new(loopback: Rc<Loopback>) -> Self {
        Self { loopback }
    }
}

impl Peer for Sockperf {
    fn name(&self) -> &'static str {
        "sockperf"
    }

    fn description(&self) -> String {
        "`sockperf throughput --tcp -m SIZE`, sent messages, at most 1,048,575 bytes each; \
         `sockperf ping-pong --tcp --nonblocked`: both ends poll their socket"
            .to_owned()
    }

    fn version(&self) -> Result<String, String> {
        super::launch::version("sockperf", &["--version"], "sockperf")
    }

    fn supports(&self, test: Test) -> bool {
        let (Test::Stream { size, .. } | Test::PingPong { size }) = test;
        size <= SIZE_MAX + 1
    }

    fn run(&mut self, test: Test, seconds: f64) -> Result<Sample> {
        // Whole seconds.
        let whole = seconds.ceil().max(1.0);
        let (server, client, size) = match test {
            Test::Stream { size, connections } => {
                let size = size.min(SIZE_MAX);
                let to = self.endpoints(connections)?;
                let client = format!("throughput {to} -m {size} -t {whole}");
                (format!("server {to} -m {size}"), client, size)
            }
            Test::PingPong { size } => {
                let to = format!("--tcp -i {ADDRESS} -p {PORT} --nonblocked");
                (format!("server {to}"), format!("ping-pong {to} -m {size} -t {whole}"), size)
            }
        };
        let output = self.loopback.run(
            &Pair {
                program: "sockperf".to_owned(),
                server: words(&server),
                client: words(&client),
                environment: vec![],
                port: PORT,
            },
            whole,
        )?;
        match test {
            Test::Stream { .. } => parse_stream(&output, size),
            Test::PingPong { .. } => parse_ping_pong(&output),
        }
    }
}

impl Sockperf {
    /// Returns the options for so many connections; more than one are in a file.
    fn endpoints(&self, connections: u16) -> Result<String> {
        if connections == 1 {
            return Ok(format!("--tcp -i {ADDRESS} -p {PORT}"));
        }
        let mut list = String::new();
        for index in 0..connections {
            let _ = writeln!(list, "T:{ADDRESS}:{}", PORT + index);
        }
        let path = self.loopback.dir().join("sockperf.list");
        fs::write(&path, list)?;
        Ok(format!("-f {} -F epoll", path.display()))
    }
}

/// Returns the number in front of `unit` in the line with `title`.
fn number(output: &str, title: &str, unit: &str) -> Option<f64> {
    let rest = output.split(title).nth(1)?;
    rest.split(unit).next()?.trim().parse().ok()
}

fn parse_stream(output: &str, size: u64) -> Result<Sample> {
    let rate = number(output, "Summary: Message Rate is ", "[msg/sec]").context("no rate")?;
    Ok(Sample::of_rate(rate, size))
}

fn parse_ping_pong(output: &str) -> Result<Sample> {
    let percentile = |percent: &str| {
        let title = format!("---> percentile {percent} =");
        number(output, &title, "\n").with_context(|| format!("no percentile {percent}"))
    };
    let mean = number(output, "Summary: Latency is ", "usec").context("no mean")?;
    Ok(Sample::of_latency(Latency {
        mean: Some(mean),
        p50: Some(percentile("50.000")?),
        p90: Some(percentile("90.000")?),
        p99: Some(percentile("99.000")?),
        p999: Some(percentile("99.900")?),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_rate_is_parsed() {
        let output = "sockperf: Test ended\n\
            sockperf: Total of 13805 messages sent in 1.000 sec\n\
            sockperf: Summary: Message Rate is 13799 [msg/sec], Packet Rate is about 620955\n\
            sockperf: Summary: BandWidth is 862.056 MBps (6896.447 Mbps)\n";
        let sample = parse_stream(output, 65_507).unwrap();
        assert!((sample.rate_mops.unwrap() - 0.013_799).abs() < 1e-9, "{sample:?}");
        assert!((sample.gbit_s.unwrap() - 7.2315).abs() < 0.001, "{sample:?}");
        assert!(parse_stream("sockperf: ERROR: connect", 64).is_err());
    }

    #[test]
    fn mean_and_percentiles_are_parsed() {
        let output = "sockperf: Summary: Latency is 3.940 usec\n\
            sockperf: ---> <MAX> observation = 1755.070\n\
            sockperf: ---> percentile 99.999 =  460.165\n\
            sockperf: ---> percentile 99.900 =   16.854\n\
            sockperf: ---> percentile 99.000 =    4.616\n\
            sockperf: ---> percentile 90.000 =    3.900\n\
            sockperf: ---> percentile 50.000 =    3.830\n";
        let latency = parse_ping_pong(output).unwrap().latency.unwrap();
        assert_eq!((latency.mean, latency.p50), (Some(3.94), Some(3.83)));
        assert_eq!((latency.p99, latency.p999), (Some(4.616), Some(16.854)));
        assert!(parse_ping_pong("sockperf: Summary: Latency is 3.940 usec\n").is_err());
    }
}
