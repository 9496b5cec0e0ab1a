//! Ports over vhost with several queues, also of ends with different numbers of queues.

use std::os::fd::AsFd as _;

use dpdk_sys::fd::wait_readable;

use super::vhost_peers::in_ordinary_memory;
use super::*;

/// A back end and its driver, connected.
struct Ends {
    server: Vec<DpdkDevice>,
    client: Vec<DpdkDevice>,
    path: String,
    _folder: TempDir,
}

impl Ends {
    fn open(server: u16, client: u16) -> Self {
        let (folder, path) = socket_path();
        let server = open_queues(&format!("vhost:{path}"), server).unwrap();
        let mut ends = Self { server, client: Vec::new(), path, _folder: folder };
        ends.connect(client);
        ends
    }

    /// Connects a driver with this number of queues, after the one before is disconnected.
    fn connect(&mut self, queues: u16) {
        self.client.clear();
        wait_until("the link goes down", || !self.server[0].link_is_up());
        let spec = format!("virtio-user:{}", self.path);
        // The driver finds out which queues are polled, so they have to be.
        self.client = std::thread::scope(|scope| {
            let opening = scope.spawn(|| open_queues(&spec, queues).unwrap());
            while !opening.is_finished() {
                poll(&mut self.server);
                std::thread::yield_now();
            }
            opening.join().unwrap()
        });
        assert_eq!(self.client.len(), usize::from(queues));
        wait_for_link(&[&self.server[0], &self.client[0]]);
        // Frames that were sent to find out.
        poll(&mut self.server);
    }

    /// Asserts that the first `wired` queues of both ends carry frames, each to its counterpart and
    /// to no other queue, and that the others carry none.
    fn assert_wired(&mut self, wired: usize) {
        for devices in [&self.server, &self.client] {
            assert!(devices.iter().all(|device| device.steering() == &Steering::Mirrored));
            let has_wire: Vec<_> = devices.iter().map(DpdkDevice::has_wire).collect();
            let expected: Vec<_> = (0..devices.len()).map(|index| index < wired).collect();
            assert_eq!(has_wire, expected);
        }
        let dropped = |devices: &[DpdkDevice]| -> Vec<_> {
            devices.iter().map(|device| device.counters().tx_no_wire).collect()
        };
        let before = [&self.server, &self.client].map(|devices| dropped(devices));
        send_on_each(&mut self.client, 0);
        send_on_each(&mut self.server, 100);
        let mut got = [vec![Vec::new(); self.server.len()], vec![Vec::new(); self.client.len()]];
        let mut poll_both = || {
            for (devices, got) in [&mut self.server, &mut self.client].into_iter().zip(&mut got) {
                got.iter_mut().zip(poll(devices)).for_each(|(got, frames)| got.extend(frames));
            }
            got.iter().flatten().map(Vec::len).sum::<usize>()
        };
        wait_until("the frames arrive", || poll_both() >= 2 * wired);
        poll_both();
        for (got, seed) in got.into_iter().zip([0, 100]) {
            for (queue, frames) in got.into_iter().enumerate() {
                let expected = (queue < wired).then(|| pattern(seed + queue, 60));
                assert_eq!(frames, Vec::from_iter(expected), "queue {queue}");
            }
        }
        for (devices, before) in [&self.server, &self.client].into_iter().zip(before) {
            for (device, (before, after)) in devices.iter().zip(before.iter().zip(dropped(devices)))
            {
                assert_eq!(after - before, u64::from(!device.has_wire()));
                assert_eq!(device.transmit_backlog(), 0);
            }
        }
    }
}

#[test]
fn vhost_queue_reaches_the_peers_queue_of_the_same_number() {
    if in_ordinary_memory("vhost_queues::vhost_queue_reaches_the_peers_queue_of_the_same_number") {
        for queues in [1, 2, 4, 8] {
            Ends::open(queues, queues).assert_wired(usize::from(queues));
        }
    }
}

#[test]
fn vhost_queue_that_the_driver_lacks_has_no_wire() {
    if in_ordinary_memory("vhost_queues::vhost_queue_that_the_driver_lacks_has_no_wire") {
        Ends::open(2, 1).assert_wired(1);
        Ends::open(4, 3).assert_wired(3);
    }
}

/// The driver cannot find out how many queues its back end has.
#[test]
fn virtio_user_uses_queues_that_are_polled() {
    if in_ordinary_memory("vhost_queues::virtio_user_uses_queues_that_are_polled") {
        Ends::open(1, 2).assert_wired(1);
        Ends::open(2, 4).assert_wired(2);
    }
}

#[test]
fn vhost_queue_loses_and_regains_its_wire_with_the_connection() {
    if !in_ordinary_memory(
        "vhost_queues::vhost_queue_loses_and_regains_its_wire_with_the_connection",
    ) {
        return;
    }
    let mut ends = Ends::open(2, 2);
    for queues in [2, 1, 2, 3, 1] {
        ends.connect(queues);
        ends.assert_wired(usize::from(queues.min(2)));
    }
    ends.client.clear();
    wait_until("nobody is connected", || !ends.server.iter().any(DpdkDevice::has_wire));
}

/// A thread at the driver's end sleeps until the back end sends.
#[test]
fn back_end_kicks_a_driver_that_waits() {
    if !in_ordinary_memory("vhost_queues::back_end_kicks_a_driver_that_waits") {
        return;
    }
    let (_folder, path) = socket_path();
    let config = OpenConfig { rx_interrupts: true, ..OpenConfig::new() };
    let mut server = open_single(&format!("vhost:{path}"), &config).unwrap();
    let mut client = open_single(&format!("virtio-user:{path}"), &config).unwrap();
    wait_for_link(&[&server, &client]);
    assert!(server.rx_interrupt().is_none());
    let interrupt = client.rx_interrupt().expect("the driver has an eventfd");
    let is_kicked = |timeout| wait_readable([interrupt.as_fd()], timeout) == [true];
    for round in 0..100 {
        assert!(interrupt.enable());
        while client.receive(&mut Vec::new(), 32) > 0 {}
        assert!(!is_kicked(Duration::ZERO), "round {round}");
        send(&mut server, &pattern(round, 60));
        server.flush();
        assert!(is_kicked(Duration::from_secs(20)), "round {round}");
        interrupt.disable();
        assert!(client.receive(&mut Vec::new(), 32) > 0, "round {round}");
    }
}
