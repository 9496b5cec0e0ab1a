//! The stack against the kernel's TCP over a faulty wire, in both roles, with the kernel's options
//! on and off. Every byte is verified. `iwlink` connects the two.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use ferrowarp::{ConnParam, Listener, WcOpcode, WcStatus};
use ferrowarp_tests::connection::{MEMORY_LEN, TestConnection};
use ferrowarp_tests::peer::{Peer, Startup, opcode};
use ferrowarp_tests::process::{self, TempDir};
use ferrowarp_tests::stack::{
    KERNEL, KERNEL_V6, STACK, STACK_V6, Stack, TIMEOUT, post_recv, post_send, prefix_len,
};
use ferrowarp_tests::{netns, pattern, skip, test_name};
use serde_json::Value;

use crate::iwlink::Iwlink;

/// The kernel's interface.
const INTERFACE: &str = "fwk0";
const PORT: u16 = 4791;
/// Bytes of a message.
const MESSAGE_LEN: usize = 250_000;
/// Messages each way: at most the receive buffers of the helpers' queue pairs.
const MESSAGES: usize = 6;

/// Addresses of the stack and of the kernel.
#[derive(Clone, Copy)]
struct Addresses {
    stack: IpAddr,
    kernel: IpAddr,
}

const V4: Addresses = Addresses { stack: IpAddr::V4(STACK), kernel: IpAddr::V4(KERNEL) };
const V6: Addresses = Addresses { stack: IpAddr::V6(STACK_V6), kernel: IpAddr::V6(KERNEL_V6) };

/// All faults at once; at this rate and size the queue fills, so that frames are marked and
/// dropped.
const BAD: &str = "--seed 11 --loss 1% --duplicate 0.5% --reorder 1% --corrupt 0.5% --delay 200us \
                   --jitter 100us --rate 400mbit --queue 60000 --mark 20000";

/// Kernel settings, all per namespace.
const DEFAULTS: [(&str, &str); 4] =
    [("tcp_sack", "1"), ("tcp_timestamps", "1"), ("tcp_window_scaling", "1"), ("tcp_ecn", "2")];

/// Path of `iwlink`, inside the namespace, if all prerequisites are met.
fn ready(name: &str) -> Option<PathBuf> {
    let path = Iwlink::path()?;
    if !Path::new("/dev/net/tun").exists() {
        skip("no /dev/net/tun, so no tap devices");
        return None;
    }
    netns::inside(name).then_some(path)
}

fn set(settings: &[(&str, &str)]) {
    for (name, value) in settings {
        std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap();
    }
}

/// Starts `iwlink` between the kernel's tap and a port for the stack.
fn open_wire(path: &Path, left: &str, dir: TempDir, kernel: IpAddr) -> Iwlink {
    let wire = Iwlink::start(path, [left, &format!("tap:{INTERFACE}")], BAD, dir);
    let address = format!("{kernel}/{}", prefix_len(kernel));
    // The address is unique: no duplicate address detection.
    let nodad = if kernel.is_ipv6() { &["nodad"][..] } else { &[] };
    netns::ip(&[&["addr", "add", &address, "dev", INTERFACE], nodad].concat()).unwrap();
    netns::ip(&["link", "set", INTERFACE, "up"]).unwrap();
    wire
}

/// Stops it; returns its counters, after checking that it applied the configured faults. It may
/// have lost frames besides because a full port was not read for long: a fault like others.
fn close_wire(wire: Iwlink) -> Value {
    let counters = wire.stop_busy();
    for way in counters.as_array().unwrap() {
        for done in ["lost", "duplicated", "reordered", "corrupted"] {
            assert!(way[done].as_u64().unwrap() > 0, "{done}: {way}");
        }
        assert_eq!(way["own"]["no_buffer"], 0, "{way}");
    }
    counters
}

/// Bytes of message `number` of one end, all different.
fn bytes(salt: usize, number: usize) -> Vec<u8> {
    pattern((salt * 1000 + number) as u64, MESSAGE_LEN)
}

/// Messages in both directions, all posted at once.
fn bulk(stack: &Stack, link: &mut TestConnection<'_>, salt: usize) {
    let recv_mr = stack.alloc_mr(MESSAGE_LEN * MESSAGES, ferrowarp::Access::LOCAL_WRITE);
    let send_mr = stack.alloc_mr(MESSAGE_LEN * MESSAGES, ferrowarp::Access::LOCAL_WRITE);
    let count = u32::try_from(MESSAGE_LEN).unwrap();
    for number in 0..MESSAGES {
        let at = number * MESSAGE_LEN;
        send_mr.write(at, &bytes(salt + 1, number));
        post_recv(&link.qp, number as u64, recv_mr.sge(at, count));
        post_send(&link.qp, 100 + number as u64, send_mr.sge(at, count));
    }
    // The peer may send before it receives: the stack's window is open.
    for number in 0..MESSAGES {
        link.peer.send(opcode::SEND, 0, &bytes(salt, number)).unwrap();
    }
    let before = link.peer.sends.len();
    link.peer.serve_until(|peer| peer.sends.len() == before + MESSAGES).unwrap();
    for number in 0..MESSAGES {
        let sent = bytes(salt + 1, number);
        assert!(link.peer.sends[before + number].bytes == sent, "message {number} of ours");
    }
    let wcs = stack.completions(2 * MESSAGES);
    assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success), "{wcs:?}");
    let received = wcs.iter().filter(|wc| wc.opcode == WcOpcode::Recv);
    assert!(received.map(|wc| wc.wr_id).eq(0..MESSAGES as u64), "{wcs:?}");
    let mut found = vec![0; MESSAGE_LEN];
    for number in 0..MESSAGES {
        recv_mr.read(number * MESSAGE_LEN, &mut found);
        assert!(found == bytes(salt, number), "message {number} of the peer");
    }
}

/// Both roles of the stack: responder and initiator.
fn both_roles(stack: &Stack, listener: &Listener, addresses: Addresses, case: usize) {
    let mut link = accepted(stack, listener, addresses);
    link.check_peer_transfers(MEMORY_LEN - 10);
    bulk(stack, &mut link, case * 10);
    link.close_from_stack();
    let mut link = connected(stack, 5000 + u16::try_from(case).unwrap(), addresses);
    link.check_stack_transfers(MEMORY_LEN - 20);
    bulk(stack, &mut link, case * 10 + 5);
    link.close_from_peer();
}

/// The kernel connects.
fn accepted<'a>(stack: &'a Stack, listener: &Listener, addresses: Addresses) -> TestConnection<'a> {
    let address = SocketAddr::new(addresses.stack, listener.port());
    let thread = std::thread::spawn(move || {
        Peer::initiate(TcpStream::connect(address).unwrap(), &Startup::default()).unwrap().0
    });
    let qp = stack.create_qp();
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    assert_eq!(request.offer().peer.ip(), addresses.kernel);
    request.accept(&qp, ConnParam::default()).unwrap();
    qp.wait_established(TIMEOUT).unwrap();
    TestConnection::new(stack, qp, thread.join().unwrap())
}

/// The stack connects.
fn connected(stack: &Stack, port: u16, addresses: Addresses) -> TestConnection<'_> {
    let address = SocketAddr::new(addresses.kernel, port);
    let listener = TcpListener::bind(address).unwrap();
    let thread = std::thread::spawn(move || {
        Peer::respond(listener.accept().unwrap().0, &Startup::default()).unwrap().0
    });
    let qp = stack.create_qp();
    qp.connect(address, ConnParam::default()).unwrap();
    qp.wait_established(TIMEOUT).unwrap();
    TestConnection::new(stack, qp, thread.join().unwrap())
}

#[test]
fn transfers_with_each_kernel_tcp_option_on_and_off() {
    let Some(path) = ready(test_name!()) else { return };
    let dir = process::temp_dir().unwrap();
    let socket = dir.path().join("wire").display().to_string();
    let wire = open_wire(&path, &format!("memif:{socket},server"), dir, V4.kernel);
    let stack = Stack::on_device(&format!("memif:{socket},client"), V4.stack);
    let listener = stack.context.listen(PORT, 4).unwrap();
    let cases: [&[(&str, &str)]; 6] = [
        &[],
        &[("tcp_sack", "0")],
        &[("tcp_timestamps", "0")],
        &[("tcp_window_scaling", "0")],
        &[("tcp_ecn", "1")],
        &[
            ("tcp_sack", "0"),
            ("tcp_timestamps", "0"),
            ("tcp_window_scaling", "0"),
            ("tcp_ecn", "0"),
        ],
    ];
    for (index, case) in cases.into_iter().enumerate() {
        set(&DEFAULTS);
        set(case);
        let start = std::time::Instant::now();
        both_roles(&stack, &listener, V4, index);
        println!("{case:?}: {:.2} s", start.elapsed().as_secs_f64());
    }
    drop(listener);
    drop(stack);
    println!("{:#}", close_wire(wire));
}

#[test]
fn transfers_over_ipv6() {
    let Some(path) = ready(test_name!()) else { return };
    if !Path::new("/proc/net/if_inet6").exists() {
        return skip("the kernel has no IPv6");
    }
    let dir = process::temp_dir().unwrap();
    let socket = dir.path().join("wire").display().to_string();
    let wire = open_wire(&path, &format!("memif:{socket},server"), dir, V6.kernel);
    let stack = Stack::on_device(&format!("memif:{socket},client"), V6.stack);
    let listener = stack.context.listen(PORT, 4).unwrap();
    for case in [&[][..], &[("tcp_ecn", "1")]].into_iter().enumerate() {
        set(&DEFAULTS);
        set(case.1);
        both_roles(&stack, &listener, V6, case.0);
    }
    drop(listener);
    drop(stack);
    close_wire(wire);
}

#[test]
fn transfers_between_two_taps() {
    let Some(path) = ready(test_name!()) else { return };
    let stack = Stack::on_device("tap:fws0", V4.stack);
    // The kernel does not see these frames: its own interface is on the other side of the wire.
    netns::ip(&["link", "set", "fws0", "arp", "off", "up"]).unwrap();
    let wire = open_wire(&path, "af_packet:fws0", process::temp_dir().unwrap(), V4.kernel);
    let listener = stack.context.listen(PORT, 4).unwrap();
    both_roles(&stack, &listener, V4, 0);
    // The packet socket is closed before the interface that it listens to.
    let counters = close_wire(wire);
    assert!(counters[0]["frames_in"].as_u64() > Some(1000), "{counters}");
}
