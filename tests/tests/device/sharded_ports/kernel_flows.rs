//! Several shards over `tap`: the kernel returns a flow to the queue that sent it last, for three
//! seconds, and otherwise hashes it to any queue. So the SYN-ACK of a connection that the stack
//! opens arrives at any shard; it opens from another port then, until the hash is right also for
//! the first frames after a pause.

use std::time::Duration;

use ferrowarp_tests::stack::{Stack, TIMEOUT};
use ferrowarp_tests::{process, test_name};

use super::*;
use crate::tap::ready;

const INTERFACE: &str = "fw0";
const PORT: u16 = 4791;
/// Connections each way.
const CONNECTIONS: u16 = 16;
/// The kernel forgets the queue of a flow after 3 s, and looks for such flows once a second.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(4500);

#[test]
fn connections_with_two_queues() {
    if ready(test_name!()) {
        connections(2);
    }
}

#[test]
fn connections_with_four_queues() {
    if ready(test_name!()) {
        connections(4);
    }
}

fn connections(shards: usize) {
    let stack = Stack::on_tap_with(INTERFACE, |config| config.shards = shards);
    let forwarded = || stack.context.counters().engine.frames_forwarded;
    let received = || stack.context.counters().engine.frames_in;
    let listener = stack.context.listen(PORT, 4).unwrap();
    let mut links = accept_many(&stack, &listener, usize::from(CONNECTIONS));
    exchange(&stack, &mut links, 1);
    let accepted = by_shard(&stack, &links);
    println!("accepted {accepted:?}: {} of {} frames forwarded", forwarded(), received());
    // The kernel's hash of each is random.
    assert!(accepted.iter().filter(|&&count| count > 0).count() > 1, "{accepted:?}");

    let before = (forwarded(), received());
    links.extend(connect_many(&stack, 5000, CONNECTIONS));
    exchange(&stack, &mut links[usize::from(CONNECTIONS)..], 2);
    let connected = by_shard(&stack, &links[usize::from(CONNECTIONS)..]);
    let after = (forwarded() - before.0, received() - before.1);
    let ports = stack.context.counters().engine.source_ports_abandoned;
    println!("connected {connected:?}: {after:?} frames forwarded, {ports} ports given up");
    assert_eq!(connected, vec![usize::from(CONNECTIONS) / shards; shards], "in turn");

    // The kernel answers a SYN before it notes the queue that sent it.
    assert!(ports > 0, "no SYN-ACK arrived on another queue");
    // One of 256 connections finds no port for its queue.
    assert!(after.0 < ports + after.1 / 4, "{after:?}, {ports} ports given up");

    let before = (forwarded(), received());
    std::thread::sleep(FORGOTTEN_AFTER);
    for link in &mut links {
        link.check_peer_transfers(3000);
    }
    let after = (forwarded() - before.0, received() - before.1);
    println!("after idling: {} of {} frames forwarded", after.0, after.1);
    assert!(after.0 < after.1 / 4, "{after:?}: the hash leads to other queues");
    exchange(&stack, &mut links, 3);

    let counters = stack.context.counters().engine;
    // Each shard has a cache, and asks again after a second without an answer; data confirm what
    // is in it.
    assert!(counters.neighbor_solicits_out <= 2 * shards as u64, "{counters:?}");
    assert_eq!((counters.address_conflicts, counters.neighbor_mac_changes), (0, 0));
    assert_neighbor_known();
    assert_undisturbed(&stack);
    close_all(links);
    assert_none_reset();
}

/// The kernel has the stack's MAC address, and has not asked in vain.
fn assert_neighbor_known() {
    let mut command = std::process::Command::new("ip");
    command.args(["neigh", "show", "dev", INTERFACE]);
    let shown = process::run(&mut command, TIMEOUT).unwrap().output;
    assert!(shown.contains("lladdr") && !shown.contains("FAILED"), "{shown}");
}
