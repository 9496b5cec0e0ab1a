//! Several shards over `memif` and over vhost, between two processes: shard `i` is connected to the
//! peer's shard `i`, and shards beyond the peer's number to nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use ferrowarp::stats::EngineCounters;
use ferrowarp::{Access, ConnEvent, Mr, Qp};
use ferrowarp_tests::conn_param;
use ferrowarp_tests::process::{self, Running};
use ferrowarp_tests::test_name;

use super::*;
use crate::two_processes::Link;

const PORT: u16 = 4791;
/// Connections in each direction.
const CONNECTIONS: usize = 8;
/// Environment of the other process: its device, its number of shards, and of connected ones.
const DEVICE: &str = "FERROWARP_TEST_SHARDS_DEVICE";
const SHARDS: &str = "FERROWARP_TEST_SHARDS";
const LINKED: &str = "FERROWARP_TEST_SHARDS_LINKED";

#[test]
fn memif_with_equal_and_unequal_numbers_of_shards() {
    equal_and_unequal_numbers_of_shards(Link::Memif, test_name!());
}

#[test]
fn vhost_with_equal_and_unequal_numbers_of_shards() {
    equal_and_unequal_numbers_of_shards(Link::Vhost, test_name!());
}

fn equal_and_unequal_numbers_of_shards(link: Link, name: &str) {
    if let Ok(device) = std::env::var(DEVICE) {
        let [shards, linked] = [SHARDS, LINKED].map(|name| std::env::var(name).unwrap());
        return client(&device, shards.parse().unwrap(), linked.parse().unwrap());
    }
    for (ours, theirs) in [(2, &[2, 1, 2][..]), (1, &[2])] {
        let dir = process::temp_dir().unwrap();
        let socket = dir.path().join("fw.sock");
        let device = link.server(&socket);
        let stack = Stack::on_device_with(&device, STACK, |config| config.shards = ours);
        for (number, &theirs) in theirs.iter().enumerate() {
            let log = dir.path().join(format!("client-{number}.log"));
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", name, "--nocapture"]).env(DEVICE, link.client(&socket));
            meet(&stack, command, &log, theirs);
        }
        stack.context.clone().close();
        drop(stack);
        assert!(!socket.exists(), "the socket is left behind");
    }
}

/// Starts the other process by `command`, and exchanges messages with it until both are done.
fn meet(stack: &Stack, mut command: Command, log: &Path, theirs: usize) {
    let linked = stack.context.shard_count().min(theirs);
    let before = counters(stack);
    let listener = stack.context.listen(PORT, CONNECTIONS).unwrap();
    command.env(SHARDS, theirs.to_string()).env(LINKED, linked.to_string());
    let other = Running::start(&mut command, log.to_owned()).unwrap();
    // It listens before it connects.
    let passive = with_own_queue(stack);
    let served = accept(&passive, &listener, linked);
    initiate(stack, KERNEL, linked);
    finish(&passive, served);
    let ended = other.finish(TIMEOUT).unwrap();
    assert!(ended.success(), "{theirs} shards: {:?}: {}", ended.status, ended.output);
    for (shard, (found, before)) in counters(stack).iter().zip(before).enumerate() {
        let got = found.frames_in - before.frames_in;
        assert_eq!(got > 0, shard < linked, "{got} frames from {theirs} shards on {shard}");
        assert_eq!((found.frames_forwarded, found.connections_failed), (0, 0), "shard {shard}");
    }
}

/// The other process.
fn client(device: &str, shards: usize, linked: usize) {
    let stack = Stack::on_device_with(device, KERNEL, |config| config.shards = shards);
    let listener = stack.context.listen(PORT, CONNECTIONS).unwrap();
    std::thread::scope(|scope| {
        let passive = with_own_queue(&stack);
        let listener = &listener;
        let passive = scope.spawn(move || {
            let served = accept(&passive, listener, linked);
            finish(&passive, served);
        });
        initiate(&stack, STACK, linked);
        passive.join().unwrap();
    });
    drop(listener);
    stack.context.clone().close();
}

fn counters(stack: &Stack) -> Vec<EngineCounters> {
    let shards = (0..stack.context.shard_count()).filter_map(|shard| stack.context.shard(shard));
    shards.map(|shard| shard.counters().engine).collect()
}

/// Asserts that each shard with a link has connections, and no other.
fn assert_on_linked<'a>(qps: impl Iterator<Item = &'a Qp>, linked: usize) {
    let mut found: Vec<_> = qps.map(|qp| qp.shard().expect("it is bound")).collect();
    found.sort_unstable();
    let expected: Vec<_> = (0..CONNECTIONS).map(|number| number * linked / CONNECTIONS).collect();
    assert_eq!(found, expected, "{linked} of them have a link");
}

/// A connection, the region that the peer writes and reads, and the region of its message.
type Served = (Qp, Mr, Mr);

/// Accepts all connections; each tells its region.
fn accept(stack: &Stack, listener: &Listener, linked: usize) -> Vec<Served> {
    let accept = |number| {
        let request = listener.accept_timeout(TIMEOUT).expect("a request");
        let qp = stack.create_qp();
        let shared = stack.alloc_mr(LEN, Access::ALL);
        let recv_mr = stack.alloc_mr(LEN, Access::LOCAL_WRITE);
        post_recv(&qp, number, recv_mr.sge(0, LEN_U32));
        let region = [&shared.rkey().to_be_bytes()[..], &shared.addr().to_be_bytes()].concat();
        let private_data = region.as_slice().try_into().unwrap();
        request.accept(&qp, conn_param(|it| it.private_data = private_data)).unwrap();
        qp.wait_established(TIMEOUT).unwrap();
        (qp, shared, recv_mr)
    };
    let served: Vec<_> = (0..CONNECTIONS as u64).map(accept).collect();
    assert_on_linked(served.iter().map(|(qp, ..)| qp), linked);
    served
}

/// Receives and checks a message of each connection, and waits for its end.
fn finish(stack: &Stack, served: Vec<Served>) {
    let mut found = stack.completions(CONNECTIONS);
    found.sort_by_key(|wc| wc.wr_id);
    for ((number, (qp, shared, recv_mr)), wc) in (0..).zip(&served).zip(found) {
        assert_eq!((wc.wr_id, wc.status), (number, WcStatus::Success), "{wc:?}");
        let mut bytes = vec![0; LEN];
        for mr in [shared, recv_mr] {
            mr.read(0, &mut bytes);
            assert!(bytes == pattern(number, LEN), "connection {number}");
        }
        assert!(matches!(qp.wait_event(TIMEOUT), Some(ConnEvent::Disconnected { .. })));
    }
}

/// Connects, writes to the peer's regions, reads them, sends the same, and disconnects.
fn initiate(stack: &Stack, remote: Ipv4Addr, linked: usize) {
    let connect = |_| {
        let qp = stack.create_qp();
        qp.connect(SocketAddr::from((remote, PORT)), ConnParam::default()).unwrap();
        let info = qp.wait_established(TIMEOUT).unwrap();
        let (rkey, addr) = info.private_data.split_at(4);
        let rkey = u32::from_be_bytes(rkey.try_into().unwrap());
        let addr = u64::from_be_bytes(addr.try_into().unwrap());
        (qp, rkey, addr)
    };
    let links: Vec<_> = (0..CONNECTIONS).map(connect).collect();
    assert_on_linked(links.iter().map(|(qp, ..)| qp), linked);
    let post = |(number, (qp, rkey, addr)): (u64, &(Qp, u32, u64))| {
        let mr = stack.alloc_mr(2 * LEN, Access::LOCAL_WRITE);
        mr.write(0, &pattern(number, LEN));
        post_write(qp, number, mr.sge(0, LEN_U32), *rkey, *addr);
        post_read(qp, number, mr.sge(LEN, LEN_U32), *rkey, *addr);
        post_send(qp, number, mr.sge(0, LEN_U32));
        mr
    };
    let regions: Vec<_> = (0..).zip(&links).map(post).collect();
    let found = stack.completions(3 * CONNECTIONS);
    assert!(found.iter().all(|wc| wc.status == WcStatus::Success), "{found:?}");
    for (number, mr) in (0..).zip(&regions) {
        let mut bytes = vec![0; LEN];
        mr.read(LEN, &mut bytes);
        assert!(bytes == pattern(number, LEN), "connection {number}");
    }
    for (qp, ..) in &links {
        qp.disconnect().unwrap();
        assert!(matches!(qp.wait_event(TIMEOUT), Some(ConnEvent::Disconnected { .. })));
    }
}
