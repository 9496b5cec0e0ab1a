//! Bodies of the fuzz targets: invariants for arbitrary input.
//!
//! `tests/fuzz` runs them under libFuzzer; `cargo test` runs them over a bounded, seeded corpus, so
//! that they build and pass on a stable toolchain.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::recv_queue::RqCap;
use ferrowarp_proto::ddp::sgl::Sge;
use ferrowarp_proto::ddp::untagged::BufferQueue;
use ferrowarp_proto::ddp::vec_memory::VecMemory;
use ferrowarp_proto::device::{ChecksumMode, ChecksumState};
use ferrowarp_proto::mpa::deframer::{DeframeError, Deframer, OooPlacement, PartialMemory};
use ferrowarp_proto::mpa::fpdu::fpdu_len;
use ferrowarp_proto::mpa::fpdu_pool::FpduPool;
use ferrowarp_proto::mpa::markers::{Markers, wire_len};
use ferrowarp_proto::mpa::startup::{self, Offer};
use ferrowarp_proto::mpa::stream_bytes::StreamBytes;
use ferrowarp_proto::rdmap::requester::Requester;
use ferrowarp_proto::rdmap::send_queue::SqCap;
use ferrowarp_proto::rdmap::stream::{Indication, Stream};
use ferrowarp_proto::time::{Instant, MILLISECOND};
use ferrowarp_proto::wire::ddp::{Header, Version};
use ferrowarp_proto::wire::mpa::{FrameKind, PRIVATE_DATA_LEN_MAX, Startup};
use ferrowarp_proto::wire::mpa::{READ_DEPTH_MAX, ReadDepths};
use ferrowarp_proto::wire::rdmap::{Opcode, ReadRequest};
use ferrowarp_proto::wire::rdmap_extensions::{AtomicRequest, AtomicResponse};
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::Segment;
use ferrowarp_proto::wire::terminate::{self, TERMINATE_LEN_MAX, Terminate};

use crate::frame::Frame;
use crate::peer::opcode;
use crate::sim::segment_mutator::SegmentMutator;
use crate::sim::workload::{may_fail_options, run_with_forged_segments};
use crate::sim::world::WorldOptions;

/// Parses a frame; the first two bytes choose its checksum mode and the length of its first part.
///
/// # Panics
/// If the parser does, or the payload it reports lies outside the frame.
pub fn segment(data: &[u8]) {
    let Some((&[choice, head], bytes)) = data.split_first_chunk() else { return };
    let (mode, checksum) = match choice % 5 {
        0 => (ChecksumMode::NotNeeded, ChecksumState::Unknown),
        1 => (ChecksumMode::Software, ChecksumState::Unknown),
        2 => (ChecksumMode::Offload, ChecksumState::Good),
        3 => (ChecksumMode::OffloadTcp, ChecksumState::TransportGood),
        _ => (ChecksumMode::Offload, ChecksumState::Bad),
    };
    let whole = Frame::new(bytes).with_checksum(checksum);
    let parsed = Segment::parse(&whole, mode);
    if let Ok(segment) = &parsed {
        assert!(segment.payload.start <= segment.payload.end);
        assert!(segment.payload.end <= bytes.len());
        assert!(segment.seq_len() as usize >= segment.payload.len());
        assert_ne!(checksum, ChecksumState::Bad);
    }
    // In two parts: the same segment, unless a header is split.
    let split = whole.split_at(usize::from(head));
    if let Ok(segment) = Segment::parse(&split, mode) {
        assert_eq!(Ok(segment), parsed);
    }
}

/// Parses and processes an MPA startup frame in both roles.
///
/// # Panics
/// If the parser does, or the frame differs after emitting and parsing it again.
pub fn startup(data: &[u8]) {
    for kind in [FrameKind::Request, FrameKind::Reply] {
        let Ok(Some((frame, used))) = Startup::parse(data, kind) else { continue };
        assert!(used <= data.len());
        assert!(frame.private_data.len() <= PRIVATE_DATA_LEN_MAX);
        assert_eq!(Startup::parse(&data[..used], kind), Ok(Some((frame.clone(), used))));
        assert_eq!(Startup::parse(&data[..used - 1], kind), Ok(None));
        let mut again = vec![0; frame.wire_len()];
        frame.emit(&mut again);
        // A frame of a revision below 2 has no IRD/ORD block; everything else is kept.
        assert_eq!(Startup::parse(&again, kind), Ok(Some((frame.clone(), again.len()))));

        let offer = Offer { ird: 8, ord: 8, ..Offer::default() };
        if kind == FrameKind::Request {
            let is_acceptable = startup::check_request(&frame).is_ok();
            let (reply, negotiated) = startup::accept(&frame, offer, (*b"data").into());
            assert!(negotiated.ird <= READ_DEPTH_MAX && negotiated.ord <= READ_DEPTH_MAX);
            assert!(
                !is_acceptable
                    || (negotiated.crc == frame.crc && negotiated.markers_out == frame.markers)
            );
            let mut out = vec![0; reply.wire_len()];
            reply.emit(&mut out);
            startup::reject(&frame, ReadDepths::default(), (*b"no").into()).emit(&mut [0; 64]);
        } else {
            for revision in [0, 1, 2] {
                if let Ok(negotiated) = startup::process_reply(&frame, offer, revision) {
                    assert!(negotiated.ird <= READ_DEPTH_MAX && negotiated.ord <= 8);
                }
            }
        }
    }
}

/// Deframes a stream of FPDUs with two different segmentations: the ULPDUs must be the same.
///
/// # Panics
/// If the deframer does, or its results depend on the segmentation.
pub fn fpdu_chain(data: &[u8]) {
    let Some((&[choice, chunk_len], stream)) = data.split_first_chunk() else { return };
    let crc = choice & 1 != 0;
    let markers = (choice & 2 != 0).then(|| Markers::starting_at(Seq(u32::from(choice))));
    let mut pool = FpduPool::new(1);
    let whole = deframe(stream, stream.len().max(1), crc, markers, &mut pool);
    let chunked = deframe(stream, usize::from(chunk_len).max(1), crc, markers, &mut pool);
    assert_eq!(whole, chunked);
    assert_eq!(pool.buffers_in_use(), 0, "a buffer was not returned");
    if markers.is_some() {
        place_ooo(stream, usize::from(chunk_len), crc, markers);
    }
}

/// The bytes from `start` on are received out-of-order: the FPDUs that a marker locates in them are
/// complete.
fn place_ooo(stream: &[u8], start: usize, crc: bool, markers: Option<Markers>) {
    let Some((markers, segment)) = markers.zip(stream.get(start..)) else { return };
    let mut pool = FpduPool::new(1);
    let mut deframer = Deframer::new(Some(markers));
    // The stream begins at the first marker; `choice` above is that sequence number.
    let seq = (0..512).map(Seq).find(|seq| markers.phase(*seq) == start % 512);
    let seq = seq.expect("each phase occurs once in a period");
    let (mut bytes, mut count) = (0, 0);
    let placement = deframer.place_ooo(seq, segment, crc, &mut pool, |ulpdu| {
        (bytes, count) = (bytes + fpdu_len(ulpdu.len()), count + 1);
        true
    });
    assert!(bytes <= segment.len());
    if let OooPlacement::Placed(placed) = placement {
        assert_eq!(placed, count);
        assert_eq!(wire_len(start % 512, bytes), segment.len());
    }
}

/// Returns the ULPDUs of `stream`, received in chunks of `chunk_len` bytes; `Err` after an invalid
/// FPDU.
fn deframe(
    stream: &[u8],
    chunk_len: usize,
    crc: bool,
    markers: Option<Markers>,
    pool: &mut FpduPool,
) -> (Vec<Vec<u8>>, Result<(), DeframeError>) {
    let mut deframer = Deframer::new(markers);
    let mut found = Vec::new();
    let result = (|| {
        for bytes in stream.chunks(chunk_len) {
            let mut bytes = StreamBytes::from(bytes);
            loop {
                let left = bytes.len();
                let memory = PartialMemory::Forced;
                let next = deframer.next(Instant::ZERO, &mut bytes, crc, pool, memory, || 0)?;
                let Some(ulpdu) = next else { break };
                let (plain, used) = (fpdu_len(ulpdu.bytes.len()), left - bytes.len());
                let is_right = used == plain || (markers.is_some() && used > plain);
                assert!(ulpdu.is_reassembled || is_right);
                found.push(ulpdu.bytes.to_vec());
            }
            assert!(bytes.is_empty());
        }
        Ok(())
    })();
    deframer.reset(pool, 0);
    (found, result)
}

/// Parses headers of DDP and RDMAP, and Terminates.
///
/// # Panics
/// If a parser does, or a header differs after emitting and parsing it again.
pub fn headers(data: &[u8]) {
    for version in [Version::Ietf, Version::Rdmac, Version::Draft00] {
        let Ok(header) = Header::parse(data, version) else { continue };
        assert!(header.wire_len() <= data.len());
        let mut out = vec![0; header.wire_len()];
        match header {
            Header::Tagged(header) => header.emit(version, &mut out),
            Header::Untagged(header) => header.emit(version, &mut out),
        }
        assert_eq!(Header::parse(&out, version), Ok(header));
        if let Ok(opcode) = Opcode::parse(header.rsvd_ulp(), version) {
            assert_eq!(Opcode::parse(opcode.control(version), version), Ok(opcode));
        }
        let payload = &data[header.wire_len()..];
        if let Some(request) = ReadRequest::parse(payload) {
            let mut again = vec![0; payload.len()];
            request.emit(&mut again);
            assert_eq!(again, payload);
        }
        if let Ok(request) = AtomicRequest::parse(payload) {
            let mut again = vec![0; payload.len()];
            request.emit(&mut again);
            assert_eq!(AtomicRequest::parse(&again), Ok(request));
        }
        if let Some(response) = AtomicResponse::parse(payload) {
            let mut again = vec![0; payload.len()];
            response.emit(&mut again);
            assert_eq!(again, payload);
        }
        if let Some(terminate) = Terminate::parse(payload) {
            let mut again = [0; TERMINATE_LEN_MAX];
            terminate.emit(&mut again);
            // The layout of the headers depends on the cause, which must be a defined one.
            if terminate::is_defined(terminate.layer, terminate.error_type, terminate.code) {
                assert_eq!(Terminate::parse(&again[..terminate.wire_len()]), Some(terminate));
            }
        }
    }
}

/// Passes ULPDUs, each after a length and a choice byte, to an RDMAP stream with receive buffers
/// and a region with all remote access rights. With a choice from `0xA0` to `0xAF` the STag field
/// of a Write, Send, Read Request or Atomic Request becomes a region's STag, which a fuzzer would
/// not guess.
///
/// # Panics
/// If the stream does, or a byte changes that the peer may not write.
pub fn stream(data: &[u8]) {
    const PD: u32 = 7;
    let arena = VecMemory::new(4096);
    let canary = [0x77; 1024];
    arena.write(2048, &canary);
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let open = arena.register(0, 1024, rights, PD);
    let receive = arena.register(1024, 1024, Access::LOCAL_WRITE, PD);
    let read_only = arena.register(2048, 512, Access::REMOTE_READ, PD);
    let foreign = arena.register(2560, 512, Access::ALL, PD + 1);
    let stags = [open, receive, read_only, foreign].map(u32::to_be_bytes);

    let mut stream =
        Stream::new(PD, Requester::new(SqCap::new(4)), BufferQueue::new(RqCap::new(4)));
    stream.start(Version::Ietf, 2, 2);
    for wr_id in 0..4 {
        let sge = Sge { addr: 1024 + wr_id * 256, len: 200, lkey: receive };
        stream.recv_queue.post(wr_id, &[sge]).expect("there is room");
    }
    let mut received = 0;
    let mut out = [0; 1442];
    let mut rest = data;
    while let [len, choice, tail @ ..] = rest {
        let (ulpdu, after) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = after;
        let mut ulpdu = ulpdu.to_vec();
        let is_atomic =
            ulpdu.get(1).is_some_and(|control| control & 0x0F == opcode::ATOMIC_REQUEST);
        for at in if is_atomic { [2, 26] } else { [2, 34] } {
            if choice & 0xF0 == 0xA0 && ulpdu.len() >= at + 4 {
                ulpdu[at..at + 4].copy_from_slice(&stags[usize::from(*choice) % 4]);
            }
        }
        match stream.on_ulpdu(&arena, &ulpdu) {
            Ok(Indication::Received { .. } | Indication::ImmediateReceived { .. }) => received += 1,
            Ok(_) => {}
            Err(fault) => {
                stream.fail(fault, &ulpdu);
                assert!(stream.has_failed());
            }
        }
        // A buffer leaves the queue only with a message that is reported.
        assert_eq!(stream.recv_queue.free_count(), received);
        // A Read of the whole region is 1024 bytes: two segments at most per request.
        for _ in 0..8 {
            let Some(next) = stream.next_tx() else { break };
            match stream.build_next(next, &arena, &mut out) {
                Ok(len) => assert!(Header::parse(&out[..len], Version::Ietf).is_ok()),
                Err(_) => assert!(stream.has_failed()),
            }
        }
        if stream.has_failed() {
            break;
        }
    }
    assert_eq!(arena.read(2048, 1024), canary);
    assert_eq!(arena.read(3072, 1024), [0; 1024]);
}

/// Runs two engines with segments forged between them as the input says; see
/// [`SegmentMutator::from_input`]. The first byte chooses the address family, whether sequence
/// numbers are kept, and the seed.
///
/// # Panics
/// If an engine does, a wrong byte is delivered, a request completes twice or never, the connection
/// neither completes nor is reported as ended, or a resource is leaked.
pub fn live(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let options =
        WorldOptions { ipv6: choice & 1 != 0, ..may_fail_options(u64::from(choice >> 2)) };
    let keeps_seq = choice & 2 != 0;
    let mutator = SegmentMutator::from_input(bytes, keeps_seq);
    run_with_forged_segments(&options, mutator, keeps_seq, 20 * MILLISECOND, 6, None);
}
