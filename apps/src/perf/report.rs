//! Results: perftest's columns for people, JSON for programs.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use crate::environment::Environment;
use crate::perf::latency_stats::Summary;
use crate::perf::options::{Test, Transfer};

const RULE: &str =
    "---------------------------------------------------------------------------------------";

/// What is the same for all results of one call.
#[derive(Clone, Debug)]
pub struct TestParams {
    /// The test.
    pub test: Test,
    /// Name of the device.
    pub device: String,
    /// Queue pairs.
    pub qps: u16,
    /// Requests outstanding per queue pair.
    pub tx_depth: u32,
    /// Bytes of an IP packet.
    pub mtu: u16,
    /// MPA's CRC was agreed.
    pub crc: bool,
    /// MPA's markers were agreed, in one direction at least.
    pub markers: bool,
    /// Who makes the TCP and IP checksums.
    pub checksum: String,
    /// Both ends are active.
    pub bidirectional: bool,
    /// Every byte is checked.
    pub verify: bool,
}

/// One line of results.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Name of the test.
    pub test: &'static str,
    /// Bytes per message.
    pub size_bytes: u64,
    /// Messages, over all queue pairs and both directions.
    pub iterations: u64,
    /// Queue pairs.
    pub qps: u16,
    /// Bytes of an IP packet.
    pub mtu: u16,
    /// MPA's CRC was agreed.
    pub crc: bool,
    /// Who makes the TCP and IP checksums.
    pub checksum: String,
    /// MPA's markers were agreed, in one direction at least.
    pub markers: bool,
    /// Seconds from the first request to the confirmation of the last byte.
    pub duration_s: f64,
    /// Confirmed bytes, in gigabits (10^9) per second.
    pub bw_gbit_s: f64,
    /// Messages, in millions per second.
    pub msg_rate_mops: f64,
    /// Latencies in microseconds; `null` for bandwidth.
    pub lat_us: Option<Summary>,
    /// Bytes compared with the pattern at their sink.
    pub bytes_verified: u64,
    /// Bytes that were not as the pattern says, and runs that ended early.
    pub errors: u64,
    /// Best window of at least 10 ms, in gigabits per second; 0 if the run was shorter.
    #[serde(skip)]
    pub peak_gbit_s: f64,
}

impl Measurement {
    /// A result without figures yet.
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
            peak_gbit_s: 0.0,
        }
    }

    /// Fills in what follows from messages, bytes and time.
    #[expect(clippy::cast_precision_loss, reason = "figures are shown with few digits")]
    pub fn set_rates(&mut self, messages: u64, bytes: u64, nanoseconds: u64) {
        self.iterations = messages;
        self.duration_s = nanoseconds as f64 / 1e9;
        let nanoseconds = nanoseconds.max(1) as f64;
        self.bw_gbit_s = bytes as f64 * 8.0 / nanoseconds;
        self.msg_rate_mops = messages as f64 * 1e3 / nanoseconds;
    }

    /// The line of the table.
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
    /// The parameter block and the head of the table.
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
        text + " Data ex. method : Sends of a control connection\n" + RULE + "\n" + columns
    }

    /// The last line of the table.
    #[must_use]
    pub const fn footer() -> &'static str {
        RULE
    }
}

/// The file of `--json`.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// One for each run, also for one that failed.
    pub results: &'a [Measurement],
    /// Where and how it was measured.
    pub environment: &'a Environment,
    /// Why the call failed; `null` if it did not.
    pub failure: Option<String>,
}

impl Report<'_> {
    /// Writes the file; a reader never sees half of it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("the results are no JSON")?;
        write_atomically(path, &(text + "\n"))
    }
}

/// True for what is written in place: a pipe, `/dev/stdout`.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| !meta.is_file())
}

fn write_atomically(path: &Path, text: &str) -> anyhow::Result<()> {
    let error_text = || format!("cannot write {}: choose another place", path.display());
    if is_special(path) {
        return File::create(path)
            .and_then(|mut f| f.write_all(text.as_bytes()))
            .with_context(error_text);
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}", std::process::id()));
    let partial = Path::new(&partial);
    let written = std::fs::write(partial, text).and_then(|()| std::fs::rename(partial, path));
    if written.is_err() {
        let _ = std::fs::remove_file(partial);
    }
    written.with_context(error_text)
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
