//! The command line of iwperf, and the message sizes and queue depths that follow from it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::device::{DeviceArgs, QUEUE_ENTRIES_MAX};
use crate::environment;
use crate::host::Host;
use crate::listen_options::ListenArgs;
use crate::mpa_options::{IrdOrdArgs, MpaArgs};
use crate::option_values::{Checked, bytes, seconds};
use crate::perf::control::{
    FLAG_BIDIRECTIONAL, FLAG_CMP_SWAP, FLAG_CRC, FLAG_EVENTS, FLAG_IMMEDIATE, FLAG_SHARED_BUFFER,
    FLAG_SRQ, FLAG_VERIFY, Run,
};
use crate::perf::kind::{AtomicType, Test, Transfer};
use crate::perf::length_options::LengthArgs;
use crate::perf::limits::{ATOMIC_LEN, QPS_MAX, REGION_LEN_MAX, SIZE_MAX};
use crate::perf::perftest_options::PerftestArgs;
use crate::perf::queue_options::QueueArgs;
use crate::perf::session::completions_max;
use crate::shard_options::ShardArgs;

/// TCP port of perftest's programs, and of iwperf.
pub const PORT: u16 = 18515;
/// Limit, in bytes of each region, of the slots for verified messages: 128 of 8 MiB. Larger
/// messages have fewer slots, and as few outstanding messages.
const SLOT_MEMORY_MAX: u64 = 1 << 30;
/// Alignment of messages in bytes: a cache line.
const STRIDE_ALIGN: u64 = 64;

/// Bandwidth and latency of RDMA Write, Read, Send and atomic operations, as perftest.
///
/// Bandwidth counts bytes confirmed at the Data Sink. Latency of Writes and Sends is half the round
/// trip of a ping-pong; latency of RDMA Reads and atomic operations is the whole round trip.
#[derive(Debug, Parser)]
#[command(name = "iwperf", version = environment::version(), max_term_width = 100)]
pub struct IwperfOptions {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands of iwperf.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs client and server in this process over a pair of rings.
    Loop {
        /// Test to run.
        test: Test,
        /// Device and network.
        #[command(flatten)]
        device: DeviceArgs,
        /// Test options.
        #[command(flatten)]
        test_args: TestArgs,
    },
    /// Serves clients one after another until interrupted.
    Server(ServerArgs),
    /// Runs a test with a server.
    #[command(flatten)]
    Client(ClientCommand),
}

/// Tests with a server.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Bandwidth of RDMA Writes to HOST.
    WriteBw(ClientArgs),
    /// Bandwidth of RDMA Reads from HOST.
    ReadBw(ClientArgs),
    /// Bandwidth of Sends to HOST.
    SendBw(ClientArgs),
    /// Latency of RDMA Writes (ping-pong with HOST).
    WriteLat(ClientArgs),
    /// Latency of RDMA Reads from HOST.
    ReadLat(ClientArgs),
    /// Latency of Sends (ping-pong with HOST).
    SendLat(ClientArgs),
    /// Rate of atomic operations on memory of HOST.
    AtomicBw(ClientArgs),
    /// Latency of atomic operations on memory of HOST.
    AtomicLat(ClientArgs),
}

impl ClientCommand {
    /// Returns the test and its options.
    #[must_use]
    pub const fn test(&self) -> (Test, &ClientArgs) {
        match self {
            Self::WriteBw(args) => (Test::WriteBw, args),
            Self::ReadBw(args) => (Test::ReadBw, args),
            Self::SendBw(args) => (Test::SendBw, args),
            Self::WriteLat(args) => (Test::WriteLat, args),
            Self::ReadLat(args) => (Test::ReadLat, args),
            Self::SendLat(args) => (Test::SendLat, args),
            Self::AtomicBw(args) => (Test::AtomicBw, args),
            Self::AtomicLat(args) => (Test::AtomicLat, args),
        }
    }
}

impl Checked for IwperfOptions {
    fn check(&self) -> anyhow::Result<()> {
        match &self.command {
            Command::Loop { test, device, test_args } => {
                test_args.check(*test)?;
                device.check_pair()
            }
            Command::Server(args) => args.device.check_server(&args.listen),
            Command::Client(command) => {
                let (test, args) = command.test();
                args.test_args.check(test)?;
                args.device.check_client(&args.host)
            }
        }
    }
}

/// Options of the server.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// Device and network.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Shards.
    #[command(flatten)]
    pub shards: ShardArgs,
    /// IRD and ORD.
    #[command(flatten)]
    pub reads: IrdOrdArgs,
    /// TCP port to listen on. Clients with more than 32,768 queue pairs also use the next port.
    #[arg(short, long, default_value_t = PORT)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Address to listen on.
    #[command(flatten)]
    pub listen: ListenArgs,
    /// Serves tests with -e: a thread of the stack polls the device while the server sleeps.
    #[arg(short, long)]
    pub events: bool,
    /// Options of perftest without an effect.
    #[command(flatten)]
    pub perftest: PerftestArgs,
    /// Exits after one client, with its result as exit status.
    #[arg(long)]
    pub once: bool,
    /// Aborts a session after so many seconds without progress.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub timeout: Duration,
    /// Writes the environment and the port's counters at the end to this file, as JSON. The client
    /// has the results.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of a client.
#[derive(Clone, Debug, Args)]
pub struct ClientArgs {
    /// Address or name of the server, optionally with a port: `[2001:2::1]:4420`, db1.
    pub host: Host,
    /// TCP port of the server.
    #[arg(short, long, default_value_t = PORT)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Device and network.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Test options.
    #[command(flatten)]
    pub test_args: TestArgs,
}

/// Options of a test.
#[derive(Clone, Debug, Args)]
pub struct TestArgs {
    /// Bytes per message, suffix K or M [default: 65536 for bandwidth, 2 for latency; atomic
    /// operations always have 8].
    #[arg(short, long, value_parser = size, conflicts_with = "all")]
    pub size: Option<u64>,
    /// Runs all sizes from 2 bytes to 8 MiB, in powers of two.
    #[arg(short, long)]
    pub all: bool,
    /// Length of a run.
    #[command(flatten)]
    pub length: LengthArgs,
    /// Number of queue pairs, spread evenly over the shards (bandwidth only) [default: one for each
    /// shard]. With many, lower -t: each connection takes memory for -t requests.
    #[arg(short, long)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(QPS_MAX)))]
    pub qps: Option<u32>,
    /// Shards; latency tests have one queue pair in each.
    #[command(flatten)]
    pub shards: ShardArgs,
    /// Outstanding requests per queue pair.
    #[arg(short, long, default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub tx_depth: u32,
    /// Posting and completion.
    #[command(flatten)]
    pub queues: QueueArgs,
    /// Outstanding RDMA Reads or atomic operations per queue pair; default of --ird and --ord.
    #[arg(short, long, default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128))]
    pub outs: u16,
    /// Atomic operation.
    #[arg(short = 'A', long, value_enum, default_value_t, value_name = "TYPE")]
    pub atomic_type: AtomicType,
    /// RDMA Writes with immediate data (write-bw only): each consumes a receive at the Data Sink,
    /// which counts it.
    #[arg(long)]
    pub write_with_imm: bool,
    /// Measures both directions at once and reports the sum (bandwidth only).
    #[arg(short, long)]
    pub bidirectional: bool,
    /// Disables the MPA CRC if the peer agrees.
    #[arg(long, help_heading = "MPA")]
    pub no_crc: bool,
    /// Requests MPA markers in received FPDUs; an iwperf server then requests them in return.
    #[arg(long, help_heading = "MPA")]
    pub markers: bool,
    /// MPA startup.
    #[command(flatten)]
    pub mpa: MpaArgs,
    /// IRD and ORD.
    #[command(flatten)]
    pub reads: IrdOrdArgs,
    /// Uses one buffer at each end for all queue pairs instead of one each (bandwidth only), to
    /// measure the cost of many queue pairs without the cache misses of their messages.
    #[arg(long, conflicts_with = "verify")]
    pub shared_buffer: bool,
    /// Verifies every byte of every message at the Data Sink, in --tx-depth buffers. If these would
    /// exceed 1 GiB, there are fewer buffers and as few outstanding messages.
    #[arg(long)]
    pub verify: bool,
    /// Writes the results as JSON, also if the run fails. With several shards, `shards` in each
    /// result has the figures of each.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes the latencies as an HdrHistogram log (latency only), in nanoseconds.
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,
    /// Aborts after so many seconds without progress of the peer.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub timeout: Duration,
    /// Options of perftest without an effect.
    #[command(flatten)]
    pub perftest: PerftestArgs,
}

impl TestArgs {
    /// Checks combinations of options.
    ///
    /// # Errors
    /// One line that names a remedy.
    pub fn check(&self, test: Test) -> anyhow::Result<()> {
        let (qps, shards) = (self.qps(), u32::try_from(self.shards.shards)?);
        if test.is_latency() {
            let expected = if shards == 1 { "one queue pair" } else { "one queue pair per shard" };
            anyhow::ensure!(qps == shards, "{} uses {expected}: omit -q", test.name());
            anyhow::ensure!(!self.bidirectional, "{} is bidirectional: omit -b", test.name());
            let own = !self.shared_buffer;
            anyhow::ensure!(own, "--shared-buffer needs a bandwidth test");
        } else {
            anyhow::ensure!(self.hdr.is_none(), "--hdr needs a latency test");
        }
        anyhow::ensure!(
            !self.write_with_imm || test == Test::WriteBw,
            "--write-with-imm needs write-bw"
        );
        if test.transfer() == Transfer::Atomic {
            let fits = !self.all && self.size.is_none_or(|size| size == ATOMIC_LEN);
            anyhow::ensure!(fits, "atomic operations have {ATOMIC_LEN} bytes: omit -s and -a");
        } else {
            let unused = self.atomic_type == AtomicType::default();
            anyhow::ensure!(unused, "-A needs atomic-bw or atomic-lat");
        }
        self.mpa.check(!self.no_crc, false)?;
        anyhow::ensure!(
            self.mpa.revision() > 0
                || !(self.write_with_imm || test.transfer() == Transfer::Atomic),
            "MPA revision 0 has neither atomic operations nor immediate data: ask for 1 or 2"
        );
        anyhow::ensure!(
            qps >= shards,
            "{shards} shards for {qps} queue pairs: give -q {shards} or more, or fewer --shards"
        );
        self.length.check(test)?;
        self.queues.check(test, self)?;
        let entries = completions_max(qps, self.tx_depth, self.rx_depth(test)) as u64;
        anyhow::ensure!(
            entries <= QUEUE_ENTRIES_MAX,
            "the queues would have {entries} entries at each end, of {QUEUE_ENTRIES_MAX}: use \
             fewer -q or a smaller -t"
        );
        let buffers = if self.shared_buffer { shards } else { qps };
        let span = self.span(test).saturating_mul(u64::from(buffers));
        anyhow::ensure!(
            span <= REGION_LEN_MAX,
            "the messages would take {} MiB of memory at each end: use fewer -q or a smaller -s",
            span >> 20
        );
        Ok(())
    }

    /// Returns the number of queue pairs.
    #[must_use]
    pub fn qps(&self) -> u32 {
        let one_each = u32::try_from(self.shards.shards).unwrap_or(u32::MAX);
        self.qps.unwrap_or(one_each)
    }

    /// Returns IRD and ORD of the loop's server: its IRD is the client's ORD and vice versa, also
    /// if the MPA revision does not negotiate them.
    #[must_use]
    pub fn peer_ird_ord(&self) -> IrdOrdArgs {
        let swapped = |reads: Option<u16>| Some(reads.unwrap_or(self.outs));
        IrdOrdArgs { ird: swapped(self.reads.ord), ord: swapped(self.reads.ird) }
    }

    /// Returns the message sizes to run, in order.
    #[must_use]
    pub fn sizes(&self, test: Test) -> Vec<u64> {
        if test.transfer() == Transfer::Atomic {
            vec![ATOMIC_LEN]
        } else if self.all {
            (1..=23).map(|bits| 1 << bits).collect()
        } else {
            vec![self.size.unwrap_or(if test.is_latency() { 2 } else { 65536 })]
        }
    }

    /// Returns the flags of the control exchange.
    #[must_use]
    pub const fn flags(&self) -> u8 {
        (if self.verify { FLAG_VERIFY } else { 0 })
            | (if self.bidirectional { FLAG_BIDIRECTIONAL } else { 0 })
            | (if self.no_crc { 0 } else { FLAG_CRC })
            | (if matches!(self.atomic_type, AtomicType::CmpSwap) { FLAG_CMP_SWAP } else { 0 })
            | (if self.write_with_imm { FLAG_IMMEDIATE } else { 0 })
            | (if self.shared_buffer { FLAG_SHARED_BUFFER } else { 0 })
            | (if self.queues.use_srq { FLAG_SRQ } else { 0 })
            | (if self.queues.events { FLAG_EVENTS } else { 0 })
    }

    /// Returns the receives that the passive side posts per queue pair. If unverified messages
    /// consume receives, there are twice as many as the depth, so that the sender need not wait for
    /// a credit while the sink reposts receives.
    #[must_use]
    pub fn rx_depth(&self, test: Test) -> u32 {
        if let Some(receives) = self.queues.receives(self.qps()) {
            return receives;
        }
        match (test.transfer(), self.verify) {
            (Transfer::Send, false) => 2 * self.tx_depth,
            (Transfer::Write, false) if self.write_with_imm => 2 * self.tx_depth,
            _ => self.tx_depth,
        }
    }

    /// Returns the bytes of a region that one queue pair needs.
    #[must_use]
    pub fn span(&self, test: Test) -> u64 {
        let spans = self.sizes(test).into_iter().map(|size| {
            let run = self.run(test, size);
            run.stride * u64::from(run.slots)
        });
        spans.max().unwrap_or(STRIDE_ALIGN)
    }

    /// Returns the run for one size.
    #[must_use]
    pub fn run(&self, test: Test, size: u64) -> Run {
        let stride = size.next_multiple_of(STRIDE_ALIGN);
        let slots = if self.verify {
            let slots_max = SLOT_MEMORY_MAX / u64::from(self.qps()) / stride;
            u32::try_from(slots_max).unwrap_or(u32::MAX).clamp(1, self.tx_depth)
        } else {
            1
        };
        let credits = match (test.transfer(), self.verify) {
            // The polling side detects each message itself.
            (Transfer::Write, _) if test.is_latency() => 0,
            // Results are kept apart by the depth alone.
            (Transfer::Atomic, _) => 0,
            (_, true) => slots.min(self.rx_depth(test)),
            (Transfer::Send, false) => self.rx_depth(test),
            (Transfer::Write, false) if self.write_with_imm => self.rx_depth(test),
            (Transfer::Write | Transfer::Read, false) => 0,
        };
        Run {
            size,
            iterations: self.length.iterations(test),
            duration_ms: self.length.duration_ms(),
            stride,
            slots,
            credits,
            post_list: self.queues.post_list.unwrap_or(0),
            cq_mod: self.queues.signal_every(),
        }
    }
}

fn size(text: &str) -> Result<u64, String> {
    bytes(text, SIZE_MAX)
}

#[cfg(test)]
#[path = "iwperf_options_tests.rs"]
mod tests;
