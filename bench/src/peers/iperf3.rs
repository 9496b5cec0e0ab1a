//! `iperf3`: streams of the kernel's TCP by blocking calls.

use std::rc::Rc;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::launch::{ADDRESS, Loopback, Pair, words};
use super::{Peer, Sample, Test};

/// Its own port.
const PORT: u16 = 5201;
/// Maximum number of streams.
const STREAMS_MAX: u16 = 128;

/// `iperf3`.
pub struct Iperf3 {
    loopback: Rc<Loopback>,
}

impl Iperf3 {
    /// Creates the peer.
    #[must_use]
    pub const fn new(loopback: Rc<Loopback>) -> Self {
        Self { loopback }
    }
}

impl Peer for Iperf3 {
    fn name(&self) -> &'static str {
        "iperf3"
    }

    fn description(&self) -> String {
        "`iperf3 -l SIZE -P CONNECTIONS`, received bytes: a stream, of which SIZE is one call"
            .to_owned()
    }

    fn version(&self) -> Result<String, String> {
        super::launch::version("iperf3", &["--version"], "iperf3")
    }

    fn supports(&self, test: Test) -> bool {
        matches!(test, Test::Stream { size: ..=1_048_576, connections: ..=STREAMS_MAX })
    }

    fn run(&mut self, test: Test, seconds: f64) -> Result<Sample> {
        let Test::Stream { size, connections } = test else { bail!("no latency") };
        // Whole seconds.
        let whole = seconds.ceil().max(1.0);
        let client = format!("-c {ADDRESS} -J -t {whole} -l {size} -P {connections}");
        let output = self.loopback.run(
            &Pair {
                program: "iperf3".to_owned(),
                server: words(&format!("-s -1 -B {ADDRESS}")),
                client: words(&client),
                environment: vec![],
                port: PORT,
            },
            whole,
        )?;
        parse(&output, size)
    }
}

fn parse(output: &str, size: u64) -> Result<Sample> {
    let report: Value = serde_json::from_str(output).context("no JSON")?;
    let received = &report["end"]["sum_received"]["bits_per_second"];
    let bits = received.as_f64().context("no received bits per second")?;
    Ok(Sample::of_rate(bits / 8.0 / size as f64, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_count_and_not_sent_ones() {
        let output = r#"{"start": {}, "intervals": [], "end": {
            "sum_sent": {"bytes": 25600000, "bits_per_second": 203104483.7},
            "sum_received": {"bytes": 15045696, "seconds": 1.012, "bits_per_second": 1.28e8}}}"#;
        let sample = parse(output, 64).unwrap();
        assert_eq!((sample.gbit_s, sample.rate_mops), (Some(0.128), Some(0.25)));
        assert!(parse(r#"{"error": "unable to connect to server"}"#, 64).is_err());
        assert!(parse("", 64).is_err());
    }
}
