//! Rules of MPA and of a TCP that knows of it, seen from the wire.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::MILLISECOND;
use ferrowarp_proto::verbs::cm::EndReason;
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::compliance::bed::{Bed, split};
use ferrowarp_tests::peer::{Header, fpdu};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// STag of the peer's memory.
const THEIRS: u32 = 0x00c0_ffee;

fn bed() -> Bed {
    Bed::started(1460, 4, 4)
}

fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    fpdu(&Header::send(msn, 0, true).encode(payload), true)
}

/// The ULPDUs of each segment; each segment is a row of whole FPDUs.
fn segments(bed: &mut Bed) -> Vec<Vec<Vec<u8>>> {
    bed.ulpdus();
    std::mem::take(&mut bed.segments)
        .iter()
        .map(|segment| {
            let (ulpdus, rest) = split(segment);
            assert!(rest.is_empty(), "an FPDU goes on in another segment");
            ulpdus
        })
        .collect()
}

// req-test: MPA-009, MPA-013, MPA-015, MPA-099, MPA-109
#[test]
fn each_segment_is_one_fpdu_of_its_size() {
    for emss in [536u16, 1448, 1460] {
        let mut bed = Bed::started(emss, 4, 4);
        bed.write(1, 0, 60_000, THEIRS, 0);
        bed.ulpdus();
        let lens: Vec<_> = bed.segments.iter().map(Vec::len).collect();
        let (last, others) = lens.split_last().unwrap();
        let full = usize::from(emss - emss % 4);
        assert!(others.iter().all(|&len| len == full) && *last <= full, "{lens:?}");
        assert!(segments(&mut bed).iter().all(|segment| segment.len() == 1));
    }
}

// req-test: MPA-011, MPA-014, MPA-098, MPA-108, MPA-085
#[test]
fn small_fpdus_share_a_segment_and_stay_whole() {
    let mut bed = bed();
    for wr_id in 0..10 {
        bed.send(wr_id, 0, 20 + wr_id);
    }
    let segments = segments(&mut bed);
    assert!(segments.len() < 10);
    let lens: Vec<_> = segments.concat().iter().map(Vec::len).collect();
    assert_eq!(lens, (38..48).collect::<Vec<_>>());
}

// req-test: MPA-110, MPA-116, MPA-122
#[test]
fn a_tail_leaves_room_for_what_fits() {
    let mut bed = bed();
    bed.send(1, 0, 1436 + 1300);
    bed.send(2, 0, 42);
    let lens: Vec<Vec<_>> =
        segments(&mut bed).iter().map(|segment| segment.iter().map(Vec::len).collect()).collect();
    // The tail's FPDU has 1,324 octets, which leaves 136, and then 68.
    assert_eq!(lens, [vec![1454], vec![1318, 60]]);
}

// req-test: MPA-121
#[test]
fn a_message_does_not_begin_in_a_remainder() {
    // The first leaves 136 octets, what an FPDU of the least MULPDU takes; the others leave less.
    for first in [1300, 1310, 1400] {
        let mut bed = bed();
        bed.send(1, 0, first);
        bed.send(2, 0, 5000);
        let lens: Vec<Vec<_>> = segments(&mut bed)
            .iter()
            .map(|segment| segment.iter().map(Vec::len).collect())
            .collect();
        let whole = vec![1454];
        assert_eq!(lens[..4], [vec![18 + first as usize], whole.clone(), whole.clone(), whole]);
    }
}

// req-test: MPA-100
#[test]
fn nothing_waits_for_an_acknowledgment() {
    let mut bed = bed();
    bed.stall(40);
    for wr_id in 1..=5 {
        bed.send(wr_id, 0, 20);
        assert_eq!(bed.ulpdus().len(), 1, "while others are not acknowledged");
    }
}

/// A stream of Sends, and how it is cut.
struct Script {
    octets: Vec<u8>,
    messages: Vec<Vec<u8>>,
}

fn script(chance: &mut SmallRng) -> Script {
    let messages: Vec<Vec<u8>> = (0..12u8)
        .map(|number| {
            let len = chance.random_range(0..if number % 3 == 0 { 3000 } else { 40 });
            (0..len).map(|at: usize| at.to_le_bytes()[0] ^ number).collect()
        })
        .collect();
    let mut octets = Vec::new();
    for (msn, message) in (1..).zip(&messages) {
        let mut mo = 0;
        for piece in message.chunks(1000).chain(message.is_empty().then_some(&[][..])) {
            let last = mo + piece.len() == message.len();
            let header = Header::send(msn, u32::try_from(mo).unwrap(), last);
            octets.extend(fpdu(&header.encode(piece), true));
            mo += piece.len();
        }
    }
    Script { octets, messages }
}

/// Sends `script` in pieces cut at `cuts`, in the order that `shuffle` makes.
fn play(script: &Script, cuts: &[usize], shuffle: impl FnOnce(&mut Vec<usize>)) {
    let mut bed = bed();
    for wr_id in 0..12 {
        bed.receive(wr_id, 4096 * wr_id, 4096);
    }
    let mut pieces = Vec::new();
    let mut start = 0;
    for &cut in cuts.iter().chain([&script.octets.len()]) {
        // TCP takes no segment above its size.
        for piece in script.octets[start..cut.max(start)].chunks(1400) {
            pieces.push(bed.lose(piece));
        }
        start = cut.max(start);
    }
    let mut order: Vec<_> = (0..pieces.len()).collect();
    shuffle(&mut order);
    for index in order {
        bed.resend(&pieces[index]);
    }
    let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.byte_len as usize)).collect();
    let expected: Vec<_> = (0..).zip(script.messages.iter().map(Vec::len)).collect();
    assert_eq!(done, expected, "in order, once each, with the lengths that were sent");
    for (index, message) in script.messages.iter().enumerate() {
        assert!(bed.arena.read(4096 * index, message.len()) == *message, "message {index}");
    }
    assert_eq!(bed.ended(), None);
}

// req-test: MPA-007, MPA-039, MPA-050, MPA-083, MPA-084
#[test]
fn records_survive_whatever_order_segments_come_in() {
    let mut chance = SmallRng::seed_from_u64(5);
    for _ in 0..60 {
        let script = script(&mut chance);
        let mut cuts: Vec<_> =
            (0..20).map(|_| chance.random_range(0..script.octets.len())).collect();
        cuts.sort_unstable();
        play(&script, &cuts, |order| order.shuffle(&mut chance));
    }
}

// req-test: MPA-131, MPA-132, MPA-135, MPA-136, MPA-137
#[test]
fn fpdus_are_put_together_wherever_they_were_cut() {
    let script = script(&mut SmallRng::seed_from_u64(6));
    for cut in (1..200).chain([script.octets.len() - 1]) {
        // Both orders: the head first, and the tail first.
        play(&script, &[cut], |_| {});
        play(&script, &[cut], |order| order.reverse());
    }
}

// req-test: MPA-134, MPA-138, MPA-127, DDP-022
#[test]
fn segments_of_tails_whole_fpdus_and_heads_are_taken_apart() {
    let parts = [send(1, b"first"), send(2, b"second"), send(3, b"third")];
    for (head, tail) in [(1, 1), (5, 20), (20, 5), (27, 27)] {
        let mut bed = bed();
        for wr_id in 1..=5 {
            bed.receive(wr_id, 0, 64);
        }
        bed.say(&parts[0][..head]);
        bed.say(&[&parts[0][head..], &parts[1], &parts[2][..tail]].concat());
        let lens = |bed: &mut Bed| bed.done().iter().map(|wc| wc.byte_len).collect::<Vec<_>>();
        assert_eq!(lens(&mut bed), [5, 6]);
        bed.say(&[&parts[2][tail..], &send(4, b"fourth")[..], &send(5, b"fifth")].concat());
        assert_eq!(lens(&mut bed), [5, 6, 5]);
    }
}

// req-test: MPA-024, MPA-025, MPA-028
#[test]
fn what_tcp_refuses_never_reaches_mpa() {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    let octets = send(1, b"x");
    let good = bed.frame(|_| {}, &octets);
    let flipped = |at: usize| {
        let mut frame = good.clone();
        frame[at] ^= 1;
        frame
    };
    let mut frames = vec![
        // Checksums of TCP (a port, the payload) and of IP (time to live).
        flipped(50),
        flipped(60),
        flipped(22),
        // No ACK; an ACK of what was never sent; a SYN.
        bed.frame(|fields| fields.flags = Flags::PSH, &octets),
        bed.frame(|fields| fields.ack += 1_000_000, &octets),
        bed.frame(|fields| fields.flags = Flags::ACK | Flags::SYN, &octets),
    ];
    // Left of the window, and right of it.
    for far in [1 << 30, 0u32.wrapping_sub(1 << 30)] {
        frames.push(bed.frame(|fields| fields.seq += far, &octets));
    }
    let before = bed.engine.counters().fpdus_in;
    for frame in frames {
        bed.deliver(frame);
        assert_eq!((bed.done(), bed.engine.counters().fpdus_in), (vec![], before));
    }
    bed.say(&octets);
    assert_eq!(bed.done()[0].status, WcStatus::Success);
}

// req-test: MPA-123, MPA-130, MPA-091, MPA-060
#[test]
fn nothing_is_placed_before_the_crc_was_checked() {
    let mut bed = bed();
    let stag = bed.register(0, 64, Access::REMOTE_WRITE, false);
    let octets = fpdu(&Header::write(stag, 0, true).encode(b"guarded"), true);
    for octet in &octets[..octets.len() - 1] {
        bed.say(&[*octet]);
        assert_eq!(bed.arena.read(0, 8), [0; 8]);
    }
    bed.say(&octets[octets.len() - 1..]);
    assert_eq!(bed.arena.read(0, 8), b"guarded\0");
    // A wrong last octet, and nothing is placed.
    let mut octets = fpdu(&Header::write(stag, 8, true).encode(b"guarded"), true);
    *octets.last_mut().unwrap() ^= 0x80;
    bed.say(&octets);
    assert_eq!(bed.arena.read(8, 8), [0; 8]);
    assert_eq!(bed.terminate().cause(), (2, 0, 2));
}

// req-test: MPA-042
#[test]
fn the_largest_record_can_be_asked_for() {
    for (emss, mulpdu) in [(200u16, 194), (1448, 1442), (1460, 1454)] {
        let bed = Bed::started(emss, 4, 4);
        assert_eq!(bed.engine.mulpdu(bed.qp()), Some(mulpdu));
    }
}

// req-test: MPA-162, MPA-151, MPA-159
#[test]
fn garbage_within_the_window_writes_nothing_and_the_connection_closes_in_order() {
    let mut chance = SmallRng::seed_from_u64(7);
    for _ in 0..50 {
        let mut bed = bed();
        bed.receive(1, 0, 4096);
        let mut garbage = vec![0; 1400];
        chance.fill(&mut garbage[..]);
        garbage[..2].copy_from_slice(&[0, 100]);
        bed.say(&garbage);
        assert!(bed.arena.read(0, 1 << 16).iter().all(|&octet| octet == 0));
        assert_eq!(bed.terminate().cause(), (2, 0, 2));
        assert!(!bed.reset);
        let ended = bed.ended();
        assert!(matches!(ended, Some(EndReason::TerminateSent(_))), "{ended:?}");
    }
}

// req-test: MPA-012, MPA-146, MPA-148, MPA-152
#[test]
fn an_end_is_told_after_all_that_came_before_it() {
    for reset in [false, true] {
        let mut bed = bed();
        bed.receive(1, 0, 64);
        bed.receive(2, 0, 64);
        bed.say(&send(1, b"the last"));
        bed.signal(if reset { Flags::RST } else { Flags::ACK | Flags::FIN });
        let expected = if reset { EndReason::Reset } else { EndReason::PeerClosed };
        assert_eq!(expected.error(), reset.then_some((2, 0, 1)), "error 1 of MPA");
        assert_eq!(bed.ended(), Some(expected));
        let done: Vec<_> = bed.done().iter().map(|wc| wc.status).collect();
        assert_eq!(done, [WcStatus::Success, WcStatus::Flushed]);
    }
    // And ours comes after the last FPDU.
    let mut bed = bed();
    bed.send(1, 0, 3000);
    bed.stall(2);
    bed.done();
    let (qp, now) = (bed.qp(), bed.now);
    bed.resume(0xffff);
    bed.engine.disconnect(now, qp).unwrap();
    let sent: usize = bed.ulpdus().iter().map(|ulpdu| ulpdu.len() - 18).sum();
    assert_eq!((sent, bed.finished, bed.reset), (3000, true, false));
}

// req-test: MPA-101, MPA-102, MPA-121
#[test]
fn an_fpdu_above_the_window_goes_out_in_pieces() {
    let mut bed = bed();
    bed.resume(100);
    bed.send(1, 0, 1400);
    bed.send(2, 0, 8);
    let mut done = 0;
    for _ in 0..1000 {
        // Pieces wait for the timer that probes a small window.
        bed.now = bed.now + 100 * MILLISECOND;
        done += bed.done().len();
    }
    assert_eq!(done, 2);
    assert!(bed.segments.iter().all(|segment| segment.len() <= 100));
    let ulpdus = bed.ulpdus();
    // None is smaller than the least MULPDU, but the last of a message.
    assert!(ulpdus.iter().all(|ulpdu| ulpdu.len() >= 128 || ulpdu[0] & 0x40 != 0));
    let octets: usize = ulpdus.iter().map(|ulpdu| ulpdu.len() - 18).sum();
    assert_eq!(octets, 1408);
}

// req-test: MPA-008, MPA-010, MPA-016, MPA-118, DDP-018
#[test]
fn fpdus_follow_the_size_of_the_path() {
    let mut bed = bed();
    for (mtu, mulpdu) in [(1400, 1354), (1000, 954)] {
        bed.write(1, 0, 20_000, THEIRS, 0);
        bed.ulpdus();
        bed.stall(3);
        bed.write(2, 0, 20_000, THEIRS, 0);
        bed.done();
        bed.too_big(mtu);
        bed.resume(0xffff);
        bed.ulpdus();
        bed.now = bed.now + 2000 * MILLISECOND;
        bed.done();
        assert_eq!(bed.engine.mulpdu(bed.qp()), Some(mulpdu));
        bed.write(3, 0, 20_000, THEIRS, 0);
        let lens: Vec<_> = bed.ulpdus().iter().map(Vec::len).collect();
        let (last, others) = lens.split_last().unwrap();
        assert!(others.iter().all(|&len| len == mulpdu) && *last <= mulpdu, "{mtu}: {lens:?}");
        bed.done();
    }
}

// req-test: DDP-014, DDP-019, DDP-020, MPA-101, MPA-176
#[test]
fn what_was_accepted_before_the_path_shrank_arrives_as_it_was_made() {
    let mut bed = bed();
    bed.stall(4);
    bed.deaf = true;
    bed.write(1, 0, 20_000, THEIRS, 0);
    bed.done();
    bed.too_big(1200);
    bed.now = bed.now + 2000 * MILLISECOND;
    bed.done();
    bed.too_big(900);
    bed.deaf = false;
    bed.resume(0xffff);
    for _ in 0..100 {
        bed.now = bed.now + 100 * MILLISECOND;
        bed.done();
    }
    let lens: Vec<_> = bed.segments.iter().map(Vec::len).collect();
    assert!(lens.iter().all(|&len| len <= 860), "{lens:?}");
    let messages = bed.messages();
    let lens: Vec<_> = messages.iter().map(|(_, payload)| payload.len()).collect();
    let waited = lens.iter().take_while(|&&len| len == 1440).count();
    assert!(waited >= 4, "those that waited keep their headers: {lens:?}");
    assert!(lens[waited..].iter().all(|&len| len <= 840), "{lens:?}");
    let mut next = 0;
    for (header, payload) in messages {
        let last = next + payload.len() == 20_000;
        assert_eq!(header, Header::write(THEIRS, next as u64, last));
        next += payload.len();
    }
    assert_eq!(next, 20_000);
}

// req-test: MPA-059, MPA-092
#[test]
fn padding_counts_in_the_crc_and_nowhere_else() {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    bed.receive(2, 64, 64);
    let mut octets = send(1, b"three");
    let crc_at = octets.len() - 4;
    octets[crc_at - 1] = 0x77;
    let sum = crc32c::crc32c(&octets[..crc_at]).to_le_bytes();
    octets[crc_at..].copy_from_slice(&sum);
    bed.say(&octets);
    assert_eq!(bed.done()[0].byte_len, 5);
    assert_eq!(bed.arena.read(0, 6), b"three\0");
    // The same padding with the sum of zeros.
    let mut octets = send(2, b"three");
    octets[crc_at - 1] = 0x77;
    bed.say(&octets);
    assert_eq!(bed.terminate().cause(), (2, 0, 2));
}

// req-test: MPA-173
#[test]
fn an_fpdu_as_large_as_a_packet_comes_in_small_pieces_from_behind() {
    let mut bed = bed();
    bed.receive(1, 0, 4096);
    let octets = send(1, &[7; 1436]);
    assert_eq!(octets.len(), 1460);
    let pieces: Vec<_> = octets.chunks(64).map(|piece| bed.lose(piece)).collect();
    for piece in pieces.iter().rev() {
        assert_eq!(bed.done().len(), 0);
        bed.resend(piece);
    }
    assert_eq!(bed.done()[0].byte_len, 1436);
}
