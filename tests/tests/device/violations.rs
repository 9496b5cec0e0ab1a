//! A peer on a kernel socket that violates one rule per case, with the Terminate that the stack
//! sends; and Terminates sent by the peer.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;

use ferrowarp::cm::{Abort, Version};
use ferrowarp::{Access, Config, ConnEvent, EndReason, Listener, Mr, Qp, QpState, Sge, WcStatus};
use ferrowarp_tests::conn_param;
use ferrowarp_tests::peer::{self, Header, Peer, ReadRequest, Startup, opcode};
use ferrowarp_tests::stack::{STACK, Stack, TIMEOUT, post_recv, post_send};
use ferrowarp_tests::{netns, skip, test_name};

mod extensions;

const PORT: u16 = 4791;
/// Length of each region and each receive buffer.
const LEN: u32 = 1000;

/// The stack, and the regions named in the segments.
struct ViolationFixture {
    stack: Stack,
    listener: Listener,
    open: Mr,
    /// Without remote access rights.
    closed: Mr,
    /// In another protection domain.
    foreign: Mr,
    recv_mr: Mr,
}

/// STags named in the segments.
struct Stags {
    open: u32,
    base: u64,
    closed: u32,
    foreign: u32,
    unknown: u32,
}

impl ViolationFixture {
    fn new() -> Self {
        Self::with_config(|_| {})
    }

    fn with_config(change: impl FnOnce(&mut Config)) -> Self {
        let stack = Stack::on_tap_with("fw0", change);
        let listener = stack.context.listen(PORT, 4).unwrap();
        let other = stack.context.alloc_pd();
        let len = LEN as usize;
        Self {
            open: stack.alloc_mr(len, Access::ALL),
            closed: stack.alloc_mr(len, Access::LOCAL_WRITE),
            foreign: stack.alloc_mr_in(&other, len, Access::ALL),
            recv_mr: stack.alloc_mr(2 * len, Access::LOCAL_WRITE),
            listener,
            stack,
        }
    }

    fn stags(&self) -> Stags {
        Stags {
            open: self.open.rkey(),
            base: self.open.addr(),
            closed: self.closed.rkey(),
            foreign: self.foreign.rkey(),
            // The same slot with another key.
            unknown: self.open.rkey() ^ 1,
        }
    }

    /// A connection with three receives, the last one in no region, and IRD 2.
    fn connect(&self, version: Version) -> (Qp, Peer) {
        let is_old = version == Version::Rdmac;
        let revision = if is_old { 0 } else { 2 };
        let startup = Startup { revision, markers: is_old, ord: 2, ..Startup::default() };
        let thread = std::thread::spawn(move || {
            Peer::initiate(TcpStream::connect((STACK, PORT)).unwrap(), &startup).unwrap().0
        });
        let qp = self.stack.create_qp();
        for (wr_id, at) in [(0, 0), (1, LEN)] {
            post_recv(&qp, wr_id, self.recv_mr.sge(at as usize, LEN));
        }
        post_recv(&qp, 2, Sge { addr: 0, len: LEN, lkey: self.open.rkey() ^ 1 });
        let request = self.listener.accept_timeout(TIMEOUT).expect("a request");
        request.accept(&qp, conn_param(|it| it.ird = 2)).unwrap();
        qp.wait_established(TIMEOUT).unwrap();
        let mut peer = thread.join().unwrap();
        peer.rdmac = is_old;
        peer.memory = vec![0; LEN as usize];
        (qp, peer)
    }

    /// Each receive completes once and in order, all flushed after the successful ones.
    fn check_receives(&self, name: &str) {
        let ended = self.stack.completions(3);
        assert!(ended.iter().map(|wc| wc.wr_id).eq(0..3), "{name}: {ended:?}");
        let done = ended.iter().take_while(|wc| wc.status == WcStatus::Success).count();
        // At most one fails with the error itself.
        let rest = &ended[done..];
        assert!(rest.iter().skip(1).all(|wc| wc.status == WcStatus::Flushed), "{name}: {ended:?}");
    }
}

fn untagged(opcode: u8, qn: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    Header::Untagged { opcode, last: true, invalidate: 0, qn, msn, mo }.encode(payload)
}

fn send(payload: &[u8]) -> Vec<u8> {
    untagged(opcode::SEND, 0, 1, 0, payload)
}

fn write(stag: u32, to: u64, len: usize) -> Vec<u8> {
    Header::Tagged { opcode: opcode::WRITE, last: true, stag, to }.encode(&vec![7; len])
}

fn request(source_stag: u32, source_to: u64, len: u32) -> Vec<u8> {
    ReadRequest { sink_stag: 1, sink_to: 0, len, source_stag, source_to }.encode()
}

fn read(source_stag: u32, source_to: u64, len: u32) -> Vec<u8> {
    untagged(opcode::READ_REQUEST, 1, 1, 0, &request(source_stag, source_to, len))
}

fn invalidate(opcode: u8, stag: u32) -> Vec<u8> {
    Header::Untagged { opcode, last: true, invalidate: stag, qn: 0, msn: 1, mo: 0 }.encode(b"bye")
}

fn changed(mut ulpdu: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    ulpdu[at] = byte;
    ulpdu
}

/// Name, earlier ULPDUs, a ULPDU that violates one rule, and layer, type and code of the Terminate.
type Case = (&'static str, Vec<Vec<u8>>, Vec<u8>, (u8, u8, u8));

/// DDP errors.
fn ddp_cases(stags: &Stags) -> Vec<Case> {
    let Stags { open, base, closed, foreign, unknown } = *stags;
    let end = base + u64::from(LEN);
    let begun =
        Header::Untagged { opcode: opcode::SEND, last: false, invalidate: 0, qn: 0, msn: 1, mo: 0 };
    let two = vec![send(b"1"), untagged(opcode::SEND, 0, 2, 0, b"2")];
    vec![
        ("an unknown STag", vec![], write(unknown, base, 5), (1, 1, 0)),
        ("STag 0", vec![], write(0, base, 5), (1, 1, 0)),
        ("a region the peer may not write", vec![], write(closed, base, 5), (1, 1, 0)),
        ("before the region", vec![], write(open, base - 1, 5), (1, 1, 1)),
        ("beyond the region", vec![], write(open, end - 4, 5), (1, 1, 1)),
        ("behind the region", vec![], write(open, end, 1), (1, 1, 1)),
        ("a region of another domain", vec![], write(foreign, base, 5), (1, 1, 2)),
        ("around the end of all offsets", vec![], write(open, u64::MAX - 3, 5), (1, 1, 3)),
        ("DDP version, tagged", vec![], changed(write(open, base, 5), 0, 0xC0), (1, 1, 4)),
        ("DDP version 3, tagged", vec![], changed(write(open, base, 5), 0, 0xC3), (1, 1, 4)),
        ("a fifth queue", vec![], untagged(opcode::SEND, 4, 1, 0, b"x"), (1, 2, 1)),
        ("the last queue", vec![], untagged(opcode::SEND, u32::MAX, 1, 0, b"x"), (1, 2, 1)),
        ("no buffer", vec![], untagged(opcode::SEND, 0, 1000, 0, b"x"), (1, 2, 2)),
        ("no message", vec![], untagged(opcode::SEND, 0, 0, 0, b"x"), (1, 2, 3)),
        ("a message left out", vec![], untagged(opcode::SEND, 0, 2, 0, b"x"), (1, 2, 3)),
        ("a message twice", vec![send(b"x")], send(b"x"), (1, 2, 3)),
        (
            "a Read left out",
            vec![],
            untagged(opcode::READ_REQUEST, 1, 2, 0, &request(open, base, 1)),
            (1, 2, 3),
        ),
        ("an offset at once", vec![], untagged(opcode::SEND, 0, 1, 7, b"x"), (1, 2, 4)),
        (
            "a gap in a message",
            vec![begun.encode(b"12")],
            untagged(opcode::SEND, 0, 1, 3, b"x"),
            (1, 2, 4),
        ),
        ("a message too long", vec![], send(&[7; 1001]), (1, 2, 5)),
        (
            "a Read with a tail",
            vec![],
            untagged(opcode::READ_REQUEST, 1, 1, 0, &[0; 29]),
            (1, 2, 5),
        ),
        ("DDP version, untagged", vec![], changed(send(b"x"), 0, 0x42), (1, 2, 6)),
        ("DDP version, one byte", vec![], vec![0x43], (1, 2, 6)),
        ("a bad buffer", two, untagged(opcode::SEND, 0, 3, 0, b"3"), (1, 0, 0)),
    ]
}

/// RDMAP errors.
fn rdmap_cases(stags: &Stags) -> Vec<Case> {
    let Stags { open, base, closed, foreign, unknown } = *stags;
    let end = base + u64::from(LEN);
    let terminate = untagged(opcode::TERMINATE, 2, 1, 0, &[0x11, 0, 0, 0]);
    vec![
        ("Read: an unknown STag", vec![], read(unknown, base, 5), (0, 1, 0)),
        ("Read: before the region", vec![], read(open, base - 1, 5), (0, 1, 1)),
        ("Read: beyond the region", vec![], read(open, end - 4, 5), (0, 1, 1)),
        ("Read: all offsets", vec![], read(open, base, u32::MAX), (0, 1, 1)),
        ("Read: a region the peer may not read", vec![], read(closed, base, 5), (0, 1, 2)),
        ("Read: a region of another domain", vec![], read(foreign, base, 5), (0, 1, 3)),
        ("Read: around the end of all offsets", vec![], read(open, u64::MAX - 3, 5), (0, 1, 4)),
        ("Invalidate: another domain", vec![], invalidate(4, foreign), (0, 1, 9)),
        ("Invalidate with event: another domain", vec![], invalidate(6, foreign), (0, 1, 9)),
        ("RDMAP version", vec![], changed(send(b"x"), 1, 0x03), (0, 2, 5)),
        ("RDMAP version 3", vec![send(b"x")], changed(write(open, base, 1), 1, 0xC0), (0, 2, 5)),
        ("RDMAP version of a Read", vec![], changed(read(open, base, 5), 1, 0x81), (0, 2, 5)),
        ("RDMAP version of a Terminate", vec![], changed(terminate, 1, 0x87), (0, 2, 5)),
        ("a reserved opcode", vec![], changed(send(b"x"), 1, 0x4F), (0, 2, 6)),
        ("a Write that is untagged", vec![], changed(send(b"x"), 1, 0x40), (0, 2, 6)),
        ("a Response that is untagged", vec![], changed(send(b"x"), 1, 0x42), (0, 2, 6)),
        ("a Send that is tagged", vec![], changed(write(open, base, 5), 1, 0x43), (0, 2, 6)),
        ("a Read that is tagged", vec![], changed(write(open, base, 5), 1, 0x41), (0, 2, 6)),
        ("a Terminate that is tagged", vec![], changed(write(open, base, 5), 1, 0x47), (0, 2, 6)),
        ("a Send on queue 1", vec![], untagged(opcode::SEND, 1, 1, 0, b"x"), (0, 2, 6)),
        ("a Terminate on queue 0", vec![], untagged(opcode::TERMINATE, 0, 1, 0, b"x"), (0, 2, 6)),
        ("a Response nobody asked for", vec![], changed(write(open, base, 5), 1, 0x42), (0, 2, 6)),
        ("nothing at all", vec![], vec![], (0, 2, 7)),
        ("a tagged header cut short", vec![], write(open, base, 0)[..13].to_vec(), (0, 2, 7)),
        ("an untagged header cut short", vec![], send(b"x")[..17].to_vec(), (0, 2, 7)),
        ("Invalidate: an unknown STag", vec![], invalidate(4, unknown), (0, 2, 9)),
        (
            "a Read cut short",
            vec![],
            untagged(opcode::READ_REQUEST, 1, 1, 0, &[0; 27]),
            (0, 2, 0xFF),
        ),
    ]
}

/// Checks the Terminate for `ulpdu`: segment length and copied headers as the RFCs require.
fn check_terminate_headers(name: &str, terminate: &peer::Terminate, ulpdu: &[u8]) {
    let is_local = terminate.error_type == 0;
    if is_local || ulpdu.is_empty() {
        assert_eq!((terminate.segment_len, terminate.ddp_header.len()), (None, 0), "{name}");
        return;
    }
    assert_eq!(terminate.segment_len.map(usize::from), Some(ulpdu.len()), "{name}");
    let header_len = if ulpdu[0] & 0x80 != 0 { 14 } else { 18 };
    let mut header = ulpdu[..ulpdu.len().min(header_len)].to_vec();
    header.resize(header_len, 0);
    assert_eq!(terminate.ddp_header, header, "{name}");
    let is_whole_read = ulpdu.len() == 46
        && ulpdu[1] & 0x0F == opcode::READ_REQUEST
        && ulpdu[6..10] == [0, 0, 0, 1];
    let request = if terminate.layer == 0 && is_whole_read { &ulpdu[18..] } else { &[] };
    assert_eq!(terminate.rdma_header, request, "{name}");
}

#[test]
fn each_violation_gets_its_terminate() {
    if !Path::new("/dev/net/tun").exists() {
        return skip("no /dev/net/tun, so no tap devices");
    }
    if !netns::inside(test_name!()) {
        return;
    }
    let fx = ViolationFixture::new();
    let stack = &fx.stack;
    let mut answered = 0;
    for version in [Version::Ietf, Version::Rdmac] {
        let stags = fx.stags();
        for (name, earlier, ulpdu, expected) in
            ddp_cases(&stags).into_iter().chain(rdmap_cases(&stags))
        {
            // The older specifications report an STag of another stream as invalid.
            let is_old = version == Version::Rdmac;
            let expected = match expected {
                (0, 1, 3) if is_old => (0, 1, 0),
                (1, 1, 2) if is_old => (1, 1, 0),
                _ => expected,
            };
            let (qp, mut peer) = fx.connect(version);
            for ulpdu in earlier {
                peer.send_ulpdu(&ulpdu).unwrap();
            }
            peer.send_ulpdu(&ulpdu).unwrap();
            peer.serve_until(|peer| peer.terminate.is_some())
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let terminate = peer.terminate.clone().unwrap();
            assert_eq!(terminate.cause(), expected, "{name}");
            let mut on_the_wire = ulpdu.clone();
            if is_old {
                peer::toggle_versions(&mut on_the_wire);
            }
            check_terminate_headers(name, &terminate, &on_the_wire);
            match qp.wait_event(TIMEOUT) {
                Some(ConnEvent::Disconnected {
                    reason: EndReason::TerminateSent(sent), ..
                }) => {
                    assert_eq!(sent.cause(), expected, "{name}");
                    assert_eq!(sent.ddp_header(), terminate.ddp_header, "{name}");
                }
                event => panic!("{name}: {event:?}"),
            }
            assert_eq!(qp.state(), QpState::Error);
            fx.check_receives(name);
            assert!(!peer.serve_one().unwrap_or(false), "{name}: more after the Terminate");
            answered += 1;
            assert_eq!(stack.context.counters().engine.terminates_out, answered, "{name}");
        }
    }

    // After all of that the next connection works, and nothing was placed.
    let mut found = vec![0xEE; LEN as usize];
    fx.open.read(0, &mut found);
    assert!(found.iter().all(|byte| *byte == 0));
    let (qp, mut peer) = fx.connect(Version::Ietf);
    peer.write(fx.open.rkey(), fx.open.addr(), b"still here").unwrap();
    peer.send(opcode::SEND, 0, b"done").unwrap();
    assert_eq!(stack.expect_success().byte_len, 4);
    let mut found = [0; 10];
    fx.open.read(0, &mut found);
    assert_eq!(&found, b"still here");
    drop(qp);
}

#[test]
fn terminates_for_local_causes_have_no_headers() {
    if !Path::new("/dev/net/tun").exists() {
        return skip("no /dev/net/tun, so no tap devices");
    }
    if !netns::inside(test_name!()) {
        return;
    }
    let fx = ViolationFixture::new();
    let terminate = |peer: &mut Peer| {
        peer.serve_until(|peer| peer.terminate.is_some()).unwrap();
        let terminate = peer.terminate.clone().unwrap();
        assert_eq!(
            (terminate.segment_len, terminate.ddp_header.len(), terminate.rdma_header.len()),
            (None, 0, 0)
        );
        assert!(!peer.serve_one().unwrap_or(false), "more after the Terminate");
        terminate.cause()
    };
    let nothing = write(0, 0, 0);
    let damaged = || {
        let mut bytes = peer::fpdu(&nothing, true);
        *bytes.last_mut().unwrap() ^= 0x80;
        bytes
    };

    // Abortive, for each reason.
    for (cause, expected) in [
        (Abort::Stream, (0, 2, 7)),
        (Abort::Global, (0, 2, 8)),
        (Abort::Protection, (0, 1, 0xFF)),
        (Abort::Operation, (0, 2, 0xFF)),
    ] {
        let (qp, mut peer) = fx.connect(Version::Ietf);
        peer.send(opcode::SEND, 0, b"x").unwrap();
        assert_eq!(fx.stack.expect_success().byte_len, 1);
        qp.terminate(cause).unwrap();
        assert_eq!(terminate(&mut peer), expected);
        let flushed = fx.stack.completions(2);
        assert!(flushed.iter().all(|wc| wc.status == WcStatus::Flushed));
    }

    // A request with an invalid lkey.
    let (qp, mut peer) = fx.connect(Version::Ietf);
    peer.send_ulpdu(&nothing).unwrap();
    let bad = Sge { addr: 0, len: 5, lkey: fx.open.lkey() ^ 1 };
    post_send(&qp, 9, bad);
    assert_eq!(terminate(&mut peer), (0, 0, 0));
    let ended = fx.stack.completions(4);
    assert_eq!((ended[0].wr_id, ended[0].status), (9, WcStatus::LocalProtection));

    // A wrong CRC is an MPA error.
    let (_qp, mut peer) = fx.connect(Version::Ietf);
    peer.send_ulpdu(&nothing).unwrap();
    peer.write_raw(&damaged()).unwrap();
    assert_eq!(terminate(&mut peer), (2, 0, 2));
    fx.check_receives("CRC");

    // No Terminate can be sent for the very first FPDU: the connection is reset.
    let (qp, mut peer) = fx.connect(Version::Ietf);
    peer.write_raw(&damaged()).unwrap();
    assert_eq!(peer.serve_one().map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    match qp.wait_event(TIMEOUT) {
        Some(ConnEvent::Disconnected { reason: EndReason::TerminateUnsent(unsent), .. }) => {
            assert_eq!(unsent.cause(), (2, 0, 2));
        }
        event => panic!("{event:?}"),
    }
    fx.check_receives("CRC at once");
    assert_eq!(fx.stack.context.counters().engine.crc_errors, 2);
}

/// Layers, types and codes of the tables (RFC 5040 Figure 9, RFC 5041 section 7.2, RFC 5044 section
/// 8, RFC 6581 section 8), and some that are in none.
fn causes() -> Vec<(u8, u8, u8)> {
    let rows: [(u8, u8, &[u8]); 8] = [
        (0, 0, &[0, 7, 255]),
        (0, 1, &[0, 1, 2, 3, 4, 9, 255]),
        (0, 2, &[5, 6, 7, 8, 9, 255]),
        (1, 0, &[0]),
        (1, 1, &[0, 1, 2, 3, 4]),
        (1, 2, &[1, 2, 3, 4, 5, 6]),
        (2, 0, &[1, 2, 3, 4, 5, 6, 7]),
        (5, 6, &[7]),
    ];
    let row = |(layer, kind, codes): &(u8, u8, &[u8])| {
        codes.iter().map(|code| (*layer, *kind, *code)).collect::<Vec<_>>()
    };
    rows.iter().flat_map(row).collect()
}

#[test]
fn every_received_terminate_is_reported_in_full() {
    if !Path::new("/dev/net/tun").exists() {
        return skip("no /dev/net/tun, so no tap devices");
    }
    if !netns::inside(test_name!()) {
        return;
    }
    let fx = ViolationFixture::new();
    let segment = read(1, 2, 3);
    for (index, (layer, kind, code)) in causes().into_iter().enumerate() {
        let version = if index % 2 == 0 { Version::Ietf } else { Version::Rdmac };
        let (qp, mut peer) = fx.connect(version);
        // Alternately without copies, with a DDP header, and with both headers.
        let (bits, copies): (u8, &[u8]) =
            [(0, &[][..]), (0xC0, &segment[..18]), (0xE0, &segment)][index % 3];
        let mut payload = vec![layer << 4 | kind, code, bits, 0];
        if bits != 0 {
            payload.extend([0x12, 0x34]);
        }
        payload.extend_from_slice(copies);
        peer.send_ulpdu(&untagged(opcode::TERMINATE, 2, 1, 0, &payload)).unwrap();
        match qp.wait_event(TIMEOUT) {
            Some(ConnEvent::Disconnected { reason, .. }) => {
                assert_eq!(reason.error(), Some((layer, kind, code)));
                let EndReason::TerminateReceived(terminate) = reason else { panic!("{reason:?}") };
                assert_eq!(terminate.segment_len, (bits != 0).then_some(0x1234));
                assert_eq!(terminate.ddp_header(), &copies[..copies.len().min(18)]);
                assert_eq!(terminate.rdma_header(), copies.get(18..).unwrap_or_default());
            }
            event => panic!("{event:?}"),
        }
        // No Terminate is sent in response, and the connection closes gracefully.
        assert!(!peer.serve_one().unwrap());
        assert!(peer.has_received_fin() && peer.terminate.is_none());
        let flushed = fx.stack.completions(3);
        assert!(flushed.iter().all(|wc| wc.status == WcStatus::Flushed), "{flushed:?}");
    }

    // A truncated Terminate, and one with the wrong MSN.
    for (msn, payload) in [(1, &[0x11, 0][..]), (2, &[0x11, 0, 0, 0])] {
        let (qp, mut peer) = fx.connect(Version::Ietf);
        peer.send_ulpdu(&untagged(opcode::TERMINATE, 2, msn, 0, payload)).unwrap();
        match qp.wait_event(TIMEOUT) {
            Some(ConnEvent::Disconnected { reason: EndReason::BadTerminate, .. }) => {}
            event => panic!("{event:?}"),
        }
        assert!(!peer.serve_one().unwrap() && peer.terminate.is_none());
        fx.check_receives("a bad Terminate");
    }
    let counters = fx.stack.context.counters().engine;
    assert_eq!(counters.terminates_in, causes().len() as u64 + 2);
    assert_eq!(counters.terminates_out, 0);
}
