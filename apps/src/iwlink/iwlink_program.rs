//! Main program of iwlink.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use ferrowarp::device::{OpenConfig, PoolNeeds, RawPort, open_raw, register_current_thread};

use crate::iwlink::forward::{Clock, Forwarder};
use crate::iwlink::idle::IdleStrategy;
use crate::iwlink::iwlink_options::IwlinkOptions;
use crate::iwlink::link_report;
use crate::iwlink::links::{LinkWatch, SIDES};
use crate::output;
use crate::output_file::OutputFile;
use crate::run_loop::pin_checked;
use crate::stop::was_interrupted;

/// Transmit queue length per port, in frames.
const PORT_TX_QUEUE_LEN: u32 = 1024;

/// Polls between two clock reads for `--duration` and `--report`, while frames flow.
const PASSES_PER_CLOCK_READ: u32 = 64;

/// Runs the emulator until `--duration` is over or a signal arrives, which is no error, or a device
/// is removed.
///
/// # Errors
/// One line that names a remedy.
pub fn program(options: &IwlinkOptions) -> anyhow::Result<()> {
    let link_faults = options.faults()?;
    let frames = options.frames(&link_faults);
    let json = options.json.as_deref().map(OutputFile::open).transpose()?;
    if let Some(core) = options.core {
        pin_checked(core)?;
    }
    let open = |name: &str, spec| -> anyhow::Result<RawPort> {
        // A window of one byte counts as one frame.
        let pools = PoolNeeds::new().window_bytes(1).windows(frames).tx_queue(PORT_TX_QUEUE_LEN);
        let config = OpenConfig::new().mtu(options.mtu).pools(pools);
        open_raw(spec, &config).map_err(|error| anyhow!("{name}: {error}"))
    };
    let [left, right] = SIDES;
    let ports = [open(left, &options.left)?, open(right, &options.right)?];
    register_current_thread();
    let faults = [link_faults.to_right, link_faults.to_left];
    let frames = usize::try_from(frames).unwrap_or(usize::MAX);
    let mut forwarder = Forwarder::new(ports, faults, options.seed, frames, options.late);
    let links = LinkWatch::start(forwarder.ports())?;
    let line = format!(
        "{} <-> {}: seed {}, DPDK {}",
        options.left,
        options.right,
        options.seed,
        ferrowarp::device::dpdk_version()
    );
    output::announce(&line)?;
    run(options, &mut forwarder, &links);
    let ways = link_report::collect(&forwarder);
    output::print(link_report::table(&ways, options.late).trim_end());
    let written = json.map_or(Ok(()), |json| {
        let text = serde_json::to_string_pretty(&ways).context("the counters")?;
        json.replace((text + "\n").as_bytes())
    });
    links.check().and(written)
}

fn run(options: &IwlinkOptions, forwarder: &mut Forwarder, links: &LinkWatch) {
    let clock = Clock::start();
    let mut pace = IdleStrategy::new(options.poll, options.spin);
    let mut intervals = options.report.map(|every| PeriodicReport::new(every, forwarder));
    let end_ns = options.duration.map_or(u64::MAX, nanoseconds);
    let mut passes = 0;
    while !was_interrupted() && !links.has_ended() {
        let is_busy = forwarder.poll(clock);
        passes += 1;
        if is_busy && passes < PASSES_PER_CLOCK_READ {
            continue;
        }
        let now_ns = clock.now_ns();
        if passes > 1 {
            pace.on_frames(now_ns);
        }
        passes = 0;
        if now_ns >= end_ns {
            break;
        }
        if let Some(intervals) = &mut intervals {
            intervals.poll(now_ns, forwarder);
        }
        pace.wait(now_ns, forwarder.next_due_ns(), is_busy);
    }
}

/// Periodic output of `--report`.
struct PeriodicReport {
    every_ns: u64,
    last_ns: u64,
    before: [link_report::DirectionReport; 2],
}

impl PeriodicReport {
    fn new(every: Duration, forwarder: &Forwarder) -> Self {
        output::print(link_report::HEADING);
        Self { every_ns: nanoseconds(every), last_ns: 0, before: link_report::collect(forwarder) }
    }

    fn poll(&mut self, now_ns: u64, forwarder: &Forwarder) {
        let since_ns = now_ns - self.last_ns;
        if since_ns < self.every_ns {
            return;
        }
        let now = link_report::collect(forwarder);
        let line =
            link_report::line(now_ns as f64 * 1e-9, since_ns as f64 * 1e-9, &self.before, &now);
        output::print(&line);
        self.before = now;
        self.last_ns = now_ns;
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
