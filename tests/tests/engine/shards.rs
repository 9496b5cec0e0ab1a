//! Several engines over the queues of one port, frame by frame: whichever queue gets a segment, it
//! acts on its connection alone, and the host answers once.

mod limits;
mod neighbors;
mod source_ports;
mod steering;

use std::net::{IpAddr, SocketAddr};

use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::time::{Instant, MICROSECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, ReadDepths, RequestId};
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Fields, Flags, FourTuple, Options, Segment};
use ferrowarp_tests::frame::Frame;
use ferrowarp_tests::manual_tcp_peer::TcpPeer;
use ferrowarp_tests::raw::{device, mpa_request};
use ferrowarp_tests::sim::pairs::{PORT, qp_init};
use ferrowarp_tests::sim::sim_port::{ShardOptions, Steering};
use ferrowarp_tests::sim::world::{End, address};

/// Number of shards.
const COUNT: usize = 4;

/// The shards of a host, which listen on [`PORT`], in their own time.
struct ShardsFixture {
    end: End,
    now: Instant,
}

impl ShardsFixture {
    fn new(change: impl FnOnce(&mut EngineConfig)) -> Self {
        Self::with(COUNT, |config, _| change(config))
    }

    /// A host with so many shards that does not predict queues.
    fn with(count: usize, change: impl FnOnce(&mut EngineConfig, &mut ShardOptions)) -> Self {
        let mut fx = Self::unannounced(count, change);
        fx.process();
        fx
    }

    /// A host that has sent nothing yet.
    fn unannounced(
        count: usize,
        change: impl FnOnce(&mut EngineConfig, &mut ShardOptions),
    ) -> Self {
        let mut config = EngineConfig::new(address(1), 24, 7);
        // The engine sends FIN right after a reject, and so closes first.
        config.siw_reject_fin_delay_ns = 0;
        let mut options = ShardOptions {
            steering: Steering::FirstQueue,
            is_rss_known: false,
            ..ShardOptions::new([count; 2])
        };
        change(&mut config, &mut options);
        let mut end = End::new(config, 1 << 20, 64, Some((count, &options)), || device(256));
        end.listen(PORT, 64);
        Self { end, now: Instant::from_nanos(1000) }
    }

    /// Puts a frame into the queue of a shard.
    fn inject(&self, shard: usize, frame: Vec<u8>) {
        self.end.shard(shard).device().inbound.borrow_mut().push_back(frame);
    }

    /// Drives all shards that live until nothing is left to process. Returns what each has sent.
    fn process(&mut self) -> Vec<(usize, Vec<u8>)> {
        let mut sent = Vec::new();
        let mut idle = 0;
        while idle < 3 {
            idle += 1;
            for shard in self.end.live_shards().collect::<Vec<_>>() {
                if self.end.shard_mut(shard).drive(self.now) {
                    idle = 0;
                }
                let outbound = &self.end.shard(shard).device().outbound;
                sent.extend(outbound.borrow_mut().drain(..).map(|frame| (shard, frame)));
            }
            self.now = self.now + MICROSECOND;
        }
        sent
    }

    /// As [`ShardsFixture::process`]; returns the segments.
    fn segments(&mut self) -> Vec<Segment> {
        let parse = |(_, bytes)| Segment::parse(&Frame::from(bytes), ChecksumMode::Software).ok();
        self.process().into_iter().filter_map(parse).collect()
    }

    /// Advances the time; what is sent is lost.
    fn advance(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            self.now = (self.now + ns / 64).min(end);
            self.process();
        }
    }

    fn connection_counts(&self) -> Vec<usize> {
        self.end.shards().map(|engine| engine.connection_count()).collect()
    }

    /// Returns the next connection request, and its shard.
    fn connect_request(&mut self) -> (usize, RequestId) {
        match self.end.next_event() {
            Some((shard, ConnEvent::ConnectRequest { request, .. })) => (shard, request),
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Accepts the next connection request; returns its shard and queue pair.
    fn accept(&mut self) -> (usize, QpId) {
        let (shard, request) = self.connect_request();
        let qp = self.end.create_qp(shard, qp_init(16, 16));
        let engine = self.end.shard_mut(shard);
        engine.accept(self.now, request, qp, &ConnParam::default()).unwrap();
        let established = self.end.next_event();
        assert!(matches!(established, Some((_, ConnEvent::Established { .. }))), "{established:?}");
        (shard, qp)
    }

    /// Starts to connect a new queue pair of a shard.
    fn connect(&mut self, shard: usize, remote: SocketAddr) -> QpId {
        let qp = self.end.create_qp(shard, qp_init(16, 16));
        let engine = self.end.shard_mut(shard);
        engine.connect(self.now, qp, remote, &ConnParam::default()).unwrap();
        qp
    }
}

/// A peer of the host, whose segments go to any shard.
struct Peer {
    tcp: TcpPeer,
    /// Its timestamp clock, and TSecr.
    ts: (u32, u32),
}

impl Peer {
    fn new(port: u16) -> Self {
        Self::at(address(0), port, PORT)
    }

    fn at(source: IpAddr, port: u16, to: u16) -> Self {
        let tuple = FourTuple { local: (source, port).into(), remote: (address(1), to).into() };
        let iss = Seq(u32::from(port) << 16);
        Self { tcp: TcpPeer { rcv_wnd: 8000, ..TcpPeer::new(tuple, iss) }, ts: (500, 0) }
    }

    /// Brings the host's end of a connection of a shard to TIME-WAIT: it rejects, and closes first.
    /// The peer's FIN goes to the shard `other`.
    fn in_time_wait(fx: &mut ShardsFixture, port: u16, shard: usize, other: usize) -> Self {
        let mut peer = Self::new(port);
        peer.syn(fx, shard);
        peer.send(fx, shard, Flags::default(), &mpa_request());
        let (accepting, request) = fx.connect_request();
        let engine = fx.end.shard_mut(accepting);
        engine.reject(fx.now, request, ReadDepths::default(), b"").unwrap();
        let last = peer.received(fx).pop().unwrap();
        assert!(last.flags.has(Flags::FIN));
        peer.tcp.rcv_nxt = last.seq + last.seq_len();
        peer.send(fx, other, Flags::FIN, &[]);
        peer
    }

    fn frame(&self, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let fields =
            Fields { window: 8000, ..self.tcp.fields(flags, Options::timestamps(Some(self.ts))) };
        self.tcp.build_frame(&fields, payload)
    }

    fn syn_frame(&self) -> Vec<u8> {
        let options = Options {
            mss: Some(1460),
            wscale: Some(0),
            sack_permitted: true,
            ts: Some((self.ts.0, 0)),
            ..Options::default()
        };
        self.tcp.build_frame(&self.tcp.fields(Flags::SYN, options), &[])
    }

    /// Sends a SYN to a shard; returns the segments sent to this peer.
    fn send_syn(&self, fx: &mut ShardsFixture, shard: usize) -> Vec<Segment> {
        fx.inject(shard, self.syn_frame());
        self.received(fx)
    }

    /// The segments that the host sends to this peer; those to others are lost.
    fn received(&self, fx: &mut ShardsFixture) -> Vec<Segment> {
        let tuple = &self.tcp.tuple;
        fx.segments().into_iter().filter(|segment| segment.tuple == *tuple).collect()
    }

    /// Sends a SYN to a shard and processes the only SYN-ACK.
    fn syn(&mut self, fx: &mut ShardsFixture, shard: usize) -> Segment {
        let mut answers = self.send_syn(fx, shard);
        assert_eq!(answers.len(), 1, "{answers:?}");
        let answer = answers.remove(0);
        assert_eq!(answer.flags, Flags::SYN | Flags::ACK);
        assert_eq!(answer.ack, self.tcp.snd_nxt + 1);
        self.tcp.snd_nxt += 1;
        self.tcp.rcv_nxt = answer.seq + 1;
        self.ts.1 = answer.options.ts.map_or(0, |(val, _)| val);
        answer
    }

    /// Sends bytes in order to a shard; returns the answers.
    fn send(
        &mut self,
        fx: &mut ShardsFixture,
        shard: usize,
        flags: Flags,
        payload: &[u8],
    ) -> Vec<Segment> {
        self.ts.0 += 1;
        fx.inject(shard, self.frame(Flags::ACK | flags, payload));
        self.tcp.snd_nxt +=
            u32::try_from(payload.len()).unwrap() + u32::from(flags.has(Flags::FIN));
        let answers = self.received(fx);
        for segment in &answers {
            self.tcp.rcv_nxt = self.tcp.rcv_nxt.max(segment.seq + segment.seq_len());
            self.ts.1 = segment.options.ts.map_or(self.ts.1, |(val, _)| val);
        }
        answers
    }

    /// Connects by one shard; all later segments go to `other`. Returns the queue pair.
    fn connect(&mut self, fx: &mut ShardsFixture, shard: usize, other: usize) -> QpId {
        self.syn(fx, shard);
        let answers = self.send(fx, other, Flags::default(), &mpa_request());
        assert!(answers.iter().all(|segment| !segment.flags.has(Flags::RST)), "{answers:?}");
        let (accepted_by, qp) = fx.accept();
        assert_eq!(accepted_by, shard, "the shard that got the SYN");
        // The MPA reply.
        let answers = self.received(fx);
        for segment in &answers {
            self.tcp.rcv_nxt = self.tcp.rcv_nxt.max(segment.seq + segment.seq_len());
            self.ts.1 = segment.options.ts.map_or(self.ts.1, |(val, _)| val);
        }
        qp
    }
}
