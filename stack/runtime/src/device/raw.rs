//! Ports without a stack, for packet forwarders: frames are received, held or modified, and sent.

use dpdk_sys::{BURST, RxQueue, TxMbuf, TxQueue};

use crate::device::facts::{PortFacts, frame_len_max};
use crate::device::link::DpdkLink;
use crate::device::mbuf_cache::MbufCache;

pub use dpdk_sys::PortLosses;

/// A frame in one segment, exclusively owned: it may be kept, modified and sent on any port.
#[derive(Debug)]
pub struct RawFrame(TxMbuf);

impl RawFrame {
    /// Returns the frame from the Ethernet header on, without the frame check sequence.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// Returns the same bytes for modification.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// Counters of a raw port, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawCounters {
    /// Received.
    pub received: u64,
    /// Received and dropped: segmented or shared, and no mbuf was free to copy them to.
    pub not_copied: u64,
    /// Accepted by the port.
    pub sent: u64,
    /// Dropped because the transmit queue was full, or by [`RawPort::drop_waiting`].
    pub overrun: u64,
    /// Dropped because they are longer than the port sends: over `tap`, IP packets of more than
    /// 1500 bytes.
    pub too_long: u64,
}

/// Queue pair of a port, for a program that forwards frames. The port is in promiscuous mode: it
/// receives frames for any address.
#[derive(Debug)]
pub struct RawPort {
    rx: RxQueue,
    tx: TxQueue,
    tx_cache: MbufCache,
    tx_queue: Vec<TxMbuf>,
    tx_queue_max: usize,
    /// Longest frame the port sends, in bytes.
    frame_len_max: usize,
    counters: RawCounters,
    port: PortFacts,
}

impl RawPort {
    pub(super) fn new(
        (rx, tx): (RxQueue, TxQueue),
        spare: MbufCache,
        waiting_max: usize,
        port: PortFacts,
    ) -> Self {
        let waiting = Vec::with_capacity(waiting_max);
        let counters = RawCounters::default();
        Self {
            rx,
            tx,
            tx_cache: spare,
            tx_queue: waiting,
            tx_queue_max: waiting_max,
            frame_len_max: frame_len_max(port.capabilities.send_mtu),
            counters,
            port,
        }
    }

    /// Returns the device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.port.name
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &RawCounters {
        &self.counters
    }

    /// Returns the losses that the port itself counts, without attempts to send a frame that stays
    /// queued. A control-path call, not for every poll.
    #[must_use]
    pub fn losses(&self) -> PortLosses {
        let mut losses = self.rx.losses();
        if self.port.quirks.tx_errors_are_retries {
            losses.tx_errors = 0;
        }
        losses
    }

    /// True if the link is up. A control-path call, not for every poll.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        self.port.link_is_up(&self.rx)
    }

    /// Returns the link of the port: see [`DpdkDevice::link`].
    ///
    /// [`DpdkDevice::link`]: crate::device::DpdkDevice::link
    #[must_use]
    pub fn link(&self) -> Option<DpdkLink> {
        self.port.link(&self.rx)
    }

    /// Receives at most `max` frames, and at most [`BURST`], and passes them to `take` in order.
    /// Returns how many were received. Never blocks. A frame that is segmented, or retained by its
    /// sender, is copied.
    pub fn receive(&mut self, max: usize, mut take: impl FnMut(RawFrame)) -> usize {
        let Self { rx, tx_cache: spare, counters, .. } = self;
        let count = rx.burst(max.min(usize::from(BURST)), |frame| match TxMbuf::try_from(frame) {
            Ok(frame) => take(RawFrame(frame)),
            Err(frame) => {
                let copy = spare.copy(frame.len(), |out| frame.copy_out(0, out));
                match copy {
                    Some(frame) => take(RawFrame(frame)),
                    None => counters.not_copied += 1,
                }
            }
        });
        counters.received += count as u64;
        count
    }

    /// Returns a frame with these bytes; `None` if no mbuf is free or they do not fit.
    pub fn copy(&mut self, bytes: &[u8]) -> Option<RawFrame> {
        self.tx_cache.copy(bytes.len(), |out| out.copy_from_slice(bytes)).map(RawFrame)
    }

    /// Queues a frame for the next [`RawPort::flush`]. If the queue is full, or the frame is longer
    /// than the port sends, it is dropped and counted.
    pub fn send(&mut self, frame: RawFrame) {
        if frame.bytes().len() > self.frame_len_max {
            self.counters.too_long += 1;
        } else if self.tx_queue.len() < self.tx_queue_max {
            self.tx_queue.push(frame.0);
        } else {
            self.counters.overrun += 1;
        }
    }

    /// Sends the queued frames that the port accepts; the rest stays queued. Returns how many were
    /// sent.
    pub fn flush(&mut self) -> usize {
        if self.tx_queue.is_empty() {
            return 0;
        }
        let sent = self.tx.flush(&mut self.tx_queue);
        self.counters.sent += sent as u64;
        sent
    }

    /// Drops the queued frames and counts them as overrun. A port accepts none while its link is
    /// down.
    pub fn drop_waiting(&mut self) {
        self.counters.overrun += self.tx_queue.len() as u64;
        self.tx_queue.clear();
    }

    /// True if frames are queued.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        !self.tx_queue.is_empty()
    }
}
