//! Exchange of frames among the contexts that borrow queues of one host port.
//!
//! They share the port's hardware address, and no port returns frames to that. So the queue pair
//! that sends such a frame gives it to the queue pair that is to receive it, by a bounded ring. No
//! frame of the link gets into one.
//!
//! | Frame | Goes to |
//! |---|---|
//! | of a connection on which the other end has sent | the queue pair that did |
//! | of another one | a context with the destination address: the sender's, or else the first |
//! | of no connection or listener there | the next context with the address, each once |
//! | to an address that no context has | the sender, which answers with RST |
//!
//! Nothing depends on what the flow table has learned. A wrong entry costs a detour: the receiver
//! passes the frame on.

use core::fmt;
use core::net::IpAddr;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crossbeam::queue::ArrayQueue;
use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::wire::tcp::{FourTuple, Segment};

use crate::device::flow_table::FlowTable;
use crate::device::frame::DpdkRx;
use crate::device::hairpin::HAIRPIN_LEN;

/// Exchanges of the ports with borrowed queues, by the number of the port.
static EXCHANGES: Mutex<Vec<(u16, Weak<Exchange>)>> = Mutex::new(Vec::new());

/// Function that wakes the thread of a queue pair.
type Wake = Box<dyn Fn() + Send + Sync>;

/// Locks for some instructions. A panic of a holder leaves valid lists.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frames that others have sent to a queue pair and that it has not received.
struct Inlet {
    frames: ArrayQueue<DpdkRx>,
    is_closed: AtomicBool,
    wake: OnceLock<Wake>,
}

impl Inlet {
    fn new() -> Self {
        let frames = ArrayQueue::new(HAIRPIN_LEN);
        Self { frames, is_closed: AtomicBool::new(false), wake: OnceLock::new() }
    }

    /// Takes a frame. False if it was dropped.
    fn push(&self, frame: DpdkRx) -> bool {
        let is_taken = self.frames.push(frame).is_ok();
        // Either the owner sees the frame when it closes, or this thread sees that.
        fence(Ordering::SeqCst);
        if self.is_closed.load(Ordering::Relaxed) {
            self.clear();
        } else if let Some(wake) = self.wake.get() {
            wake();
        }
        is_taken
    }

    /// Drops all frames, also those that are pushed from now on.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.clear();
    }

    fn clear(&self) {
        while self.frames.pop().is_some() {}
    }
}

/// Addresses of a context.
struct Addresses {
    vlan: Option<u16>,
    ips: Vec<IpAddr>,
}

/// A context that borrows queues.
struct Borrower {
    queues: Range<u16>,
    /// Set before it sends.
    addresses: OnceLock<Addresses>,
    /// By queue, from the first.
    inlets: Box<[Inlet]>,
}

impl Borrower {
    fn has_address(&self, vlan: Option<u16>, ip: IpAddr) -> bool {
        let addresses = self.addresses.get();
        addresses.is_some_and(|known| known.vlan == vlan && known.ips.contains(&ip))
    }

    /// Returns the inlet of one of its queues.
    fn inlet(&self, queue: u16) -> Option<&Inlet> {
        self.inlets.get(usize::from(queue.checked_sub(self.queues.start)?))
    }
}

/// Exchange of a port.
struct Exchange {
    /// In the order in which they were opened.
    borrowers: Mutex<Vec<Arc<Borrower>>>,
    /// Changes with `borrowers`.
    version: AtomicU32,
    flows: FlowTable,
    mac: [u8; 6],
}

impl Exchange {
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Borrower>>)) {
        let mut borrowers = lock(&self.borrowers);
        change(&mut borrowers);
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// Membership of a context in the exchange of its port. Its queue pairs share it, and the last one
/// ends it.
pub(super) struct Membership {
    exchange: Arc<Exchange>,
    own: Arc<Borrower>,
}

impl Membership {
    /// Joins the exchange of a port with these queues. `mac` returns the hardware address of the
    /// port, if this is the first context on it.
    pub(super) fn join(port: u16, queues: Range<u16>, mac: impl FnOnce() -> [u8; 6]) -> Arc<Self> {
        let mut exchanges = lock(&EXCHANGES);
        exchanges.retain(|(_, exchange)| exchange.strong_count() > 0);
        let known = exchanges.iter().find(|(of, _)| *of == port);
        let exchange = known.and_then(|(_, exchange)| exchange.upgrade()).unwrap_or_else(|| {
            let exchange = Arc::new(Exchange {
                borrowers: Mutex::default(),
                version: AtomicU32::new(0),
                flows: FlowTable::new(),
                mac: mac(),
            });
            exchanges.push((port, Arc::downgrade(&exchange)));
            exchange
        });
        let inlets = queues.clone().map(|_| Inlet::new()).collect();
        let own = Arc::new(Borrower { queues, addresses: OnceLock::new(), inlets });
        exchange.change(|borrowers| borrowers.push(Arc::clone(&own)));
        Arc::new(Self { exchange, own })
    }

    /// Returns the hardware address that the contexts on the port share.
    pub(super) fn mac(&self) -> [u8; 6] {
        self.exchange.mac
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.exchange.change(|borrowers| borrowers.retain(|other| !Arc::ptr_eq(other, &self.own)));
        self.own.inlets.iter().for_each(Inlet::close);
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("queues", &self.own.queues).finish_non_exhaustive()
    }
}

/// Outcome for a frame that the port is to return.
#[derive(Debug)]
pub(super) enum Returned {
    /// It is for the queue pair itself.
    Own(DpdkRx),
    /// It was sent to another one.
    Sent,
    /// It was dropped: too many wait there.
    Dropped,
}

/// Queue pair in an exchange.
#[derive(Debug)]
pub(super) struct Seat {
    membership: Arc<Membership>,
    /// Number of the queue pair at the port.
    queue: u16,
    known: Known,
}

/// Copy of the list of borrowers, so that frames take no lock.
#[derive(Default)]
struct Known {
    version: u32,
    borrowers: Vec<Arc<Borrower>>,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.borrowers.iter().map(|other| &other.queues)).finish()
    }
}

impl Seat {
    pub(super) fn new(membership: Arc<Membership>, queue: u16) -> Self {
        Self { membership, queue, known: Known::default() }
    }

    /// Tells the others the addresses of the context. All its queue pairs have the same.
    pub(super) fn set_addresses(&self, vlan: Option<u16>, ips: impl Iterator<Item = IpAddr>) {
        self.membership.own.addresses.get_or_init(|| Addresses { vlan, ips: ips.collect() });
    }

    /// True if a context on the port has the address. It takes a lock.
    pub(super) fn has_address(&self, ip: IpAddr) -> bool {
        let vlan = self.vlan();
        let borrowers = lock(&self.membership.exchange.borrowers);
        borrowers.iter().any(|borrower| borrower.has_address(vlan, ip))
    }

    /// Has `wake` called when others have sent something.
    pub(super) fn wake_by(&self, wake: Wake) {
        if let Some(inlet) = self.inlet() {
            // A queue pair has one thread.
            let _ = inlet.wake.set(wake);
        }
    }

    /// Moves at most `max` frames that others have sent to `burst`; returns their number.
    pub(super) fn receive(&self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        let before = burst.len();
        if let Some(inlet) = self.inlet() {
            burst.extend((0..max).map_while(|_| inlet.frames.pop()));
        }
        burst.len() - before
    }

    /// True if nothing waits to be received.
    pub(super) fn is_empty(&self) -> bool {
        self.inlet().is_none_or(|inlet| inlet.frames.is_empty())
    }

    /// Sends a frame to the queue pair that is to receive it.
    pub(super) fn send(&mut self, frame: DpdkRx) -> Returned {
        self.refresh();
        let is_alone = self.known.borrowers.len() == 1;
        let Some(tuple) = self.tuple(&frame).filter(|_| !is_alone) else {
            return Returned::Own(frame);
        };
        let learned = self.membership.exchange.flows.learn(&tuple, self.queue);
        if learned == Some(self.queue) {
            return Returned::Own(frame);
        }
        let ip = tuple.local.ip();
        let by_flow = learned
            .and_then(|queue| self.known.borrowers.iter().find_map(|other| other.inlet(queue)));
        let inlet = by_flow.or_else(|| {
            let is_own = self.membership.own.has_address(self.vlan(), ip);
            let receiver = if is_own { None } else { self.receivers(ip).next() };
            receiver.and_then(|receiver| self.inlet_at(receiver))
        });
        give(inlet, frame)
    }

    /// Passes a frame that is of no connection or listener here to the next context with its
    /// destination address. `Own` if each has received it.
    pub(super) fn pass(&mut self, mut frame: DpdkRx) -> Returned {
        self.refresh();
        let Some(tuple) = self.tuple(&frame) else { return Returned::Own(frame) };
        let ip = tuple.local.ip();
        let own = &self.membership.own;
        let at = self.receivers(ip).position(|receiver| Arc::ptr_eq(receiver, own));
        // One without the address does not count: what is learned was about another one.
        let next = match at {
            Some(at) => {
                let count = self.receivers(ip).count();
                let is_last = frame.0.count_receiver() as usize >= count;
                if is_last { None } else { self.receivers(ip).nth((at + 1) % count) }
            }
            None => self.receivers(ip).next(),
        };
        give(next.and_then(|receiver| self.inlet_at(receiver)), frame)
    }

    /// Returns the contexts with this address, in the order in which they were opened.
    fn receivers(&self, ip: IpAddr) -> impl Iterator<Item = &Arc<Borrower>> {
        let vlan = self.vlan();
        self.known.borrowers.iter().filter(move |borrower| borrower.has_address(vlan, ip))
    }

    /// Returns the inlet of a context for what this queue pair sends, as over a link that connects
    /// queue `i` with queue `i`.
    fn inlet_at<'a>(&self, receiver: &'a Borrower) -> Option<&'a Inlet> {
        let index = usize::from(self.queue - self.membership.own.queues.start);
        receiver.inlets.get(index.checked_rem(receiver.inlets.len())?)
    }

    /// Returns the queue pair's own inlet.
    fn inlet(&self) -> Option<&Inlet> {
        self.membership.own.inlet(self.queue)
    }

    /// Returns the VLAN of the context.
    fn vlan(&self) -> Option<u16> {
        self.membership.own.addresses.get()?.vlan
    }

    /// Returns the ends of a TCP segment, as its receiver sees them.
    fn tuple(&self, frame: &DpdkRx) -> Option<FourTuple> {
        let segment = match self.vlan() {
            None => Segment::parse(frame, ChecksumMode::NotNeeded),
            Some(_) => Segment::parse_vlan(frame, ChecksumMode::NotNeeded),
        };
        segment.ok().map(|segment| segment.tuple)
    }

    /// Copies the list of borrowers if it has changed.
    fn refresh(&mut self) {
        let exchange = &self.membership.exchange;
        if exchange.version.load(Ordering::Acquire) != self.known.version {
            let borrowers = lock(&exchange.borrowers);
            let version = exchange.version.load(Ordering::Acquire);
            self.known = Known { version, borrowers: borrowers.clone() };
        }
    }
}

/// Gives a frame to another queue pair, if there is one.
fn give(inlet: Option<&Inlet>, frame: DpdkRx) -> Returned {
    match inlet {
        None => Returned::Own(frame),
        Some(inlet) if inlet.push(frame) => Returned::Sent,
        Some(_) => Returned::Dropped,
    }
}
