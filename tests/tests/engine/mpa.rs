//! Rules of MPA and of an MPA-aware TCP, checked on the wire.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::tcp::Probing;
use ferrowarp_proto::time::MILLISECOND;
use ferrowarp_proto::verbs::cm::EndReason;
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::compliance::fixture::{FpduFixture, parse_fpdus};
use ferrowarp_tests::compliance::messages::{PEER_STAG, connected, elements, send_of, write_of};
use ferrowarp_tests::peer::{Header, fpdu, marked_fpdu};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    fpdu(&Header::send(msn, 0, true).encode(payload), true)
}

/// Posts a Send of the first `len` bytes, in one element or in two: [`elements`].
fn post_send_of(fx: &mut FpduFixture, wr_id: u32, len: usize, halved: bool) {
    let operation = send_of(&elements(fx, len, halved));
    fx.post_op(wr_id, operation);
}

/// For messages in one element, and in two.
fn either_way<T: Copy>(of: T) -> [(T, bool); 2] {
    [(of, false), (of, true)]
}

/// The lengths of the ULPDUs in each segment.
fn ulpdu_lens(fx: &mut FpduFixture) -> Vec<Vec<usize>> {
    segments(fx).iter().map(|segment| segment.iter().map(Vec::len).collect()).collect()
}

/// The ULPDUs of each segment; every segment consists of whole FPDUs.
fn segments(fx: &mut FpduFixture) -> Vec<Vec<Vec<u8>>> {
    fx.sent_ulpdus();
    std::mem::take(&mut fx.segments)
        .iter()
        .map(|segment| {
            let (ulpdus, rest) = parse_fpdus(segment);
            assert!(rest.is_empty(), "an FPDU goes on in another segment");
            ulpdus
        })
        .collect()
}

// req-test: MPA-009, MPA-013, MPA-015, MPA-099, MPA-109
#[test]
fn fpdus_align_with_segments() {
    for (emss, halved) in [536u16, 1448, 1460].into_iter().flat_map(either_way) {
        let mut fx = FpduFixture::connected(emss, 4, 4);
        let operation = write_of(&elements(&fx, 60_000, halved));
        fx.post_op(1, operation);
        fx.sent_ulpdus();
        let lens: Vec<_> = fx.segments.iter().map(Vec::len).collect();
        let (last, others) = lens.split_last().unwrap();
        let full = usize::from(emss - emss % 4);
        assert!(others.iter().all(|&len| len == full) && *last <= full, "{lens:?}");
        assert!(segments(&mut fx).iter().all(|segment| segment.len() == 1));
        // Messages of other lengths, two of which share a segment where they fit.
        for (wr_id, len) in (2..).zip([300, 150, 700, 600, 60, 1000]) {
            post_send_of(&mut fx, wr_id, len, halved);
        }
        let lens = ulpdu_lens(&mut fx);
        assert!(lens.iter().any(|segment| segment.len() > 1), "{lens:?}");
    }
}

// req-test: MPA-011, MPA-014, MPA-098, MPA-108, MPA-085
#[test]
fn small_fpdus_are_packed_whole_into_a_segment() {
    for halved in [false, true] {
        let mut fx = connected();
        for wr_id in 0..10 {
            post_send_of(&mut fx, wr_id, 20 + wr_id as usize, halved);
        }
        let lens = ulpdu_lens(&mut fx);
        assert!(lens.len() < 10);
        assert_eq!(lens.concat(), (38..48).collect::<Vec<_>>());
    }
}

// req-test: MPA-110, MPA-116, MPA-122
#[test]
fn final_fpdu_shares_its_segment_with_the_next_message() {
    let mut fx = connected();
    fx.post_send(1, 0, 1436 + 1300);
    fx.post_send(2, 0, 42);
    // The last FPDU of the first message has 1,324 bytes, which leaves 136; the next leaves 68.
    assert_eq!(ulpdu_lens(&mut fx), [vec![1454], vec![1318, 60]]);
}

// req-test: MPA-121
#[test]
fn message_does_not_start_in_a_short_remainder() {
    // The first leaves 136 bytes, an FPDU of the minimum MULPDU; the others leave less.
    for (first, halved) in [1300, 1310, 1400].into_iter().flat_map(either_way) {
        let mut fx = connected();
        post_send_of(&mut fx, 1, first, halved);
        post_send_of(&mut fx, 2, 5000, halved);
        let whole = vec![1454];
        let expected = [vec![18 + first], whole.clone(), whole.clone(), whole];
        assert_eq!(ulpdu_lens(&mut fx)[..4], expected);
    }
}

/// A path MTU probe is filled with a piece of a message, unless less than the minimum MULPDU is
/// left.
// req-test: MPA-121
#[test]
fn pieces_in_a_path_mtu_probe_have_the_minimum_mulpdu() {
    // Segments of 1,240 bytes, and a probe of 1,460. Its first FPDU leaves 220 bytes; the rest of
    // the first message leaves 136 of these, or 132.
    for (rest, piece) in [(60, Some(130)), (61, None)] {
        let mut fx = FpduFixture::with_config(1500, |config| {
            config.tcp.path_mtu.probe = Probing::Always;
        });
        fx.connect(4, 4);
        fx.post_send(1, 0, 1216 + rest);
        fx.post_send(2, 0, 5000);
        let expected: Vec<_> = [1234, 18 + rest as usize].into_iter().chain(piece).collect();
        assert_eq!(ulpdu_lens(&mut fx)[0], expected);
    }
}

// req-test: MPA-100
#[test]
fn small_fpdus_are_not_delayed_by_nagle() {
    let mut fx = connected();
    fx.stop_acks(40);
    for wr_id in 1..=5 {
        fx.post_send(wr_id, 0, 20);
        assert_eq!(fx.sent_ulpdus().len(), 1, "while others are not acknowledged");
    }
}

/// A byte stream of Sends, and the messages in it.
struct SendScript {
    bytes: Vec<u8>,
    messages: Vec<Vec<u8>>,
}

fn random_script(rng: &mut SmallRng) -> SendScript {
    let messages: Vec<Vec<u8>> = (0..12u8)
        .map(|number| {
            let len = rng.random_range(0..if number % 3 == 0 { 3000 } else { 40 });
            (0..len).map(|at: usize| at.to_le_bytes()[0] ^ number).collect()
        })
        .collect();
    let mut bytes = Vec::new();
    for (msn, message) in (1..).zip(&messages) {
        let mut mo = 0;
        // Also FPDUs that no segment holds.
        let piece_max = if msn % 2 == 0 { 3000 } else { 1000 };
        for piece in message.chunks(piece_max).chain(message.is_empty().then_some(&[][..])) {
            let last = mo + piece.len() == message.len();
            let header = Header::send(msn, u32::try_from(mo).unwrap(), last);
            bytes.extend(fpdu(&header.encode(piece), true));
            mo += piece.len();
        }
    }
    SendScript { bytes, messages }
}

/// Sends `script` in segments split at `cuts`, in the order that `shuffle` makes.
fn deliver_pieces(script: &SendScript, cuts: &[usize], shuffle: impl FnOnce(&mut Vec<usize>)) {
    let mut fx = connected();
    for wr_id in 0..12 {
        fx.post_recv(wr_id, 4096 * wr_id, 4096);
    }
    let mut pieces = Vec::new();
    let mut start = 0;
    for &cut in cuts.iter().chain([&script.bytes.len()]) {
        // No segment exceeds the MSS.
        for piece in script.bytes[start..cut.max(start)].chunks(1400) {
            pieces.push(fx.drop_segment(piece));
        }
        start = cut.max(start);
    }
    let mut order: Vec<_> = (0..pieces.len()).collect();
    shuffle(&mut order);
    for index in order {
        fx.retransmit(&pieces[index]);
    }
    let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.byte_len as usize)).collect();
    let expected: Vec<_> = (0..).zip(script.messages.iter().map(Vec::len)).collect();
    assert_eq!(done, expected, "in order, once each, with the lengths that were sent");
    for (index, message) in script.messages.iter().enumerate() {
        assert!(fx.arena.read(4096 * index, message.len()) == *message, "message {index}");
    }
    assert_eq!(fx.end_reason(), None);
}

// req-test: MPA-007, MPA-039, MPA-050, MPA-083, MPA-084
#[test]
fn ulpdus_survive_any_segment_order() {
    let mut rng = SmallRng::seed_from_u64(5);
    for _ in 0..60 {
        let script = random_script(&mut rng);
        let mut cuts: Vec<_> = (0..20).map(|_| rng.random_range(0..script.bytes.len())).collect();
        cuts.sort_unstable();
        deliver_pieces(&script, &cuts, |order| order.shuffle(&mut rng));
    }
}

// req-test: MPA-131, MPA-132, MPA-135, MPA-136, MPA-137
#[test]
fn fpdu_split_at_any_byte_is_reassembled() {
    let script = random_script(&mut SmallRng::seed_from_u64(6));
    for cut in (1..200).chain([script.bytes.len() - 1]) {
        // Both orders: the head first, and the tail first.
        deliver_pieces(&script, &[cut], |_| {});
        deliver_pieces(&script, &[cut], |order| order.reverse());
    }
}

// req-test: MPA-134, MPA-138, MPA-127, DDP-022
#[test]
fn segment_with_partial_and_whole_fpdus_is_deframed() {
    let parts = [send(1, b"first"), send(2, b"second"), send(3, b"third")];
    for (head, tail) in [(1, 1), (5, 20), (20, 5), (27, 27)] {
        let mut fx = connected();
        for wr_id in 1..=5 {
            fx.post_recv(wr_id, 0, 64);
        }
        fx.inject(&parts[0][..head]);
        fx.inject(&[&parts[0][head..], &parts[1], &parts[2][..tail]].concat());
        let lens =
            |fx: &mut FpduFixture| fx.poll_cq().iter().map(|wc| wc.byte_len).collect::<Vec<_>>();
        assert_eq!(lens(&mut fx), [5, 6]);
        fx.inject(&[&parts[2][tail..], &send(4, b"fourth")[..], &send(5, b"fifth")].concat());
        assert_eq!(lens(&mut fx), [5, 6, 5]);
    }
}

// req-test: MPA-024, MPA-025, MPA-028
#[test]
fn segments_rejected_by_tcp_never_reach_mpa() {
    let mut fx = connected();
    fx.post_recv(1, 0, 64);
    let bytes = send(1, b"x");
    let good = fx.build_frame(|_| {}, &bytes);
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
        // No ACK; an ACK of unsent data; a SYN.
        fx.build_frame(|fields| fields.flags = Flags::PSH, &bytes),
        fx.build_frame(|fields| fields.ack += 1_000_000, &bytes),
        fx.build_frame(|fields| fields.flags = Flags::ACK | Flags::SYN, &bytes),
    ];
    // Left of the window, and right of it.
    for far in [1 << 30, 0u32.wrapping_sub(1 << 30)] {
        frames.push(fx.build_frame(|fields| fields.seq += far, &bytes));
    }
    let before = fx.engine.counters().fpdus_in;
    for frame in frames {
        fx.inject_frame(frame);
        assert_eq!((fx.poll_cq(), fx.engine.counters().fpdus_in), (vec![], before));
    }
    fx.inject(&bytes);
    assert_eq!(fx.poll_cq()[0].status, WcStatus::Success);
}

// req-test: MPA-123, MPA-130, MPA-091, MPA-060
#[test]
fn nothing_is_placed_before_the_crc_check() {
    // Longer than the distance of markers.
    const LEN: usize = 600;
    for marked in [false, true] {
        let mut fx = if marked { FpduFixture::connected_with_markers(1460) } else { connected() };
        let stag = fx.register(0, 2 * LEN as u64, Access::REMOTE_WRITE, false);
        let mut sent = 24;
        let mut fpdu = |to: usize| {
            let ulpdu = Header::write(stag, to as u64, true).encode(&[7; LEN]);
            let bytes = if marked { marked_fpdu(&ulpdu, true, sent) } else { fpdu(&ulpdu, true) };
            sent += bytes.len() as u64;
            bytes
        };
        let bytes = fpdu(0);
        for byte in &bytes[..bytes.len() - 1] {
            fx.inject(&[*byte]);
            assert_eq!(fx.arena.read(0, LEN), [0; LEN]);
        }
        fx.inject(&bytes[bytes.len() - 1..]);
        assert_eq!(fx.arena.read(0, LEN), [7; LEN]);
        // A wrong last byte: nothing is placed.
        let mut bytes = fpdu(LEN);
        *bytes.last_mut().unwrap() ^= 0x80;
        fx.inject(&bytes);
        assert_eq!(fx.arena.read(LEN, LEN), [0; LEN]);
        assert_eq!(fx.end_reason().unwrap().error(), Some((2, 0, 2)));
    }
}

// req-test: MPA-042
#[test]
fn mulpdu_can_be_queried() {
    for (emss, mulpdu) in [(200u16, 194), (1448, 1442), (1460, 1454)] {
        let fx = FpduFixture::connected(emss, 4, 4);
        assert_eq!(fx.engine.mulpdu(fx.qp()), Some(mulpdu));
    }
}

// req-test: MPA-162, MPA-151, MPA-159
#[test]
fn in_window_garbage_terminates_without_placement() {
    let mut rng = SmallRng::seed_from_u64(7);
    for _ in 0..50 {
        let mut fx = connected();
        fx.post_recv(1, 0, 4096);
        let mut garbage = vec![0; 1400];
        rng.fill(&mut garbage[..]);
        garbage[..2].copy_from_slice(&[0, 100]);
        fx.inject(&garbage);
        assert!(fx.arena.read(0, 1 << 16).iter().all(|&byte| byte == 0));
        assert_eq!(fx.sent_terminate().cause(), (2, 0, 2));
        assert!(!fx.rst_sent);
        let ended = fx.end_reason();
        assert!(matches!(ended, Some(EndReason::TerminateSent(_))), "{ended:?}");
    }
}

// req-test: MPA-012, MPA-146, MPA-148, MPA-152
#[test]
fn disconnect_is_reported_after_earlier_data() {
    for reset in [false, true] {
        let mut fx = connected();
        fx.post_recv(1, 0, 64);
        fx.post_recv(2, 0, 64);
        fx.inject(&send(1, b"the last"));
        fx.inject_flags(if reset { Flags::RST } else { Flags::ACK | Flags::FIN });
        let expected = if reset { EndReason::Reset } else { EndReason::PeerClosed };
        assert_eq!(expected.error(), reset.then_some((2, 0, 1)), "error 1 of MPA");
        assert_eq!(fx.end_reason(), Some(expected));
        let done: Vec<_> = fx.poll_cq().iter().map(|wc| wc.status).collect();
        assert_eq!(done, [WcStatus::Success, WcStatus::Flushed]);
    }
    // The stack's own FIN follows its last FPDU.
    let mut fx = connected();
    fx.post_send(1, 0, 3000);
    fx.stop_acks(2);
    fx.poll_cq();
    let (qp, now) = (fx.qp(), fx.now);
    fx.resume_acks(0xffff);
    fx.engine.disconnect(now, qp).unwrap();
    let sent: usize = fx.sent_ulpdus().iter().map(|ulpdu| ulpdu.len() - 18).sum();
    assert_eq!((sent, fx.fin_sent, fx.rst_sent), (3000, true, false));
}

// req-test: MPA-101, MPA-102, MPA-121
#[test]
fn fpdu_larger_than_the_window_is_split() {
    let mut fx = connected();
    fx.resume_acks(100);
    fx.post_send(1, 0, 1400);
    fx.post_send(2, 0, 8);
    let mut done = 0;
    for _ in 0..1000 {
        // Partial segments wait for the timer that probes a small window.
        fx.now = fx.now + 100 * MILLISECOND;
        done += fx.poll_cq().len();
    }
    assert_eq!(done, 2);
    assert!(fx.segments.iter().all(|segment| segment.len() <= 100));
    let ulpdus = fx.sent_ulpdus();
    // Only the last ULPDU of a message may be smaller than the minimum MULPDU.
    assert!(ulpdus.iter().all(|ulpdu| ulpdu.len() >= 128 || ulpdu[0] & 0x40 != 0));
    let bytes: usize = ulpdus.iter().map(|ulpdu| ulpdu.len() - 18).sum();
    assert_eq!(bytes, 1408);
}

// req-test: MPA-008, MPA-010, MPA-016, MPA-118, DDP-018
#[test]
fn mulpdu_follows_the_path_mtu() {
    let mut fx = connected();
    for (mtu, mulpdu) in [(1400, 1354), (1000, 954)] {
        fx.post_write(1, 0, 20_000, PEER_STAG, 0);
        fx.sent_ulpdus();
        fx.stop_acks(3);
        fx.post_write(2, 0, 20_000, PEER_STAG, 0);
        fx.poll_cq();
        fx.inject_packet_too_big(mtu);
        fx.resume_acks(0xffff);
        fx.sent_ulpdus();
        fx.now = fx.now + 2000 * MILLISECOND;
        fx.poll_cq();
        assert_eq!(fx.engine.mulpdu(fx.qp()), Some(mulpdu));
        fx.post_write(3, 0, 20_000, PEER_STAG, 0);
        let lens: Vec<_> = fx.sent_ulpdus().iter().map(Vec::len).collect();
        let (last, others) = lens.split_last().unwrap();
        assert!(others.iter().all(|&len| len == mulpdu) && *last <= mulpdu, "{mtu}: {lens:?}");
        fx.poll_cq();
    }
}

// req-test: DDP-014, DDP-019, DDP-020, MPA-101, MPA-176
#[test]
fn queued_fpdus_keep_their_size_when_the_path_mtu_shrinks() {
    let mut fx = connected();
    fx.stop_acks(4);
    fx.drop_tx = true;
    fx.post_write(1, 0, 20_000, PEER_STAG, 0);
    fx.poll_cq();
    fx.inject_packet_too_big(1200);
    fx.now = fx.now + 2000 * MILLISECOND;
    fx.poll_cq();
    fx.inject_packet_too_big(900);
    fx.drop_tx = false;
    fx.resume_acks(0xffff);
    for _ in 0..100 {
        fx.now = fx.now + 100 * MILLISECOND;
        fx.poll_cq();
    }
    let lens: Vec<_> = fx.segments.iter().map(Vec::len).collect();
    assert!(lens.iter().all(|&len| len <= 860), "{lens:?}");
    let messages = fx.sent_messages();
    let lens: Vec<_> = messages.iter().map(|(_, payload)| payload.len()).collect();
    let waited = lens.iter().take_while(|&&len| len == 1440).count();
    assert!(waited >= 4, "those that waited keep their headers: {lens:?}");
    assert!(lens[waited..].iter().all(|&len| len <= 840), "{lens:?}");
    let mut next = 0;
    for (header, payload) in messages {
        let last = next + payload.len() == 20_000;
        assert_eq!(header, Header::write(PEER_STAG, next as u64, last));
        next += payload.len();
    }
    assert_eq!(next, 20_000);
}

// req-test: MPA-059, MPA-092
#[test]
fn padding_is_covered_by_the_crc_and_ignored() {
    let mut fx = connected();
    fx.post_recv(1, 0, 64);
    fx.post_recv(2, 64, 64);
    let mut bytes = send(1, b"three");
    let crc_at = bytes.len() - 4;
    bytes[crc_at - 1] = 0x77;
    let sum = crc32c::crc32c(&bytes[..crc_at]).to_le_bytes();
    bytes[crc_at..].copy_from_slice(&sum);
    fx.inject(&bytes);
    assert_eq!(fx.poll_cq()[0].byte_len, 5);
    assert_eq!(fx.arena.read(0, 6), b"three\0");
    // The same padding with the CRC for zero padding.
    let mut bytes = send(2, b"three");
    bytes[crc_at - 1] = 0x77;
    fx.inject(&bytes);
    assert_eq!(fx.sent_terminate().cause(), (2, 0, 2));
}

// req-test: MPA-173
#[test]
fn full_size_fpdu_is_reassembled_from_reversed_pieces() {
    let mut fx = connected();
    fx.post_recv(1, 0, 4096);
    let bytes = send(1, &[7; 1436]);
    assert_eq!(bytes.len(), 1460);
    let pieces: Vec<_> = bytes.chunks(64).map(|piece| fx.drop_segment(piece)).collect();
    for piece in pieces.iter().rev() {
        assert_eq!(fx.poll_cq().len(), 0);
        fx.retransmit(piece);
    }
    assert_eq!(fx.poll_cq()[0].byte_len, 1436);
}
