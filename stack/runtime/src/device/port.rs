//! One queue pair of a DPDK port as the stack's device.

use std::net::IpAddr;
use std::ops::AddAssign;

use dpdk_sys::{BURST, RxQueue, TxMbuf, TxQueue};
use ferrowarp_proto::device::{Capabilities, Device, SegmentationRequest, TxClass, TxFrame};

use crate::device::exchange::{Returned, Seat};
use crate::device::facts::{PortFacts, frame_len_max};
use crate::device::frame::{DpdkRetained, DpdkRx, DpdkTx};
use crate::device::hairpin::Hairpin;
use crate::device::link::DpdkLink;
use crate::device::mbuf_cache::{MbufCache, TxPools};
use crate::device::raw::RawPort;
use crate::device::rss_check::{Checked, RssCheck};
use crate::device::steering::Steering;

/// Counters of a device, in frames unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// Received.
    pub rx_frames: u64,
    /// Accepted by the port.
    pub tx_frames: u64,
    /// Dropped because the transmit queue was full.
    pub tx_dropped: u64,
    /// Dropped because they are longer than the port sends.
    pub tx_too_long: u64,
    /// Dropped because the link partner has no queue for this one (memif, vhost).
    pub tx_no_wire: u64,
    /// Sent to this port itself, and returned to a queue; not among `tx_frames` or `rx_frames`.
    pub hairpin_frames: u64,
    /// Dropped instead, because too many of them waited to be received.
    pub hairpin_dropped: u64,
    /// Passed to the transmit queue to be cut into TCP segments; each counts once in `tx_frames`.
    pub tx_tso_frames: u64,
    /// Dropped because the driver refused to cut them; the queue pair's segments are then cut by
    /// the stack.
    pub tx_refused: u64,
    /// First segments received that were compared with what the port's RSS key and table predict.
    pub rss_checked: u64,
    /// Segments among these with another hash, or on another queue.
    pub rss_mismatches: u64,
    /// Flushes that left frames queued because the port accepted no more.
    pub tx_deferred: u64,
    /// Failed allocations: the data pool was empty.
    pub data_drained: u64,
    /// Failed allocations for retransmission: the data and reserve pools were empty.
    pub retransmit_drained: u64,
    /// Failed allocations: the control pool was empty.
    pub control_drained: u64,
}

/// Adds the counters of another queue.
impl AddAssign for DeviceCounters {
    fn add_assign(&mut self, other: Self) {
        self.rx_frames += other.rx_frames;
        self.tx_frames += other.tx_frames;
        self.tx_dropped += other.tx_dropped;
        self.tx_too_long += other.tx_too_long;
        self.hairpin_frames += other.hairpin_frames;
        self.hairpin_dropped += other.hairpin_dropped;
        self.tx_tso_frames += other.tx_tso_frames;
        self.tx_refused += other.tx_refused;
        self.rss_checked += other.rss_checked;
        self.rss_mismatches += other.rss_mismatches;
        self.tx_deferred += other.tx_deferred;
        self.data_drained += other.data_drained;
        self.retransmit_drained += other.retransmit_drained;
        self.control_drained += other.control_drained;
        self.tx_no_wire += other.tx_no_wire;
    }
}

/// Longest frame, in bytes, that counts as headers only: Ethernet, IPv6, TCP with all options.
const HEADERS_LEN_MAX: usize = 14 + 40 + 60;

/// Queue pair of a DPDK port, with one owner; it may be moved to the thread that polls it.
///
/// Dropping the last one of a port closes the port. Frames may outlive it.
#[derive(Debug)]
pub struct DpdkDevice {
    rx: RxQueue,
    tx: TxQueue,
    /// Frames for the next flush, at most `queue_max`.
    queue: Vec<TxMbuf>,
    queue_max: usize,
    pools: TxPools,
    /// Length of the last data frame in bytes, the likely length of the next.
    likely_len: usize,
    /// Longest frame in bytes that goes to the port without a further look; 0 once destinations
    /// are looked at.
    plain_len_max: usize,
    /// Work of a burst that is not always there.
    occasional: Option<Box<Occasional>>,
    counters: DeviceCounters,
    port: PortFacts,
}

/// Work of a queue pair that most do not have, or only at first.
#[derive(Debug, Default)]
struct Occasional {
    /// While the first segments are compared with the port's RSS hash.
    rss_check: Option<RssCheck>,
    /// Once there are connections of the host to itself, or if the port may have other users.
    hairpin: Option<Hairpin>,
}

impl DpdkDevice {
    /// `number`: of the queue pair among those of the device.
    pub(super) fn new(
        (number, (rx, tx)): (u16, (RxQueue, TxQueue)),
        pools: TxPools,
        queue_max: usize,
        port: PortFacts,
    ) -> Self {
        let rss_check = match &*port.steering {
            Steering::Predicted(rss) => RssCheck::new(rss, number),
            _ => None,
        };
        let occasional = rss_check
            .map(|check| Box::new(Occasional { rss_check: Some(check), ..Occasional::default() }));
        Self {
            rx,
            tx,
            queue: Vec::with_capacity(queue_max),
            queue_max,
            pools,
            likely_len: 0,
            plain_len_max: frame_len_max(port.capabilities.send_mtu),
            occasional,
            counters: DeviceCounters::default(),
            port,
        }
    }

    /// Gives the queue pair its seat in the exchange with other users of the port.
    pub(super) fn with_seat(mut self, seat: Seat) -> Self {
        self.occasional.get_or_insert_default().hairpin = Some(Hairpin::new(Some(seat)));
        self
    }

    /// Has `wake` called when other users of the port have sent frames to the queue pair.
    pub(super) fn wake_by(&self, wake: Box<dyn Fn() + Send + Sync>) {
        if let Some(seat) = self.seat() {
            seat.wake_by(wake);
        }
    }

    /// Has other users of the port send nothing more to the queue pair, which nobody polls.
    pub(super) fn leave(&self) {
        if let Some(seat) = self.seat() {
            seat.leave();
        }
    }

    fn seat(&self) -> Option<&Seat> {
        self.occasional.as_ref()?.hairpin.as_ref()?.seat()
    }

    /// Converts the device to a [`RawPort`], which keeps the data pool only.
    #[must_use]
    pub fn into_raw(self) -> RawPort {
        let Self { rx, tx, pools, queue_max, port, .. } = self;
        RawPort::new((rx, tx), pools.data, queue_max, port)
    }

    /// Returns the port's name, for reports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.port.name
    }

    /// Returns the number of the queue pair, from 0.
    #[must_use]
    pub fn queue_index(&self) -> u16 {
        self.rx.index()
    }

    /// Returns the rule by which the port spreads received frames over its queue pairs.
    #[must_use]
    pub fn steering(&self) -> &Steering {
        &self.port.steering
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> DeviceCounters {
        self.counters
    }

    /// True if the link is up; over memif and vhost, if the peer is connected. A control-path
    /// call, not for every poll.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        self.port.link_is_up(&self.rx)
    }

    /// Has `observer` called, once, when the kernel asks for the port's device: see
    /// [`RxQueue::observe_removal`]. Also when its link reports that the kernel interface below the
    /// port is gone ([`DpdkLink::report_removal`]).
    pub fn observe_removal(&self, observer: impl FnOnce() + Send + 'static) {
        self.rx.observe_removal(observer);
    }

    /// Returns the link of the port, to be read from any thread; `None` if its state does not
    /// change, the driver does not report it, or the host program owns the port. The port is not
    /// closed before it is dropped.
    #[must_use]
    pub fn link(&self) -> Option<DpdkLink> {
        self.port.link(&self.rx)
    }

    /// Returns the receive interrupt of the queue; `None` if it has none. Those of `tap` and
    /// `af_packet` are always there, those of cards if they were requested
    /// ([`OpenConfig::rx_interrupts`](crate::device::OpenConfig::rx_interrupts)).
    #[must_use]
    pub fn rx_interrupt(&self) -> Option<dpdk_sys::RxInterrupt> {
        self.rx.interrupt()
    }

    /// True if the queue pair has a counterpart at the link partner. Always, except over memif
    /// and `vhost`, where the peer has to be connected, with as many queues at least, and on
    /// `virtio-user`, where the back end has to have polled it when the port was opened. Without
    /// one, nothing is received and nothing sent, and the port's other queues are not touched. The
    /// answer holds for a connection from when the link is up; a peer may connect again with other
    /// queues.
    #[must_use]
    pub fn has_wire(&self) -> bool {
        self.rx.has_wire() && self.tx.has_wire()
    }

    /// Counts a flush that left frames. They stay queued, unless the link partner has no queue for
    /// them: a full transmit queue would hold its mbufs for nothing.
    #[cold]
    fn on_deferred(&mut self) {
        self.counters.tx_deferred += 1;
        if self.tx.is_without_partner() {
            self.counters.tx_no_wire += self.queue.len() as u64;
            self.queue.clear();
        }
    }

    /// Compares received segments with the port's RSS hash, until enough of them were.
    #[cold]
    fn check_rss(&mut self, frames: &[DpdkRx]) {
        let Some(occasional) = &mut self.occasional else { return };
        let Some(check) = &mut occasional.rss_check else { return };
        let Checked { segments, mismatches } = check.check(frames);
        if mismatches != 0 && self.counters.rss_mismatches == 0 {
            tracing::warn!(
                "{}: queue {} receives segments that its RSS key and table do not send there: \
                 connections may be served more slowly, by way of another shard",
                self.port.name,
                self.rx.index()
            );
        }
        self.counters.rss_checked += u64::from(segments);
        self.counters.rss_mismatches += u64::from(mismatches);
        if check.is_done() {
            occasional.rss_check = None;
            if occasional.hairpin.is_none() {
                self.occasional = None;
            }
        }
    }

    /// Receives from the port alone.
    #[inline(always)]
    fn receive_from_port(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        let mut received = 0;
        while received < max {
            let wanted = (max - received).min(usize::from(BURST));
            let count = self.rx.burst(wanted, |frame| burst.push(DpdkRx(frame)));
            received += count;
            if count < wanted {
                break;
            }
        }
        self.counters.rx_frames += received as u64;
        received
    }

    /// Receives from the port and what it has returned; neither takes more than half of a burst if
    /// the other has as much. Borrowed queue pairs always do.
    #[inline(never)]
    fn receive_occasional(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        let returned = self.hairpin().map_or(0, |hairpin| hairpin.receive(burst, max / 2));
        let from = burst.len();
        let received = self.receive_from_port(burst, max - returned);
        self.check_rss(&burst[from..]);
        let left = max - returned - received;
        returned + received + self.hairpin().map_or(0, |hairpin| hairpin.receive(burst, left))
    }

    fn hairpin(&mut self) -> Option<&mut Hairpin> {
        self.occasional.as_mut()?.hairpin.as_mut()
    }

    /// Queues a frame for the next flush.
    #[inline(always)]
    fn enqueue(&mut self, frame: TxMbuf, len: usize) {
        if self.queue.len() < self.queue_max {
            if len > HEADERS_LEN_MAX {
                self.likely_len = len;
            }
            self.queue.push(frame);
        } else {
            self.counters.tx_dropped += 1;
        }
    }

    /// Transmits a frame that may be one to this port itself, or too long.
    #[cold]
    fn transmit_occasional(&mut self, frame: TxMbuf) {
        let len = frame.bytes().len();
        let is_to_this_port = frame.bytes().first_chunk() == Some(&self.port.capabilities.mac);
        if let Some(hairpin) = self.hairpin().filter(|_| is_to_this_port) {
            let is_returned = hairpin.push(frame);
            self.counters.hairpin_frames += u64::from(is_returned);
            self.counters.hairpin_dropped += u64::from(!is_returned);
        } else if len > frame_len_max(self.port.capabilities.send_mtu) {
            // The port would never accept it, and it would block the queue.
            self.counters.tx_too_long += 1;
        } else {
            self.enqueue(frame, len);
        }
    }

    /// Returns the number of frames queued and not yet accepted by the port.
    #[must_use]
    pub fn transmit_backlog(&self) -> usize {
        self.queue.len()
    }

    /// Returns the free mbufs of the pools data, control and reserve. Walks the mempool caches of
    /// all threads: for tests and reports.
    #[must_use]
    pub fn available(&self) -> [u32; 3] {
        [&self.pools.data, &self.pools.control, &self.pools.reserve]
            .map(MbufCache::avail_count_slow)
    }
}

impl Device for DpdkDevice {
    #[inline(always)]
    fn prefetch<T: ?Sized>(value: &T) {
        dpdk_sys::prefetch_read(value);
    }

    type Rx = DpdkRx;
    type Tx = DpdkTx;
    type Retained = DpdkRetained;

    fn capabilities(&self) -> Capabilities {
        self.port.capabilities
    }

    #[inline]
    fn receive(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        if self.occasional.is_some() {
            return self.receive_occasional(burst, max);
        }
        self.receive_from_port(burst, max)
    }

    #[inline]
    fn allocate(&mut self, pool: TxClass) -> Option<DpdkTx> {
        let (frame, drained) = match pool {
            TxClass::Data => {
                (self.pools.data.alloc_prefetched(self.likely_len), &mut self.counters.data_drained)
            }
            TxClass::Control => (self.pools.control.alloc(), &mut self.counters.control_drained),
            TxClass::Retransmit => (
                self.pools.data.alloc_prefetched(0).or_else(|| self.pools.reserve.alloc()),
                &mut self.counters.retransmit_drained,
            ),
        };
        if frame.is_none() {
            *drained += 1;
        }
        frame.map(DpdkTx)
    }

    #[inline]
    fn data_avail_count(&self) -> usize {
        self.pools.data.avail_count()
    }

    fn link_down_count(&self) -> u32 {
        self.rx.link_down_count()
    }

    #[inline]
    fn tx_free_count(&self) -> usize {
        self.queue_max - self.queue.len()
    }

    fn request_segmentation(&mut self, frame: &mut DpdkTx, request: &SegmentationRequest) -> bool {
        frame.request_checksum(&request.checksum);
        frame.0.request_segmentation(request.payload_len);
        let is_prepared = self.tx.prepare(&mut frame.0);
        if is_prepared {
            self.counters.tx_tso_frames += 1;
        } else {
            self.counters.tx_refused += 1;
            tracing::warn!(
                "{}: the driver refuses to cut frames into segments of {} bytes: the stack does",
                self.port.name,
                request.payload_len
            );
        }
        is_prepared
    }

    #[inline]
    fn transmit(&mut self, frame: DpdkTx) {
        let len = frame.0.bytes().len();
        if len > self.plain_len_max {
            self.transmit_occasional(frame.0);
        } else {
            self.enqueue(frame.0, len);
        }
    }

    fn enable_hairpin(&mut self) -> bool {
        let occasional = self.occasional.get_or_insert_default();
        occasional.hairpin.get_or_insert_with(|| Hairpin::new(None));
        self.plain_len_max = 0;
        true
    }

    fn has_hairpinned(&self) -> bool {
        let hairpin = self.occasional.as_ref().and_then(|it| it.hairpin.as_ref());
        hairpin.is_some_and(|hairpin| !hairpin.is_empty())
    }

    fn set_addresses(&mut self, vlan: Option<u16>, addresses: impl Iterator<Item = IpAddr>) {
        if let Some(seat) = self.seat() {
            seat.set_addresses(vlan, addresses);
        }
    }

    fn hairpins_to(&self, remote: IpAddr) -> bool {
        self.seat().is_some_and(|seat| seat.has_address(remote))
    }

    fn pass_hairpinned(&mut self, frame: DpdkRx) -> Option<DpdkRx> {
        let Some(hairpin) = self.hairpin() else { return Some(frame) };
        match hairpin.pass(frame) {
            Returned::Own(frame) => return Some(frame),
            Returned::Sent => {}
            Returned::Dropped => self.counters.hairpin_dropped += 1,
        }
        None
    }

    #[inline]
    fn flush(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        self.counters.tx_frames += self.tx.flush(&mut self.queue) as u64;
        if !self.queue.is_empty() {
            self.on_deferred();
        }
    }
}
