//! UCX, by `ucx_perftest` of Debian's `ucx-utils`.
//!
//! `ucp_put` is the counterpart of RDMA Write, but over `tcp` UCX emulates it; its two-sided
//! operations (`tag`) are often faster there, so both are measured.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::launch::{ADDRESS, Loopback, Pair, words};
use super::sample::{Latency, Sample};
use super::{Peer, Test};

/// Port on which `ucx_perftest` exchanges addresses.
const PORT: u16 = 13337;
/// Percentiles of a ping-pong, one run each: `ucx_perftest` reports one.
const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];
/// Bytes and iterations of the run that finds how many fill the time.
const PROBE_BYTES: u64 = 4 << 20;
const PROBE_ITERATIONS_MAX: u128 = 2000;

/// Operation of UCX, and where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `ucp_put` over TCP.
    TcpPut,
    /// Tagged messages over TCP.
    TcpTag,
    /// `ucp_put` to shared memory: one end copies, the other takes no part.
    ShmPut,
}

/// `ucx_perftest`.
pub struct Ucx {
    kind: Kind,
    loopback: Rc<Loopback>,
    /// Messages per second of the last run of each test.
    rates: HashMap<Test, f64>,
}

/// The last line of `ucx_perftest -f -v`: comma-separated values after their titles.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    percentile_us: f64,
    mean_us: f64,
    /// Messages per second.
    rate: f64,
}

impl Ucx {
    /// Creates the peer.
    #[must_use]
    pub fn new(kind: Kind, loopback: Rc<Loopback>) -> Self {
        Self { kind, loopback, rates: HashMap::new() }
    }

    fn run_once(
        &self,
        test: Test,
        iterations: u128,
        percentile: f64,
        seconds: f64,
    ) -> Result<Line> {
        let (size, suffix) = match test {
            Test::Stream { size, .. } => (size, "bw"),
            Test::PingPong { size } => (size, "lat"),
        };
        let (operation, transports) = match self.kind {
            Kind::TcpPut => ("ucp_put", "tcp"),
            Kind::TcpTag => ("tag", "tcp"),
            Kind::ShmPut => ("ucp_put", "shm,self"),
        };
        let warm_up = (iterations / 10).clamp(1, 1000);
        let client = format!(
            "{ADDRESS} -f -v -t {operation}_{suffix} -s {size} -n {iterations} -w {warm_up} \
             -R {percentile}"
        );
        let output = self.loopback.run(
            &Pair {
                program: "ucx_perftest".to_owned(),
                server: vec![],
                client: words(&client),
                environment: vec![
                    ("UCX_TLS", transports),
                    ("UCX_NET_DEVICES", "lo"),
                    ("UCX_LOG_LEVEL", "error"),
                ],
                port: PORT,
            },
            seconds,
        )?;
        parse(&output)
    }
}

impl Peer for Ucx {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::TcpPut => "UCX tcp, put",
            Kind::TcpTag => "UCX tcp, tag",
            Kind::ShmPut => "UCX shm, put",
        }
    }

    fn description(&self) -> String {
        match self.kind {
            Kind::TcpPut => {
                "`ucx_perftest -t ucp_put_bw`, `ucp_put_lat`, `UCX_TLS=tcp`: the counterpart of \
                 RDMA Write; a run for each percentile, as for the two below"
            }
            Kind::TcpTag => {
                "`ucx_perftest -t tag_bw`, `tag_lat`, `UCX_TLS=tcp`: two-sided messages"
            }
            Kind::ShmPut => {
                "`ucx_perftest -t ucp_put_bw`, `ucp_put_lat`, `UCX_TLS=shm,self`: no network, the \
                 sender copies to memory that both map"
            }
        }
        .to_owned()
    }

    fn version(&self) -> Result<String, String> {
        super::launch::version("ucx_info", &["-v"], "ucx-utils")
    }

    fn supports(&self, test: Test) -> bool {
        // A connection takes a thread that polls, and each end has one core.
        matches!(test, Test::Stream { connections: 1, .. } | Test::PingPong { .. })
    }

    fn run(&mut self, test: Test, seconds: f64) -> Result<Sample> {
        let (Test::Stream { size, .. } | Test::PingPong { size }) = test;
        let rate = match self.rates.get(&test) {
            Some(&rate) => rate,
            None => {
                let iterations = u128::from(PROBE_BYTES / size).clamp(20, PROBE_ITERATIONS_MAX);
                self.run_once(test, iterations, 50.0, seconds)?.rate
            }
        };
        // At least 10 ns a message.
        let fill = |seconds: f64| {
            let time = Duration::from_secs_f64(seconds);
            let each = Duration::from_secs_f64(rate.max(1e-3).recip());
            (time.as_nanos() / each.as_nanos().max(10)).max(100)
        };
        if let Test::Stream { .. } = test {
            let line = self.run_once(test, fill(seconds), 50.0, seconds)?;
            self.rates.insert(test, line.rate);
            return Ok(Sample::of_rate(line.rate, size));
        }
        let mut lines = Vec::new();
        for percentile in PERCENTILES {
            let share = seconds / PERCENTILES.len() as f64;
            lines.push(self.run_once(test, fill(share), percentile, seconds)?);
        }
        self.rates.insert(test, lines[0].rate);
        let at = |index: usize| Some(lines[index].percentile_us);
        Ok(Sample::of_latency(Latency {
            mean: Some(lines.iter().map(|line| line.mean_us).sum::<f64>() / lines.len() as f64),
            p50: at(0),
            p90: at(1),
            p99: at(2),
            p999: at(3),
        }))
    }
}

fn parse(output: &str) -> Result<Line> {
    let mut lines = output.lines().skip_while(|line| !line.starts_with("iterations,"));
    let titles: Vec<&str> = lines.next().context("no titles")?.split(',').collect();
    let values: Vec<&str> = lines.next().context("no values")?.split(',').collect();
    let value = |title: &str| {
        let index = titles.iter().position(|found| found.ends_with(title))?;
        values.get(index)?.trim().parse::<f64>().ok()
    };
    Ok(Line {
        percentile_us: value("percentile_lat").context("no percentile")?,
        mean_us: value("overall_lat").context("no mean")?,
        rate: value("overall_mr").context("no message rate")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_titles() {
        let output = "\
[1763912693.1] [vm:1] parser.c:1911 UCX  WARN  unused env variable
iterations,99.9_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
20000,11.106,11.358,11.360,5.37,5.38,88045,88046
";
        let expected = Line { percentile_us: 11.106, mean_us: 11.36, rate: 88046.0 };
        assert_eq!(parse(output).unwrap(), expected);
        assert!(parse("Waiting for connection...\n").is_err());
        assert!(parse("iterations,overall_mr\n").is_err());
    }
}
