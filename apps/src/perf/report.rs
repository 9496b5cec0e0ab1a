//! Results: a table with perftest's columns, and JSON.

use anyhow::Context as _;
use serde::Serialize;

use crate::device::DeviceArgs;
use crate::environment::Environment;
use crate::output_file::OutputFile;
use crate::perf::iwperf_options::TestArgs;
use crate::perf::kind::{Test, Transfer};
use crate::perf::latency_stats::{Latencies, Summary};
use crate::perf::queue_options::QueueArgs;
use crate::perf::shard_report::ShardFigures;

const RULE: &str =
    "---------------------------------------------------------------------------------------";

/// Parameters common to all results of one invocation.
#[derive(Clone, Debug)]
pub struct TestParams {
    /// The test.
    pub test: Test,
    /// Name of the device.
    pub device: String,
    /// Number of queue pairs.
    pub qps: u32,
    /// Outstanding requests per queue pair.
    pub tx_depth: u32,
    /// MTU in bytes of IP packet.
    pub mtu: u16,
    /// MPA CRC negotiated.
    pub crc: bool,
    /// MPA markers negotiated, in at least one direction.
    pub markers: bool,
    /// Computation of TCP and IP checksums: `none`, `software`, `offload`, or `offload (TCP)` if
    /// the NIC computes only TCP's.
    pub checksum: String,
    /// Clock of this end, and the cost of a reading.
    pub clock: String,
    /// Both sides are active.
    pub bidirectional: bool,
    /// Every byte is verified.
    pub verify: bool,
    /// Options of posting and of waiting for completions.
    pub queues: QueueArgs,
}

/// Callback for the parameters once they are negotiated (without a result), and for each result.
pub type OnResult = Box<dyn FnMut(&TestParams, Option<&Measurement>) + Send>;

/// One line of results.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Name of the test.
    pub test: &'static str,
    /// Bytes per message.
    pub size_bytes: u64,
    /// Messages, over all queue pairs and both directions.
    pub iterations: u64,
    /// Number of queue pairs.
    pub qps: u32,
    /// MTU in bytes of IP packet.
    pub mtu: u16,
    /// MPA CRC negotiated.
    pub crc: bool,
    /// Computation of TCP and IP checksums: `none`, `software`, `offload`, or `offload (TCP)` if
    /// the NIC computes only TCP's.
    pub checksum: String,
    /// MPA markers negotiated, in at least one direction.
    pub markers: bool,
    /// Seconds from the first request to the confirmation of the last byte.
    pub duration_s: f64,
    /// Bandwidth of confirmed bytes, in gigabits (10^9) per second.
    pub bw_gbit_s: f64,
    /// Message rate, in millions per second.
    pub msg_rate_mops: f64,
    /// Latencies in microseconds; `null` for bandwidth.
    pub lat_us: Option<Summary>,
    /// Bytes compared with the pattern at the Data Sink.
    pub bytes_verified: u64,
    /// Bytes that differ from the pattern, plus runs that ended early.
    pub errors: u64,
    /// Figures of each shard, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<ShardFigures>,
    /// Best window of at least 10 ms, in gigabits per second; 0 if the run was shorter.
    #[serde(skip)]
    pub peak_gbit_s: f64,
    /// Shard of the worker that has this result.
    #[serde(skip)]
    pub shard: usize,
    /// Bytes, over all queue pairs and both directions.
    #[serde(skip)]
    pub bytes: u64,
    /// Nanoseconds of `duration_s`.
    #[serde(skip)]
    pub duration_ns: u64,
    /// Frames that arrived at the shard and were passed on to others.
    #[serde(skip)]
    pub frames_forwarded: u64,
    /// The latencies of `lat_us`, of a worker.
    #[serde(skip)]
    pub latencies: Option<Latencies>,
}

impl Measurement {
    /// Creates a result with all figures zero.
    #[must_use]
    pub fn new(setting: &TestParams, size: u64) -> Self {
        Self {
            test: setting.test.name(),
            size_bytes: size,
            iterations: 0,
            qps: setting.qps,
            mtu: setting.mtu,
            crc: setting.crc,
            checksum: setting.checksum.clone(),
            markers: setting.markers,
            duration_s: 0.0,
            bw_gbit_s: 0.0,
            msg_rate_mops: 0.0,
            lat_us: None,
            bytes_verified: 0,
            errors: 0,
            shards: Vec::new(),
            peak_gbit_s: 0.0,
            shard: 0,
            bytes: 0,
            duration_ns: 0,
            frames_forwarded: 0,
            latencies: None,
        }
    }

    /// Sets the figures that follow from messages, bytes and time.
    #[expect(clippy::cast_precision_loss, reason = "figures are shown with few digits")]
    pub fn set_rates(&mut self, messages: u64, bytes: u64, nanoseconds: u64) {
        self.iterations = messages;
        self.bytes = bytes;
        self.duration_ns = nanoseconds;
        self.duration_s = nanoseconds as f64 / 1e9;
        let nanoseconds = nanoseconds.max(1) as f64;
        self.bw_gbit_s = bytes as f64 * 8.0 / nanoseconds;
        self.msg_rate_mops = messages as f64 * 1e3 / nanoseconds;
    }

    /// Returns the line of the table.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { size_bytes: size, iterations, .. } = self;
        match self.lat_us {
            Some(lat) => format!(
                " {size:<8}{iterations:<12}{:<15.2}{:<15.2}{:<18.2}{:<15.2}{:<17.2}{:<24.2}{:.2}",
                lat.min, lat.max, lat.p50, lat.mean, lat.stdev, lat.p99, lat.p999,
            ),
            None => format!(
                " {size:<11}{iterations:<15}{:<19.2}{:<21.2}{:.6}",
                self.peak_gbit_s, self.bw_gbit_s, self.msg_rate_mops
            ),
        }
    }
}

impl TestParams {
    /// Returns the parameters of `test` with these options. `checksum`: how checksums are computed
    /// ([`checksum_kind`](crate::device::checksum_kind)), if that is known yet.
    #[must_use]
    pub fn new(test: Test, device: &DeviceArgs, args: &TestArgs, checksum: &str) -> Self {
        Self {
            test,
            device: device.dev.clone(),
            qps: args.qps(),
            tx_depth: args.tx_depth,
            mtu: device.mtu,
            crc: !args.no_crc,
            markers: args.markers,
            checksum: checksum.to_owned(),
            clock: "unknown".to_owned(),
            bidirectional: args.bidirectional,
            verify: args.verify,
            queues: args.queues,
        }
    }

    /// Returns the parameter block and the heading of the table.
    #[must_use]
    pub fn heading(&self) -> String {
        let transfer = match self.test.transfer() {
            Transfer::Write => "RDMA_Write",
            Transfer::Read => "RDMA_Read",
            Transfer::Send => "Send",
            Transfer::Atomic => "Atomic",
        };
        let kind = if self.test.is_latency() { "Latency" } else { "BW" };
        let direction = if self.bidirectional { "Bidirectional " } else { "" };
        let on = |value| if value { "ON" } else { "OFF" };
        let columns = if self.test.is_latency() {
            " #bytes  #iterations t_min[usec]    t_max[usec]    t_typical[usec]   t_avg[usec]    \
             t_stdev[usec]    99% percentile[usec]    99.9% percentile[usec]"
        } else {
            " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
        };
        let mut text = format!("{RULE}\n{:20}{transfer} {direction}{kind} Test\n", "");
        let settings = [
            ("Device", self.device.clone(), "Transport type", "IW".to_owned()),
            ("Number of qps", self.qps.to_string(), "TX depth", self.tx_depth.to_string()),
            ("Mtu", format!("{}[B]", self.mtu), "Link type", "Ethernet".to_owned()),
            ("CRC", on(self.crc).to_owned(), "Checksum", self.checksum.clone()),
            ("rdma_cm QPs", "ON".to_owned(), "Verify", on(self.verify).to_owned()),
            ("Markers", on(self.markers).to_owned(), "Connection type", "RC".to_owned()),
        ];
        for (left, value, right, other) in settings {
            text += &format!(" {left:<15} : {value:<18} {right:<14} : {other}\n");
        }
        for (name, value) in self.queues.chosen() {
            text += &format!(" {name:<15} : {value}\n");
        }
        text += &format!(" {:<15} : {}\n", "Clock", self.clock);
        text += &format!(" {:<15} : {}\n", "DPDK", ferrowarp::device::dpdk_version());
        text + " Data ex. method : Sends of a control connection\n" + RULE + "\n" + columns
    }

    /// Returns the last line of the table.
    #[must_use]
    pub const fn footer() -> &'static str {
        RULE
    }
}

/// Contents of the file of `--json`.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// One result for each run, also for one that failed.
    pub results: &'a [Measurement],
    /// Environment of the measurement.
    pub environment: &'a Environment,
    /// Error of the invocation; `null` if it succeeded.
    pub failure: Option<String>,
}

impl Report<'_> {
    /// Writes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, file: OutputFile) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("the results are no JSON")?;
        file.replace((text + "\n").as_bytes())
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
