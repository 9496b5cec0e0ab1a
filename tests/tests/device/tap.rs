//! The stack on a kernel interface against the reference peer on a kernel socket, in both roles;
//! tshark checks the frames sent by the stack.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrowarp::{Access, AsyncEvent, ConnEvent, ConnParam, ConnectError, EndReason, WcStatus};
use ferrowarp_tests::capture::{self, Capture};
use ferrowarp_tests::connection::{MEMORY_LEN, TestConnection};
use ferrowarp_tests::pattern;
use ferrowarp_tests::peer::{self, PEER_STAG, Peer, Role, Segmentation, Startup, opcode};
use ferrowarp_tests::process;
use ferrowarp_tests::stack::{
    KERNEL, KERNEL_V6, STACK, STACK_V6, Stack, TIMEOUT, post_recv, post_send_inline, post_write,
};
use ferrowarp_tests::{netns, skip, skip_without, test_name};

const INTERFACE: &str = "fw0";
const PORT: u16 = 4791;
/// Another port, for connections that are not captured.
const UNCAPTURED_PORT: u16 = 4792;

/// True inside a namespace with all prerequisites.
pub(crate) fn ready(name: &str) -> bool {
    if !Path::new("/dev/net/tun").exists() {
        skip("no /dev/net/tun, so no tap devices");
        return false;
    }
    netns::inside(name)
}

/// All variants of connection parameters.
fn variants() -> Vec<(ConnParam, Startup)> {
    let mut found = Vec::new();
    let kinds = [
        (2, true, 0, [false; 2]),
        (1, true, 300, [true; 2]),
        (2, false, 508, [true, false]),
        (1, false, 512, [false, true]),
    ];
    for (revision, crc, data, [ours, theirs]) in kinds {
        let private_data = pattern(3, data);
        let mut param = ConnParam::default();
        param.revision = revision;
        param.crc = crc;
        param.markers = ours;
        param.private_data = private_data.as_slice().try_into().unwrap();
        let startup =
            Startup { revision, crc, markers: theirs, private_data, ..Startup::default() };
        found.push((param, startup));
    }
    found
}

#[test]
fn stack_accepts_the_kernel_peer() {
    if !ready(test_name!()) {
        return;
    }
    let stack = Stack::on_tap(INTERFACE);
    for (param, startup) in variants() {
        let port = if param.crc { PORT } else { UNCAPTURED_PORT };
        let listener = stack.context.listen(port, 4).unwrap();
        for by_peer in [false, true] {
            let mut link = TestConnection::accepted(&stack, &listener, &param, &startup);
            for len in [0, 1, 3, 1429, 20_000] {
                link.check_peer_transfers(len);
                link.check_stack_transfers(len);
            }
            if by_peer {
                link.close_from_peer()
            } else {
                link.close_from_stack()
            };
        }
    }
}

/// The interface is set down and up: the application is told, and a connection goes on.
#[test]
fn link_that_fails_is_reported_and_ends_no_connection() {
    if !ready(test_name!()) {
        return;
    }
    let stack = Stack::on_tap(INTERFACE);
    let channel = stack.context.event_channel().unwrap();
    let listener = stack.context.listen(PORT, 4).unwrap();
    let (param, startup) = variants().remove(0);
    let mut link = TestConnection::accepted(&stack, &listener, &param, &startup);
    link.check_peer_transfers(1429);
    // Until the next event of the link; there are events of the connection, too.
    let next_state = || loop {
        let event = channel.wait(TIMEOUT).expect("a change of the link is reported");
        if matches!(event, AsyncEvent::PortError | AsyncEvent::PortActive) {
            return event;
        }
    };
    // Of the start, if the carrier came up after that.
    while !stack.context.link_is_up() {
        assert_eq!(next_state(), AsyncEvent::PortActive);
    }
    for (state, event) in [("down", AsyncEvent::PortError), ("up", AsyncEvent::PortActive)] {
        netns::ip(&["link", "set", INTERFACE, state]).unwrap();
        assert_eq!(next_state(), event);
        assert_eq!(stack.context.link_is_up(), state == "up");
    }
    link.check_peer_transfers(20_000);
    link.check_stack_transfers(20_000);
    link.close_from_peer();
}

#[test]
fn stack_connects_to_the_kernel_peer() {
    if !ready(test_name!()) {
        return;
    }
    let stack = Stack::on_tap(INTERFACE);
    for (index, (param, startup)) in variants().into_iter().enumerate() {
        for by_peer in [false, true] {
            // A fresh port each time: the kernel keeps the last one in TIME-WAIT.
            let port = 5000 + u16::try_from(index * 2 + usize::from(by_peer)).unwrap();
            let mut link = TestConnection::connected(&stack, port, &param, &startup);
            for len in [0, 1, 3, 1429, 20_000] {
                // The initiator sends first.
                link.check_stack_transfers(len);
                link.check_peer_transfers(len);
            }
            if by_peer {
                link.close_from_peer()
            } else {
                link.close_from_stack()
            };
        }
    }
}

#[test]
fn ipv4_and_ipv6() {
    if ready(test_name!()) {
        check_both_families(None);
    }
}

#[test]
fn ipv4_and_ipv6_in_a_vlan() {
    if !ready(test_name!()) {
        return;
    }
    // In this namespace, which is deleted after the test.
    if netns::ip(&["link", "add", "link", "lo", "name", "v0", "type", "vlan", "id", "1"]).is_err() {
        skip_without("VLAN interfaces");
        return;
    }
    check_both_families(Some(42));
}

/// Connections in both directions over IPv4 and IPv6, and pings.
fn check_both_families(vlan: Option<u16>) {
    let (param, startup) = (ConnParam::default(), Startup::default());
    let stack = Stack::on_tap_dual_stack(INTERFACE, vlan);
    let listener = stack.context.listen(PORT, 4).unwrap();
    let families: [[IpAddr; 2]; 2] =
        [[STACK.into(), KERNEL.into()], [STACK_V6.into(), KERNEL_V6.into()]];
    for both in families {
        let mut link = TestConnection::accepted_at(&stack, both, &listener, &param, &startup);
        link.check_peer_transfers(20_000);
        link.check_stack_transfers(20_000);
        link.close_from_stack();
        let remote = SocketAddr::new(both[1], 5000);
        let mut link = TestConnection::connected_to(&stack, remote, &param, &startup);
        link.check_stack_transfers(20_000);
        link.check_peer_transfers(20_000);
        link.close_from_peer();
        ping(both[0]);
    }
    let counters = stack.context.counters().engine;
    assert!(counters.neighbor_solicits_out >= 2, "{counters:?}");
    assert_eq!(counters.address_conflicts, 0);
}

/// The kernel pings an address, with a small packet and with one that needs fragments: the stack
/// reassembles it, and sends no reply, as that would not fit.
fn ping(address: IpAddr) {
    if !process::is_installed("ping") {
        return;
    }
    let pings = |size: &str| {
        let mut command = Command::new("ping");
        command.args(["-c", "2", "-i", "0.2", "-W", "2", "-s", size, &address.to_string()]);
        process::run(&mut command, TIMEOUT).unwrap().success()
    };
    assert!(pings("56") && pings("1400"), "ping {address}");
    assert!(!pings("3000"), "no answer longer than a packet");
}

#[test]
fn any_segmentation_and_ulpdu_length_of_the_peer() {
    if !ready(test_name!()) {
        return;
    }
    let stack = Stack::on_tap(INTERFACE);
    let listener = stack.context.listen(PORT, 4).unwrap();
    let cases = [
        (Segmentation::RandomSmall(1), 1442, 6_000),
        (Segmentation::RandomSmall(2), 64, 1_000),
        (Segmentation::FixedSize(100), 1442, 20_000),
        (Segmentation::FixedSize(1447), 1442, 100_000),
        (Segmentation::PerFpdu, 64, 5_000),
        (Segmentation::PerFpdu, 9_000, 100_000),
        (Segmentation::PerFpdu, peer::ULPDU_LEN_MAX, 200_000),
        (Segmentation::FixedSize(3_001), peer::ULPDU_LEN_MAX, 200_000),
    ];
    for (chop, ulpdu_len_max, len) in cases {
        for markers in [false, true] {
            let mut param = ConnParam::default();
            param.markers = markers;
            let startup = Startup { markers, ..Startup::default() };
            let mut link = TestConnection::accepted(&stack, &listener, &param, &startup);
            link.peer.set_segmentation(chop);
            link.peer.ulpdu_len_max = ulpdu_len_max;
            link.check_peer_transfers(len);
            link.check_stack_transfers(len);
            link.close_from_stack();
        }
    }
    assert!(stack.context.counters().engine.fpdus_assembled > 0);
}

#[test]
fn tshark_accepts_the_stack() {
    if let Some(reason) = capture::missing_prerequisite() {
        return skip(reason);
    }
    if !ready(test_name!()) {
        return;
    }
    let stack = Stack::on_tap(INTERFACE);
    let dir = process::temp_dir().unwrap();
    // The dissector tracks markers of an initiator unreliably and reports no error; the peer checks
    // them in the tests above.
    for (stack_accepts, markers, revision) in
        [(true, false, 2), (false, false, 2), (true, true, 1), (true, true, 2)]
    {
        let file = dir.path().join(format!("{stack_accepts}-{markers}-{revision}.pcap"));
        let capture = Capture::start(INTERFACE, PORT, file).unwrap();
        let mut param = ConnParam::default();
        param.markers = markers;
        param.revision = revision;
        let startup = Startup { markers, revision, ..Startup::default() };
        let mut link = if stack_accepts {
            let listener = stack.context.listen(PORT, 4).unwrap();
            TestConnection::accepted(&stack, &listener, &param, &startup)
        } else {
            TestConnection::connected(&stack, PORT, &param, &startup)
        };
        for len in [1, 2, 1428, 1429, 50_000] {
            if stack_accepts {
                link.check_peer_transfers(len);
                link.check_stack_transfers(len);
            } else {
                link.check_stack_transfers(len);
                link.check_peer_transfers(len);
            }
        }
        link.peer.send_ulpdu(&[0x42; 30]).unwrap();
        link.peer.serve_until(|peer| peer.terminate.is_some()).unwrap();
        while link.peer.serve_one().unwrap() {}
        let fpdus = link.peer.fpdus;
        drop(link);

        let dissection =
            capture::dissect(&capture.stop().unwrap(), IpAddr::V4(STACK), true).unwrap();
        assert!(dissection.is_clean(), "{stack_accepts} {markers} {revision}: {dissection:?}");
        assert_eq!(dissection.startup_frames, 1);
        // With markers the dissector sees only the first FPDU of a segment, and the number of FPDUs
        // per segment depends on timing.
        let least = if markers { fpdus / 3 } else { fpdus };
        assert!(dissection.good_crc >= least, "{} of {fpdus}: {dissection:?}", dissection.good_crc);
        let names = ["Write", "Read Request", "Read Response", "Send", "Terminate"];
        for name in names.into_iter().take(if markers { 4 } else { 5 }) {
            assert!(dissection.segments.contains_key(name), "no {name}: {dissection:?}");
        }
    }
}

#[test]
fn fpdu_in_the_segment_of_the_mpa_reply_is_delivered() {
    if !ready(test_name!()) {
        return;
    }
    // Linux siw does so: its first FPDU can be in the segment of the Reply.
    let stack = Stack::on_tap(INTERFACE);
    let kernel = TcpListener::bind((KERNEL, PORT)).unwrap();
    let recv_mr = stack.alloc_mr(100, Access::LOCAL_WRITE);
    let qp = stack.create_qp();
    post_recv(&qp, 1, recv_mr.sge(0, 100));
    qp.connect(SocketAddr::from((KERNEL, PORT)), ConnParam::default()).unwrap();
    let mut peer = Peer::new(kernel.accept().unwrap().0).unwrap();
    let early = peer::Header::Untagged {
        opcode: opcode::SEND,
        last: true,
        invalidate: 0,
        qn: 0,
        msn: 1,
        mo: 0,
    };
    let reply = Startup::default().encode(Role::Responder);
    peer.write_raw(&[reply, peer::fpdu(&early.encode(b"early"), true)].concat()).unwrap();
    qp.wait_established(TIMEOUT).unwrap();
    assert_eq!(stack.expect_success().byte_len, 5);
    let mut found = [0; 5];
    recv_mr.read(0, &mut found);
    assert_eq!(&found, b"early");
}

#[test]
fn failed_connect_reports_its_cause() {
    if !ready(test_name!()) {
        return;
    }
    let stack = Stack::on_tap(INTERFACE);
    let attempt = |port: u16| {
        let qp = stack.create_qp();
        qp.connect(SocketAddr::from((KERNEL, port)), ConnParam::default()).unwrap();
        qp
    };
    assert_eq!(attempt(4000).wait_established(TIMEOUT), Err(ConnectError::Refused));

    let kernel = TcpListener::bind((KERNEL, PORT)).unwrap();
    let reject = Startup { reject: true, private_data: b"busy".to_vec(), ..Startup::default() };
    let qp = attempt(PORT);
    Peer::respond(kernel.accept().unwrap().0, &reject).unwrap();
    match qp.wait_event(TIMEOUT) {
        Some(ConnEvent::ConnectFailed { error: ConnectError::Rejected, private_data, .. }) => {
            assert_eq!(private_data.as_slice(), b"busy");
        }
        other => panic!("{other:?}"),
    }

    let revision = Startup { revision: 1, ..Startup::default() };
    for bytes in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        Startup::default().encode(Role::Initiator),
        revision.encode(Role::Responder),
    ] {
        let qp = attempt(PORT);
        let mut peer = Peer::new(kernel.accept().unwrap().0).unwrap();
        peer.write_raw(&bytes).unwrap();
        assert_eq!(qp.wait_established(TIMEOUT), Err(ConnectError::Protocol), "{bytes:02x?}");
        assert!(peer.is_closed());
    }

    let qp = attempt(PORT);
    drop(kernel.accept().unwrap());
    assert!(matches!(
        qp.wait_established(TIMEOUT),
        Err(ConnectError::Reset | ConnectError::Protocol)
    ));
}

#[test]
fn invalid_mpa_request_makes_no_connection() {
    if !ready(test_name!()) {
        return;
    }
    let stack = Stack::on_tap(INTERFACE);
    let listener = stack.context.listen(PORT, 4).unwrap();
    let good = Startup::default().encode(Role::Initiator);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let cases = [
        b"GET / HTTP/1.1\r\nHost: 198.18.7.2\r\n\r\n".to_vec(),
        Startup::default().encode(Role::Responder),
        with(17, 0),
        with(17, 3),
        // 516 bytes of private data.
        with(18, 2),
        // Private data too short for the enhanced block announced by S.
        with(19, 2),
    ];
    for bytes in cases {
        let mut peer = Peer::new(TcpStream::connect((STACK, PORT)).unwrap()).unwrap();
        peer.write_raw(&bytes).unwrap();
        assert!(peer.is_closed(), "{bytes:02x?}");
    }
    for part in [&good[..0], &good[..7], &good[..20]] {
        let mut peer = Peer::new(TcpStream::connect((STACK, PORT)).unwrap()).unwrap();
        peer.write_raw(part).unwrap();
        peer.shutdown_write().unwrap();
        assert!(peer.is_closed(), "{part:02x?}");
    }
    assert!(listener.poll().is_none(), "the application hears of none of them");
    let mut link =
        TestConnection::accepted(&stack, &listener, &ConnParam::default(), &Startup::default());
    link.check_peer_transfers(1000);
    link.check_stack_transfers(1000);
    link.close_from_stack();
}

#[test]
fn peer_rst_flushes_receives() {
    if !ready(test_name!()) {
        return;
    }
    let stack = Stack::on_tap(INTERFACE);
    let listener = stack.context.listen(PORT, 4).unwrap();
    let (param, startup) = (ConnParam::default(), Startup::default());
    let mut link = TestConnection::accepted(&stack, &listener, &param, &startup);
    link.check_peer_transfers(10);
    for wr_id in 0..5 {
        post_recv(&link.qp, wr_id, link.recv_mr.sge(0, 10));
    }
    // Data that the peer never reads: closing its socket then resets the connection.
    post_send_inline(&link.qp, 9, b"unread");
    assert_eq!(stack.expect_success().wr_id, 9);
    std::thread::sleep(Duration::from_millis(200));
    let TestConnection { qp, peer, .. } = link;
    drop(peer);
    match qp.wait_event(TIMEOUT) {
        Some(ConnEvent::Disconnected { reason: EndReason::Reset, .. }) => {}
        other => panic!("{other:?}"),
    }
    let flushed = stack.completions(5);
    assert!(flushed.iter().all(|wc| wc.status == WcStatus::Flushed));
    assert_eq!(flushed.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    TestConnection::accepted(&stack, &listener, &param, &startup).check_peer_transfers(10);
}

#[test]
fn peer_terminate_ends_the_connection() {
    if !ready(test_name!()) {
        return;
    }
    let stack = Stack::on_tap(INTERFACE);
    let listener = stack.context.listen(PORT, 4).unwrap();
    let mut link =
        TestConnection::accepted(&stack, &listener, &ConnParam::default(), &Startup::default());
    link.check_peer_transfers(10);
    post_recv(&link.qp, 1, link.recv_mr.sge(0, 10));
    link.peer.send_terminate(1, 1, 0).unwrap();
    match link.qp.wait_event(TIMEOUT) {
        Some(ConnEvent::Disconnected {
            reason: EndReason::TerminateReceived(terminate), ..
        }) => {
            assert_eq!((terminate.layer, terminate.error_type, terminate.code), (1, 1, 0));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(stack.completions(1)[0].status, WcStatus::Flushed);
    assert!(link.peer.is_closed());
    assert_eq!(stack.context.counters().engine.terminates_in, 1);
}

// req-test: RDMAP-206
#[test]
fn read_of_changing_memory_has_a_valid_crc() {
    if !ready(test_name!()) {
        return;
    }
    // The CRC covers the bytes sent, even if the application changes the buffer meanwhile: the peer
    // checks it.
    let stack = Stack::on_tap(INTERFACE);
    let listener = stack.context.listen(PORT, 4).unwrap();
    let mut link =
        TestConnection::accepted(&stack, &listener, &ConnParam::default(), &Startup::default());
    link.check_peer_transfers(10);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let TestConnection { shared_mr: shared, peer, .. } = &mut link;
        let (shared, done) = (&*shared, &done);
        scope.spawn(move || {
            let mut byte = 0_u8;
            while !done.load(Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                shared.fill(0, MEMORY_LEN, byte);
            }
        });
        for round in 1..=20 {
            peer.read(shared.rkey(), shared.addr(), 250_000, 0).unwrap();
            let outcome = peer.serve_until(|peer| peer.responses == round + 1);
            if outcome.is_err() {
                done.store(true, Ordering::Relaxed);
            }
            outcome.unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    link.check_stack_transfers(10);
    link.close_from_stack();
}

#[test]
fn zero_window_of_a_slow_peer_is_survived() {
    if !ready(test_name!()) {
        return;
    }
    let stack = Stack::on_tap(INTERFACE);
    let listener = stack.context.listen(PORT, 4).unwrap();
    let mut link =
        TestConnection::accepted(&stack, &listener, &ConnParam::default(), &Startup::default());
    link.check_peer_transfers(10);
    // 12 MB, more than the kernel's buffers: its window closes, and opens again.
    let bytes = pattern(4, MEMORY_LEN);
    link.shared_mr.write(0, &bytes);
    let len = u32::try_from(MEMORY_LEN).unwrap();
    for wr_id in 0..40 {
        post_write(&link.qp, wr_id, link.shared_mr.sge(0, len), PEER_STAG, 0);
    }
    std::thread::sleep(Duration::from_millis(1500));
    let writes = link.peer.writes;
    link.peer.serve_until(|peer| peer.writes == writes + 40).unwrap();
    assert!(link.peer.memory == bytes);
    let wcs = stack.completions(40);
    assert!(
        wcs.iter().map(|wc| (wc.wr_id, wc.status)).eq((0..40).map(|id| (id, WcStatus::Success)))
    );
    link.close_from_stack();
}

#[test]
fn fifty_connections_at_a_time() {
    if !ready(test_name!()) {
        return;
    }
    let stack = Stack::on_tap(INTERFACE);
    let listener = stack.context.listen(PORT, 8).unwrap();
    let (param, startup) = (ConnParam::default(), Startup::default());
    let mut links: Vec<_> =
        (0..50).map(|_| TestConnection::accepted(&stack, &listener, &param, &startup)).collect();
    for round in 0..3 {
        for link in &mut links {
            link.check_peer_transfers(2_000 + round);
            link.check_stack_transfers(2_000 + round);
        }
    }
    for link in links {
        link.close_from_peer();
    }
}
