//! MPA, DDP and RDMAP rules on out-of-order FPDUs, located by their markers.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::verbs::cm::ConnEvent;
use ferrowarp_tests::compliance::fixture::{DroppedSegment, FpduFixture};
use ferrowarp_tests::compliance::messages::{PEER_STAG, read_request, read_response, sent_opcodes};
use ferrowarp_tests::conn_param;
use ferrowarp_tests::peer::{Header, marked_fpdu};

/// A stack that requested markers and places out of order, and the bytes of FPDUs the peer has
/// sent.
struct OooFixture {
    fx: FpduFixture,
    sent: u64,
    stag: u32,
}

impl OooFixture {
    fn new(ooo_placement: bool) -> Self {
        Self::with_fixture(FpduFixture::new(), ooo_placement)
    }

    fn with_fixture(mut fx: FpduFixture, ooo_placement: bool) -> Self {
        fx.inject(&[b"MPA ID Req Frame", &[0x40, 1, 0, 0][..]].concat());
        fx.accept(&conn_param(|it| {
            it.markers = true;
            it.ooo_placement = ooo_placement;
        }));
        let event = fx.engine.next_event();
        assert!(matches!(event, Some(ConnEvent::Established { .. })), "{event:?}");
        fx.take_sent();
        let stag = fx.register(0, 8192, Access::REMOTE_WRITE, false);
        for wr_id in 1..=4 {
            fx.post_recv(wr_id, 16_384 + 64 * wr_id, 64);
        }
        let mut marked = Self { fx, sent: 0, stag };
        let first = marked.write(0, b"");
        marked.fx.retransmit(&first);
        marked
    }

    /// A lost FPDU of the peer.
    fn drop_ulpdu(&mut self, ulpdu: &[u8]) -> DroppedSegment {
        self.drop_ulpdus(&[ulpdu])
    }

    /// FPDUs of the peer, all in one segment, which is lost.
    fn drop_ulpdus(&mut self, ulpdus: &[&[u8]]) -> DroppedSegment {
        let bytes = marked_fpdus(ulpdus, self.sent);
        self.sent += bytes.len() as u64;
        self.fx.drop_segment(&bytes)
    }

    fn write(&mut self, to: u64, bytes: &[u8]) -> DroppedSegment {
        self.drop_ulpdu(&Header::write(self.stag, to, true).encode(bytes))
    }

    fn send(&mut self, msn: u32, bytes: &[u8]) -> DroppedSegment {
        self.drop_ulpdu(&Header::send(msn, 0, true).encode(bytes))
    }

    /// `wr_id`s of the completed work.
    fn completed_recvs(&mut self) -> Vec<u64> {
        self.fx.poll_cq().iter().map(|wc| wc.wr_id).collect()
    }
}

/// FPDUs that follow `sent` bytes of others.
fn marked_fpdus(ulpdus: &[&[u8]], sent: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for ulpdu in ulpdus {
        bytes.extend(marked_fpdu(ulpdu, true, sent + bytes.len() as u64));
    }
    bytes
}

// req-test: MPA-007, MPA-022, MPA-037, MPA-133, RDMAP-012
#[test]
fn ooo_write_is_placed_before_delivery() {
    for ooo_placement in [true, false] {
        let mut marked = OooFixture::new(ooo_placement);
        let gap = marked.write(0, &[1; 1000]);
        let early = marked.write(2000, &[2; 1000]);
        let send = marked.send(1, b"both are there");
        marked.fx.retransmit(&early);
        marked.fx.retransmit(&send);
        let expected = if ooo_placement { 2 } else { 0 };
        assert_eq!(marked.fx.arena.read(2000, 1000), [expected; 1000]);
        assert_eq!(marked.fx.engine.counters().fpdus_placed_ooo, u64::from(ooo_placement));
        assert_eq!(marked.completed_recvs(), [0; 0]);
        marked.fx.retransmit(&gap);
        assert_eq!(marked.completed_recvs(), [1]);
        assert_eq!(marked.fx.arena.read(0, 1000), [1; 1000]);
        assert_eq!(marked.fx.arena.read(2000, 1000), [2; 1000]);
    }
}

// req-test: MPA-003, MPA-004, MPA-032, MPA-052, MPA-053
#[test]
fn ooo_messages_are_delivered_in_order_once_gaps_are_filled() {
    for order in [[2usize, 0, 1], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
        let mut marked = OooFixture::new(true);
        let mut lost = Vec::new();
        for msn in 1..=3u32 {
            let number = msn.to_le_bytes()[0];
            let write = marked.write(1000 * u64::from(msn), &[number; 700]);
            lost.push([write, marked.send(msn, &[number])]);
        }
        let (mut arrived, mut delivered) = ([false; 3], Vec::new());
        for index in order {
            marked.fx.retransmit(&lost[index][0]);
            marked.fx.retransmit(&lost[index][1]);
            arrived[index] = true;
            let whole = arrived.iter().take_while(|arrived| **arrived).count();
            delivered.extend(marked.completed_recvs());
            assert_eq!(delivered, (1..=whole as u64).collect::<Vec<_>>(), "{order:?}");
            for msn in 1..=whole {
                let number = msn.to_le_bytes()[0];
                assert_eq!(marked.fx.arena.read(1000 * msn, 700), vec![number; 700]);
                assert_eq!(marked.fx.arena.read(16_384 + 64 * msn, 1), [number]);
            }
        }
        assert_eq!(delivered.len(), 3);
    }
}

/// Beyond a gap only the Write is placed: a Send and a Read Response are buffered, though the
/// response could be placed.
// req-test: RDMAP-264
#[test]
fn ooo_write_of_another_version_is_not_placed() {
    for version in [0, 0x80, 0xc0] {
        let mut marked = OooFixture::new(true);
        let gap = marked.write(0, &[1; 1000]);
        let mut bad = Header::write(marked.stag, 2000, true).encode(&[2; 1000]);
        bad[1] = bad[1] & 0x3f | version;
        let early = marked.drop_ulpdu(&bad);
        marked.fx.retransmit(&early);
        marked.fx.retransmit(&gap);
        assert_eq!(marked.fx.sent_terminate().cause(), (0, 2, 5), "RV {version:#x}");
        assert_eq!(marked.fx.arena.read(0, 1000), [1; 1000]);
        assert_eq!(marked.fx.arena.read(2000, 1000), [0; 1000]);
    }
}

// req-test: DDP-024, DDP-114, DDP-116, RDMAP-210
#[test]
fn nothing_completes_beyond_a_gap() {
    let mut marked = OooFixture::new(true);
    let local = marked.fx.mem_stag;
    marked.fx.post_read(9, 6000, 4, PEER_STAG, 0);
    assert_eq!(sent_opcodes(&mut marked.fx), [1]);
    let gap = marked.write(0, &[1; 1000]);
    let early = marked.write(2000, &[2; 1000]);
    let answer = marked.drop_ulpdu(&read_response(local, 6000, true, b"abcd"));
    let send = marked.send(1, b"x");
    for lost in [&early, &answer, &send] {
        marked.fx.retransmit(lost);
    }
    assert_eq!(marked.fx.engine.counters().fpdus_placed_ooo, 1);
    assert_eq!(marked.completed_recvs(), [0; 0]);
    assert_eq!(marked.fx.arena.read(2000, 4), [2; 4]);
    assert_eq!(marked.fx.arena.read(6000, 4), [0; 4]);
    assert_eq!(marked.fx.arena.read(16_384 + 64, 1), [0]);
    marked.fx.retransmit(&gap);
    assert_eq!(marked.completed_recvs(), [9, 1]);
    assert_eq!(marked.fx.arena.read(6000, 4), b"abcd");
    assert_eq!(marked.fx.arena.read(16_384 + 64, 1), b"x");
    assert_eq!(marked.fx.end_reason(), None);
}

/// A Read Request beyond a gap reads the data that fills the gap.
// req-test: RDMAP-212, RDMAP-221
#[test]
fn ooo_read_request_is_not_answered() {
    let mut marked = OooFixture::new(true);
    let local = marked.fx.mem_stag;
    let gap = marked.write(0, &[1; 1000]);
    let early = marked.write(2000, &[2; 1000]);
    let requests = [
        read_request(1, local, 0, 4, 0),
        read_request(2, local, 2000, 4, 8),
        read_request(3, 0xdead_beef, 0, 0, 16),
    ]
    .map(|request| marked.drop_ulpdu(&request));
    marked.fx.retransmit(&early);
    for lost in &requests {
        marked.fx.retransmit(lost);
    }
    assert_eq!(marked.fx.engine.counters().fpdus_placed_ooo, 1);
    assert_eq!(marked.fx.sent_ulpdus().len(), 0);
    marked.fx.retransmit(&gap);
    let answers = [
        read_response(PEER_STAG, 0, true, &[1; 4]),
        read_response(PEER_STAG, 8, true, &[2; 4]),
        read_response(PEER_STAG, 16, true, b""),
    ];
    assert_eq!(marked.fx.sent_ulpdus(), answers);
    assert_eq!(marked.fx.end_reason(), None);
}

/// A segment with a Write, which could be placed, and a Send, which has to be buffered: without
/// buffer space TCP drops the segment, and nothing of it is used until it is retransmitted.
// req-test: MPA-023
#[test]
fn mpa_sees_only_ooo_segments_that_tcp_buffers() {
    for has_room in [true, false] {
        let fx = FpduFixture::with_config(1500, |config| {
            if !has_room {
                (config.ooo_frames_max, config.ooo_bytes_max) = (0, 0);
            }
        });
        let mut marked = OooFixture::with_fixture(fx, true);
        let gap = marked.write(0, &[1; 600]);
        let write = Header::write(marked.stag, 2000, true).encode(&[2; 600]);
        let send = Header::send(1, 0, true).encode(b"kept");
        let both = marked.drop_ulpdus(&[&write, &send]);
        marked.fx.retransmit(&both);
        let expected = if has_room { 2 } else { 0 };
        assert_eq!(marked.fx.arena.read(2000, 600), [expected; 600]);
        assert_eq!(marked.fx.engine.counters().ooo_pool_exhausted, u64::from(!has_room));
        // Data accepted by TCP stays as it is, whatever arrives for the same sequence numbers
        // later.
        let other = Header::write(marked.stag, 2000, true).encode(&[3; 600]);
        let others = Header::send(1, 0, true).encode(b"lost");
        let forged = marked_fpdus(&[&other, &others], marked.sent - both.bytes().len() as u64);
        assert_eq!(forged.len(), both.bytes().len());
        if has_room {
            marked.fx.retransmit(&both.shifted_back(0, &forged));
        }
        marked.fx.retransmit(&gap);
        assert_eq!(marked.completed_recvs(), if has_room { vec![1] } else { vec![] });
        if !has_room {
            marked.fx.retransmit(&both);
            assert_eq!(marked.completed_recvs(), [1]);
        }
        assert_eq!(marked.fx.arena.read(2000, 600), [2; 600]);
        assert_eq!(marked.fx.arena.read(16_384 + 64, 4), b"kept");
        assert_eq!(marked.fx.end_reason(), None);
    }
}

/// A segment whose second FPDU is damaged counts as lost, its intact first FPDU included.
// req-test: MPA-156
#[test]
fn no_fpdu_of_a_dropped_ooo_segment_is_placed() {
    let mut marked = OooFixture::new(true);
    let gap = marked.write(0, &[1; 100]);
    let first = Header::write(marked.stag, 2000, true).encode(&[2; 600]);
    let second = Header::write(marked.stag, 4000, true).encode(&[3; 600]);
    let both = marked.drop_ulpdus(&[&first, &second]);
    let mut damaged = both.bytes().to_vec();
    let len = damaged.len();
    damaged[len - 40] ^= 4;
    marked.fx.retransmit(&both.shifted_back(0, &damaged));
    assert_eq!(marked.fx.engine.counters().ooo_dropped, 1);
    assert_eq!(marked.fx.engine.counters().fpdus_placed_ooo, 0);
    assert_eq!(marked.fx.arena.read(2000, 600), [0; 600]);
    marked.fx.retransmit(&both);
    assert_eq!(marked.fx.engine.counters().fpdus_placed_ooo, 2);
    assert_eq!(marked.fx.arena.read(2000, 600), [2; 600]);
    assert_eq!(marked.fx.arena.read(4000, 600), [3; 600]);
    marked.fx.retransmit(&gap);
    assert_eq!(marked.fx.end_reason(), None);
}

// req-test: MPA-154, MPA-158
#[test]
fn wrong_fpduptr_in_ooo_segment_is_found_when_the_gap_is_filled() {
    let mut marked = OooFixture::new(true);
    let gap = marked.write(0, &[1; 100]);
    // A valid CRC, but a wrong FPDUPTR.
    let ulpdu = Header::write(marked.stag, 2000, true).encode(&[2; 700]);
    let mut bytes = marked_fpdu(&ulpdu, true, marked.sent);
    let at = usize::try_from(512 - marked.sent % 512).unwrap();
    bytes[at + 3] ^= 8;
    let crc_at = bytes.len() - 4;
    let sum = crc32c::crc32c(&bytes[..crc_at]).to_le_bytes();
    bytes[crc_at..].copy_from_slice(&sum);
    marked.sent += bytes.len() as u64;
    let astray = marked.fx.drop_segment(&bytes);
    let later = marked.write(4000, &[3; 100]);
    marked.fx.retransmit(&astray);
    marked.fx.retransmit(&later);
    marked.fx.retransmit(&gap);
    marked.fx.retransmit(&astray);
    let terminate = marked.fx.sent_terminate();
    assert_eq!(terminate.cause(), (2, 0, 3));
    assert_eq!(marked.fx.arena.read(0, 100), [1; 100], "what came before is there");
    assert_eq!(marked.fx.arena.read(2000, 700), [0; 700]);
}
