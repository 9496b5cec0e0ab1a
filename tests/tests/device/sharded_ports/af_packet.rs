//! Two shards over `af_packet`, at one end of a veth pair. The kernel hashes flows over the queues:
//! the stack tries source ports until the replies arrive at the right one.
//!
//! Kernel sockets are connected by a tap and `iwlink`: what a kernel sends over veth directly has
//! no checksums, unless that is switched off.

use ferrowarp::InterfaceAddress;
use ferrowarp_tests::stack::{KERNEL_V6, STACK_V6};
use ferrowarp_tests::{netns, process, test_name};

use super::*;
use crate::iwlink::Iwlink;

/// The kernel's interface, and the ends of the pair.
const KERNELS: &str = "fwk0";
const WIRE: &str = "fwv0";
const STACKS: &str = "fwv1";
const PORT: u16 = 4791;
/// Connections each way and of each address family.
const CONNECTIONS: u16 = 6;

#[test]
fn connections_over_both_families() {
    let Some(path) = Iwlink::path() else { return };
    if !crate::tap::ready(test_name!()) {
        return;
    }
    let ip = |arguments: &str| netns::ip(&arguments.split(' ').collect::<Vec<_>>()).unwrap();
    ip(&format!("link add {WIRE} type veth peer name {STACKS}"));
    for end in [WIRE, STACKS] {
        // The kernel itself sends nothing there.
        ip(&format!("link set {end} arp off addrgenmode none up"));
    }
    let devices = [&format!("tap:{KERNELS}"), &format!("af_packet:{WIRE}")];
    let wire = Iwlink::start(&path, devices.map(String::as_str), "", process::temp_dir().unwrap());
    ip(&format!("addr add {KERNEL}/24 dev {KERNELS}"));
    ip(&format!("addr add {KERNEL_V6}/64 dev {KERNELS} nodad"));
    ip(&format!("link set {KERNELS} up"));
    let stack = Stack::on_device_with(&format!("af_packet:{STACKS}"), STACK, |config| {
        config.addresses.push(InterfaceAddress { ip: STACK_V6.into(), prefix_len: 64 });
        config.shards = 2;
    });
    let listener = stack.context.listen(PORT, 4).unwrap();
    let families: [[IpAddr; 2]; 2] =
        [[STACK.into(), KERNEL.into()], [STACK_V6.into(), KERNEL_V6.into()]];
    let counts = || {
        let found = stack.context.counters().engine;
        (found.frames_forwarded, found.frames_in)
    };
    let abandoned = || stack.context.counters().engine.source_ports_abandoned;
    let mut accepted = Vec::new();
    for addresses in families {
        let count = usize::from(CONNECTIONS);
        accepted.extend(accept_many_at(&stack, addresses, &listener, count));
    }
    exchange(&stack, &mut accepted, 1);
    let before = counts();
    let counted = by_shard(&stack, &accepted);
    println!("accepted {counted:?}: {} of {} frames forwarded", before.0, before.1);
    // The kernel's choice of queue only changes when a ring is full.
    assert!(before.0 < before.1 / 4, "{before:?}");
    let mut connected = Vec::new();
    for (first, [_, kernel]) in (5000..).step_by(1000).zip(families) {
        connected.extend(connect_many_to(&stack, SocketAddr::new(kernel, first), CONNECTIONS));
    }
    exchange(&stack, &mut connected, 2);
    let (forwarded, received) = counts();
    let (counted, all) = (by_shard(&stack, &connected), received - before.1);
    let (forwarded, ports) = (forwarded - before.0, abandoned());
    println!(
        "connected {counted:?}: {forwarded} of {all} frames forwarded, {ports} ports given up"
    );
    // In turn, whatever the kernel's hash.
    assert_eq!(counted, [usize::from(CONNECTIONS); 2]);
    // One of 256 connections finds no port for its queue, and lives on the mesh.
    assert!(forwarded < all / 4, "{forwarded} of {all}");
    let mut links = accepted;
    links.extend(connected);
    exchange(&stack, &mut links, 3);
    assert_undisturbed(&stack);
    close_all(links);
    assert_none_reset();
    drop((listener, stack));
    wire.stop();
}
