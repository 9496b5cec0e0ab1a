//! memif ports with several queues, also of ends with different numbers of queues.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A server and its client, connected.
struct Ends {
    server: Vec<DpdkDevice>,
    client: Vec<DpdkDevice>,
    path: String,
    _folder: TempDir,
}

impl Ends {
    fn open(server: u16, client: u16) -> Self {
        let (folder, path) = socket_path();
        let server = open_queues(&format!("memif:{path},server"), server).unwrap();
        let mut ends = Self { server, client: Vec::new(), path, _folder: folder };
        ends.connect(client);
        ends
    }

    /// Connects a client with this number of queues, after the one before is disconnected.
    fn connect(&mut self, queues: u16) {
        self.client.clear();
        wait_until("the link goes down", || !self.server[0].link_is_up());
        self.client = open_queues(&format!("memif:{},client", self.path), queues).unwrap();
        assert_eq!(self.client.len(), usize::from(queues));
        wait_for_link(&[&self.server[0], &self.client[0]]);
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
        let before = [counters(&self.server), counters(&self.client)];
        // A server sends only into slots that its client posted in an earlier poll.
        drop(poll(&mut self.client));
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
            for (device, before) in devices.iter().zip(before) {
                let (sent, dropped) = (device.counters().tx_frames, device.counters().tx_no_wire);
                let has_wire = u64::from(device.has_wire());
                assert_eq!(
                    (sent - before.tx_frames, dropped - before.tx_no_wire),
                    (has_wire, 1 - has_wire)
                );
                assert_eq!(device.transmit_backlog(), 0);
            }
        }
    }
}

fn counters(devices: &[DpdkDevice]) -> Vec<DeviceCounters> {
    devices.iter().map(DpdkDevice::counters).collect()
}

#[test]
fn memif_queue_reaches_the_peers_queue_of_the_same_number() {
    let _pools = lock_pools();
    for queues in [1, 2, 4] {
        Ends::open(queues, queues).assert_wired(usize::from(queues));
    }
}

#[test]
fn memif_queue_that_the_client_lacks_has_no_wire() {
    let _pools = lock_pools();
    Ends::open(2, 1).assert_wired(1);
    Ends::open(4, 3).assert_wired(3);
}

/// The server disconnects a client with more queues than it has.
#[test]
fn memif_client_offers_no_more_queues_than_its_server_has() {
    let _pools = lock_pools();
    Ends::open(1, 2).assert_wired(1);
    Ends::open(2, 4).assert_wired(2);
}

/// The driver keeps the place of a ring that the next connection lacks.
#[test]
fn memif_queue_loses_and_regains_its_wire_with_the_connection() {
    let _pools = lock_pools();
    let mut ends = Ends::open(2, 2);
    for queues in [2, 1, 2, 3, 1] {
        ends.connect(queues);
        ends.assert_wired(usize::from(queues.min(2)));
    }
    ends.client.clear();
    wait_until("nobody is connected", || !ends.server.iter().any(DpdkDevice::has_wire));
}

/// Polled by a thread of its own, it would take frames of the first queue.
#[test]
fn memif_queue_without_a_wire_takes_no_frames() {
    const FRAMES: usize = 20_000;
    let _pools = lock_pools();
    let mut ends = Ends::open(2, 1);
    let (first, other) = ends.server.split_at_mut(1);
    let client = &mut ends.client[0];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| {
            let mut burst = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                other[0].receive(&mut burst, 32);
                if other[0].tx_free_count() != 0
                    && let Some(mut frame) = other[0].allocate(TxClass::Data)
                {
                    frame.set_len(60);
                    other[0].transmit(frame);
                }
                other[0].flush();
            }
            burst.len()
        });
        let (mut sent, mut got) = (0, 0);
        let deadline = Instant::now() + Duration::from_secs(20);
        while got < FRAMES && Instant::now() < deadline {
            while sent < FRAMES && client.tx_free_count() != 0 && client.data_avail_count() != 0 {
                send(client, &pattern(sent, 100));
                sent += 1;
            }
            let mut burst = Vec::new();
            client.flush();
            client.receive(&mut burst, 32);
            assert!(burst.is_empty(), "the server's other queue writes into no ring");
            first[0].receive(&mut burst, 64);
            for frame in &burst {
                assert_eq!(frame.head(), pattern(got, 100), "frame {got}");
                got += 1;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!((got, taken.join().unwrap()), (FRAMES, 0));
    });
    assert!(ends.server[1].counters().tx_no_wire > 0);
}

const PEER: &str = "FERROWARP_TEST_MEMIF_QUEUES_PEER";

/// Child process of the next test: a client with three queues of a server with two.
#[test]
fn memif_queues_peer_process() {
    let Ok(spec) = std::env::var(PEER) else { return };
    let mut devices = open_queues(&spec, 3).unwrap();
    assert_eq!(Vec::from_iter(devices.iter().map(DpdkDevice::has_wire)), [true, true, false]);
    send_on_each(&mut devices, 0);
    wait_until("the server answers", || poll(&mut devices)[1] == [pattern(50, 60)]);
}

#[test]
fn memif_queues_of_two_processes_agree() {
    let _pools = lock_pools();
    let (_folder, path) = socket_path();
    let mut server = open_queues(&format!("memif:{path},server"), 2).unwrap();
    let mut peer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "device::tests::memif_queues::memif_queues_peer_process"])
        .env(PEER, format!("memif:{path}"))
        .spawn()
        .unwrap();
    let mut got = [0; 2];
    wait_until("the client's frames arrive", || {
        for (queue, frames) in poll(&mut server).iter().enumerate() {
            assert!(frames.iter().all(|frame| *frame == pattern(queue, 60)), "queue {queue}");
            got[queue] += frames.len();
        }
        got.iter().sum::<usize>() >= 2
    });
    assert_eq!(got, [1, 1]);
    send(&mut server[1], &pattern(50, 60));
    wait_until("the answer is sent", || {
        server[1].flush();
        server[1].transmit_backlog() == 0
    });
    assert!(peer.wait().unwrap().success());
}
