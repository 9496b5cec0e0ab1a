//! Peers that make no progress: whatever they have pinned of the frames for sending, the next
//! client is served within a second.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::mpa::fpdu;
use ferrowarp_proto::time::{Instant, MILLISECOND, SECOND};
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, SendWr, Sge};
use ferrowarp_proto::wire::tcp::{Flags, Options};
use ferrowarp_tests::raw::{Bed, CQ, PD, Peer, nothing};

/// Buffers of the data pool, see [`Bed::new`].
const POOL: usize = 256;
/// Octets of each RDMA Write.
const LEN: u32 = 64 * 1024;

/// Posts a Write of [`LEN`] octets.
fn write(bed: &mut Bed, qp: QpId, lkey: u32) {
    let sge = Sge { addr: 0, len: LEN, lkey };
    let payload = Payload::Gather([sge].into_iter().collect());
    let operation = Operation::Write { payload, rkey: 1, remote: 0 };
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    bed.engine.post_send(qp, wr).unwrap();
}

/// A connection whose responder may send.
fn open(bed: &mut Bed, port: u16) -> (Peer, QpId) {
    let mut peer = Peer::connect(bed, port, 1460);
    let qp = peer.set_up(bed);
    peer.send(bed, &nothing());
    (peer, qp)
}

/// Octets of Writes in a stream of FPDUs, each of which is verified; what is behind the last whole
/// one is left out.
fn written(mut stream: &[u8]) -> usize {
    let mut octets = 0;
    while let Some((ulpdu, used)) = fpdu::parse(stream, true).unwrap() {
        octets += ulpdu.len() - 14;
        stream = &stream[used..];
    }
    octets
}

/// A new client comes, and a whole Write is sent to it, within a second.
fn serve_the_next(bed: &mut Bed, port: u16, lkey: u32) {
    let began = bed.now;
    let (mut client, qp) = open(bed, port);
    write(bed, qp, lkey);
    while written(&client.heard) < LEN as usize {
        assert!(bed.now.since(began) < SECOND, "{} octets in a second", client.heard.len());
        client.settle(bed);
    }
    let done = std::iter::from_fn(|| bed.queues.poll(CQ)).find(|wc| wc.qp == qp);
    assert_eq!(done.map(|wc| wc.status), Some(WcStatus::Success));
}

/// Time passes, and what the engine sends meanwhile is lost.
fn wait(bed: &mut Bed, until: Instant) {
    while bed.now < until {
        bed.now = (bed.now + 50 * MILLISECOND).min(until);
        bed.engine.drive(bed.now);
        bed.engine.device().outbound.borrow_mut().clear();
    }
}

fn pinned(bed: &Bed) -> String {
    let usage = bed.engine.usage();
    format!("{} frames, {} copies", bed.engine.device().lent(), usage.sent_copies)
}

/// Peers that acknowledge until the congestion window is wide, and then nothing: each could have
/// the whole pool.
#[test]
fn peers_with_wide_windows_leave_frames_to_the_next_client() {
    let mut bed = Bed::new(|config: &mut EngineConfig| config.sent_copies_octets_max = 0);
    let lkey = bed.arena.register(0, u64::from(LEN), Access::ALL, PD);
    let mut stalled = Vec::new();
    for port in 0..8 {
        let (mut peer, qp) = open(&mut bed, 5000 + port);
        for _ in 0..16 {
            write(&mut bed, qp, lkey);
        }
        while peer.heard.len() < 8 * LEN as usize {
            assert!(!peer.reset);
            bed.pass();
            if peer.listen(&bed) {
                peer.put(&bed, Flags::ACK, Options::default(), peer.seq, &[]);
            }
            while bed.queues.poll(CQ).is_some() {}
        }
        stalled.push(peer);
    }
    for _ in 0..100 {
        bed.pass();
        bed.engine.device().outbound.borrow_mut().clear();
    }
    println!("{}", pinned(&bed));
    assert!(bed.engine.device().lent() < POOL, "some are left");
    serve_the_next(&mut bed, 6000, lkey);
    assert_eq!(bed.engine.counters().stalled_resets, 0, "nobody had to go for it");
}

/// More peers than there are frames stop acknowledging. Their frames are copied out, and when they
/// acknowledge again they get what they lack, octet by octet as it was.
#[test]
fn frames_of_stalled_peers_are_copied_out_and_nothing_is_lost() {
    const COUNT: u16 = 512;
    const { assert!(COUNT as usize == 2 * POOL) };
    let mut bed = Bed::new(|_| {});
    let lkey = bed.arena.register(0, u64::from(LEN), Access::ALL, PD);
    let octets: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    bed.arena.write(0, &octets);
    let mut stalled = Vec::new();
    for index in 0..COUNT {
        let (peer, qp) = open(&mut bed, 5000 + index);
        write(&mut bed, qp, lkey);
        bed.pass();
        stalled.push(peer);
    }
    println!("{}", pinned(&bed));
    serve_the_next(&mut bed, 20_000, lkey);
    assert!(bed.engine.usage().sent_copies >= usize::from(COUNT) - POOL);
    assert_eq!(bed.engine.counters().stalled_resets, 0);
    for index in [0, usize::from(COUNT) - 1] {
        let peer = &mut stalled[index];
        let last = bed.now + 60 * SECOND;
        while written(&peer.heard) < LEN as usize {
            assert!(bed.now < last && !peer.reset, "{} octets", peer.heard.len());
            peer.settle(&mut bed);
            bed.now = bed.now + 100 * MILLISECOND;
        }
        // Each FPDU carries its offset, and was verified.
        let mut rest = &peer.heard[..];
        while let Some((ulpdu, used)) = fpdu::parse(rest, true).unwrap() {
            let at = u64::from_be_bytes(ulpdu[6..14].try_into().unwrap());
            assert!((at..).zip(&ulpdu[14..]).all(|(at, octet)| u64::from(*octet) == at % 251));
            rest = &rest[used..];
        }
    }
}

/// Peers that close their windows behind what is in flight, and say so once a minute.
#[test]
fn closed_windows_pin_no_frame_that_others_want() {
    const COUNT: u16 = 64;
    let mut bed = Bed::new(|_| {});
    let lkey = bed.arena.register(0, u64::from(LEN), Access::ALL, PD);
    let mut stalled = Vec::new();
    for index in 0..COUNT {
        let (mut peer, qp) = open(&mut bed, 5000 + index);
        write(&mut bed, qp, lkey);
        bed.pass();
        bed.engine.device().outbound.borrow_mut().clear();
        peer.offers = 0;
        stalled.push(peer);
    }
    for minute in 0..10 {
        for peer in &stalled {
            peer.put(&bed, Flags::ACK, Options::default(), peer.seq, &[]);
        }
        let until = bed.now + 60 * SECOND;
        wait(&mut bed, until);
        println!("minute {minute}: {}", pinned(&bed));
    }
    assert_eq!(bed.engine.connection_count(), COUNT.into(), "they answer");
    serve_the_next(&mut bed, 20_000, lkey);
    assert_eq!(bed.engine.counters().stalled_resets, 0);
}

/// Without memory for copies those that have made no progress for the longest time give way, and
/// only to those that have nothing outstanding.
#[test]
fn slowest_connection_gives_way_where_nothing_can_be_copied() {
    const COUNT: u16 = 512;
    const { assert!(COUNT as usize == 2 * POOL) };
    let mut bed = Bed::new(|config: &mut EngineConfig| config.sent_copies_octets_max = 0);
    let lkey = bed.arena.register(0, u64::from(LEN), Access::ALL, PD);
    let mut stalled = Vec::new();
    for index in 0..COUNT {
        let (peer, qp) = open(&mut bed, 5000 + index);
        write(&mut bed, qp, lkey);
        bed.pass();
        bed.engine.device().outbound.borrow_mut().clear();
        stalled.push(peer);
        if bed.engine.device().lent() >= POOL {
            break;
        }
    }
    assert!(stalled.len() < COUNT.into(), "the pool is drained: {}", pinned(&bed));
    let until = bed.now + 6 * SECOND;
    wait(&mut bed, until);
    assert_eq!(bed.engine.counters().stalled_resets, 0, "nobody is in want");
    serve_the_next(&mut bed, 20_000, lkey);
    let count = bed.engine.counters().stalled_resets;
    assert!((1..64).contains(&count), "{count}");
    // The first that stalled.
    assert!(bed.engine.connection_count() < stalled.len() + 1);
    bed.engine.device().outbound.borrow_mut().clear();
    stalled[0].put(&bed, Flags::ACK, Options::default(), stalled[0].seq, &[]);
    bed.pass();
    stalled[0].listen(&bed);
    assert!(stalled[0].reset);
}
