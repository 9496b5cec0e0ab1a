//! Result of one run.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

/// Result of one run; what a program does not report is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Payload in Gb/s (10^9).
    pub gbit_s: Option<f64>,
    /// Messages, in millions per second.
    pub rate_mops: Option<f64>,
    /// Half a round trip, in microseconds.
    pub latency: Option<Latency>,
}

/// Half round trips of one run, in microseconds; what a program does not report is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Mean.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p999: Option<f64>,
}

impl Sample {
    /// Returns a sample of a stream: messages per second, of `size` bytes.
    #[must_use]
    pub fn of_rate(per_second: f64, size: u64) -> Self {
        Self {
            gbit_s: Some(per_second * size as f64 * 8e-9),
            rate_mops: Some(per_second * 1e-6),
            latency: None,
        }
    }

    /// Returns a sample of a ping-pong.
    #[must_use]
    pub const fn of_latency(latency: Latency) -> Self {
        Self { gbit_s: None, rate_mops: None, latency: Some(latency) }
    }

    /// Parses the JSON of `iwperf`, and of the programs that imitate it: one result, no errors.
    ///
    /// # Errors
    /// If the text is anything else.
    pub fn from_iwperf(text: &str) -> Result<Self> {
        let report: Value = serde_json::from_str(text).context("no JSON")?;
        let results = report["results"].as_array().context("no list of results")?;
        let [result] = results.as_slice() else { bail!("{} results, not one", results.len()) };
        ensure!(result["errors"] == 0, "{} errors", result["errors"]);
        let latency = &result["lat_us"];
        if latency.is_null() {
            let number = |name: &str| result[name].as_f64().context("a number is missing");
            let (gbit_s, rate) = (number("bw_gbit_s")?, number("msg_rate_mops")?);
            return Ok(Self { gbit_s: Some(gbit_s), rate_mops: Some(rate), latency: None });
        }
        // An iteration is a round trip, one after the other.
        let mean = result["duration_s"].as_f64().zip(result["iterations"].as_f64());
        Ok(Self::of_latency(Latency {
            mean: mean.map(|(seconds, count)| seconds / count / 2.0 * 1e6),
            p50: latency["p50"].as_f64(),
            p90: latency["p90"].as_f64(),
            p99: latency["p99"].as_f64(),
            p999: latency["p999"].as_f64(),
        }))
    }

    /// Returns the sample as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        match self.latency {
            Some(Latency { mean, p50, p90, p99, p999 }) => {
                json!({
                    "mean_us": mean, "p50_us": p50, "p90_us": p90, "p99_us": p99,
                    "p999_us": p999,
                })
            }
            None => json!({ "gbit_s": self.gbit_s, "rate_mops": self.rate_mops }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iwperf_stream_and_ping_pong_are_parsed() {
        let stream = r#"{"results": [{"bw_gbit_s": 12.5, "msg_rate_mops": 0.02, "lat_us": null,
            "errors": 0}]}"#;
        let sample = Sample::from_iwperf(stream).unwrap();
        assert_eq!((sample.gbit_s, sample.rate_mops), (Some(12.5), Some(0.02)));
        let ping_pong = r#"{"results": [{"bw_gbit_s": 1, "msg_rate_mops": 0.1, "errors": 0,
            "duration_s": 0.5, "iterations": 100000,
            "lat_us": {"p50": 2.0, "p90": 2.25, "p99": 3.0, "p999": 9.5}}]}"#;
        let latency = Sample::from_iwperf(ping_pong).unwrap().latency.unwrap();
        assert_eq!((latency.p50, latency.p999), (Some(2.0), Some(9.5)));
        assert_eq!(latency.mean, Some(2.5));
    }

    #[test]
    fn failed_runs_are_no_samples() {
        for text in [
            "",
            "{}",
            r#"{"results": []}"#,
            r#"{"results": [{"errors": 1, "lat_us": null, "bw_gbit_s": 1, "msg_rate_mops": 1}]}"#,
            r#"{"results": [{"errors": 0, "lat_us": null}]}"#,
        ] {
            assert!(Sample::from_iwperf(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bandwidth_follows_from_the_rate() {
        let sample = Sample::of_rate(1e6, 125);
        assert_eq!((sample.gbit_s, sample.rate_mops), (Some(1.0), Some(1.0)));
    }
}
