//! Own and link-local addresses over `tap`: what a context sends to itself never reaches the
//! kernel, and the kernel's link-local address is a peer as any other.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream};
use std::time::Instant;

use ferrowarp::device::ChecksumMode;
use ferrowarp::{Access, CmError, ConnParam, InterfaceAddress, QpOptions, WcStatus};
use ferrowarp_tests::stack::{STACK, Stack, TIMEOUT, post_write};
use ferrowarp_tests::{pattern, test_name};

use crate::tap;

const INTERFACE: &str = "fw0";
const PORT: u16 = 4791;
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

fn open() -> Stack {
    Stack::on_tap_with(INTERFACE, |config| {
        config.addresses.push(InterfaceAddress { ip: LINK_LOCAL.into(), prefix_len: 64 });
        // More than DPDK's driver sends.
        config.hairpin_mtu = Some(9000);
        config.checksum = Some(ChecksumMode::Software);
    })
}

/// The link-local address of the stack, in this zone.
fn link_local(scope_id: u32) -> SocketAddr {
    SocketAddrV6::new(LINK_LOCAL, PORT, 0, scope_id).into()
}

#[test]
fn context_connects_to_itself() {
    if !tap::ready(test_name!()) {
        return;
    }
    let stack = open();
    let listener = stack.context.listen(PORT, 1).unwrap();
    let zone = stack.context.config().device.interface_index().unwrap();
    for remote in [SocketAddr::new(STACK.into(), PORT), link_local(0), link_local(zone)] {
        let [a, b] = [(); 2].map(|()| stack.pd.create_qp(&QpOptions::new(&stack.cq)).unwrap());
        let other = a.connect(link_local(zone + 1), ConnParam::new());
        assert_eq!(other, Err(CmError::OtherZone(zone + 1)));
        a.connect(remote, ConnParam::new()).unwrap();
        let request = listener.accept_timeout(TIMEOUT).expect("a request");
        request.accept(&b, ConnParam::new()).unwrap();
        a.wait_established(TIMEOUT).unwrap();
        let source = stack.alloc_mr(100_000, Access::LOCAL_READ);
        let sink = stack.alloc_mr(100_000, Access::REMOTE_WRITE);
        source.write(0, &pattern(1, 100_000));
        post_write(&a, 1, source.sge(0, 100_000), sink.rkey(), sink.remote().addr);
        let mut found = Vec::new();
        let start = Instant::now();
        while found.is_empty() {
            stack.cq.poll_with(1, |wc| found.push(wc));
            assert!(start.elapsed() < TIMEOUT, "no completion");
        }
        assert_eq!(found[0].status, WcStatus::Success);
        let mut bytes = vec![0; 100_000];
        while bytes != pattern(1, 100_000) {
            stack.context.drive();
            sink.read(0, &mut bytes);
            assert!(start.elapsed() < TIMEOUT, "not placed");
        }
    }
    assert!(stack.context.counters().device.hairpin_frames > 0);
}

#[test]
fn kernel_connects_to_a_link_local_address() {
    if !tap::ready(test_name!()) {
        return;
    }
    let stack = open();
    let _listener = stack.context.listen(PORT, 1).unwrap();
    let remote = link_local(stack.context.config().device.interface_index().unwrap());
    // The kernel's own address is tentative at first.
    let kernel = std::thread::spawn(move || {
        let start = Instant::now();
        loop {
            match TcpStream::connect_timeout(&remote, TIMEOUT) {
                Ok(stream) => return stream,
                Err(error) => assert!(start.elapsed() < TIMEOUT, "{error}"),
            }
        }
    });
    while !kernel.is_finished() {
        stack.context.drive();
    }
    let stream = kernel.join().unwrap();
    assert_eq!(stack.context.connection_count(), 1);
    drop(stream);
}
