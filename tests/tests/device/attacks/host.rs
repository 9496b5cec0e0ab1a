//! A host that sends raw frames on the kernel's side of a tap interface: its TCP may violate any
//! rule.
//!
//! It has an IPv4 address unknown to the kernel, replies to ARP for it, and is driven by
//! [`Host::poll`]. Sending is paced by the frames that the stack has received, so that no frame is
//! lost in the interface's queue, and "as fast as the link takes it" is exactly that.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::net::arp;
use ferrowarp_proto::wire::ethernet::EthernetLink;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Fields, Flags, FourTuple, HeaderTemplate, Options, Segment};
use ferrowarp_tests::frame::Frame;
use ferrowarp_tests::peer::{Role, Startup};
use ferrowarp_tests::stack::STACK;
use smoltcp::phy::{Device, Medium, RawSocket, RxToken, TxToken};

/// The host's address.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 7, 66);
const MAC: [u8; 6] = [2, 0, 0, 0, 7, 66];
/// Maximum frames in flight towards the stack; the interface's queue takes 500.
const IN_FLIGHT_MAX: u64 = 128;
/// Time after which an unreceived frame counts as lost: interface down, or queue full.
const LOST_AFTER: Duration = Duration::from_millis(200);
/// Time between SYNs of one connection.
const SYN_EVERY: Duration = Duration::from_millis(250);
/// Connections opened at a time.
const CONNECT_BATCH: usize = 32;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing sent since it was created or reset.
    Idle,
    /// SYN sent.
    SynSent,
    /// Handshake complete.
    Up,
    /// Reset by the stack.
    Reset,
}

/// One connection of the host to the stack's listener.
pub(crate) struct Conn {
    template: HeaderTemplate,
    port: u16,
    /// Connection state.
    pub(crate) state: State,
    /// SND.NXT.
    pub(crate) seq: Seq,
    ack: Seq,
    /// The first bytes received: the MPA Reply.
    head: Vec<u8>,
    /// Bytes received in order.
    pub(crate) received_len: u64,
    /// Acknowledges received data.
    pub(crate) acks_data: bool,
    /// Advertised window, not scaled.
    pub(crate) window: u16,
    syn_at: Option<Instant>,
    /// Progress of the script; used by the scripts only.
    pub(crate) step: usize,
}

impl Conn {
    fn new(template: HeaderTemplate, port: u16) -> Self {
        Self {
            template,
            port,
            state: State::Idle,
            seq: Seq(0xffff_ff00),
            ack: Seq(0),
            head: Vec::new(),
            received_len: 0,
            acks_data: true,
            window: 0xffff,
            syn_at: None,
            step: 0,
        }
    }

    /// True if the MPA Reply has been received completely.
    fn is_started(&self) -> bool {
        let len = self.head.get(18..20).map(|len| u16::from_be_bytes([len[0], len[1]]));
        len.is_some_and(|len| self.head.len() >= 20 + usize::from(len))
    }
}

/// The host.
pub(crate) struct Host {
    socket: RawSocket,
    /// Frames that the stack has received so far.
    received: Box<dyn Fn() -> u64>,
    /// The last value read from it, and the value once all sent frames are received.
    seen: u64,
    expected: u64,
    /// Frames sent.
    pub(crate) sent: u64,
    stack_mac: [u8; 6],
    /// The connections.
    pub(crate) conns: Vec<Conn>,
    by_port: HashMap<u16, usize>,
    next_port: u16,
    stack_port: u16,
}

impl Host {
    /// Creates a host on `interface` that connects to the stack's `port`. `received` returns the
    /// number of frames the stack has received.
    pub(crate) fn new(interface: &str, port: u16, received: Box<dyn Fn() -> u64>) -> Self {
        let socket = RawSocket::new(interface, Medium::Ethernet).expect("a packet socket");
        let seen = received();
        let mut host = Self {
            socket,
            received,
            seen,
            expected: seen,
            sent: 0,
            stack_mac: [0; 6],
            conns: Vec::new(),
            by_port: HashMap::new(),
            next_port: 1024,
            stack_port: port,
        };
        let link = EthernetLink { mac: MAC, vlan: None };
        let deadline = Instant::now() + Duration::from_secs(20);
        while host.stack_mac == [0; 6] {
            assert!(Instant::now() < deadline, "the stack answers ARP");
            let mut frame = vec![0; 64];
            let len = arp::write_request(link, HOST, STACK, None, &mut frame);
            host.send_frame(&frame[..len]);
            std::thread::sleep(Duration::from_millis(20));
            host.poll();
        }
        host
    }

    /// Sends a frame, once the link has space for it.
    pub(crate) fn send_frame(&mut self, frame: &[u8]) {
        let mut since = Instant::now();
        while self.expected.saturating_sub(self.seen) >= IN_FLIGHT_MAX {
            let now = (self.received)();
            if now != self.seen {
                (self.seen, since) = (now, Instant::now());
            } else if since.elapsed() > LOST_AFTER {
                // The missing frames are lost.
                self.expected = now;
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        self.emit(frame);
    }

    fn emit(&mut self, frame: &[u8]) {
        let token = self.socket.transmit(smoltcp::time::Instant::ZERO).expect("always room");
        token.consume(frame.len(), |out| out.copy_from_slice(frame));
        self.sent += 1;
        self.expected += 1;
    }

    /// Sends one segment of a connection.
    pub(crate) fn segment(&mut self, index: usize, flags: Flags, seq: Seq, payload: &[u8]) {
        let frame = self.frame_of(index, flags, seq, payload);
        self.send_frame(&frame);
    }

    fn frame_of(&self, index: usize, flags: Flags, seq: Seq, payload: &[u8]) -> Vec<u8> {
        let conn = &self.conns[index];
        let syn = flags.has(Flags::SYN);
        let options = if syn {
            Options { mss: Some(1460), wscale: Some(0), sack_permitted: true, ..Options::default() }
        } else {
            Options::default()
        };
        let fields = Fields {
            seq,
            ack: if syn { Seq(0) } else { conn.ack },
            flags,
            window: conn.window,
            options,
            ..Fields::default()
        };
        let at = 54 + fields.options.wire_len();
        let mut frame = vec![0; at + payload.len()];
        frame[at..].copy_from_slice(payload);
        conn.template.emit(&mut frame, &fields, payload.len(), ChecksumMode::Software);
        frame
    }

    /// Sends bytes in order.
    pub(crate) fn send(&mut self, index: usize, bytes: &[u8]) {
        self.conns[index].seq += u32::try_from(bytes.len()).expect("a short segment");
        self.resend(index, bytes);
    }

    /// Sends the last bytes once more.
    pub(crate) fn resend(&mut self, index: usize, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).expect("a short segment");
        let seq = Seq(self.conns[index].seq.0.wrapping_sub(len));
        self.segment(index, Flags::ACK | Flags::PSH, seq, bytes);
    }

    fn next_template(&mut self) -> (HeaderTemplate, u16) {
        let port = self.next_port;
        self.next_port = self.next_port.checked_add(1).unwrap_or(1024);
        (self.template(port), port)
    }

    fn add(&mut self) {
        let (template, port) = self.next_template();
        self.by_port.insert(port, self.conns.len());
        self.conns.push(Conn::new(template, port));
    }

    fn template(&self, port: u16) -> HeaderTemplate {
        let tuple =
            FourTuple { local: (HOST, port).into(), remote: (STACK, self.stack_port).into() };
        HeaderTemplate::new(MAC, self.stack_mac, tuple)
    }

    /// The MAC addresses of the host and of the stack.
    pub(crate) const fn macs(&self) -> [[u8; 6]; 2] {
        [MAC, self.stack_mac]
    }

    /// Replaces an ended connection by a new one on another port.
    pub(crate) fn reopen(&mut self, index: usize) {
        let (template, port) = self.next_template();
        self.by_port.remove(&self.conns[index].port);
        self.by_port.insert(port, index);
        self.conns[index] = Conn::new(template, port);
    }

    /// Opens connections until `count` are up or `limit` expires: a stack that defends itself may
    /// not take all of them. Returns how many are up.
    pub(crate) fn connect(&mut self, count: usize, limit: Duration) -> usize {
        while self.conns.len() < count {
            self.add();
        }
        let deadline = Instant::now() + limit;
        loop {
            let is_open = |conn: &Conn| matches!(conn.state, State::Idle | State::SynSent);
            if !self.conns.iter().any(is_open) || Instant::now() > deadline {
                break;
            }
            let is_due = |conn: &Conn| {
                is_open(conn) && conn.syn_at.is_none_or(|at| at.elapsed() > SYN_EVERY)
            };
            let due: Vec<usize> = (0..self.conns.len())
                .filter(|&index| is_due(&self.conns[index]))
                .take(CONNECT_BATCH)
                .collect();
            for index in due {
                let conn = &mut self.conns[index];
                conn.syn_at = Some(Instant::now());
                conn.state = State::SynSent;
                let seq = conn.seq;
                self.segment(index, Flags::SYN, seq, &[]);
            }
            self.poll_and_sleep();
        }
        self.up().len()
    }

    /// Indices of the connections that are up.
    pub(crate) fn up(&self) -> Vec<usize> {
        let up = |&index: &usize| self.conns[index].state == State::Up;
        (0..self.conns.len()).filter(up).collect()
    }

    /// Sends the MPA Request on all connections from `first` on that are up, and waits for the
    /// replies for up to `limit`. Returns the connections that received theirs.
    pub(crate) fn start_from(&mut self, first: usize, limit: Duration) -> Vec<usize> {
        let request = Startup::default().encode(Role::Initiator);
        let up: Vec<usize> = self.up().into_iter().filter(|&index| index >= first).collect();
        for index in up.iter().copied() {
            self.send(index, &request);
            self.poll();
        }
        let deadline = Instant::now() + limit;
        let done = |host: &Self, index: usize| {
            let conn = &host.conns[index];
            conn.state != State::Up || conn.is_started()
        };
        while Instant::now() < deadline && !up.iter().all(|&index| done(self, index)) {
            self.poll_and_sleep();
        }
        let started = |&index: &usize| {
            let conn = &self.conns[index];
            conn.state == State::Up && conn.is_started()
        };
        up.into_iter().filter(started).collect()
    }

    /// Processes received frames, and sleeps briefly.
    pub(crate) fn poll_and_sleep(&mut self) {
        self.poll();
        std::thread::sleep(Duration::from_micros(200));
    }

    /// Repeats [`Host::poll_and_sleep`] for `time`.
    pub(crate) fn idle(&mut self, time: Duration) {
        let since = Instant::now();
        while since.elapsed() < time {
            self.poll_and_sleep();
        }
    }

    /// Processes frames sent by the stack.
    pub(crate) fn poll(&mut self) {
        // Bounded, so that a surrounding loop makes progress.
        for _ in 0..4096 {
            let Some((token, _)) = self.socket.receive(smoltcp::time::Instant::ZERO) else {
                return;
            };
            let frame = token.consume(<[u8]>::to_vec);
            self.on_frame(frame);
        }
    }

    fn on_frame(&mut self, bytes: Vec<u8>) {
        let is_arp = bytes.get(12..14) == Some(&[0x08, 0x06]);
        if is_arp {
            self.on_arp(&bytes);
            return;
        }
        let frame = Frame::from(bytes);
        let Ok(segment) = Segment::parse(&frame, ChecksumMode::Software) else { return };
        if segment.tuple.local.ip() != HOST {
            return;
        }
        let Some(&index) = self.by_port.get(&segment.tuple.local.port()) else { return };
        if let Some(answer) = self.conns[index].on_segment(&segment, &frame.bytes)
            && answer
        {
            // Clocked by the stack's segments, so not paced.
            let seq = self.conns[index].seq;
            let frame = self.frame_of(index, Flags::ACK, seq, &[]);
            self.emit(&frame);
        }
    }

    fn on_arp(&mut self, bytes: &[u8]) {
        let Some(packet) = bytes.get(14..).and_then(arp::parse) else { return };
        let (sender, mac) = packet.sender;
        if packet.target != HOST {
            return;
        }
        if sender == STACK {
            self.stack_mac = mac;
        }
        if packet.is_request {
            let mut frame = vec![0; 64];
            let link = EthernetLink { mac: MAC, vlan: None };
            let len = arp::write_reply(link, HOST, packet.sender, &mut frame);
            self.emit(&frame[..len]);
        }
    }
}

impl Conn {
    /// Processes a segment; `Some(true)` if it is to be acknowledged.
    fn on_segment(&mut self, segment: &Segment, frame: &[u8]) -> Option<bool> {
        if segment.flags.has(Flags::RST) {
            self.state = State::Reset;
            return None;
        }
        if segment.flags.has(Flags::SYN) {
            if self.state == State::SynSent {
                self.state = State::Up;
                self.seq += 1;
                self.ack = segment.seq + 1;
            }
            return Some(true);
        }
        if self.state != State::Up {
            return None;
        }
        let bytes = &frame[segment.payload.clone()];
        let is_next = segment.seq == self.ack;
        if is_next && self.acks_data {
            self.ack += segment.seq_len();
            self.received_len += bytes.len() as u64;
            if self.head.len() < 64 {
                self.head.extend(bytes);
            }
        }
        // Keepalives and retransmitted data are acknowledged, too.
        Some(self.acks_data && (segment.seq_len() > 0 || !is_next))
    }
}
