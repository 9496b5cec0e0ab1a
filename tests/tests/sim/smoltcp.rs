//! Our TCP against another implementation, smoltcp's, over a faulty wire in virtual time: both
//! roles, data both ways, closes in each order, every byte compared.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use ferrowarp_proto::device::{ChecksumMode, RxFrame};
use ferrowarp_proto::tcp::{
    Config, Contiguous, Delivered, Event, IssAndTsOffset, OooPool, State, Tcb, Transmit, TxDemand,
};
use ferrowarp_proto::time::{Instant, MICROSECOND, SECOND};
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Flags, FourTuple, HeaderTemplate, Segment};
use ferrowarp_tests::frame::{Frame, OutFrame};
use ferrowarp_tests::ip;
use ferrowarp_tests::sim::link::{Faults, LinkEmulator};
use ferrowarp_tests::sim::seeds;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

/// MAC addresses of our end and of smoltcp's.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const IPS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
const PORTS: [u16; 2] = [40_000, 4420];
/// Maximum bytes of headers before the TCP payload.
const ROOM: usize = 100;

fn byte(side: usize, at: u64) -> u8 {
    (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ side as u64).to_be_bytes()[0]
}

/// Our end: a plain byte stream in records.
struct Ours {
    tcb: Option<Tcb<Frame, Frame>>,
    cfg: Arc<Config>,
    pool: OooPool<Frame>,
    to_write: u64,
    written: u64,
    read: u64,
    record_len: usize,
    /// Bytes not yet consumed by a slow application, and the most it leaves unconsumed.
    app_held: u32,
    app_held_max: u32,
    peer_closed: bool,
    failed: Option<Event>,
}

impl Ours {
    fn check(&mut self, frame: &impl RxFrame, bytes: &Range<usize>) {
        let mut found = vec![0; bytes.len()];
        frame.copy_out(bytes.start, &mut found);
        for found in found {
            assert_eq!(found, byte(1, self.read), "byte {} of theirs", self.read);
            self.read += 1;
        }
        let len = u32::try_from(bytes.len()).expect("short");
        if self.app_held + len <= self.app_held_max {
            self.app_held += len;
            self.tcb.as_mut().expect("connected").add_unconsumed(len);
        }
    }

    fn receive(&mut self, now: Instant, frame: Vec<u8>, iss: u32) {
        let frame = Frame::from(frame);
        let Ok(seg) = Segment::parse(&frame, ChecksumMode::Software) else { return };
        if self.tcb.is_none() && seg.flags.has(Flags::SYN) && !seg.flags.has(Flags::ACK) {
            let template = HeaderTemplate::new(MACS[0], MACS[1], seg.tuple);
            self.tcb = Some(Tcb::accept(now, &self.cfg, template, &seg, iss_and_ts_offset(iss)));
            return;
        }
        let Some(tcb) = &mut self.tcb else { return };
        match tcb.handle_segment(now, &seg, frame) {
            Delivered::Nothing => {}
            Delivered::InOrder { frame, bytes } => {
                self.check(&frame, &bytes);
                while let Some(next) = self.tcb.as_mut().expect("connected").next_contiguous() {
                    match next {
                        Contiguous::Buffered { segment: held, bytes } => {
                            self.check(&held, &bytes);
                            self.pool.release(held);
                        }
                        Contiguous::Consumed { .. } => unreachable!("nothing is taken early"),
                    }
                }
            }
            Delivered::OutOfOrder { frame, offer } => {
                let _ = tcb.buffer_ooo(&mut self.pool, offer, frame);
            }
        }
        let tcb = self.tcb.as_mut().expect("connected");
        tcb.release_ooo(&mut self.pool);
        self.handle_events();
    }

    fn handle_events(&mut self) {
        let Some(tcb) = &mut self.tcb else { return };
        while let Some(event) = tcb.poll_event() {
            match event {
                Event::Established => tcb.open_window(),
                Event::RcvWndLimited => tcb.grow_window(tcb.window_wanted()),
                Event::PeerClosed => self.peer_closed = true,
                Event::Reset | Event::TimedOut => self.failed = Some(event),
                _ => {}
            }
        }
    }

    fn transmit(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let Some(tcb) = &mut self.tcb else { return frames };
        let mut buf = vec![0; ROOM + tcb.emss().max(60)];
        loop {
            let len = self.to_write.min(self.record_len.min(tcb.emss()) as u64);
            let len32 = u32::try_from(len).expect("a record is short");
            let ready = if len > 0 { TxDemand::Record(len32) } else { TxDemand::Nothing };
            let len = match tcb.next_transmit(now, ready) {
                Transmit::Idle => break,
                Transmit::Control(plan) => tcb.write_control(now, plan, &mut buf),
                Transmit::Retransmit(plan) => tcb.write_retransmit(now, plan, &mut buf),
                Transmit::NewData(plan) => {
                    let start = tcb.header_len();
                    let payload_len = len32 as usize;
                    for place in &mut buf[start..start + payload_len] {
                        *place = byte(0, self.written);
                        self.written += 1;
                    }
                    self.to_write -= len;
                    let len = start + payload_len;
                    let mut frame = OutFrame(buf[..len].to_vec());
                    let push = self.to_write == 0;
                    if !tcb.send_new_data(now, plan, &mut frame, payload_len, push) {
                        continue;
                    }
                    buf[..len].copy_from_slice(&frame.0);
                    len
                }
            };
            frames.push(buf[..len].to_vec());
            assert!(frames.len() < 10_000, "output never ends");
        }
        self.handle_events();
        frames
    }

    fn is_closed(&self) -> bool {
        self.tcb.as_ref().is_some_and(Tcb::is_closed)
    }
}

fn iss_and_ts_offset(iss: u32) -> IssAndTsOffset {
    IssAndTsOffset { iss: Seq(iss), ts_offset: iss.wrapping_mul(0x9e37_79b1) }
}

/// smoltcp's device.
#[derive(Default)]
struct Port {
    inbound: VecDeque<Vec<u8>>,
    outbound: Vec<Vec<u8>>,
}

struct RxToken(Vec<u8>);

impl phy::RxToken for RxToken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct TxToken<'a>(&'a mut Vec<Vec<u8>>);

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push(frame);
        result
    }
}

impl phy::Device for Port {
    type RxToken<'a> = RxToken;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(RxToken, TxToken<'_>)> {
        Some((RxToken(self.inbound.pop_front()?), TxToken(&mut self.outbound)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<TxToken<'_>> {
        Some(TxToken(&mut self.outbound))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// smoltcp's end.
struct Theirs {
    port: Port,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    to_write: u64,
    written: u64,
    read: u64,
    /// Maximum bytes read per step: a slow application's window closes.
    pace: usize,
}

impl Theirs {
    fn new(seed: u64, buffer_len: usize, to_write: u64, pace: usize) -> Self {
        let mut port = Port::default();
        let mac = HardwareAddress::Ethernet(EthernetAddress(MACS[1]));
        let mut config = InterfaceConfig::new(mac);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut port, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(IpAddress::Ipv4(IPS[1]), 24)).expect("room for one");
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; buffer_len]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(seed.is_multiple_of(2));
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Self { port, interface, sockets, handle, to_write, written: 0, read: 0, pace }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn listen(&mut self) {
        self.socket().listen(PORTS[1]).expect("unused");
    }

    fn connect(&mut self) {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        let remote = (IpAddress::Ipv4(IPS[0]), PORTS[0]);
        socket.connect(self.interface.context(), remote, PORTS[1]).expect("unused");
    }

    /// Reads, writes, and polls the interface.
    fn work(&mut self, now: Instant) {
        let at = smoltcp::time::Instant::from_micros(
            i64::try_from(now.as_micros()).expect("not that long"),
        );
        let _ = self.interface.poll(at, &mut self.port, &mut self.sockets);
        let (mut read, mut written, mut to_write) = (self.read, self.written, self.to_write);
        let pace = self.pace;
        let socket = self.socket();
        if socket.can_recv() {
            let taken = socket.recv(|data| {
                let len = data.len().min(pace);
                for &found in &data[..len] {
                    assert_eq!(found, byte(0, read), "byte {read} of ours");
                    read += 1;
                }
                (len, ())
            });
            taken.expect("open");
        }
        if to_write > 0 && socket.can_send() {
            let sent = socket.send(|room| {
                let len = room.len().min(usize::try_from(to_write).unwrap_or(usize::MAX));
                for place in &mut room[..len] {
                    *place = byte(1, written);
                    written += 1;
                }
                (len, len as u64)
            });
            to_write -= sent.expect("open");
        }
        (self.read, self.written, self.to_write) = (read, written, to_write);
        let _ = self.interface.poll(at, &mut self.port, &mut self.sockets);
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let at = smoltcp::time::Instant::from_micros(
            i64::try_from(now.as_micros()).expect("not that long"),
        );
        let next = self.interface.poll_at(at, &self.sockets)?;
        Some(Instant::from_nanos(u64::try_from(next.total_micros()).unwrap_or(0) * 1000))
    }
}

/// The end that closes first.
#[derive(Clone, Copy, PartialEq)]
enum First {
    Ours,
    Theirs,
    Both,
}

struct Run {
    ours: Ours,
    theirs: Theirs,
    /// From our end, from smoltcp's.
    links: [LinkEmulator<Vec<u8>>; 2],
    now: Instant,
    steps: u64,
    iss: u32,
    first: First,
    bytes: [u64; 2],
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let bytes = [0, 1].map(|_| [0, 1000, 60_000, 200_000][rng.random_range(0..4)]);
        let delay_ns = rng.random_range(1..2000) * MICROSECOND;
        let faults = Faults {
            loss: rng.random_range(0.0..0.04),
            duplicate: rng.random_range(0.0..0.03),
            reorder: rng.random_range(0.0..0.05),
            corrupt: rng.random_range(0.0..0.01),
            delay_ns,
            jitter_ns: delay_ns / 4,
            ..Faults::NONE
        };
        let window = [4000, 60_000, 1 << 18][rng.random_range(0..3)];
        let mut cfg = Config::default();
        cfg.recv_window = window;
        cfg.recv_window_max = window * [1, 4][rng.random_range(0..2)];
        cfg.timestamps = rng.random_bool(0.5);
        cfg.sack = rng.random_bool(0.5);
        let ours = Ours {
            tcb: None,
            cfg: Arc::new(cfg),
            pool: OooPool::new(40, 1 << 20, 1460),
            to_write: bytes[0],
            written: 0,
            read: 0,
            record_len: [usize::MAX, 1000, 77][rng.random_range(0..3)],
            app_held: 0,
            app_held_max: [0, 3000, 100_000][rng.random_range(0..3)],
            peer_closed: false,
            failed: None,
        };
        let buffer_len = [2000, 16_000, 200_000][rng.random_range(0..3)];
        let pace = [usize::MAX, 700][rng.random_range(0..2)];
        let first = [First::Ours, First::Theirs, First::Both][rng.random_range(0..3)];
        Self {
            ours,
            theirs: Theirs::new(seed, buffer_len, bytes[1], pace),
            links: [LinkEmulator::new(faults, seed), LinkEmulator::new(faults, !seed)],
            now: Instant::from_nanos(SECOND),
            steps: 0,
            iss: 0u32.wrapping_sub(rng.random_range(0..100_000)),
            first,
            bytes,
        }
    }

    fn step(&mut self) {
        for frame in self.ours.transmit(self.now) {
            self.links[0].send(self.now.as_nanos(), frame, |frame| Some(frame.clone()));
        }
        for frame in std::mem::take(&mut self.theirs.port.outbound) {
            match ip::arp_reply(&frame, MACS[0]) {
                Some(answer) => self.theirs.port.inbound.push_back(answer),
                None => self.links[1].send(self.now.as_nanos(), frame, |frame| Some(frame.clone())),
            }
        }
        let arrivals = self.links.iter().filter_map(|link| link.next_arrival_ns());
        let arrivals = arrivals.map(Instant::from_nanos);
        let ours = self.ours.tcb.as_ref().and_then(Tcb::deadline);
        let theirs = self.theirs.deadline(self.now);
        // A slow application polls again soon.
        let soon = self.now + 200 * MICROSECOND;
        let next = arrivals.chain(ours).chain(theirs).chain([soon]).min().expect("soon");
        self.now = next.max(self.now + MICROSECOND);
        while let Some(frame) = self.links[1].receive(self.now.as_nanos()) {
            self.ours.receive(self.now, frame, self.iss);
        }
        while let Some(frame) = self.links[0].receive(self.now.as_nanos()) {
            self.theirs.port.inbound.push_back(frame);
        }
        if let Some(tcb) = &mut self.ours.tcb {
            tcb.handle_timeout(self.now);
            self.steps += 1;
            if self.steps.is_multiple_of(5) {
                tcb.consume(std::mem::take(&mut self.ours.app_held));
            }
        }
        self.ours.handle_events();
        self.theirs.work(self.now);
        self.close();
    }

    /// Closes each end that has written all its data, if it is to close now.
    fn close(&mut self) {
        let peer_closed = self.ours.peer_closed;
        let turn = self.first != First::Theirs || peer_closed;
        if let Some(tcb) = &mut self.ours.tcb
            && self.ours.to_write == 0
            && turn
            && matches!(tcb.state(), State::Established | State::CloseWait)
        {
            tcb.close();
        }
        let turn = self.first != First::Ours;
        let to_write = self.theirs.to_write;
        let socket = self.theirs.socket();
        let open = matches!(socket.state(), tcp::State::Established | tcp::State::CloseWait);
        let theirs_turn = turn || socket.state() == tcp::State::CloseWait;
        if to_write == 0 && open && theirs_turn {
            socket.close();
        }
    }

    fn run(&mut self, passive: bool) {
        if passive {
            self.theirs.connect();
        } else {
            self.theirs.listen();
            let socket = |side: usize| SocketAddr::new(IpAddr::V4(IPS[side]), PORTS[side]);
            let tuple = FourTuple { local: socket(0), remote: socket(1) };
            let template = HeaderTemplate::new(MACS[0], MACS[1], tuple);
            let tcb = Tcb::connect(self.now, &self.ours.cfg, template, iss_and_ts_offset(self.iss));
            self.ours.tcb = Some(tcb);
        }
        let limit = self.now + 300 * SECOND;
        let gone = |run: &mut Self| {
            use tcp::State::{Closed, Closing, LastAck, TimeWait};
            let theirs = run.theirs.socket().state();
            // Our TIME-WAIT may have expired while the ACK of their FIN was lost: an engine would
            // respond to the next FIN with RST.
            run.ours.is_closed() && matches!(theirs, Closed | TimeWait | Closing | LastAck)
        };
        while !gone(self) {
            let their_state = self.theirs.socket().state();
            assert!(self.ours.failed.is_none(), "ended by {:?}", self.ours.failed);
            assert!(
                self.now < limit,
                "no progress: we read {} and are {:?}, they read {} and are {:?}",
                self.ours.read,
                self.ours.tcb.as_ref().map(Tcb::state),
                self.theirs.read,
                their_state,
            );
            self.step();
        }
        // Data that they have not read yet is still there.
        while self.theirs.socket().can_recv() {
            self.theirs.work(self.now);
        }
        assert_eq!([self.theirs.read, self.ours.read], self.bytes);
        assert_eq!((self.ours.pool.frames(), self.ours.pool.bytes()), (0, 0));
    }
}

// req-test: MPA-005
#[test]
fn data_survives_a_faulty_wire_in_both_roles() {
    seeds::for_each_seed("smoltcp", env!("CARGO_TARGET_TMPDIR"), 300, |seed, _| {
        for passive in [false, true] {
            Run::new(seed).run(passive);
        }
    });
}
