//! Incomplete FPDUs: they occupy memory, but block no other stream.

use std::time::Duration;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::engine::PARTIAL_BYTES_MIN;
use ferrowarp_proto::time::{Instant, MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, EndReason};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::RecvWr;
use ferrowarp_proto::wire::ddp::{Tagged, Version};
use ferrowarp_proto::wire::rdmap::Opcode;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::longest_poll::LongestPoll;
use ferrowarp_tests::raw::{
    CQ, PD, Peer, SegmentFixture, build_fpdu, empty_write_fpdu, mpa_request, recv_wr, untagged_fpdu,
};
use ferrowarp_tests::sim::world::address;

const MSS: u16 = 1460;
const SEND: Opcode = Opcode::Send { invalidate: false, solicited: false };
/// Region that the peers may write, beyond the buffer for Sends.
const SHARED: u64 = 8192;
const SHARED_LEN: u64 = 1 << 19;

/// A connection in RTS that may send. Shorter than [`Peer::start_mpa`].
fn connect(fx: &mut SegmentFixture, port: u16) -> (Peer, QpId) {
    start(fx, Peer::unconnected(port))
}

/// As [`connect`], from a peer at any address.
fn start(fx: &mut SegmentFixture, mut peer: Peer) -> (Peer, QpId) {
    peer.handshake(fx, MSS);
    peer.send(fx, &mpa_request());
    let asked = fx.connect_request();
    let qp = fx.create_qp();
    fx.engine.accept(fx.now, asked, qp, &ConnParam::default()).unwrap();
    assert!(matches!(fx.engine.next_event(), Some(ConnEvent::Established { .. })));
    fx.poll();
    assert!(peer.receive(fx));
    peer.send(fx, &empty_write_fpdu());
    peer.receive(fx);
    (peer, qp)
}

/// An FPDU with a Send whose payload tells the connections apart.
fn message(number: usize) -> Vec<u8> {
    untagged_fpdu(SEND, 0, 1, &[u8::try_from(number % 251).unwrap(); 1000])
}

/// Expects the message to be delivered into the buffer.
fn expect_delivered(fx: &mut SegmentFixture, number: usize) {
    let wc = fx.queues.poll(CQ).expect("a completion");
    assert_eq!((wc.status, wc.wr_id, wc.byte_len), (WcStatus::Success, number as u64, 1000));
    assert!(fx.arena.read(0, 1000).iter().all(|&byte| usize::from(byte) == number % 251));
}

#[test]
fn partial_fpdus_of_many_peers_end_no_stream() {
    const COUNT: usize = 1100;
    let mut fx = SegmentFixture::new(|_| {});
    let receive = recv_wr(&fx, 0);
    let mut peers: Vec<_> = (0..COUNT)
        .map(|number| {
            let (mut peer, qp) = connect(&mut fx, 10_000 + u16::try_from(number).unwrap());
            fx.engine.post_recv(qp, RecvWr { wr_id: number as u64, ..receive.clone() }).unwrap();
            peer.send(&mut fx, &message(number)[..500]);
            peer.receive(&fx);
            (peer, qp)
        })
        .collect();
    assert_eq!(fx.engine.usage().partial_fpdus, COUNT);
    // One more, whose message straddles two segments, too, is served at once.
    let (mut peer, qp) = connect(&mut fx, 5000);
    fx.engine.post_recv(qp, RecvWr { wr_id: 7, ..receive }).unwrap();
    peer.send(&mut fx, &message(7)[..500]);
    peer.send(&mut fx, &message(7)[500..]);
    expect_delivered(&mut fx, 7);
    // The others continue with their streams intact.
    for (number, (peer, qp)) in peers.iter_mut().enumerate() {
        peer.send(&mut fx, &message(number)[500..]);
        expect_delivered(&mut fx, number);
        peer.receive(&fx);
        assert_eq!((fx.engine.qp_state(*qp), peer.rst_received), (QpState::Rts, false));
    }
    let usage = fx.engine.usage();
    assert_eq!((usage.partial_fpdus, usage.partial_bytes), (0, 0));
    let counters = fx.engine.counters();
    assert_eq!((counters.assembly_exhausted, counters.terminates_out), (0, 0));
}

/// A peer that sends long Writes, and how far it was acknowledged.
struct Writer {
    peer: Peer,
    qp: QpId,
    stream: Vec<u8>,
    sent: usize,
}

impl Writer {
    /// Creates a peer that writes `len` bytes of `fill` to `to` with one FPDU.
    fn new(fx: &mut SegmentFixture, port: u16, stag: u32, to: u64, fill: u8, len: usize) -> Self {
        Self::at(fx, Peer::unconnected(port), (stag, to), fill, len)
    }

    /// As [`Writer::new`], for a peer at any address.
    fn at(
        fx: &mut SegmentFixture,
        peer: Peer,
        (stag, to): (u32, u64),
        fill: u8,
        len: usize,
    ) -> Self {
        let (peer, qp) = start(fx, peer);
        let rsvd_ulp = Opcode::Write.control(Version::Ietf);
        let header = Tagged { last: true, rsvd_ulp, stag, to };
        let stream = build_fpdu(14, |out| header.emit(Version::Ietf, out), &vec![fill; len]);
        Self { peer, qp, stream, sent: 0 }
    }

    /// Sends from the first unacknowledged byte up to `end`, and processes the acknowledgments.
    fn send_to(&mut self, fx: &mut SegmentFixture, end: usize) {
        let first = self.peer.tcp.snd_nxt;
        let from = self.sent;
        while self.sent < end {
            let next = end.min(self.sent + usize::from(MSS));
            let piece = self.stream[self.sent..next].to_vec();
            self.peer.send(fx, &piece);
            self.sent = next;
        }
        // The acknowledgment may be delayed.
        fx.now = fx.now + MILLISECOND;
        fx.poll();
        self.peer.receive(fx);
        let kept = (self.peer.snd_una - first) as usize;
        self.sent = from + kept;
        self.peer.tcp.snd_nxt = self.peer.snd_una;
    }
}

/// Two writers of 40,000 bytes; the engine has memory for one.
fn competing_writers(fx: &mut SegmentFixture) -> [Writer; 2] {
    let stag = fx.arena.register(SHARED, SHARED_LEN, Access::ALL, PD);
    let mut rivals = [1u8, 2].map(|at| {
        let to = SHARED + u64::from(at) * 100_000;
        Writer::new(fx, 6000 + u16::from(at), stag, to, at, 40_000)
    });
    rivals[0].send_to(fx, 30_000);
    assert_eq!(rivals[0].sent, 30_000);
    rivals[1].send_to(fx, 30_000);
    rivals
}

fn expect_written(fx: &SegmentFixture, fill: u8) {
    let at = usize::try_from(SHARED).unwrap() + usize::from(fill) * 100_000;
    assert!(fx.arena.read(at, 40_000).iter().all(|&byte| byte == fill));
}

#[test]
fn data_without_buffer_memory_is_not_acked_and_is_retransmitted() {
    let mut fx = SegmentFixture::new(|config| config.partial_bytes_max = 70_000);
    let mut rivals = competing_writers(&mut fx);
    // The data that fits the shortest buffer was kept, and nothing else acknowledged.
    assert_eq!(rivals[1].sent, usize::from(MSS));
    assert!(fx.engine.counters().assembly_exhausted > 0);
    assert!(fx.engine.usage().partial_bytes <= 70_000);
    assert!(rivals[1].peer.snd_wnd >= 64 * 1024, "the window stays open");
    // Peers with FPDUs of ordinary length are still served.
    let (mut other, qp) = connect(&mut fx, 5000);
    let receive = recv_wr(&fx, 7);
    fx.engine.post_recv(qp, receive).unwrap();
    other.send(&mut fx, &message(7)[..500]);
    other.send(&mut fx, &message(7)[500..]);
    expect_delivered(&mut fx, 7);
    // Once the first is done there is memory for the second, and nothing of its stream is lost.
    for (writer, fill) in rivals.iter_mut().zip([1, 2]) {
        let end = writer.stream.len();
        writer.send_to(&mut fx, end);
        assert_eq!(writer.sent, end);
        expect_written(&fx, fill);
        assert_eq!(fx.engine.qp_state(writer.qp), QpState::Rts);
    }
    assert_eq!(fx.engine.usage().partial_bytes, 0);
}

#[test]
fn stalled_partial_fpdu_is_evicted() {
    let mut fx = SegmentFixture::new(|config| config.partial_bytes_max = 70_000);
    let [mut first, mut second] = competing_writers(&mut fx);
    // Progress byte by byte does not prevent the eviction.
    for _ in 0..11 {
        let next = first.sent + 1;
        first.send_to(&mut fx, next);
        fx.now = fx.now + SECOND;
        fx.poll();
    }
    while fx.engine.next_event().is_some() {}
    let end = second.stream.len();
    second.send_to(&mut fx, end);
    assert_eq!(fx.engine.counters().partials_evicted, 1);
    assert!(matches!(
        fx.engine.next_event(),
        Some(ConnEvent::Disconnected { qp, reason: EndReason::LocalError }) if qp == first.qp
    ));
    second.send_to(&mut fx, end);
    assert_eq!(second.sent, end);
    expect_written(&fx, 2);
    assert_eq!(fx.engine.qp_state(second.qp), QpState::Rts);
}

/// The holder is found among more connections than a pass visits.
#[test]
fn stalled_partial_fpdu_is_found_among_many_connections() {
    let mut fx = SegmentFixture::new(|config| config.partial_bytes_max = 70_000);
    for at in 0..1500 {
        connect(&mut fx, 10_000 + at);
    }
    let [first, mut second] = competing_writers(&mut fx);
    fx.now = fx.now + 11 * SECOND;
    let mut polls = LongestPoll::default();
    let end = second.stream.len();
    second.send_to(&mut fx, end);
    for _ in 0..3 {
        polls.time(|| fx.poll());
    }
    assert_eq!(fx.engine.counters().partials_evicted, 1);
    assert_eq!(fx.engine.qp_state(first.qp), QpState::Error);
    second.send_to(&mut fx, end);
    assert_eq!(second.sent, end);
    polls.assert_below("a scan for stalled FPDUs", Duration::from_millis(50));
}

#[test]
fn fin_after_unbuffered_data_ends_the_stream() {
    let mut fx = SegmentFixture::new(|config| config.partial_bytes_max = 70_000);
    let [_, second] = competing_writers(&mut fx);
    let piece = second.stream[second.sent..second.sent + 1000].to_vec();
    second.peer.send_segment(&fx, Flags::ACK | Flags::FIN, second.peer.tcp.snd_nxt, &piece);
    fx.settle();
    assert_eq!(fx.engine.qp_state(second.qp), QpState::Error);
    assert_eq!(fx.engine.usage().partial_fpdus, 1, "the first one's");
}

/// Short partial FPDUs, which are never evicted, leave the limit to long ones.
#[test]
fn short_partial_fpdus_do_not_block_long_ones() {
    for limit in [PARTIAL_BYTES_MIN, 128 << 10] {
        let mut fx = SegmentFixture::new(|config| config.partial_bytes_max = limit);
        for at in 0..100 {
            let (mut peer, _) = connect(&mut fx, 10_000 + at);
            peer.send(&mut fx, &message(0)[..500]);
            peer.receive(&fx);
        }
        assert_eq!(fx.engine.usage().partial_fpdus, 100);
        let stag = fx.arena.register(SHARED, SHARED_LEN, Access::ALL, PD);
        let mut writer = Writer::new(&mut fx, 6000, stag, SHARED + 100_000, 1, 60_000);
        let end = writer.stream.len();
        writer.send_to(&mut fx, end);
        assert_eq!((writer.sent, fx.engine.counters().assembly_exhausted), (end, 0), "{limit}");
        assert!(fx.arena.read(108_192, 60_000).iter().all(|&byte| byte == 1));
    }
}

/// However many long FPDUs a peer begins and does not complete, FPDUs of other peers are received
/// at once, and none of its own connections ends for it.
#[test]
fn peer_with_many_connections_leaves_memory_to_long_fpdus_of_others() {
    const LIMIT: usize = 1 << 20;
    let mut fx = SegmentFixture::new(|config| config.partial_bytes_max = LIMIT);
    let stag = fx.arena.register(SHARED, SHARED_LEN, Access::ALL, PD);
    let mut holders: Vec<_> =
        (0..60).map(|at| Writer::new(&mut fx, 6000 + at, stag, SHARED, 2, 60_000)).collect();
    for holder in &mut holders {
        holder.send_to(&mut fx, 50_000);
    }
    assert!(fx.engine.counters().assembly_exhausted > 0, "it takes what it gets");
    let at = (stag, SHARED + 100_000);
    let mut other = Writer::at(&mut fx, Peer::at(address(9), 5000), at, 1, 60_000);
    let mut polls = LongestPoll::default();
    let end = other.stream.len();
    polls.time(|| other.send_to(&mut fx, end));
    assert_eq!(other.sent, end);
    assert!(fx.arena.read(108_192, 60_000).iter().all(|&byte| byte == 1));
    assert!(fx.engine.usage().partial_bytes <= LIMIT + 60 * 2048);
    let is_up = |writer: &Writer| fx.engine.qp_state(writer.qp) == QpState::Rts;
    assert!(holders.iter().chain([&other]).all(is_up));
    polls.assert_below("a long FPDU while a peer holds many", Duration::from_millis(50));
}

/// With the least memory, FPDUs of any length are received, one after the other.
#[test]
fn long_fpdus_take_turns_in_the_least_memory() {
    let mut fx = SegmentFixture::new(|config| config.partial_bytes_max = PARTIAL_BYTES_MIN);
    let mut rivals = competing_writers(&mut fx);
    assert!(rivals[1].sent <= usize::from(MSS));
    for (writer, fill) in rivals.iter_mut().zip([1, 2]) {
        let end = writer.stream.len();
        writer.send_to(&mut fx, end);
        assert_eq!(writer.sent, end);
        expect_written(&fx, fill);
    }
}

/// Sends the stream's segments from the second on, then the first, and checks that what was once
/// acknowledged selectively is acknowledged in every later segment.
fn send_first_segment_last(fx: &mut SegmentFixture, writer: &mut Writer, count: u32) {
    let (first, mss) = (writer.peer.tcp.snd_nxt, u32::from(MSS));
    let mut sacked_to = first;
    for at in (1..count).chain([0]) {
        let from = (at * mss) as usize;
        let piece = writer.stream[from..from + usize::from(MSS)].to_vec();
        writer.peer.send_segment(fx, Flags::ACK, first + at * mss, &piece);
        fx.poll();
        for _ in 0..3 {
            sacked_to = expect_not_reneged(fx, writer, first, sacked_to);
            fx.poll();
        }
    }
    assert_eq!(sacked_to, first + count * mss);
}

/// Checks the acknowledgments of a stream whose first segment arrives last; the end of its SACK
/// block is `sacked_to`. Returns it.
fn expect_not_reneged(
    fx: &SegmentFixture,
    writer: &mut Writer,
    first: Seq,
    mut sacked_to: Seq,
) -> Seq {
    for (segment, _) in fx.take_segments() {
        if segment.tuple != writer.peer.tcp.tuple {
            continue;
        }
        let block = segment.options.sack.iter().find(|block| block.0 <= first + u32::from(MSS));
        // What follows the acknowledgment number is held, but in no block.
        let held_to = if segment.ack > first { sacked_to } else { segment.ack };
        let end = block.map_or(held_to, |block| block.1);
        assert!(end >= sacked_to, "ack {:?} sack {:?}", segment.ack, segment.options.sack);
        (sacked_to, writer.peer.snd_una) = (end.max(sacked_to), segment.ack);
    }
    sacked_to
}

/// Out-of-order data that was reported as received, and for which MPA has no memory once it is
/// contiguous, is kept until there is some: nobody sends it again.
#[test]
fn sacked_data_is_kept_while_there_is_no_memory_for_its_fpdu() {
    const COUNT: u32 = 20;
    for is_evicted in [false, true] {
        let mut fx = SegmentFixture::new(|config| config.partial_bytes_max = PARTIAL_BYTES_MIN);
        let stag = fx.arena.register(SHARED, SHARED_LEN, Access::ALL, PD);
        let mut writers = [1u8, 2, 3].map(|at| {
            let to = SHARED + u64::from(at) * 100_000;
            Writer::new(&mut fx, 6000 + u16::from(at), stag, to, at, 40_000)
        });
        let [first, held @ ..] = &mut writers;
        first.send_to(&mut fx, 30_000);
        let begins = held.each_ref().map(|writer| writer.peer.tcp.snd_nxt);
        for writer in held.iter_mut() {
            send_first_segment_last(&mut fx, writer, COUNT);
            let begin = writer.peer.tcp.snd_nxt;
            assert_eq!(writer.peer.snd_una, begin + u32::from(MSS), "an FPDU in a short buffer");
        }
        // Nothing is polled in vain.
        assert!(fx.engine.deadline().is_some_and(|at| at > fx.now));
        if is_evicted {
            fx.advance(11 * SECOND);
            assert_eq!(fx.engine.counters().partials_evicted, 1);
        } else {
            let end = first.stream.len();
            first.send_to(&mut fx, end);
            expect_written(&fx, 1);
        }
        for (writer, begin) in held.iter_mut().zip(begins) {
            // The first of them has the memory now, and the other one after it.
            let (from, sent) = (begin + COUNT * u32::from(MSS), (COUNT * u32::from(MSS)) as usize);
            writer.peer.tcp.snd_nxt = from;
            let end = writer.stream.len();
            writer.sent = sent;
            writer.send_to(&mut fx, end);
            // After ten seconds the stack no longer knows the peer's hardware address.
            assert!(writer.sent == end || is_evicted);
        }
        for fill in [2, 3] {
            expect_written(&fx, fill);
        }
        fx.settle();
        let usage = fx.engine.usage();
        assert_eq!((usage.ooo_frames, usage.ooo_bytes, usage.partial_bytes), (0, 0, 0));
    }
}

/// Memory that is released in the middle of a pass is used in the next one, which is due at once.
/// The release is not forgotten while other data takes the budget of several passes.
#[test]
fn released_memory_is_used_at_once() {
    for is_budget_used_up in [false, true] {
        let mut fx = SegmentFixture::new(|config| config.partial_bytes_max = PARTIAL_BYTES_MIN);
        let pieces = message(7);
        let (sender, qp) = connect(&mut fx, 5000);
        let receive = recv_wr(&fx, 7);
        fx.engine.post_recv(qp, receive).unwrap();
        for at in (1..pieces.len()).filter(|_| is_budget_used_up) {
            let seq = sender.tcp.snd_nxt + u32::try_from(at).unwrap();
            sender.send_segment(&fx, Flags::ACK, seq, &pieces[at..=at]);
            if at % 32 == 0 {
                fx.poll();
            }
        }
        let stag = fx.arena.register(SHARED, SHARED_LEN, Access::ALL, PD);
        let [mut first, mut held] = [1u8, 2].map(|at| {
            let to = SHARED + u64::from(at) * 100_000;
            Writer::new(&mut fx, 6000 + u16::from(at), stag, to, at, 40_000)
        });
        let end = first.stream.len();
        first.send_to(&mut fx, end - 1);
        assert_eq!(first.sent, end - 1);
        send_first_segment_last(&mut fx, &mut held, 20);
        assert!(fx.engine.usage().ooo_frames > 0);
        fx.settle();
        assert!(fx.engine.deadline().is_some_and(|at| at > fx.now));
        // The first FPDU is complete, and in the same pass a thousand segments are contiguous.
        if is_budget_used_up {
            sender.send_segment(&fx, Flags::ACK, sender.tcp.snd_nxt, &pieces[..1]);
        }
        first.peer.send(&mut fx, &first.stream[end - 1..]);
        expect_written(&fx, 1);
        for _ in 0..6 {
            let is_due = fx.engine.deadline() == Some(Instant::ZERO);
            assert!(is_due || fx.engine.usage().ooo_frames == 0, "{is_budget_used_up}");
            fx.poll();
        }
        let usage = fx.engine.usage();
        assert_eq!((usage.ooo_frames, usage.ooo_bytes), (0, 0), "{is_budget_used_up}");
        assert_eq!(fx.queues.poll(CQ).is_some(), is_budget_used_up);
    }
}

/// A stream that has ended at this end, and awaits the peer's Terminate, is evicted as well.
#[test]
fn partial_fpdu_of_an_ended_stream_is_evicted() {
    let mut fx = SegmentFixture::new(|config| {
        config.partial_bytes_max = 140_000;
        config.linger_ns = 60 * SECOND;
    });
    let stag = fx.arena.register(SHARED, SHARED_LEN, Access::ALL, PD);
    let mut writers = [1u8, 2, 3].map(|at| {
        let to = SHARED + u64::from(at) * 100_000;
        // One peer would not get the memory for two.
        let peer = Peer::at(address(10 + usize::from(at)), 6000);
        Writer::at(&mut fx, peer, (stag, to), at, 40_000)
    });
    writers[0].send_to(&mut fx, 30_000);
    fx.engine.disconnect(fx.now, writers[0].qp).unwrap();
    fx.advance(9 * SECOND);
    writers[1].send_to(&mut fx, 30_000);
    writers[2].send_to(&mut fx, 30_000);
    assert_eq!((writers[0].sent, writers[1].sent), (30_000, 30_000));
    assert!(writers[2].sent < 3000);
    fx.advance(2 * SECOND);
    for _ in 0..2 {
        let end = writers[2].stream.len();
        writers[2].send_to(&mut fx, end);
    }
    assert_eq!(fx.engine.counters().partials_evicted, 1);
    expect_written(&fx, 3);
    assert_eq!(fx.engine.qp_state(writers[1].qp), QpState::Rts);
}
