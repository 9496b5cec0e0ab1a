//! FPDUs that arrive in part and are not gone on with: they take memory, and no stream from others.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::{MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnParam, EndReason, Event};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::RecvWr;
use ferrowarp_proto::wire::ddp::{Tagged, Version};
use ferrowarp_proto::wire::rdmap::Opcode;
use ferrowarp_proto::wire::tcp::{Flags, Options};
use ferrowarp_tests::raw::{Bed, CQ, PD, Peer, framed, inbox, nothing, request, untagged};

const MSS: u16 = 1460;
const SEND: Opcode = Opcode::Send { invalidate: false, solicited: false };
/// Where the peers may write, beyond the buffer for Sends.
const SHARED: u64 = 8192;
const SHARED_LEN: u64 = 1 << 19;

/// A connection in full operation whose gate is open. Shorter than [`Peer::set_up`].
fn connect(bed: &mut Bed, port: u16) -> (Peer, QpId) {
    let mut peer = Peer::connect(bed, port, MSS);
    peer.send(bed, &request());
    let asked = bed.request();
    let qp = bed.qp();
    bed.engine.accept(bed.now, asked, qp, &ConnParam::default()).unwrap();
    assert!(matches!(bed.engine.next_event(), Some(Event::Established { .. })));
    bed.pass();
    assert!(peer.listen(bed));
    peer.send(bed, &nothing());
    peer.listen(bed);
    (peer, qp)
}

/// A Send whose payload tells the connections apart, as an FPDU.
fn message(number: usize) -> Vec<u8> {
    untagged(SEND, 0, 1, &[u8::try_from(number % 251).unwrap(); 1000])
}

/// The message is delivered, and what it brought is in the buffer.
fn is_delivered(bed: &mut Bed, number: usize) {
    let wc = bed.queues.poll(CQ).expect("a completion");
    assert_eq!((wc.status, wc.wr_id, wc.byte_len), (WcStatus::Success, number as u64, 1000));
    assert!(bed.arena.read(0, 1000).iter().all(|&octet| usize::from(octet) == number % 251));
}

#[test]
fn unfinished_fpdus_of_many_peers_end_no_stream() {
    const COUNT: usize = 1100;
    let mut bed = Bed::new(|_| {});
    let receive = inbox(&bed, 0);
    let mut peers: Vec<_> = (0..COUNT)
        .map(|number| {
            let (mut peer, qp) = connect(&mut bed, 10_000 + u16::try_from(number).unwrap());
            bed.engine.post_recv(qp, RecvWr { wr_id: number as u64, ..receive.clone() }).unwrap();
            peer.send(&mut bed, &message(number)[..500]);
            peer.listen(&bed);
            (peer, qp)
        })
        .collect();
    assert_eq!(bed.engine.usage().partial_fpdus, COUNT);
    // One more, whose message straddles two segments too, is served at once.
    let (mut peer, qp) = connect(&mut bed, 5000);
    bed.engine.post_recv(qp, RecvWr { wr_id: 7, ..receive }).unwrap();
    peer.send(&mut bed, &message(7)[..500]);
    peer.send(&mut bed, &message(7)[500..]);
    is_delivered(&mut bed, 7);
    // And those that go on find their streams as they left them.
    for (number, (peer, qp)) in peers.iter_mut().enumerate() {
        peer.send(&mut bed, &message(number)[500..]);
        is_delivered(&mut bed, number);
        peer.listen(&bed);
        assert_eq!((bed.engine.qp_state(*qp), peer.reset), (QpState::Rts, false));
    }
    let usage = bed.engine.usage();
    assert_eq!((usage.partial_fpdus, usage.partial_octets), (0, 0));
    let counters = bed.engine.counters();
    assert_eq!((counters.assembly_exhausted, counters.terminates_out), (0, 0));
}

/// A peer that writes with long FPDUs, and hears how far it was acknowledged.
struct Writer {
    peer: Peer,
    qp: QpId,
    stream: Vec<u8>,
    sent: usize,
}

impl Writer {
    /// One that writes `len` octets of `fill` to `to` with one FPDU.
    fn new(bed: &mut Bed, port: u16, stag: u32, to: u64, fill: u8, len: usize) -> Self {
        let (peer, qp) = connect(bed, port);
        let rsvd_ulp = Opcode::Write.control(Version::Ietf);
        let header = Tagged { last: true, rsvd_ulp, stag, to };
        let stream = framed(14, |out| header.emit(Version::Ietf, out), &vec![fill; len]);
        Self { peer, qp, stream, sent: 0 }
    }

    /// Sends from where it was acknowledged, up to `end`, and takes the acknowledgements.
    fn send_to(&mut self, bed: &mut Bed, end: usize) {
        let first = self.peer.seq;
        let from = self.sent;
        while self.sent < end {
            let next = end.min(self.sent + usize::from(MSS));
            let piece = self.stream[self.sent..next].to_vec();
            self.peer.send(bed, &piece);
            self.sent = next;
        }
        // The engine may delay its acknowledgement.
        bed.now = bed.now + MILLISECOND;
        bed.pass();
        self.peer.listen(bed);
        let kept = (self.peer.acked - first) as usize;
        self.sent = from + kept;
        self.peer.seq = self.peer.acked;
    }
}

/// Two writers of 40,000 octets, of which the engine has memory for one.
fn rivals(bed: &mut Bed) -> [Writer; 2] {
    let stag = bed.arena.register(SHARED, SHARED_LEN, Access::ALL, PD);
    let mut rivals = [1u8, 2].map(|at| {
        let to = SHARED + u64::from(at) * 100_000;
        Writer::new(bed, 6000 + u16::from(at), stag, to, at, 40_000)
    });
    rivals[0].send_to(bed, 30_000);
    assert_eq!(rivals[0].sent, 30_000);
    rivals[1].send_to(bed, 30_000);
    rivals
}

fn is_written(bed: &Bed, fill: u8) {
    let at = usize::try_from(SHARED).unwrap() + usize::from(fill) * 100_000;
    assert!(bed.arena.read(at, 40_000).iter().all(|&octet| octet == fill));
}

#[test]
fn what_finds_no_memory_is_not_acknowledged_and_comes_again() {
    let mut bed = Bed::new(|config| config.partial_octets_max = 70_000);
    let mut rivals = rivals(&mut bed);
    // What fits the shortest buffer was kept, and nothing else acknowledged.
    assert_eq!(rivals[1].sent, usize::from(MSS));
    assert!(bed.engine.counters().assembly_exhausted > 0);
    assert!(bed.engine.usage().partial_octets <= 70_000);
    assert!(rivals[1].peer.window >= 64 * 1024, "the window stays open");
    // Others go on whose FPDUs are of the ordinary length.
    let (mut other, qp) = connect(&mut bed, 5000);
    let receive = inbox(&bed, 7);
    bed.engine.post_recv(qp, receive).unwrap();
    other.send(&mut bed, &message(7)[..500]);
    other.send(&mut bed, &message(7)[500..]);
    is_delivered(&mut bed, 7);
    // Once the first is done there is room for the second, and nothing of its stream is lost.
    for (writer, fill) in rivals.iter_mut().zip([1, 2]) {
        let end = writer.stream.len();
        writer.send_to(&mut bed, end);
        assert_eq!(writer.sent, end);
        is_written(&bed, fill);
        assert_eq!(bed.engine.qp_state(writer.qp), QpState::Rts);
    }
    assert_eq!(bed.engine.usage().partial_octets, 0);
}

#[test]
fn an_fpdu_that_keeps_memory_from_others_for_too_long_ends() {
    let mut bed = Bed::new(|config| config.partial_octets_max = 70_000);
    let [mut first, mut second] = rivals(&mut bed);
    // It goes on octet by octet, and that helps it nothing.
    for _ in 0..11 {
        let next = first.sent + 1;
        first.send_to(&mut bed, next);
        bed.now = bed.now + SECOND;
        bed.pass();
    }
    while bed.engine.next_event().is_some() {}
    let end = second.stream.len();
    second.send_to(&mut bed, end);
    assert_eq!(bed.engine.counters().partials_evicted, 1);
    assert!(matches!(
        bed.engine.next_event(),
        Some(Event::Disconnected { qp, reason: EndReason::LocalError }) if qp == first.qp
    ));
    second.send_to(&mut bed, end);
    assert_eq!(second.sent, end);
    is_written(&bed, 2);
    assert_eq!(bed.engine.qp_state(second.qp), QpState::Rts);
}

#[test]
fn a_fin_behind_octets_without_memory_ends_the_stream() {
    let mut bed = Bed::new(|config| config.partial_octets_max = 70_000);
    let [_, second] = rivals(&mut bed);
    let piece = second.stream[second.sent..second.sent + 1000].to_vec();
    second.peer.put(&bed, Flags::ACK | Flags::FIN, Options::default(), second.peer.seq, &piece);
    bed.settle();
    assert_eq!(bed.engine.qp_state(second.qp), QpState::Error);
    assert_eq!(bed.engine.usage().partial_fpdus, 1, "the first one's");
}
