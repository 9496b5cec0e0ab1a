//! Both ends, the wire between them, and virtual time.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use ferrowarp_proto::ddp::testing::Arena;
use ferrowarp_proto::engine::{Engine, EngineConfig};
use ferrowarp_proto::time::{Instant, MICROSECOND};
use ferrowarp_proto::verbs::wc::{Completions, CqId, Wc};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::cut::cut;
use super::frames::{HeapDevice, PoolSizes};
use super::link::{Faults, Link};
use super::router::Router;

/// Completion queues of bounded length.
#[derive(Clone)]
pub struct Queues {
    queues: Rc<RefCell<Vec<VecDeque<Wc>>>>,
    len_max: usize,
}

impl Queues {
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

impl Completions for Queues {
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
pub type SimEngine = Engine<HeapDevice, Rc<Arena>, Queues>;

/// One end.
pub struct End {
    /// The engine.
    pub engine: SimEngine,
    /// Its registered memory.
    pub arena: Rc<Arena>,
    /// Its completion queues.
    pub queues: Queues,
}

/// How to make a world.
#[derive(Clone, Copy, Debug)]
pub struct WorldOptions {
    /// Decides everything.
    pub seed: u64,
    /// MTU of both ports.
    pub mtu: u16,
    /// What the wire does, both ways.
    pub faults: Faults,
    /// Pools of both ports.
    pub pools: PoolSizes,
    /// Received frames come as a head of this length and the rest.
    pub head_len: usize,
    /// Frames, and octets of copies, that an end may hold out of order.
    pub holds: (usize, usize),
    /// Octets of registered memory at each end.
    pub arena_len: usize,
    /// Completions that a queue holds.
    pub cq_len: usize,
    /// Settings of TCP beyond those of the port.
    pub timestamps: bool,
    /// See `timestamps`.
    pub sack: bool,
    /// Both ends have IPv6 addresses, else IPv4.
    pub ipv6: bool,
    /// The VLAN that all frames belong to.
    pub vlan: Option<u16>,
    /// The wire cuts packets into fragments of so many octets.
    pub cut_at: Option<usize>,
    /// The path's MTU is another than the ports', and changes.
    pub router: Option<Router>,
    /// Damage goes unnoticed by TCP, as if a router had repaired the checksums.
    pub repair_checksums: bool,
}

impl WorldOptions {
    /// A good wire of 1,500 octets and plenty of everything.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        let faults = Faults { delay_ns: 5 * MICROSECOND, ..Faults::NONE };
        Self {
            seed,
            mtu: 1500,
            faults,
            pools: PoolSizes { data: 1024, reserve: 16, control: 64 },
            head_len: usize::MAX,
            holds: (512, 16 << 20),
            arena_len: 4 << 20,
            cq_len: 4096,
            timestamps: true,
            sack: true,
            ipv6: false,
            vlan: None,
            cut_at: None,
            router: None,
            repair_checksums: false,
        }
    }
}

/// Two ends and the wire.
pub struct World {
    /// Left and right.
    pub ends: [End; 2],
    links: [Link<Vec<u8>>; 2],
    repair_checksums: bool,
    /// Virtual time.
    pub now: Instant,
    ipv6: bool,
    cut_at: Option<usize>,
    router: Option<Router>,
    /// All chance that is not an engine's.
    pub chance: SmallRng,
    /// Frames sent, both ways.
    pub frames: u64,
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
        let end = |index: usize| {
            let host = u8::try_from(index + 1).expect("two ends");
            let mac = [2, 0, 0, 0, 0, host];
            let mut device = HeapDevice::new(mac, options.mtu, options.pools, options.head_len);
            if options.repair_checksums {
                device.trust_the_wire();
            }
            let seed = options.seed ^ (index as u64 + 1).wrapping_mul(0x1234_5678_9abc_def1);
            let (ip, prefix_len) =
                if options.ipv6 { (address_v6(index), 64) } else { (address(index), 24) };
            let mut config = EngineConfig::new(ip, prefix_len, seed);
            config.vlan = options.vlan;
            (config.held_frames_max, config.held_octets_max) = options.holds;
            config.tcp.timestamps = options.timestamps;
            config.tcp.sack = options.sack;
            if let Some(router) = options.router {
                config.tcp.path_mtu.raise_ns = router.turn_ns / 4;
            }
            let arena = Rc::new(Arena::new(options.arena_len));
            let queues = Queues::new(16, options.cq_len);
            let engine = Engine::new(config, device, Rc::clone(&arena), queues.clone());
            End { engine, arena, queues }
        };
        let link = |salt: u64| Link::new(Faults::NONE, options.seed ^ salt);
        let mut world = Self {
            ends: [end(0), end(1)],
            links: [link(0x1e47), link(0x419b)],
            repair_checksums: options.repair_checksums,
            now: Instant::from_nanos(1000),
            ipv6: options.ipv6,
            cut_at: options.cut_at,
            router: options.router,
            chance: SmallRng::seed_from_u64(options.seed),
            frames: 0,
            capture: None,
        };
        world.damage(options.faults);
        world
    }

    /// Writes every frame that is sent, before the wire gets at it, to a capture file.
    ///
    /// # Panics
    /// If the file cannot be made.
    pub fn capture_to(&mut self, path: &str) {
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
    pub fn heal(&mut self) {
        self.router = None;
        for link in &mut self.links {
            link.set_faults(link.faults().healed());
        }
    }

    /// From now on the wire has these faults in both directions.
    pub fn damage(&mut self, faults: Faults) {
        // Damage that TCP cannot see must not touch the headers that only TCP checks.
        let spare_headers = faults.spare_headers || self.repair_checksums;
        for link in &mut self.links {
            link.set_faults(Faults { spare_headers, ..faults });
        }
    }

    /// Cuts the wire: nothing arrives any more.
    pub fn cut(&mut self) {
        self.damage(Faults { loss: 1.0, ..Faults::NONE });
    }

    /// Socket address of an end's port.
    #[must_use]
    pub fn socket(&self, end: usize, port: u16) -> SocketAddr {
        let ip = if self.ipv6 { address_v6(end) } else { address(end) };
        SocketAddr::new(ip, port)
    }

    /// Drives both ends until neither has anything to do at this moment, then moves time to the
    /// next thing that happens. False if nothing ever will.
    pub fn step(&mut self) -> bool {
        for _ in 0..64 {
            let mut worked = false;
            for index in 0..2 {
                let device = self.ends[index].engine.device();
                while let Some(frame) = self.links[1 - index].arrive(self.now.as_nanos()) {
                    device.inbound.borrow_mut().push_back(frame);
                }
                let outbound = Rc::clone(&device.outbound);
                worked |= self.ends[index].engine.drive(self.now);
                for frame in outbound.borrow_mut().drain(..) {
                    self.frames += 1;
                    self.capture(&frame);
                    let refused = self.router.and_then(|router| router.refuse(self.now, &frame));
                    if let Some(answers) = refused {
                        for answer in answers {
                            self.capture(&answer);
                            self.links[1 - index]
                                .send(self.now.as_nanos(), answer, |copy| Some(copy.clone()));
                        }
                        continue;
                    }
                    let id = u32::try_from(self.frames & 0xffff).expect("masked");
                    let parts = match self.cut_at {
                        Some(mtu) => cut(frame, mtu, id),
                        None => vec![frame],
                    };
                    for part in parts {
                        self.links[index]
                            .send(self.now.as_nanos(), part, |part| Some(part.clone()));
                    }
                }
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
            .chain(self.ends.iter().map(|end| end.engine.deadline()))
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
