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
///
/// While a thread is preempted in the middle of a push, the owner yields its core instead of
/// receiving what follows, as with the rings between shards. It lasts for a time slice, unless the
/// owner has a real-time priority on the same core.
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
        if self.is_closed() {
            self.clear();
            return false;
        }
        if let Some(wake) = self.wake.get() {
            wake();
        }
        is_taken
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
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

    /// As [`Borrower::inlet`], if it takes frames.
    fn open_inlet(&self, queue: u16) -> Option<&Inlet> {
        self.inlet(queue).filter(|inlet| !inlet.is_closed())
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

    fn remove(&self, borrower: &Arc<Borrower>) {
        self.change(|borrowers| borrowers.retain(|other| !Arc::ptr_eq(other, borrower)));
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
        self.exchange.remove(&self.own);
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

    /// True if a context on the port has the address. It takes a lock only if the list of contexts
    /// has changed since the queue pair was polled.
    pub(super) fn has_address(&self, ip: IpAddr) -> bool {
        let vlan = self.vlan();
        let is_among = |borrowers: &[Arc<Borrower>]| {
            borrowers.iter().any(|borrower| borrower.has_address(vlan, ip))
        };
        if self.is_current() {
            is_among(&self.known.borrowers)
        } else {
            is_among(&lock(&self.membership.exchange.borrowers))
        }
    }

    /// Leaves the exchange: nobody polls the queue pair any more, but it stays open. When the last
    /// one of the context leaves, its addresses are unknown to the others.
    pub(super) fn leave(&self) {
        let Membership { exchange, own } = &*self.membership;
        if let Some(inlet) = self.inlet() {
            inlet.close();
        }
        if own.inlets.iter().all(Inlet::is_closed) {
            exchange.remove(own);
        }
    }

    /// Has `wake` called when others have sent something.
    pub(super) fn wake_by(&self, wake: Wake) {
        if let Some(inlet) = self.inlet() {
            // A queue pair has one thread.
            let _ = inlet.wake.set(wake);
        }
    }

    /// Moves at most `max` frames that others have sent to `burst`; returns their number.
    pub(super) fn receive(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        self.refresh();
        let before = burst.len();
        if let Some(inlet) = self.inlet() {
            // Mostly there are none, and a `pop` that finds none has a fence.
            let count = inlet.frames.len().min(max);
            burst.extend((0..count).map_while(|_| inlet.frames.pop()));
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
        let learned = self.membership.exchange.flows.learn(self.vlan(), &tuple, self.queue);
        if learned == Some(self.queue) {
            return Returned::Own(frame);
        }
        let ip = tuple.local.ip();
        // The queue may have another owner now.
        let by_flow = learned
            .and_then(|queue| self.receivers(ip).find_map(|receiver| receiver.open_inlet(queue)));
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
    /// queue `i` with queue `i`, or of the next of its queue pairs that has not left.
    fn inlet_at<'a>(&self, receiver: &'a Borrower) -> Option<&'a Inlet> {
        let index = usize::from(self.queue - self.membership.own.queues.start);
        let (before, from) = receiver.inlets.split_at(index.checked_rem(receiver.inlets.len())?);
        from.iter().chain(before).find(|inlet| !inlet.is_closed())
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

    /// True if the list of borrowers has not changed since it was copied.
    fn is_current(&self) -> bool {
        self.membership.exchange.version.load(Ordering::Acquire) == self.known.version
    }

    /// Copies the list of borrowers if it has changed.
    fn refresh(&mut self) {
        if !self.is_current() {
            let exchange = &self.membership.exchange;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use ferrowarp_proto::device::{Device as _, TxClass};

    use super::*;
    use crate::device::tests::pair;
    use crate::device::{DpdkDevice, OpenConfig};

    /// Joins the exchange of a port that exists in this test only.
    fn join(queues: Range<u16>, ip: IpAddr) -> Vec<Seat> {
        let membership = Membership::join(u16::MAX, queues.clone(), || [2, 0, 0, 0, 0, 1]);
        let seats: Vec<_> = queues.map(|queue| Seat::new(Arc::clone(&membership), queue)).collect();
        seats.iter().for_each(|seat| seat.set_addresses(Some(7), [ip].into_iter()));
        seats
    }

    fn frame(device: &mut DpdkDevice) -> DpdkRx {
        DpdkRx(device.allocate(TxClass::Control).unwrap().0.into_received())
    }

    /// Each frame wakes the owner of its queue. Those to one that has left go to the others of its
    /// context, and none once all have.
    #[test]
    fn frames_wake_the_owner_of_a_queue_until_it_leaves() {
        let (mut device, _peer) = pair(&OpenConfig::new());
        let [left_ip, right_ip] = [1, 2].map(|host| IpAddr::from([198, 18, 0, host]));
        let mut left = join(0..1, left_ip).pop().unwrap();
        let mut right = join(1..3, right_ip);
        let woken: [Arc<AtomicUsize>; 2] = Default::default();
        for (seat, count) in right.iter().zip(&woken) {
            let count = Arc::clone(count);
            seat.wake_by(Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            }));
        }
        let receiver = Arc::clone(&right[0].membership.own);
        for expected in [[1, 0], [2, 0], [2, 1]] {
            let inlet = left.inlet_at(&receiver).unwrap();
            assert!(inlet.push(frame(&mut device)));
            assert_eq!(woken.each_ref().map(|count| count.load(Ordering::Relaxed)), expected);
            if expected == [2, 0] {
                let mut burst = Vec::new();
                assert_eq!(right[0].receive(&mut burst, 1), 1);
                right[0].leave();
                assert!(right[0].is_empty(), "the frames that wait are freed");
                assert!(!inlet.push(frame(&mut device)), "nobody receives it");
            }
        }
        assert!(left.has_address(right_ip), "the second is there");
        right[1].leave();
        assert!(!left.has_address(right_ip) && left.has_address(left_ip));
        left.refresh();
        assert!(!left.has_address(right_ip) && left.has_address(left_ip));
        assert!(left.inlet_at(&receiver).is_none());
    }
}
