//! Contexts with several shards over the queues of real devices, whose choice of queue is not the
//! stack's: against kernel sockets, hosts made of frames, and other processes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ferrowarp::{ConnParam, Listener, WcOpcode, WcStatus};
use ferrowarp_tests::connection::TestConnection;
use ferrowarp_tests::pattern;
use ferrowarp_tests::peer::{PEER_STAG, Peer, Startup, opcode};
use ferrowarp_tests::stack::{
    KERNEL, STACK, Stack, TIMEOUT, post_read, post_recv, post_send, post_send_inline, post_write,
};

use crate::attacks::SetOnDrop;

mod af_packet;
mod closing;
mod flood;
mod frames;
mod kernel_flows;
mod peer_shards;
mod station;
mod threads;

/// Bytes of a message.
const LEN: usize = 30_000;
const LEN_U32: u32 = 30_000;

/// The same context, with a protection domain and a completion queue of its own.
fn with_own_queue(stack: &Stack) -> Stack {
    let context = stack.context.clone();
    let (pd, cq) = (context.alloc_pd(), context.create_cq(256).unwrap());
    Stack { context, pd, cq }
}

/// The stack accepts `count` connections.
fn accept_many<'a>(stack: &'a Stack, listener: &Listener, count: usize) -> Vec<TestConnection<'a>> {
    accept_many_at(stack, [STACK.into(), KERNEL.into()], listener, count)
}

/// As [`accept_many`], between these addresses of stack and kernel.
fn accept_many_at<'a>(
    stack: &'a Stack,
    addresses: [IpAddr; 2],
    listener: &Listener,
    count: usize,
) -> Vec<TestConnection<'a>> {
    let (param, startup) = (ConnParam::default(), Startup::default());
    let accept = |_| {
        let mut link = TestConnection::accepted_at(stack, addresses, listener, &param, &startup);
        // The initiator sends first, also below.
        link.check_peer_transfers(100);
        link
    };
    (0..count).map(accept).collect()
}

/// The stack connects to as many ports of the kernel, from `first_port` on.
fn connect_many(stack: &Stack, first_port: u16, count: u16) -> Vec<TestConnection<'_>> {
    connect_many_to(stack, (KERNEL, first_port).into(), count)
}

/// As [`connect_many`], from the port of `first` on.
fn connect_many_to(stack: &Stack, first: SocketAddr, count: u16) -> Vec<TestConnection<'_>> {
    let (param, startup) = (ConnParam::default(), Startup::default());
    let connect = |number| {
        let remote = SocketAddr::new(first.ip(), first.port() + number);
        let mut link = TestConnection::connected_to(stack, remote, &param, &startup);
        link.check_stack_transfers(100);
        link
    };
    (0..count).map(connect).collect()
}

/// A Send, a Write and a Read by both ends of each connection, all at the same time.
fn exchange(stack: &Stack, links: &mut [TestConnection<'_>], salt: u64) {
    let bytes = |number: usize, end: u64| pattern(salt << 8 | (number as u64) << 1 | end, LEN);
    for (number, link) in links.iter_mut().enumerate() {
        // Of the stack's region and of the peer's memory: what the owner sends, what the other
        // writes, and what the owner reads.
        let mut ours = bytes(number, 0);
        ours.resize(3 * LEN, 0);
        link.shared_mr.write(0, &ours);
        let mut theirs = bytes(number, 1);
        theirs.resize(3 * LEN, 0);
        link.peer.memory = theirs;
        link.peer.sends.clear();
        post_recv(&link.qp, 1, link.recv_mr.sge(0, LEN_U32));
        post_write(&link.qp, 2, link.shared_mr.sge(0, LEN_U32), PEER_STAG, LEN as u64);
        post_send(&link.qp, 3, link.shared_mr.sge(0, LEN_U32));
        post_read(&link.qp, 4, link.shared_mr.sge(2 * LEN, LEN_U32), PEER_STAG, 0);
    }
    std::thread::scope(|scope| {
        for (number, link) in links.iter_mut().enumerate() {
            let (rkey, addr) = (link.shared_mr.rkey(), link.shared_mr.addr());
            let (peer, bytes) = (&mut link.peer, bytes(number, 1));
            let (responses, reads_served) = (peer.responses + 1, peer.reads_served + 1);
            scope.spawn(move || {
                peer.write(rkey, addr + LEN as u64, &bytes).unwrap();
                peer.send(opcode::SEND, 0, &bytes).unwrap();
                peer.read(rkey, addr, LEN_U32, 2 * LEN as u64).unwrap();
                // The stack's Write is complete before its Send.
                let is_done = |peer: &Peer| {
                    (peer.responses, peer.reads_served) == (responses, reads_served)
                        && peer.sends.len() == 1
                };
                peer.serve_until(is_done).unwrap();
            });
        }
    });
    let found = stack.completions(4 * links.len());
    for (number, link) in links.iter().enumerate() {
        let of_one = found.iter().filter(|wc| wc.qp == link.qp.id());
        let by_id: BTreeMap<_, _> = of_one.map(|wc| (wc.wr_id, (wc.status, wc.opcode))).collect();
        let opcodes = [WcOpcode::Recv, WcOpcode::Write, WcOpcode::Send, WcOpcode::Read];
        let expected = (1..).zip(opcodes.map(|opcode| (WcStatus::Success, opcode))).collect();
        assert_eq!(by_id, expected, "connection {number}");
        let (ours, theirs) = (bytes(number, 0), bytes(number, 1));
        let mut found = vec![0; 3 * LEN];
        link.shared_mr.read(0, &mut found);
        assert!(found == [&*ours, &theirs, &theirs].concat(), "connection {number}, the stack");
        link.recv_mr.read(0, &mut found[..LEN]);
        assert!(found[..LEN] == theirs, "connection {number}, sent by the peer");
        assert!(link.peer.memory == [&*theirs, &ours, &ours].concat(), "connection {number}");
        assert!(link.peer.sends[0].bytes == ours, "connection {number}, sent by the stack");
    }
}

/// Closes all connections, in turn from one end and the other.
fn close_all(links: Vec<TestConnection<'_>>) {
    for (number, link) in links.into_iter().enumerate() {
        if number % 2 == 0 { link.close_from_stack() } else { link.close_from_peer() }
    }
}

/// Numbers of connections of each shard.
fn by_shard(stack: &Stack, links: &[TestConnection<'_>]) -> Vec<usize> {
    let mut counts = vec![0; stack.context.shard_count()];
    links.iter().for_each(|link| counts[link.qp.shard().expect("it is bound")] += 1);
    counts
}

/// Asserts that connections, all alive, were not harmed: no segment of theirs was taken for one of
/// no connection, and no RST was sent.
/// The attempts to open that it gave up itself it resets.
fn assert_undisturbed(stack: &Stack) {
    let counters = || stack.context.counters().engine;
    wait_until("forwarded frames arrive", || {
        let found = counters();
        found.frames_from_shards + found.shard_messages_dropped >= found.frames_forwarded
    });
    let found = counters();
    assert_eq!((found.segments_unmatched, found.connections_failed), (0, 0), "{found:?}");
    for name in ["EstabResets", "OutRsts", "InErrs"] {
        assert_eq!(kernel_tcp(name), 0, "{name}: {found:?}");
    }
    assert!(kernel_tcp("AttemptFails") <= found.source_ports_abandoned, "{found:?}");
}

/// Asserts that no connection ended with an RST. Once both ends have closed, a duplicate of their
/// last segment may be answered with one.
fn assert_none_reset() {
    assert_eq!(kernel_tcp("EstabResets"), 0);
}

/// Counter of the kernel's TCP, in the namespace of the process (RFC 4022).
fn kernel_tcp(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/net/snmp").expect("Linux has it");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names.split(' ').position(|found| found == name).expect("it counts them");
    values.split(' ').nth(at).and_then(|value| value.parse().ok()).expect("a number")
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
