//! Hosts made of frames, on the kernel's side of an interface. The kernel chooses the queue of what
//! they send as for its own packets.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::net::arp;
use ferrowarp_proto::wire::ethernet::EthernetLink;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Flags, FourTuple, HeaderTemplate, Options, Segment};
use ferrowarp_tests::frame::Frame;
use ferrowarp_tests::ip;
use ferrowarp_tests::manual_tcp_peer::TcpPeer;
use ferrowarp_tests::sim::fragmenter;
use ferrowarp_tests::stack::{STACK, TIMEOUT};
use smoltcp::phy::{Device, Medium, RawSocket, RxToken, TxToken};

const LINK: EthernetLink = EthernetLink::without_vlan([2, 0, 0, 0, 7, 64]);
const FIRST: u8 = 64;
/// Number of hosts.
pub(crate) const HOSTS: u8 = 32;

/// Address of a host.
pub(crate) fn address(host: u8) -> Ipv4Addr {
    assert!(host < HOSTS);
    Ipv4Addr::new(198, 18, 7, FIRST + host)
}

/// The hosts, at one MAC address.
pub(crate) struct Station {
    socket: RawSocket,
    stack_mac: [u8; 6],
    /// Frames of the stack that nobody has looked at.
    received: Vec<Vec<u8>>,
    next_id: u16,
}

impl Station {
    /// Asks for the stack's MAC address.
    pub(crate) fn new(interface: &str) -> Self {
        let socket = RawSocket::new(interface, Medium::Ethernet).expect("a packet socket");
        let mut station = Self { socket, stack_mac: [0; 6], received: Vec::new(), next_id: 1 };
        let mut request = vec![0; 64];
        let len = arp::write_request(LINK, address(0), STACK, None, &mut request);
        station.send(&request[..len]);
        station.stack_mac = station.wait("an ARP reply", |frame| {
            let packet = frame.get(14..).and_then(arp::parse)?;
            (packet.sender.0 == STACK && !packet.is_request).then_some(packet.sender.1)
        });
        station
    }

    /// Sends a frame.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        let token = self.socket.transmit(smoltcp::time::Instant::ZERO).expect("always room");
        token.consume(frame.len(), |out| out.copy_from_slice(frame));
    }

    /// Sends the packet in a frame in fragments for this MTU, the last first.
    pub(crate) fn send_fragments(&mut self, frame: Vec<u8>, mtu: usize) {
        self.next_id += 1;
        let fragments = fragmenter::fragment(frame, mtu, u32::from(self.next_id));
        assert!(fragments.len() > 1);
        fragments.iter().rev().for_each(|fragment| self.send(fragment));
    }

    /// Receives, and answers ARP requests for the hosts.
    fn poll(&mut self) {
        while let Some((token, _)) = self.socket.receive(smoltcp::time::Instant::ZERO) {
            let frame = token.consume(<[u8]>::to_vec);
            let is_of_stack = self.stack_mac == [0; 6] || frame[6..12] == self.stack_mac;
            if !is_of_stack {
                continue;
            }
            let asks = |packet: arp::Arp| {
                let hosts = address(0)..=address(HOSTS - 1);
                packet.is_request && hosts.contains(&packet.target)
            };
            if frame[12..14] == [8, 6] && arp::parse(&frame[14..]).is_some_and(asks) {
                let reply = ip::arp_reply(&frame, LINK.mac).expect("a request");
                self.send(&reply);
            }
            self.received.push(frame);
        }
    }

    /// Waits for a frame of the stack of which `find` returns something.
    pub(crate) fn wait<T>(&mut self, what: &str, find: impl FnMut(&[u8]) -> Option<T>) -> T {
        self.wait_many(what, 1, find).pop().expect("one")
    }

    /// As [`Station::wait`], for several frames.
    pub(crate) fn wait_many<T>(
        &mut self,
        what: &str,
        count: usize,
        mut find: impl FnMut(&[u8]) -> Option<T>,
    ) -> Vec<T> {
        let deadline = Instant::now() + TIMEOUT;
        let mut found = Vec::new();
        while found.len() < count {
            assert!(Instant::now() < deadline, "{what}: {} of {count}", found.len());
            self.poll();
            found.extend(self.received.drain(..).filter_map(|frame| find(&frame)));
            std::thread::sleep(Duration::from_micros(200));
        }
        found
    }

    /// Each host pings the stack, in fragments if the packet is longer than `mtu`: each gets one
    /// reply.
    pub(crate) fn ping(&mut self, payload: &[u8], mtu: usize) {
        for host in 0..HOSTS {
            let echo = ip::icmp_message((8, 0), u32::from(host), payload);
            let frame = self.frame(1, address(host), &echo);
            if frame.len() > 14 + mtu {
                self.send_fragments(frame, mtu);
            } else {
                self.send(&frame);
            }
        }
        let reply = |frame: &[u8]| {
            let is_reply = frame[12..14] == [8, 0] && frame[23] == 1 && frame[34] == 0;
            is_reply.then(|| (frame[33], frame[34..42 + payload.len()].to_vec()))
        };
        let mut found = self.wait_many("echo replies", usize::from(HOSTS), reply);
        std::thread::sleep(Duration::from_millis(20));
        self.poll();
        found.extend(self.received.drain(..).filter_map(|frame| reply(&frame)));
        found.sort();
        let expected = (0..HOSTS)
            .map(|host| (FIRST + host, ip::icmp_message((0, 0), u32::from(host), payload)));
        assert!(found.iter().cloned().eq(expected), "{} replies: {found:02x?}", found.len());
    }

    fn frame(&self, protocol: u8, from: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
        let packet = ip::ipv4_packet(protocol, [from, STACK].map(|ip| ip.octets()), 0, 0, payload);
        [&self.stack_mac, &LINK.mac, &[8, 0][..], &packet].concat()
    }

    /// Waits for a segment to a host's port, and returns it with its frame.
    pub(crate) fn segment(
        &mut self,
        to: SocketAddr,
        is_it: impl Fn(&Segment) -> bool,
    ) -> (Segment, Vec<u8>) {
        self.wait("a segment", |bytes| {
            let frame = Frame::from(bytes.to_vec());
            let segment = Segment::parse(&frame, ChecksumMode::Software).ok()?;
            (segment.tuple.local == to && is_it(&segment)).then(|| (segment, bytes.to_vec()))
        })
    }

    /// Sends bytes in order, in two fragments or more.
    pub(crate) fn send_bytes(&mut self, tcp: &mut TcpPeer, bytes: &[u8]) {
        let fields = tcp.fields(Flags::ACK | Flags::PSH, Options::default());
        let frame = tcp.build_frame(&fields, bytes);
        tcp.snd_nxt += u32::try_from(bytes.len()).expect("a short segment");
        self.send_fragments(frame, 44);
    }

    /// A host sends a SYN to a port of the stack, and receives the SYN-ACK. It is not acknowledged
    /// yet.
    pub(crate) fn open(&mut self, host: u8, from: u16, port: u16) -> TcpPeer {
        let tuple = FourTuple { local: (address(host), from).into(), remote: (STACK, port).into() };
        let mut tcp = TcpPeer::new(tuple, Seq(0xffff_ff00));
        tcp.template = HeaderTemplate::with_link(LINK, self.stack_mac, tuple);
        let options = Options { mss: Some(1460), ..Options::default() };
        let mut syn = tcp.fields(Flags::SYN, options);
        syn.ack = Seq(0);
        self.send(&tcp.build_frame(&syn, &[]));
        let (answer, _) = self.segment(tuple.local, |segment| segment.flags.has(Flags::SYN));
        tcp.snd_nxt += 1;
        tcp.rcv_nxt = answer.seq + 1;
        tcp
    }
}
