//! A port without a stack on it: frames come in, are held or changed, and go on.

use dpdk_sys::{BURST, RxQueue, TxMbuf, TxQueue};

use crate::device::error::DeviceError;
use crate::device::open::{OpenConfig, Opened, open};
use crate::device::port::MbufCache;
use crate::device::spec::DeviceSpec;

pub use dpdk_sys::PortLosses;

/// A whole frame in one piece, with one owner: it may be kept, changed, and sent at any port.
#[derive(Debug)]
pub struct RawFrame(TxMbuf);

impl RawFrame {
    /// From the Ethernet header on, without the check sequence.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The same, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// What a port has done so far. Counts frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawCounters {
    /// Received.
    pub received: u64,
    /// Received and dropped: in pieces or shared, and no frame was there to copy them to.
    pub not_copied: u64,
    /// Taken by the port.
    pub sent: u64,
    /// Dropped because too many waited for the port, or by [`RawPort::drop_waiting`].
    pub overrun: u64,
    /// Dropped because the port sends no frame of that length: over `tap` none with more than
    /// 1500 bytes of IP packet.
    pub too_long: u64,
}

/// One queue of a port, for a program that passes frames on. It sees all frames on the wire,
/// whomever they are for.
#[derive(Debug)]
pub struct RawPort {
    rx: RxQueue,
    tx: TxQueue,
    tx_cache: MbufCache,
    tx_queue: Vec<TxMbuf>,
    tx_queue_max: usize,
    /// Bytes of the longest frame the port sends.
    frame_len_max: usize,
    counters: RawCounters,
    name: String,
}

/// Opens the device that `spec` names as a port without a stack. The receive pool holds what
/// [`OpenConfig::pools`] asks for, so that many frames can be kept.
///
/// # Errors
/// As [`open`]; `ring` is refused, because both its ends lie in one process.
pub fn open_raw(spec: &DeviceSpec, config: &OpenConfig) -> Result<RawPort, DeviceError> {
    if spec.is_pair() {
        let reason = "it joins two ends of one program: name a port that leads elsewhere";
        return Err(DeviceError::BadSpec { text: spec.to_string(), reason });
    }
    match open(spec, config)? {
        Opened::One(device) | Opened::Pair(device, _) => Ok(device.into_raw()),
    }
}

impl RawPort {
    pub(super) fn new(
        (rx, tx): (RxQueue, TxQueue),
        spare: MbufCache,
        waiting_max: usize,
        frame_max: usize,
        name: String,
    ) -> Self {
        let waiting = Vec::with_capacity(waiting_max);
        let counters = RawCounters::default();
        Self {
            rx,
            tx,
            tx_cache: spare,
            tx_queue: waiting,
            tx_queue_max: waiting_max,
            frame_len_max: frame_max,
            counters,
            name,
        }
    }

    /// The device as it was named.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it has done so far.
    #[must_use]
    pub const fn counters(&self) -> &RawCounters {
        &self.counters
    }

    /// What the port itself lost. A control call, not for every pass.
    #[must_use]
    pub fn losses(&self) -> PortLosses {
        self.rx.losses()
    }

    /// Whether the link is up. A control call, not for every pass.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        self.rx.link_is_up()
    }

    /// Hands at most `max` frames that are there to `take`, in order; returns how many came.
    /// Never waits. A frame in pieces, or one that its sender has kept, is copied.
    pub fn receive(&mut self, max: usize, mut take: impl FnMut(RawFrame)) -> usize {
        let Self { rx, tx_cache: spare, counters, .. } = self;
        let count = rx.burst(max.min(BURST), |frame| match TxMbuf::try_from(frame) {
            Ok(frame) => take(RawFrame(frame)),
            Err(frame) => {
                let copy = spare.copy(frame.len(), |room| frame.copy_out(0, room));
                match copy {
                    Some(frame) => take(RawFrame(frame)),
                    None => counters.not_copied += 1,
                }
            }
        });
        counters.received += count as u64;
        count
    }

    /// A frame of these bytes; `None` if no frame is free, or they do not fit one.
    pub fn copy(&mut self, bytes: &[u8]) -> Option<RawFrame> {
        self.tx_cache.copy(bytes.len(), |room| room.copy_from_slice(bytes)).map(RawFrame)
    }

    /// Lines a frame up for the next [`RawPort::flush`]. If too many wait, or it is longer than
    /// the port sends, it is dropped and counted.
    pub fn send(&mut self, frame: RawFrame) {
        if frame.bytes().len() > self.frame_len_max {
            self.counters.too_long += 1;
        } else if self.tx_queue.len() < self.tx_queue_max {
            self.tx_queue.push(frame.0);
        } else {
            self.counters.overrun += 1;
        }
    }

    /// Hands the port what it takes; the rest waits on. Returns how many frames it took.
    pub fn flush(&mut self) -> usize {
        if self.tx_queue.is_empty() {
            return 0;
        }
        let sent = self.tx.flush(&mut self.tx_queue);
        self.counters.sent += sent as u64;
        sent
    }

    /// Drops the frames that wait for the port, which takes none while its other end is down.
    pub fn drop_waiting(&mut self) {
        self.counters.overrun += self.tx_queue.len() as u64;
        self.tx_queue.clear();
    }

    /// Whether frames wait for the port.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        !self.tx_queue.is_empty()
    }
}
