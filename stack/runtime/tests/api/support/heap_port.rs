//! A port with several queues on the heap, connected to another one, which may deliver flows to
//! another queue than that of the shard that sends them.
//!
//! No part of it is DPDK's, so that a sanitizer sees every access.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam::queue::ArrayQueue;
use ferrowarp::device::{Port, PortLink};
use ferrowarp::{Config, Context};
use ferrowarp_proto::device::{
    Capabilities, ChecksumMode, ChecksumRequest, ChecksumState, Device, Retained, RxFrame, TxClass,
    TxFrame, frame_capacity,
};

use super::reserve_pair;

const MTU: u16 = 1500;
/// Frames that wait in a receive queue; further ones are dropped.
const QUEUE_LEN: usize = 512;
/// Frames accepted between two flushes.
const TX_LEN: usize = 64;

/// Choice of the peer's queue for a frame, given the sender's queue and the number of queues.
pub(crate) type Steer = fn(&[u8], usize, usize) -> usize;

/// Queue `i` is the peer's queue `i`.
pub(crate) fn mirrored(_: &[u8], queue: usize, _: usize) -> usize {
    queue
}

/// By the ports of a segment, so that frames of one flow stay in order; others as they were sent.
pub(crate) fn by_flow(frame: &[u8], queue: usize, count: usize) -> usize {
    const PORTS: std::ops::Range<usize> = 34..38;
    if frame.len() < 54 || frame[12..14] != [8, 0] || frame[23] != 6 {
        return queue;
    }
    let sum: usize = frame[PORTS].iter().map(|&byte| usize::from(byte)).sum();
    sum % count
}

#[derive(Clone)]
pub(crate) struct HeapFrame(Arc<Vec<u8>>);

impl RxFrame for HeapFrame {
    fn head(&self) -> &[u8] {
        &self.0
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.0[offset..offset + out.len()]);
    }

    fn checksum(&self) -> ChecksumState {
        ChecksumState::Unknown
    }
}

impl Retained for HeapFrame {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TxFrame for HeapFrame {
    type Retained = Self;

    fn buf_mut(&mut self) -> &mut [u8] {
        Arc::get_mut(&mut self.0).expect("a retained frame never changes")
    }

    fn set_len(&mut self, len: usize) {
        Arc::get_mut(&mut self.0).expect("a retained frame never changes").truncate(len);
    }

    fn retain(&mut self) -> Self {
        self.clone()
    }

    fn request_checksum(&mut self, _: &ChecksumRequest) {}
}

/// Without a lock of the standard library: a sanitizer does not see the order that it establishes
/// where the library is not instrumented.
type Queue = Arc<ArrayQueue<HeapFrame>>;

/// One queue pair of the port.
pub(crate) struct HeapPort {
    mac: [u8; 6],
    index: usize,
    steer: Steer,
    rx: Queue,
    /// All queues of the peer.
    peer: Vec<Queue>,
    tx: Vec<HeapFrame>,
    link: Option<TestLink>,
}

impl Port for HeapPort {
    fn link(&self) -> Option<Box<dyn PortLink>> {
        self.link.clone().map(|link| Box::new(HeapLink(link)) as Box<dyn PortLink>)
    }
}

impl Drop for HeapPort {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            link.dropped.lock().unwrap().push("port");
        }
    }
}

/// The test's end of a port's link.
#[derive(Clone)]
pub(crate) struct TestLink {
    /// State. While it is locked, reading it takes as long.
    pub(crate) is_up: Arc<Mutex<bool>>,
    /// Times that it has ended.
    pub(crate) downs: Arc<AtomicU64>,
    /// The process at its other end was there first.
    pub(crate) joins: bool,
    /// Record of what was dropped: the port and the context's end of the link.
    pub(crate) dropped: Arc<Mutex<Vec<&'static str>>>,
}

impl TestLink {
    pub(crate) fn new(is_up: bool) -> Self {
        let (is_up, downs) = (Arc::new(Mutex::new(is_up)), Arc::default());
        Self { is_up, downs, joins: false, dropped: Arc::default() }
    }

    pub(crate) fn set(&self, is_up: bool) {
        let was_up = std::mem::replace(&mut *self.is_up.lock().unwrap(), is_up);
        if was_up && !is_up {
            self.flap();
        }
    }

    /// Ends and begins again, before anybody looks.
    pub(crate) fn flap(&self) {
        self.downs.fetch_add(1, Ordering::Relaxed);
    }
}

/// The context's end of a port's link.
struct HeapLink(TestLink);

impl PortLink for HeapLink {
    fn is_up(&mut self) -> bool {
        *self.0.is_up.lock().unwrap()
    }

    fn is_to_process(&self) -> bool {
        true
    }

    fn down_count(&self) -> u64 {
        self.0.downs.load(Ordering::Relaxed)
    }

    fn joins_process(&self) -> bool {
        self.0.joins
    }
}

impl Drop for HeapLink {
    fn drop(&mut self) {
        self.0.dropped.lock().unwrap().push("link");
    }
}

impl Device for HeapPort {
    type Rx = HeapFrame;
    type Tx = HeapFrame;
    type Retained = HeapFrame;

    fn capabilities(&self) -> Capabilities {
        let checksum = ChecksumMode::NotNeeded;
        Capabilities {
            mac: self.mac,
            mtu: MTU,
            send_mtu: MTU,
            checksum,
            tso_segments_max: 0,
            hairpin_mtu: 0,
        }
    }

    fn receive(&mut self, burst: &mut Vec<HeapFrame>, max: usize) -> usize {
        let before = burst.len();
        burst.extend(std::iter::from_fn(|| self.rx.pop()).take(max));
        burst.len() - before
    }

    fn allocate(&mut self, _: TxClass) -> Option<HeapFrame> {
        Some(HeapFrame(Arc::new(vec![0; frame_capacity(MTU)])))
    }

    fn link_down_count(&self) -> u32 {
        let downs = self.link.as_ref().map_or(0, |link| link.downs.load(Ordering::Relaxed));
        u32::try_from(downs).unwrap()
    }

    fn tx_free_count(&self) -> usize {
        TX_LEN - self.tx.len()
    }

    fn transmit(&mut self, frame: HeapFrame) {
        self.tx.push(frame);
    }

    fn flush(&mut self) {
        for frame in self.tx.drain(..) {
            let to = (self.steer)(&frame.0, self.index, self.peer.len());
            let _dropped_if_full = self.peer[to].push(frame);
        }
    }
}

/// Opens two contexts over connected ports; the number of shards is that of `left`.
pub(crate) fn heap_contexts(left: Config, right: Config, steer: Steer) -> (Context, Context) {
    open(left, right, steer, None)
}

/// As [`heap_contexts`], with a link of the right port.
pub(crate) fn linked_contexts(left: Config, right: Config, link: &TestLink) -> (Context, Context) {
    open(left, right, mirrored, Some(link))
}

fn open(left: Config, right: Config, steer: Steer, link: Option<&TestLink>) -> (Context, Context) {
    reserve_pair([left.drive, right.drive]);
    let count = left.shards;
    let queue = || Queue::new(ArrayQueue::new(QUEUE_LEN));
    let queues = [(); 2].map(|()| (0..count).map(|_| queue()).collect::<Vec<_>>());
    let port = |host: u8| {
        let (own, peer) = (&queues[usize::from(host)], &queues[usize::from(1 - host)]);
        let queue = |(index, rx): (usize, &Queue)| HeapPort {
            mac: [2, 0, 0, 0, 0, host],
            index,
            steer,
            rx: Arc::clone(rx),
            peer: peer.clone(),
            tx: Vec::new(),
            link: link.filter(|_| host == 1).cloned(),
        };
        own.iter().enumerate().map(queue).collect::<Vec<_>>()
    };
    Context::joined_queues((port(0), left), (port(1), right)).unwrap()
}
