//! Both ends, the wire between them, and virtual time.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ferrowarp_proto::ddp::vec_memory::VecMemory;
use ferrowarp_proto::engine::{Engine, EngineConfig};
use ferrowarp_proto::tcp::{Algorithm, EcnMode};
use ferrowarp_proto::time::{Instant, MICROSECOND, SECOND};
use ferrowarp_proto::verbs::cm::ConnParam;
use ferrowarp_proto::verbs::wc::{Completions, CqId, Wc};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::fault_schedule::{FaultSchedule, ScheduledFault};
use super::fragmenter::fragment;
use super::frames::{HeapDevice, PoolSizes};
use super::link::{Faults, LinkEmulator};
use super::router::Router;
use super::segment_mutator::SegmentMutator;
use super::wire_invariants::WireChecker;

/// Frames that a port's receive ring takes; what comes beyond is lost.
const RING_LEN: usize = 1024;

/// Completion queues of bounded length.
#[derive(Clone)]
pub struct CompletionQueues {
    queues: Rc<RefCell<Vec<VecDeque<Wc>>>>,
    len_max: usize,
}

impl CompletionQueues {
    /// `count` queues of `len_max` completions each.
    #[must_use]
    pub fn new(count: usize, len_max: usize) -> Self {
        Self { queues: Rc::new(RefCell::new(vec![VecDeque::new(); count])), len_max }
    }

    /// Takes the oldest completion of a queue.
    pub fn poll(&self, cq: CqId) -> Option<Wc> {
        self.queues.borrow_mut()[cq.0 as usize].pop_front()
    }
}

impl Completions for CompletionQueues {
    fn push(&mut self, cq: CqId, wc: Wc) -> bool {
        let queue = &mut self.queues.borrow_mut()[cq.0 as usize];
        let fits = queue.len() < self.len_max;
        if fits {
            queue.push_back(wc);
        }
        fits
    }
}

/// An engine of the simulation.
pub type SimEngine = Engine<HeapDevice, Rc<VecMemory>, CompletionQueues>;

/// One end.
pub struct End {
    /// The engine.
    pub engine: SimEngine,
    /// Its registered memory.
    pub arena: Rc<VecMemory>,
    /// Its completion queues.
    pub queues: CompletionQueues,
}

/// Settings of TCP that an end has for itself.
#[derive(Clone, Copy, Debug)]
pub struct EndOptions {
    /// Offers timestamps.
    pub timestamps: bool,
    /// Offers SACK.
    pub sack: bool,
    /// What it thinks of ECN.
    pub ecn: EcnMode,
    /// Spreads its windows over the round trip.
    pub pacing: bool,
    /// Congestion control.
    pub congestion: Algorithm,
    /// Bytes of the receive window, and what it may grow to.
    pub windows: (u32, u32),
    /// Asks for markers in what it receives.
    pub markers: bool,
}

impl EndOptions {
    /// What an engine does unless told otherwise.
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

/// How to make a world.
#[derive(Clone, Copy, Debug)]
pub struct WorldOptions {
    /// Decides everything.
    pub seed: u64,
    /// MTU of both ports.
    pub mtu: u16,
    /// Bytes of the largest packet they send, if that is less.
    pub send_mtu: u16,
    /// What the wire does, both ways.
    pub faults: Faults,
    /// Pools of both ports.
    pub pools: PoolSizes,
    /// Received frames come as a head of this length and the rest.
    pub head_len: usize,
    /// Frames, and bytes of copies, that an end may hold out of order.
    pub ooo_limits: (usize, usize),
    /// Bytes by which the receive windows of an end may have grown.
    pub window_growth_max: u64,
    /// Bytes of registered memory at each end.
    pub arena_len: usize,
    /// Completions that a queue holds.
    pub cq_len: usize,
    /// Settings of TCP of each end.
    pub tcp: [EndOptions; 2],
    /// What happens, drawn anew for each seed: so many things, within so many nanoseconds.
    pub scheduled_faults: Option<(usize, u64)>,
    /// Applications look at their queues now and then, with rests of up to so many nanoseconds, and
    /// post receive buffers late; `None`: whenever they might.
    pub app_delay_max_ns: Option<u64>,
    /// A silent peer is probed after so many nanoseconds.
    pub keepalive_ns: Option<u64>,
    /// No byte leaves but from the start of an FPDU on: windows and segments are large.
    pub fpdu_aligned: bool,
    /// Both ends have IPv6 addresses, else IPv4.
    pub ipv6: bool,
    /// The VLAN that all frames belong to.
    pub vlan: Option<u16>,
    /// A switch adds tags of VLAN 0, which tell a priority, to frames without one.
    pub priority_tags: bool,
    /// The wire cuts packets into fragments of so many bytes.
    pub fragment_mtu: Option<usize>,
    /// The path's MTU is another than the ports', and changes.
    pub router: Option<Router>,
    /// Damage goes unnoticed by TCP, as if a router had repaired the checksums.
    pub repair_checksums: bool,
    /// The ports make checksums where they are asked to; what arrives is checked.
    pub offload: bool,
    /// RDMA Writes are placed ahead of their turn where markers show them.
    pub place_early: bool,
    /// MPA revision of every connection; 0 brings the versions of the RDMA Consortium.
    pub revision: u8,
}

impl WorldOptions {
    /// A good wire of 1,500 bytes and plenty of everything.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        let faults = Faults { delay_ns: 5 * MICROSECOND, ..Faults::NONE };
        Self {
            seed,
            mtu: 1500,
            send_mtu: u16::MAX,
            faults,
            pools: PoolSizes { data: 1024, reserve: 16, control: 64 },
            head_len: usize::MAX,
            ooo_limits: (512, 16 << 20),
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
            router: None,
            repair_checksums: false,
            offload: false,
            place_early: false,
            revision: 2,
        }
    }
}

fn make_end(options: &WorldOptions, index: usize, life: u64) -> End {
    let host = u8::try_from(index + 1).expect("two ends");
    let mac = [2, 0, 0, 0, 0, host];
    let mut device = HeapDevice::new(mac, options.mtu, options.pools, options.head_len);
    device.set_send_mtu(options.send_mtu);
    if options.repair_checksums {
        device.skip_checksums();
    } else if options.offload {
        device.offload_checksums();
    }
    let seed = options.seed ^ (index as u64 + 1).wrapping_mul(0x1234_5678_9abc_def1) ^ life << 40;
    let (ip, prefix_len) =
        if options.ipv6 { (address_v6(index), 64) } else { (address(index), 24) };
    let mut config = EngineConfig::new(ip, prefix_len, seed);
    config.vlan = options.vlan;
    (config.ooo_frames_max, config.ooo_bytes_max) = options.ooo_limits;
    config.window_growth_max = options.window_growth_max;
    // A burst may take every SYN of the first ten seconds.
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
    let arena = Rc::new(VecMemory::new(options.arena_len));
    let queues = CompletionQueues::new(16, options.cq_len);
    let engine = Engine::new(config, device, Rc::clone(&arena), queues.clone());
    End { engine, arena, queues }
}

/// A segment with payload and PSH, over IPv4.
fn is_pushed(frame: &[u8]) -> bool {
    const FLAGS: usize = 14 + 20 + 13;
    frame.len() > 66 && frame[23] == 6 && frame[FLAGS] & 8 != 0
}

/// Two ends and the wire.
pub struct World {
    /// Left and right.
    pub ends: [End; 2],
    links: [LinkEmulator<Vec<u8>>; 2],
    repair_checksums: bool,
    /// Virtual time.
    pub now: Instant,
    /// When an application wants to do something.
    pub app_wakeups: [Option<Instant>; 2],
    ipv6: bool,
    fragment_mtu: Option<usize>,
    router: Option<Router>,
    /// All chance that is not an engine's.
    pub rng: SmallRng,
    /// Frames sent, both ways.
    pub frames: u64,
    /// What happens when.
    pub schedule: FaultSchedule,
    /// Looks at every segment.
    pub invariants: Option<WireChecker>,
    /// Forges segments.
    pub mutator: Option<SegmentMutator>,
    options: WorldOptions,
    /// See [`World::drop_next_tail`].
    drops_tail: bool,
    /// When that was lost.
    pub tail_dropped_at: Option<Instant>,
    /// Engines made so far.
    engines: u64,
    capture: Option<PcapWriter<File>>,
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
    /// A world with no connection.
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
            tail_dropped_at: None,
            engines: 0,
            capture: None,
        };
        world.set_faults(options.faults);
        world
    }

    /// What an end brings to the set-up of a connection.
    #[must_use]
    pub fn param(&self, end: usize) -> ConnParam {
        let WorldOptions { tcp, place_early, revision, .. } = self.options;
        ConnParam { markers: tcp[end].markers, place_early, revision, ..ConnParam::default() }
    }

    /// RDMA Writes may be placed ahead of their turn.
    #[must_use]
    pub const fn allows_ooo_placement(&self) -> bool {
        self.options.place_early
    }

    /// How long an application may rest between two looks at its queues, in nanoseconds.
    #[must_use]
    pub const fn app_delay_max_ns(&self) -> Option<u64> {
        self.options.app_delay_max_ns
    }

    /// Looks at every segment from now on, and objects.
    pub fn check_invariants(&mut self) {
        self.invariants = Some(WireChecker::new(self.options.fpdu_aligned));
    }

    /// The engine of an end is gone without a word, and another one is at its address: another
    /// port, memory and seed. What is on the wire stays there.
    pub fn restart_end(&mut self, index: usize) {
        self.engines += 1;
        self.ends[index] = make_end(&self.options, index, self.engines);
        if let Some(watch) = &mut self.invariants {
            watch.reset();
        }
    }

    /// Writes every frame that is sent, before the wire gets at it, to a capture file.
    ///
    /// # Panics
    /// If the file cannot be made.
    pub fn capture_to(&mut self, path: impl AsRef<Path>) {
        let file = File::create(path).expect("the capture file can be made");
        let header = PcapHeader { datalink: DataLink::ETHERNET, ..PcapHeader::default() };
        self.capture =
            Some(PcapWriter::with_header(file, header).expect("the header can be written"));
    }

    fn capture(&mut self, frame: &[u8]) {
        let Some(capture) = &mut self.capture else { return };
        let packet = PcapPacket {
            timestamp: Duration::from_nanos(self.now.as_nanos()),
            orig_len: u32::try_from(frame.len()).expect("a frame is short"),
            data: Cow::Borrowed(frame),
        };
        capture.write_packet(&packet).expect("the capture file takes more");
    }

    /// Repairs the wire in both directions: what is sent from now on arrives.
    pub fn clear_faults(&mut self) {
        self.schedule.clear();
        self.mutator = None;
        self.router = None;
        for link in &mut self.links {
            link.set_faults(link.faults().without_losses());
        }
    }

    /// From now on the wire has these faults in both directions.
    pub fn set_faults(&mut self, faults: Faults) {
        // Damage that TCP cannot see must not touch the headers that only TCP checks.
        let spare_headers = faults.payload_only || self.repair_checksums;
        for link in &mut self.links {
            link.set_faults(Faults { payload_only: spare_headers, ..faults });
        }
    }

    /// The next segment of end 0 behind which nothing is ready is lost. For IPv4 without a VLAN.
    pub const fn drop_next_tail(&mut self) {
        self.drops_tail = true;
    }

    /// Cuts the wire: nothing arrives any more.
    pub fn partition(&mut self) {
        self.set_faults(Faults { loss: 1.0, ..Faults::NONE });
    }

    /// Socket address of an end's port.
    #[must_use]
    pub fn socket(&self, end: usize, port: u16) -> SocketAddr {
        let ip = if self.ipv6 { address_v6(end) } else { address(end) };
        SocketAddr::new(ip, port)
    }

    /// Drives both ends until neither has anything to do at this moment, then moves time to the
    /// next thing that happens. False if nothing ever will.
    ///
    /// # Panics
    /// If the watch objects to a segment.
    pub fn step(&mut self) -> bool {
        for _ in 0..64 {
            let mut worked = false;
            for index in 0..2 {
                self.apply_pool_faults(index);
                self.deliver_arrivals(index);
                if self.schedule.is_active(self.now, ScheduledFault::EnginePaused { end: index }) {
                    continue;
                }
                worked |= self.ends[index].engine.drive(self.now);
                self.transmit_departures(index);
            }
            // A pass costs time, as it does on a core.
            self.now = self.now + 500;
            if !worked {
                break;
            }
        }
        let next = self
            .links
            .iter()
            .map(|link| link.next_arrival_ns().map(Instant::from_nanos))
            .chain((0..2).map(|index| {
                let pause = self
                    .schedule
                    .active_until(self.now, ScheduledFault::EnginePaused { end: index });
                pause.or_else(|| self.ends[index].engine.deadline())
            }))
            .chain([self.schedule.next_change(self.now)])
            .chain(self.app_wakeups)
            .flatten()
            .min();
        match next {
            Some(next) => {
                // An end that waits for a frame from a drained pool looks again soon.
                let soon = self.now + 20 * MICROSECOND;
                self.now = if next <= self.now { soon } else { next };
                true
            }
            None => false,
        }
    }

    /// What the schedule has for the port of an end.
    fn apply_pool_faults(&mut self, index: usize) {
        let drained = [
            self.schedule.is_active(self.now, ScheduledFault::DataPoolEmpty { end: index }),
            self.schedule.is_active(self.now, ScheduledFault::ControlPoolEmpty { end: index }),
        ];
        self.ends[index].engine.device().set_exhausted(drained);
    }

    fn deliver_arrivals(&mut self, index: usize) {
        let is_deaf = self.schedule.is_active(self.now, ScheduledFault::NoRxBuffers { end: index });
        let device = self.ends[index].engine.device();
        while let Some(mut frame) = self.links[1 - index].receive(self.now.as_nanos()) {
            let mut inbound = device.inbound.borrow_mut();
            if is_deaf || inbound.len() >= RING_LEN {
                continue;
            }
            if let Some(watch) = self.invariants.as_mut().filter(|_| self.fragment_mtu.is_none()) {
                watch.on_received(index, &frame, !self.repair_checksums);
            }
            if self.options.priority_tags && self.options.vlan.is_none() && frame.len() > 12 {
                // Priority 5.
                frame.splice(12..12, [0x81, 0, 0xa0, 0]);
            }
            inbound.push_back(frame);
        }
    }

    fn transmit_departures(&mut self, index: usize) {
        let is_cut = self.schedule.is_active(self.now, ScheduledFault::LinkDown);
        let outbound = Rc::clone(&self.ends[index].engine.device().outbound);
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
            if let Some(watch) = &mut self.invariants {
                watch.on_sent(index, &frame);
                if self.fragment_mtu.is_some() {
                    // What arrives are pieces: what was sent has to do.
                    watch.on_received(1 - index, &frame, false);
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
            for part in parts {
                self.links[index].send(self.now.as_nanos(), part, |part| Some(part.clone()));
            }
        }
    }

    /// Steps until `done`, at most `limit_ns` of virtual time. True if it came to be.
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
                // Nothing is under way; the caller may still post.
                self.now = self.now + MICROSECOND;
            }
        }
    }
}
