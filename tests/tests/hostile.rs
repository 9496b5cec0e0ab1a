//! Frames that break a rule, and the Terminate that answers each.
#![cfg(feature = "device")]

use std::net::TcpStream;
use std::path::Path;

use ferrowarp::{Access, ConnParam, EndReason, Event, QpState, WcStatus};
use ferrowarp_tests::peer::{self, Header, Peer, ReadRequest, Startup, opcode};
use ferrowarp_tests::stack::{PATIENCE, STACK, Stack, post_recv};
use ferrowarp_tests::{netns, skip};

const PORT: u16 = 4791;
/// Length of each region and each receive buffer.
const LEN: u32 = 1000;

/// STags that frames name.
struct Stags {
    open: u32,
    base: u64,
    closed: u32,
    foreign: u32,
    unknown: u32,
}

fn untagged(opcode: u8, qn: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    Header::Untagged { opcode, last: true, invalidate: 0, qn, msn, mo }.encode(payload)
}

fn write(stag: u32, to: u64, len: usize) -> Vec<u8> {
    Header::Tagged { opcode: opcode::WRITE, last: true, stag, to }.encode(&vec![7; len])
}

fn read(source_stag: u32, source_to: u64, len: u32) -> Vec<u8> {
    let request = ReadRequest { sink_stag: 1, sink_to: 0, len, source_stag, source_to };
    untagged(opcode::READ_REQUEST, 1, 1, 0, &request.encode())
}

fn invalidate(stag: u32) -> Vec<u8> {
    let opcode = opcode::SEND_INVALIDATE;
    Header::Untagged { opcode, last: true, invalidate: stag, qn: 0, msn: 1, mo: 0 }.encode(b"bye")
}

fn changed(mut ulpdu: Vec<u8>, at: usize, octet: u8) -> Vec<u8> {
    ulpdu[at] = octet;
    ulpdu
}

/// A ULPDU that breaks one rule, and the layer, type and code of the answer.
type Case = (&'static str, Vec<u8>, (u8, u8, u8));

fn cases(stags: &Stags) -> Vec<Case> {
    let send = || untagged(opcode::SEND, 0, 1, 0, b"x");
    let Stags { open, base, closed, foreign, unknown } = *stags;
    let end = base + u64::from(LEN);
    vec![
        ("nothing at all", vec![], (0, 2, 7)),
        ("a tagged header cut short", write(open, base, 0)[..13].to_vec(), (0, 2, 7)),
        ("an untagged header cut short", send()[..17].to_vec(), (0, 2, 7)),
        ("DDP version, tagged", changed(write(open, base, 5), 0, 0xC0), (1, 1, 4)),
        ("DDP version, untagged", changed(send(), 0, 0x42), (1, 2, 6)),
        ("RDMAP version", changed(send(), 1, 0x03), (0, 2, 5)),
        ("a reserved opcode", changed(send(), 1, 0x4c), (0, 2, 6)),
        ("a Write that is untagged", untagged(opcode::WRITE, 0, 1, 0, b"x"), (0, 2, 6)),
        ("a Send that is tagged", changed(write(open, base, 5), 1, 0x43), (0, 2, 6)),
        ("a Send on the queue of Reads", untagged(opcode::SEND, 1, 1, 0, b"x"), (0, 2, 6)),
        ("a Read Response nobody asked for", changed(write(open, base, 5), 1, 0x42), (0, 2, 6)),
        ("a fifth queue", untagged(opcode::SEND, 4, 1, 0, b"x"), (1, 2, 1)),
        ("no buffer", untagged(opcode::SEND, 0, 1000, 0, b"x"), (1, 2, 2)),
        ("a message twice", untagged(opcode::SEND, 0, 0, 0, b"x"), (1, 2, 3)),
        ("a message left out", untagged(opcode::SEND, 0, 2, 0, b"x"), (1, 2, 3)),
        ("a gap in a message", untagged(opcode::SEND, 0, 1, 7, b"x"), (1, 2, 4)),
        ("a message too long", untagged(opcode::SEND, 0, 1, 0, &[7; 1001]), (1, 2, 5)),
        ("an unknown STag", write(unknown, base, 5), (1, 1, 0)),
        ("STag 0", write(0, base, 5), (1, 1, 0)),
        ("a region the peer may not write", write(closed, base, 5), (1, 1, 0)),
        ("a region of another domain", write(foreign, base, 5), (1, 1, 2)),
        ("before the region", write(open, base - 1, 5), (1, 1, 1)),
        ("beyond the region", write(open, end - 4, 5), (1, 1, 1)),
        ("behind the region", write(open, end, 1), (1, 1, 1)),
        ("around the end of all offsets", write(open, u64::MAX - 3, 5), (1, 1, 3)),
        ("Read: an unknown STag", read(unknown, base, 5), (0, 1, 0)),
        ("Read: beyond the region", read(open, end - 4, 5), (0, 1, 1)),
        ("Read: all offsets", read(open, base, u32::MAX), (0, 1, 1)),
        ("Read: a region the peer may not read", read(closed, base, 5), (0, 1, 2)),
        ("Read: a region of another domain", read(foreign, base, 5), (0, 1, 3)),
        ("Read: around the end of all offsets", read(open, u64::MAX - 3, 5), (0, 1, 4)),
        ("Invalidate: an unknown STag", invalidate(unknown), (0, 2, 9)),
        ("Invalidate: a region of another domain", invalidate(foreign), (0, 1, 9)),
    ]
}

#[test]
fn each_broken_rule_has_its_answer() {
    if !Path::new("/dev/net/tun").exists() {
        return skip("no /dev/net/tun, so no tap devices");
    }
    if !netns::inside("each_broken_rule_has_its_answer") {
        return;
    }
    let stack = Stack::on_tap("fw0");
    let listener = stack.context.listen(PORT, 4).unwrap();
    let other = stack.context.alloc_pd();
    let len = LEN as usize;
    let open = stack.memory(len, Access::ALL);
    let closed = stack.memory(len, Access::LOCAL_WRITE);
    let foreign = stack.memory_in(&other, len, Access::ALL);
    let inbox = stack.memory(2 * len, Access::LOCAL_WRITE);
    let connect = |startup: &Startup| {
        let startup = startup.clone();
        let thread = std::thread::spawn(move || {
            Peer::initiate(TcpStream::connect((STACK, PORT)).unwrap(), &startup).unwrap().0
        });
        let qp = stack.qp();
        for wr_id in 0..2 {
            post_recv(&qp, wr_id, inbox.sge(usize::try_from(wr_id).unwrap() * len, LEN));
        }
        let request = listener.accept_timeout(PATIENCE).expect("a request");
        request.accept(&qp, ConnParam::default()).unwrap();
        qp.wait_established(PATIENCE).unwrap();
        (qp, thread.join().unwrap())
    };

    let stags = |base: u64| Stags {
        open: open.rkey(),
        base,
        closed: closed.rkey(),
        foreign: foreign.rkey(),
        // The same slot with another key.
        unknown: open.rkey() ^ 1,
    };
    let mut answered = 0;
    for (name, ulpdu, expected) in cases(&stags(open.addr())) {
        // Regions other than `open` have bases of their own.
        let (qp, mut peer) = connect(&Startup::default());
        peer.put_ulpdu(&ulpdu).unwrap();
        peer.serve_until(|peer| peer.terminate.is_some())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let told = peer.terminate.clone().unwrap();
        assert_eq!(told.cause(), expected, "{name}");
        let header_len = if ulpdu.first().is_some_and(|c| c & 0x80 != 0) { 14 } else { 18 };
        if let Some(header) = ulpdu.get(..header_len) {
            assert_eq!(told.ddp_header, header, "{name}");
        }
        if expected.0 == 0 && expected.1 == 1 && ulpdu[1] == 0x41 {
            assert_eq!(told.rdma_header, ulpdu[18..], "{name}");
        }
        match qp.wait_event(PATIENCE) {
            Some(Event::Disconnected { reason: EndReason::TerminateSent(sent), .. }) => {
                assert_eq!((sent.layer, sent.error_type, sent.code), expected, "{name}");
            }
            event => panic!("{name}: {event:?}"),
        }
        assert_eq!(qp.state(), QpState::Error);
        // Each receive once; one that was too short for its message has a status of its own.
        let ended = stack.completions(2);
        assert_eq!((ended[0].wr_id, ended[1].wr_id), (0, 1), "{name}");
        assert_ne!(ended[0].status, WcStatus::Success, "{name}");
        assert_eq!(ended[1].status, WcStatus::Flushed, "{name}");
        assert!(!peer.serve_one().unwrap_or(false), "{name}: more after the Terminate");
        answered += 1;
        assert_eq!(stack.context.counters().engine.terminates_out, answered, "{name}");
    }

    // A wrong CRC is an error of MPA, which reports no header.
    let ulpdu = write(open.rkey(), open.addr(), 5);
    let mut octets = peer::fpdu(&ulpdu, true);
    *octets.last_mut().unwrap() ^= 0x80;
    let (_qp, mut peer) = connect(&Startup::default());
    peer.put(&octets).unwrap();
    peer.serve_until(|peer| peer.terminate.is_some()).unwrap();
    assert_eq!(peer.terminate.clone().unwrap().cause(), (2, 0, 2));
    assert_eq!(stack.context.counters().engine.crc_errors, 1);
    drop((_qp, peer));
    let _ = stack.completions(2);

    // After all of that the next connection works, and nothing was placed.
    let mut found = vec![0xEE; len];
    open.read(0, &mut found);
    assert!(found.iter().all(|octet| *octet == 0));
    let (qp, mut peer) = connect(&Startup::default());
    peer.write(open.rkey(), open.addr(), b"still here").unwrap();
    peer.send(opcode::SEND, 0, b"done").unwrap();
    assert_eq!(stack.completed().byte_len, 4);
    let mut found = [0; 10];
    open.read(0, &mut found);
    assert_eq!(&found, b"still here");
    drop(qp);
}
