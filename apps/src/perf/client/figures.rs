//! Figures of a client's runs.

use std::time::{Duration, Instant};

use anyhow::bail;

use crate::output;
use crate::perf::client::{Client, State};
use crate::perf::control::Tally;
use crate::perf::hdr::Interval;
use crate::perf::latency_stats::Latencies;
use crate::perf::report::Measurement;

impl Client {
    /// Computes the result of the run and starts the next.
    pub(super) fn finish_run(&mut self, report: &Tally) -> anyhow::Result<()> {
        let (Some(work), Some(run)) = (self.test_run.take(), self.runs.pop_front()) else {
            bail!("Report without a run");
        };
        self.progress = None;
        let own = work.tally();
        let mut result = self.measurement(run.size);
        result.set_rates(
            own.messages + report.messages,
            own.bytes + report.bytes,
            own.duration_ns.max(report.duration_ns),
        );
        result.bytes_verified = own.verified + report.verified;
        result.errors = own.errors + report.errors;
        // A run without a full window has no peak; a peak is never below the average.
        result.peak_gbit_s = work.peak_gbit_s().max(result.bw_gbit_s);
        if let Some(latencies) = work.latencies() {
            result.lat_us = latencies.summary();
            self.intervals.push(Interval {
                start: self.run_started - self.session_started,
                duration: Duration::from_nanos(own.duration_ns),
                tag: format!("{}-{}", self.setting.test.name(), run.size),
                histogram: latencies.histogram().clone(),
            });
        }
        if self.worker.team.is_some() {
            result.latencies = work.latencies().cloned();
            let forwarded = self.session.end.frames_forwarded();
            result.frames_forwarded = forwarded - self.forwarded_before;
        }
        (self.on_result)(&self.setting, Some(&result));
        self.results.push(result);
        self.session.run_number += 1;
        if self.await_team(State::RunFinished) { self.prepare() } else { Ok(()) }
    }

    /// Returns the partial result of an unfinished run, for the record.
    #[must_use]
    pub fn unfinished(&self) -> Option<Measurement> {
        let run = self.runs.front()?;
        let mut result = self.measurement(run.size);
        if let Some(work) = &self.test_run {
            let tally = work.completed();
            result.set_rates(tally.messages, tally.bytes, tally.duration_ns);
            result.bytes_verified = tally.verified;
            result.errors = tally.errors;
            result.peak_gbit_s = work.peak_gbit_s().max(result.bw_gbit_s);
            result.latencies = work.latencies().cloned();
            result.lat_us = result.latencies.as_ref().and_then(Latencies::summary);
        }
        result.errors += 1;
        Some(result)
    }

    /// Shows the run under way: a line for each interval, or the progress bar.
    pub(super) fn show_run(&mut self, now: Instant) {
        let (Some(work), Some(run)) = (&self.test_run, self.runs.front()) else { return };
        if let Some(progress) = &mut self.progress {
            // The rate of one of several shards would mislead.
            let is_only = self.worker.team.is_none();
            let bytes = || if is_only { work.transferred().1 } else { 0 };
            progress.show(now, run, || (work.progress(), bytes()));
        }
        let Some(lines) = &mut self.lines else { return };
        if let Some((messages, nanoseconds)) = lines.poll(now, work.transferred().0) {
            let size = run.size;
            let mut result = self.measurement(size);
            result.set_rates(messages, messages * size, nanoseconds);
            output::print(&result.line());
        }
    }

    /// Returns a result of this worker without figures.
    fn measurement(&self, size: u64) -> Measurement {
        let mut result = Measurement::new(&self.setting, size);
        result.qps = self.worker.qps;
        result.shard = self.worker.shard;
        result
    }
}
