//! The simulated network: both ends, the link between them, and virtual time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ferrowarp_proto::engine::{EngineConfig, PARTIAL_BYTES_MIN};
use ferrowarp_proto::tcp::{Algorithm, EcnMode};
use ferrowarp_proto::time::{Instant, MICROSECOND, MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::ConnParam;
use rand::SeedableRng;
use rand::rngs::SmallRng;

pub use super::end::{CompletionQueues, End, SimEngine};
use super::fault_schedule::{FaultSchedule, ScheduledFault};
use super::fragmenter::fragment;
use super::heap_device::{HeapDevice, PoolSizes, PortOffload};
use super::link::{Faults, LinkEmulator};
use super::router::Router;
use super::segment_mutator::{SegmentMutator, cut_payload};
use super::sim_port::ShardOptions;
use super::wire_invariants::WireChecker;
use crate::conn_param;
use crate::longest_poll::LongestPoll;
use crate::pcap::PcapWriter;

/// Frames that a port's receive ring holds; further arrivals are dropped.
const RING_LEN: usize = 1024;

/// TCP and MPA settings of one end.
#[derive(Clone, Copy, Debug)]
pub struct EndOptions {
    /// Offers timestamps.
    pub timestamps: bool,
    /// Offers SACK.
    pub sack: bool,
    /// ECN mode.
    pub ecn: EcnMode,
    /// Paces transmission over the round trip.
    pub pacing: bool,
    /// Congestion control.
    pub congestion: Algorithm,
    /// Initial and maximum receive window, in bytes.
    pub windows: (u32, u32),
    /// Requests markers in the received stream.
    pub markers: bool,
}

impl EndOptions {
    /// Defaults of the simulation.
    pub const DEFAULT: Self = Self {
        timestamps: true,
        sack: true,
        ecn: EcnMode::Accept,
        pacing: true,
        congestion: Algorithm::Cubic,
        windows: (256 * 1024, 6 * 1024 * 1024),
        markers: false,
    };
}

/// Longest time between two turns of the caller, who looks for events.
const CALLER_INTERVAL_NS: u64 = 4 * MILLISECOND;

/// Parameters of a simulated network.
#[derive(Clone, Copy, Debug)]
pub struct WorldOptions {
    /// Seed of all random numbers.
    pub seed: u64,
    /// MTU of both ports.
    pub mtu: u16,
    /// MTU for transmission in bytes, if less than `mtu`.
    pub send_mtu: u16,
    /// Largest packet that a port returns to itself, in bytes, if not `mtu`; 0: none.
    pub hairpin_mtu: Option<u16>,
    /// Faults of the link, in both directions.
    pub faults: Faults,
    /// Pool sizes of both ports.
    pub pools: PoolSizes,
    /// Length of the contiguous head of a received frame; the rest is only copied out.
    pub head_len: usize,
    /// Frames, and bytes of copies, that an end may buffer out of order.
    pub ooo_limits: (usize, usize),
    /// Bytes of memory for partial FPDUs of more than 2 KiB at each end.
    pub partial_bytes_max: usize,
    /// Bytes by which all receive windows of an end together may grow.
    pub window_growth_max: u64,
    /// Bytes of registered memory at each end.
    pub arena_len: usize,
    /// Capacity of a completion queue.
    pub cq_len: usize,
    /// TCP settings of each end.
    pub tcp: [EndOptions; 2],
    /// Scheduled faults, drawn from the seed: their number, and the nanoseconds in which they
    /// begin.
    pub scheduled_faults: Option<(usize, u64)>,
    /// Longest delay between two polls by an application, in nanoseconds; it also posts receive
    /// buffers late. `None`: applications poll after every step.
    pub app_delay_max_ns: Option<u64>,
    /// Keepalive interval in nanoseconds.
    pub keepalive_ns: Option<u64>,
    /// Every segment has to start at an FPDU boundary; windows and segments are large enough.
    pub fpdu_aligned: bool,
    /// Both ends use IPv6, else IPv4.
    pub ipv6: bool,
    /// VLAN of all frames.
    pub vlan: Option<u16>,
    /// A switch adds priority tags (VLAN ID 0) to untagged frames.
    pub priority_tags: bool,
    /// The link fragments packets to this many bytes.
    pub fragment_mtu: Option<usize>,
    /// The link cuts TCP segments to this many bytes of payload, as a host in between may do that
    /// offloads reception and transmission.
    pub cut_to: Option<usize>,
    /// A router with a smaller MTU than the ports; it changes.
    pub router: Option<Router>,
    /// TCP checksums are not verified, as if a router had recomputed them after the corruption.
    pub repair_checksums: bool,
    /// Work of the ports on sent frames, on request; received checksums are verified.
    pub offload: PortOffload,
    /// RDMA Writes are placed out of order where markers locate their FPDUs.
    pub ooo_placement: bool,
    /// MPA revision of every connection; 0 selects the protocol versions of the RDMA Consortium.
    pub revision: u8,
    /// Maximum number of half-open connections of an end; SYNs beyond it are answered with cookies.
    pub half_open_max: usize,
    /// Both ends have shards; `None`: each has one engine by itself.
    pub shards: Option<ShardOptions>,
    /// Frames and messages that are alone take the short way.
    pub short_way: bool,
}

impl WorldOptions {
    /// A fault-free link with an MTU of 1,500 bytes and ample resources.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        let faults = Faults { delay_ns: 5 * MICROSECOND, ..Faults::NONE };
        Self {
            seed,
            mtu: 1500,
            send_mtu: u16::MAX,
            hairpin_mtu: None,
            faults,
            pools: PoolSizes { data: 1024, reserve: 16, control: 64 },
            head_len: usize::MAX,
            ooo_limits: (512, 16 << 20),
            partial_bytes_max: 128 << 20,
            window_growth_max: 1 << 30,
            arena_len: 4 << 20,
            cq_len: 4096,
            tcp: [EndOptions::DEFAULT; 2],
            scheduled_faults: None,
            app_delay_max_ns: None,
            keepalive_ns: None,
            fpdu_aligned: false,
            ipv6: false,
            vlan: None,
            priority_tags: false,
            fragment_mtu: None,
            cut_to: None,
            router: None,
            repair_checksums: false,
            offload: PortOffload::None,
            ooo_placement: false,
            revision: 2,
            half_open_max: 1024,
            shards: None,
            short_way: true,
        }
    }

    /// As [`WorldOptions::new`], with memory for partial FPDUs and offloads of the ports that
    /// differ from seed to seed.
    #[must_use]
    pub const fn of_seed(seed: u64) -> Self {
        let partial_bytes_max = [PARTIAL_BYTES_MIN, 128 << 10, 128 << 20][(seed % 3) as usize];
        Self { partial_bytes_max, offload: PortOffload::of_seed(seed), ..Self::new(seed) }
    }
}

fn make_device(options: &WorldOptions, host: u8) -> HeapDevice {
    let mac = [2, 0, 0, 0, 0, host];
    let mut device = HeapDevice::new(mac, options.mtu, options.pools, options.head_len);
    device.set_send_mtu(options.send_mtu);
    device.set_hairpin_mtu(options.hairpin_mtu.unwrap_or(options.mtu));
    if options.repair_checksums {
        device.skip_checksums();
    } else {
        device.set_offload(options.offload);
    }
    device
}

fn make_end(options: &WorldOptions, index: usize, life: u64) -> End {
    let host = u8::try_from(index + 1).expect("two ends");
    let seed = options.seed ^ (index as u64 + 1).wrapping_mul(0x1234_5678_9abc_def1) ^ life << 40;
    let (ip, prefix_len) =
        if options.ipv6 { (address_v6(index), 64) } else { (address(index), 24) };
    let mut config = EngineConfig::new(ip, prefix_len, seed);
    config.vlan = options.vlan;
    config.short_way = options.short_way;
    (config.ooo_frames_max, config.ooo_bytes_max) = options.ooo_limits;
    config.partial_bytes_max = options.partial_bytes_max;
    config.window_growth_max = options.window_growth_max;
    config.half_open_max = options.half_open_max;
    // A loss burst may drop every SYN of the first ten seconds.
    config.startup_timeout_ns = 90 * SECOND;
    let end = &options.tcp[index];
    config.tcp.keepalive_ns = options.keepalive_ns;
    config.tcp.timestamps = end.timestamps;
    config.tcp.sack = end.sack;
    config.tcp.ecn = end.ecn;
    config.tcp.pacing = end.pacing;
    config.tcp.congestion = end.congestion;
    (config.tcp.recv_window, config.tcp.recv_window_max) = end.windows;
    if let Some(router) = options.router {
        let least = router.mtus.iter().copied().min().unwrap_or(usize::MAX);
        let path_mtu = &mut config.tcp.path_mtu;
        path_mtu.raise_ns = router.phase_ns / 4;
        path_mtu.floor_v4 = u16::try_from(least).unwrap_or(u16::MAX).min(path_mtu.floor_v4);
    }
    let shards = options.shards.as_ref().map(|shards| (shards.counts[index], shards));
    End::new(config, options.arena_len, options.cq_len, shards, || make_device(options, host))
}

/// True for an IPv4 TCP segment with payload and PSH.
fn is_pushed(frame: &[u8]) -> bool {
    const FLAGS: usize = 14 + 20 + 13;
    frame.len() > 66 && frame[23] == 6 && frame[FLAGS] & 8 != 0
}

/// The two ends and the link.
pub struct World {
    /// Left and right.
    pub ends: [End; 2],
    links: [LinkEmulator<Vec<u8>>; 2],
    repair_checksums: bool,
    /// Virtual time.
    pub now: Instant,
    /// Next time at which each application has work to do.
    pub app_wakeups: [Option<Instant>; 2],
    ipv6: bool,
    fragment_mtu: Option<usize>,
    router: Option<Router>,
    /// Random numbers of everything but the engines.
    pub rng: SmallRng,
    /// Frames sent, in both directions.
    pub frames: u64,
    /// Scheduled faults.
    pub schedule: FaultSchedule,
    /// Checks every segment, if set.
    pub invariants: Option<WireChecker>,
    /// Modifies segments in flight, if set.
    pub mutator: Option<SegmentMutator>,
    options: WorldOptions,
    /// See [`World::drop_next_tail`].
    drops_tail: bool,
    /// Time at which that segment was dropped.
    pub tail_dropped_at: Option<Instant>,
    /// Longest poll of an end, if set: printed and bounded at the end of the test.
    pub polls: Option<LongestPoll>,
    /// Engines created by [`World::restart_end`] so far.
    engines: u64,
    capture: Option<PcapWriter>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.polls.iter().for_each(LongestPoll::end);
    }
}

/// IPv4 address of an end.
#[must_use]
pub fn address(end: usize) -> IpAddr {
    let host = u8::try_from(end + 1).expect("two ends");
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, host))
}

/// IPv6 address of an end (benchmark range).
#[must_use]
pub fn address_v6(end: usize) -> IpAddr {
    let host = u16::try_from(end + 1).expect("two ends");
    IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, host))
}

impl World {
    /// Creates a network without connections.
    #[must_use]
    pub fn new(options: &WorldOptions) -> Self {
        let link = |salt: u64| LinkEmulator::new(Faults::NONE, options.seed ^ salt);
        let mut rng = SmallRng::seed_from_u64(options.seed);
        let schedule = match options.scheduled_faults {
            Some((count, span_ns)) => FaultSchedule::draw(&mut rng, count, span_ns),
            None => FaultSchedule::default(),
        };
        let mut world = Self {
            ends: [make_end(options, 0, 0), make_end(options, 1, 0)],
            links: [link(0x1e47), link(0x419b)],
            repair_checksums: options.repair_checksums,
            now: Instant::from_nanos(1000),
            app_wakeups: [None; 2],
            ipv6: options.ipv6,
            fragment_mtu: options.fragment_mtu,
            router: options.router,
            rng,
            frames: 0,
            schedule,
            invariants: None,
            mutator: None,
            options: *options,
            drops_tail: false,
            polls: None,
            tail_dropped_at: None,
            engines: 0,
            capture: None,
        };
        world.set_faults(options.faults);
        world
    }

    /// Connection parameters of an end.
    #[must_use]
    pub fn param(&self, end: usize) -> ConnParam {
        let WorldOptions { tcp, ooo_placement, revision, .. } = self.options;
        conn_param(|it| {
            it.markers = tcp[end].markers;
            it.ooo_placement = ooo_placement;
            it.revision = revision;
        })
    }

    /// True if RDMA Writes may be placed out of order.
    #[must_use]
    pub const fn allows_ooo_placement(&self) -> bool {
        self.options.ooo_placement
    }

    /// Longest delay between two polls by an application, in nanoseconds.
    #[must_use]
    pub const fn app_delay_max_ns(&self) -> Option<u64> {
        self.options.app_delay_max_ns
    }

    /// Checks every segment from now on.
    pub fn check_invariants(&mut self) {
        self.invariants = Some(WireChecker::new(self.options.fpdu_aligned));
    }

    /// Replaces the engine of an end by a new one at the same address, as after a crash: new port,
    /// memory and seed. The old one sends nothing more. Frames in flight stay in flight.
    pub fn restart_end(&mut self, index: usize) {
        self.engines += 1;
        self.ends[index] = make_end(&self.options, index, self.engines);
        if let Some(checker) = &mut self.invariants {
            checker.reset();
        }
    }

    /// Writes every frame sent to a capture file, before the link drops or changes it.
    ///
    /// # Panics
    /// If the file cannot be created.
    pub fn capture_to(&mut self, path: impl AsRef<Path>) {
        let writer = PcapWriter::create(path.as_ref()).expect("the capture file can be made");
        self.capture = Some(writer);
    }

    fn capture(&mut self, frame: &[u8]) {
        let Some(capture) = &mut self.capture else { return };
        let time = Duration::from_nanos(self.now.as_nanos());
        capture.write(time, frame).expect("the capture file takes more");
    }

    /// Ends all losses in both directions: every frame sent from now on arrives.
    pub fn clear_faults(&mut self) {
        self.schedule.clear();
        self.mutator = None;
        self.router = None;
        for link in &mut self.links {
            link.set_faults(link.faults().without_losses());
        }
    }

    /// Sets the faults of the link in both directions.
    pub fn set_faults(&mut self, faults: Faults) {
        // Corruption that TCP does not detect must spare the headers that only TCP's checksum
        // covers.
        let spare_headers = faults.payload_only || self.repair_checksums;
        for link in &mut self.links {
            link.set_faults(Faults { payload_only: spare_headers, ..faults });
        }
    }

    /// Drops the next segment of end 0 with PSH, the tail of a burst. For IPv4 without a VLAN.
    pub const fn drop_next_tail(&mut self) {
        self.drops_tail = true;
    }

    /// Drops all frames sent from now on.
    pub fn partition(&mut self) {
        self.set_faults(Faults { loss: 1.0, ..Faults::NONE });
    }

    /// Segments of no connection so far, at both ends.
    #[must_use]
    pub fn unmatched_count(&self) -> u64 {
        self.ends.iter().map(|end| end.count(|of| of.segments_unmatched)).sum()
    }

    /// Socket address of an end's port.
    #[must_use]
    pub fn socket(&self, end: usize, port: u16) -> SocketAddr {
        let ip = if self.ipv6 { address_v6(end) } else { address(end) };
        SocketAddr::new(ip, port)
    }

    /// Drives both ends until neither has work at the present time, then advances time to the next
    /// event. Returns false if there is none.
    ///
    /// # Panics
    /// If a segment violates an invariant.
    pub fn step(&mut self) -> bool {
        let mut polled_at = self.now;
        for pass in 0.. {
            let mut worked = false;
            polled_at = self.now;
            for index in 0..2 {
                self.apply_pool_faults(index);
                self.deliver_arrivals(index);
                if self.schedule.is_active(self.now, ScheduledFault::EnginePaused { end: index }) {
                    continue;
                }
                for shard in 0..self.ends[index].shard_count() {
                    if self.is_stalled(index, shard) {
                        continue;
                    }
                    worked |= self.drive(index, shard);
                    self.ends[index].check_unfinished_count(shard);
                    self.transmit_departures(index, shard);
                }
            }
            // Each pass costs time, as on a core.
            self.now = self.now + 500;
            if !worked {
                break;
            }
            if pass == 63 {
                // The caller has its turn; there is more to do at the present time.
                return true;
            }
        }
        // An end whose pass was due and did nothing waits for a free frame in an empty pool: it
        // polls again soon, or when anything else happens.
        let soon = polled_at + 20 * MICROSECOND;
        let poll = |at: Instant| if at <= polled_at { soon } else { at };
        let next = self
            .links
            .iter()
            .map(|link| link.next_arrival_ns().map(Instant::from_nanos))
            .chain((0..2).map(|index| self.next_pass(index).map(poll)))
            .chain([self.schedule.next_change(self.now)])
            .chain(self.app_wakeups)
            .flatten()
            .min();
        if let Some(next) = next {
            // What has become due during the passes is due now.
            self.now = self.now.max(next.min(polled_at + CALLER_INTERVAL_NS));
        }
        next.is_some()
    }

    /// Drives a shard once. True if it had anything to do.
    pub fn drive(&mut self, end: usize, shard: usize) -> bool {
        let Self { ends, polls, now, .. } = self;
        let mut drive = || ends[end].shard_mut(shard).drive(*now);
        match polls {
            Some(polls) => polls.time(drive),
            None => drive(),
        }
    }

    /// True if a shard is not driven at present, or has died.
    fn is_stalled(&self, end: usize, shard: usize) -> bool {
        let stall = ScheduledFault::ShardStalled { end, shard };
        self.ends[end].is_dead(shard) || self.schedule.is_active(self.now, stall)
    }

    /// Time of the next pass of an end, if nothing arrives before.
    fn next_pass(&self, end: usize) -> Option<Instant> {
        let until = |fault| self.schedule.active_until(self.now, fault);
        let of_shard = |shard| {
            let stall = until(ScheduledFault::ShardStalled { end, shard });
            stall.or_else(|| self.ends[end].shard(shard).deadline())
        };
        let pause = until(ScheduledFault::EnginePaused { end });
        pause.or_else(|| self.ends[end].live_shards().filter_map(of_shard).min())
    }

    /// Applies the scheduled pool faults to the port of an end.
    fn apply_pool_faults(&mut self, index: usize) {
        let drained = [
            self.schedule.is_active(self.now, ScheduledFault::DataPoolEmpty { end: index }),
            self.schedule.is_active(self.now, ScheduledFault::ControlPoolEmpty { end: index }),
        ];
        for engine in self.ends[index].shards() {
            engine.device().set_exhausted(drained);
        }
    }

    fn deliver_arrivals(&mut self, index: usize) {
        let has_no_buffers =
            self.schedule.is_active(self.now, ScheduledFault::NoRxBuffers { end: index });
        while let Some(mut frame) = self.links[1 - index].receive(self.now.as_nanos()) {
            let end = &mut self.ends[index];
            let shard = end.steer(self.now, &frame);
            let mut inbound = end.shard(shard).device().inbound.borrow_mut();
            if has_no_buffers || inbound.len() >= RING_LEN {
                continue;
            }
            if let Some(checker) = self.invariants.as_mut().filter(|_| self.fragment_mtu.is_none())
            {
                checker.on_received(index, &frame, !self.repair_checksums);
            }
            if self.options.priority_tags && self.options.vlan.is_none() && frame.len() > 12 {
                // Priority 5.
                frame.splice(12..12, [0x81, 0, 0xa0, 0]);
            }
            inbound.push_back(frame);
        }
    }

    fn transmit_departures(&mut self, index: usize, shard: usize) {
        let is_cut = self.schedule.is_active(self.now, ScheduledFault::LinkDown);
        let outbound = Rc::clone(&self.ends[index].shard(shard).device().outbound);
        if index == 0 && self.drops_tail {
            let mut outbound = outbound.borrow_mut();
            if let Some(last) = outbound.iter().position(|frame| is_pushed(frame)) {
                outbound.remove(last);
                self.frames += 1;
                self.drops_tail = false;
                self.tail_dropped_at = Some(self.now);
            }
        }
        for frame in outbound.borrow_mut().drain(..) {
            self.frames += 1;
            self.capture(&frame);
            if let Some(checker) = &mut self.invariants {
                checker.on_sent(index, &frame);
                if self.fragment_mtu.is_some() {
                    // The receiver gets fragments: account for the packet when it is sent.
                    checker.on_received(1 - index, &frame, false);
                }
            }
            if is_cut {
                continue;
            }
            let refused = self.router.and_then(|router| router.filter(self.now, &frame));
            if let Some(answers) = refused {
                for answer in answers {
                    self.capture(&answer);
                    self.links[1 - index]
                        .send(self.now.as_nanos(), answer, |copy| Some(copy.clone()));
                }
                continue;
            }
            let id = u32::try_from(self.frames & 0xffff).expect("masked");
            let parts = match (self.fragment_mtu, &mut self.mutator) {
                (Some(mtu), _) => fragment(frame, mtu, id),
                (None, Some(mutator)) => {
                    let mutated = mutator.mutate(frame);
                    for part in mutated.reverse {
                        self.links[1 - index].send(self.now.as_nanos(), part, |_| None);
                    }
                    mutated.forward
                }
                (None, None) => vec![frame],
            };
            let cut = |part: Vec<u8>| match self.options.cut_to {
                Some(len) => cut_payload(part, len),
                None => vec![part],
            };
            for part in parts.into_iter().flat_map(cut) {
                self.links[index].send(self.now.as_nanos(), part, |part| Some(part.clone()));
            }
        }
    }

    /// Steps until `done`, for at most `limit_ns` of virtual time. Returns true if `done` held.
    pub fn run_until(&mut self, limit_ns: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit_ns;
        loop {
            if done(self) {
                return true;
            }
            if self.now > end {
                return false;
            }
            if !self.step() {
                // Nothing is scheduled, but the caller may still post.
                self.now = self.now + MICROSECOND;
            }
        }
    }

    /// Steps for `time_ns` of virtual time.
    pub fn run_for(&mut self, time_ns: u64) {
        let end = self.now + time_ns;
        while self.now <= end && self.step() {}
        // Nothing is scheduled before it.
        self.now = self.now.max(end);
    }
}
