//! Options of a test's queues, named as in perftest.

use anyhow::ensure;
use clap::Args;
use ferrowarp::INLINE_LEN_MAX;

use crate::perf::active::credit_batch;
use crate::perf::control::Run;
use crate::perf::iwperf_options::TestArgs;
use crate::perf::kind::{Test, Transfer};
use crate::perf::limits::DEPTH_MAX;

const HEADING: &str = "Queues";

/// Options of posting and of waiting for completions.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct QueueArgs {
    /// Sleeps on a completion channel while nothing completes, instead of polling; a thread of the
    /// stack polls the device meanwhile. Give the server the same option. Not for write-lat, which
    /// polls memory.
    #[arg(short, long, help_heading = HEADING)]
    pub events: bool,
    /// Posts lists of N requests, with one doorbell each (bandwidth only). By default, as many as
    /// the depth allows are posted together, up to 64; -l 1 posts each by itself, as perftest does
    /// by default.
    #[arg(short = 'l', long, alias = "post_list", value_name = "N", help_heading = HEADING)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub post_list: Option<u32>,
    /// Signals one request in N (bandwidth only) [default: the last of each list with -l; otherwise
    /// four in -t, one in 64 and one in a MiB at least, and each RDMA Read and atomic operation].
    #[arg(short = 'Q', long, alias = "cq_mod", value_name = "N", help_heading = HEADING)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub cq_mod: Option<u32>,
    /// Copies messages of up to N bytes into their requests (Writes and Sends) [default: none].
    #[arg(short = 'I', long, alias = "inline_size", value_name = "N", help_heading = HEADING)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=INLINE_LEN_MAX as i64))]
    pub inline_size: Option<u32>,
    /// Receives per queue pair at the Data Sink, or of all of them with --use-srq [default: twice
    /// -t; -t with --verify; for each queue pair].
    #[arg(short, long, alias = "rx_depth", value_name = "N", help_heading = HEADING)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub rx_depth: Option<u32>,
    /// The Data Sink receives from a queue that its queue pairs share (Sends; one for each shard).
    #[arg(long, alias = "use_srq", help_heading = HEADING)]
    pub use_srq: bool,
}

impl QueueArgs {
    /// Checks combinations of options.
    ///
    /// # Errors
    /// One line that names a remedy.
    pub(super) fn check(&self, test: Test, args: &TestArgs) -> anyhow::Result<()> {
        for (option, value) in [("-l", self.post_list), ("-Q", self.cq_mod)] {
            let Some(count) = value else { continue };
            let depth = args.tx_depth;
            ensure!(!test.is_latency(), "{option} needs a bandwidth test");
            ensure!(
                count <= depth,
                "{option} {count} exceeds the depth of {depth}: give -t {count} or more, or a \
                 smaller {option}"
            );
        }
        if let (Some(list), Some(signaled)) = (self.post_list, self.cq_mod) {
            ensure!(
                list.is_multiple_of(signaled) || signaled.is_multiple_of(list),
                "-l {list} -Q {signaled}: let one be a multiple of the other, so that the last \
                 request of a list is signaled"
            );
        }
        if let Some(list) = self.post_list {
            for size in args.sizes(test) {
                let longest = post_list_max(&args.run(test, size));
                ensure!(
                    u64::from(list) <= longest,
                    "the peer's buffers for messages of {size} bytes allow lists of {longest}: \
                     use -l {longest} or less"
                );
            }
        }
        ensure!(
            self.inline_size.is_none() || !test.transfer().is_fetch(),
            "{} fetches data, none of it is inline: omit -I",
            test.name()
        );
        ensure!(
            self.rx_depth.is_none() || test.transfer() == Transfer::Send || args.write_with_imm,
            "-r needs a test that consumes receives: send-bw, send-lat, or --write-with-imm"
        );
        ensure!(
            !self.use_srq || test.transfer() == Transfer::Send,
            "--use-srq needs send-bw or send-lat"
        );
        ensure!(
            !(self.events && test == Test::WriteLat),
            "write-lat polls memory, where nothing completes: omit -e, or use send-lat"
        );
        // A pong may be answered before its receive is posted again.
        let is_short = |size| args.run(test, size).credits < 2;
        ensure!(
            !(self.events && test == Test::SendLat && args.sizes(test).into_iter().any(is_short)),
            "send-lat with -e needs two receives: give -r 2 or more, and -t 2 or more with --verify"
        );
        let qps = args.qps();
        ensure!(
            !self.use_srq || self.rx_depth.is_none_or(|receives| receives >= qps),
            "--use-srq shares -r among {qps} queue pairs: give -r {qps} or more"
        );
        Ok(())
    }

    /// Returns the options that were given, named as in perftest's parameter block, with their
    /// values.
    pub(super) fn chosen(&self) -> impl Iterator<Item = (&'static str, String)> {
        let on = |is_on: bool| is_on.then(|| "ON".to_owned());
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let options = [
            ("Events", on(self.events)),
            ("Post List", number(self.post_list)),
            ("CQ Moderation", number(self.cq_mod)),
            ("Max inline data", self.inline_size.map(|size| format!("{size}[B]"))),
            ("RX depth", number(self.rx_depth)),
            ("Using SRQ", on(self.use_srq)),
        ];
        options.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }

    /// Returns the receives of one of `qps` queue pairs, if their number was chosen.
    pub(super) fn receives(self, qps: u32) -> Option<u32> {
        let shared_by = if self.use_srq { qps.max(1) } else { 1 };
        self.rx_depth.map(|receives| receives / shared_by)
    }

    /// Returns the number of requests per signaled one; 0: none was chosen.
    pub(super) fn signal_every(self) -> u32 {
        self.cq_mod.or(self.post_list).unwrap_or(0)
    }
}

/// Returns the longest list that a run's credits always suffice for: all but those that the peer
/// has not returned yet, because it returns several at a time.
fn post_list_max(run: &Run) -> u64 {
    match run.credits {
        0 => u64::MAX,
        credits => u64::from(credits) + 1 - credit_batch(run),
    }
}
