//! Two ports back to back on one thread: pooled heap frames that change hands, never copied.
//!
//! A frame is one reference-counted buffer. What the sender retains and what the receiver is
//! handed are references to it; the last to go puts the buffer back into the pool that it came
//! from. Nothing is allocated after the pair was made.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use ferrowarp_proto::device::{
    Capabilities, ChecksumMode, ChecksumState, Device, Retained, RxFrame, TxClass, TxFrame,
    frame_capacity,
};

/// Frames for segments with payload, in each direction.
const DATA_COUNT: usize = 512;
/// Of these, what only retransmissions may take.
const RESERVE_COUNT: usize = 16;
/// Frames for everything else.
const CONTROL_COUNT: usize = 128;
/// Frames on the wire in one direction.
const WIRE_COUNT: usize = 256;

/// Buffers that nobody holds, last one in first.
type Shelf = RefCell<Vec<Rc<Buffer>>>;

struct Buffer {
    octets: Box<[u8]>,
    len: Cell<usize>,
    home: Weak<Shelf>,
}

/// A reference to a buffer; the last one shelves it.
#[derive(Clone)]
struct Handle(Option<Rc<Buffer>>);

impl Handle {
    fn buffer(&self) -> &Rc<Buffer> {
        self.0.as_ref().expect("taken only when dropped")
    }

    fn octets(&self) -> &[u8] {
        let buffer = self.buffer();
        &buffer.octets[..buffer.len.get()]
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        if let Some(buffer) = self.0.take()
            && Rc::strong_count(&buffer) == 1
            && let Some(home) = buffer.home.upgrade()
        {
            home.borrow_mut().push(buffer);
        }
    }
}

/// A received frame.
pub struct LoopRx(Handle);

impl RxFrame for LoopRx {
    #[inline]
    fn head(&self) -> &[u8] {
        self.0.octets()
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.buffer().len.get()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.0.octets()[offset..offset + out.len()]);
    }

    #[inline]
    fn checksum(&self) -> ChecksumState {
        ChecksumState::Good
    }
}

/// A sent frame, kept.
#[derive(Clone)]
pub struct LoopRetained(Handle);

impl Retained for LoopRetained {
    #[inline]
    fn octets(&self) -> &[u8] {
        self.0.octets()
    }
}

/// A frame to be sent.
pub struct LoopTx(Handle);

impl TxFrame for LoopTx {
    type Retained = LoopRetained;

    #[inline]
    fn buf_mut(&mut self) -> &mut [u8] {
        let buffer = self.0.0.as_mut().and_then(Rc::get_mut);
        &mut buffer.expect("a retained frame never changes").octets
    }

    #[inline]
    fn set_len(&mut self, len: usize) {
        let buffer = self.0.buffer();
        assert!(len <= buffer.octets.len(), "longer than the room");
        buffer.len.set(len);
    }

    #[inline]
    fn retain(&mut self) -> LoopRetained {
        LoopRetained(self.0.clone())
    }

    fn request_checksum(&mut self, _l2_len: usize, _l3_len: usize, _l4_len: usize) {
        unreachable!("the port offers no offload");
    }
}

/// Frames under way in one direction.
type Wire = Rc<RefCell<VecDeque<Handle>>>;

/// One port of a pair. Its medium is memory: no checksums.
pub struct LoopDevice {
    capabilities: Capabilities,
    data: Rc<Shelf>,
    control: Rc<Shelf>,
    inbound: Wire,
    outbound: Wire,
    /// Every so manieth frame that is queued is lost; 0: none.
    lose_every: usize,
    queued: usize,
}

/// Two ports connected to each other, with a pool each.
#[must_use]
pub fn pair(mtu: u16) -> [LoopDevice; 2] {
    let wire = || Rc::new(RefCell::new(VecDeque::with_capacity(WIRE_COUNT)));
    let (there, back) = (wire(), wire());
    let device = |host: u8, inbound: &Wire, outbound: &Wire| LoopDevice {
        capabilities: Capabilities {
            mac: [2, 0, 0, 0, 0, host],
            mtu,
            send_mtu: mtu,
            checksum: ChecksumMode::NotNeeded,
        },
        data: shelf(DATA_COUNT, mtu),
        control: shelf(CONTROL_COUNT, mtu),
        inbound: Rc::clone(inbound),
        outbound: Rc::clone(outbound),
        lose_every: 0,
        queued: 0,
    };
    [device(1, &back, &there), device(2, &there, &back)]
}

fn shelf(count: usize, mtu: u16) -> Rc<Shelf> {
    let shelf = Rc::new(RefCell::new(Vec::with_capacity(count)));
    let buffers = (0..count).map(|_| {
        let octets = vec![0; frame_capacity(mtu)].into_boxed_slice();
        Rc::new(Buffer { octets, len: Cell::new(0), home: Rc::downgrade(&shelf) })
    });
    let buffers: Vec<_> = buffers.collect();
    shelf.borrow_mut().extend(buffers);
    shelf
}

impl LoopDevice {
    /// Frames of either pool that somebody holds.
    #[must_use]
    pub fn lent(&self) -> usize {
        let shelved = self.data.borrow().len() + self.control.borrow().len();
        DATA_COUNT + CONTROL_COUNT - shelved
    }

    /// From now on the wire loses every `count`th frame that leaves here; 0: none.
    pub const fn lose_every(&mut self, count: usize) {
        (self.lose_every, self.queued) = (count, 0);
    }
}

impl Device for LoopDevice {
    type Rx = LoopRx;
    type Tx = LoopTx;
    type Retained = LoopRetained;

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    #[inline(never)]
    fn receive(&mut self, burst: &mut Vec<LoopRx>, max: usize) -> usize {
        let mut inbound = self.inbound.borrow_mut();
        let count = inbound.len().min(max);
        burst.extend(inbound.drain(..count).map(LoopRx));
        count
    }

    #[inline(never)]
    fn allocate(&mut self, pool: TxClass) -> Option<LoopTx> {
        let (shelf, reserve) = match pool {
            TxClass::Data => (&self.data, RESERVE_COUNT),
            TxClass::Retransmit => (&self.data, 0),
            TxClass::Control => (&self.control, 0),
        };
        let mut shelf = shelf.borrow_mut();
        if shelf.len() <= reserve {
            return None;
        }
        shelf.pop().map(|buffer| LoopTx(Handle(Some(buffer))))
    }

    #[inline]
    fn data_avail_count(&self) -> usize {
        self.data.borrow().len().saturating_sub(RESERVE_COUNT)
    }

    #[inline]
    fn tx_free_count(&self) -> usize {
        WIRE_COUNT - self.outbound.borrow().len()
    }

    #[inline(never)]
    fn transmit(&mut self, frame: LoopTx) {
        let mut outbound = self.outbound.borrow_mut();
        if self.lose_every > 0 {
            self.queued += 1;
            if self.queued.is_multiple_of(self.lose_every) {
                return;
            }
        }
        if outbound.len() < WIRE_COUNT {
            outbound.push_back(frame.0);
        }
    }

    fn flush(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_home_when_the_last_reference_goes() {
        let [mut left, mut right] = pair(100);
        let mut frame = left.allocate(TxClass::Data).unwrap();
        frame.buf_mut()[..3].copy_from_slice(&[1, 2, 3]);
        frame.set_len(3);
        let kept = frame.retain();
        left.transmit(frame);
        let mut burst = Vec::new();
        assert_eq!(right.receive(&mut burst, 32), 1);
        assert_eq!((burst[0].head(), kept.octets()), (&[1, 2, 3][..], &[1, 2, 3][..]));
        assert_eq!(left.lent(), 1);
        drop(kept);
        assert_eq!(left.lent(), 1);
        burst.clear();
        assert_eq!((left.lent(), right.lent()), (0, 0));
    }

    #[test]
    fn pools_and_the_wire_run_dry_one_by_one() {
        let [mut left, right] = pair(100);
        let data: Vec<_> = std::iter::from_fn(|| left.allocate(TxClass::Data)).collect();
        assert_eq!(data.len(), DATA_COUNT - RESERVE_COUNT);
        let again: Vec<_> = std::iter::from_fn(|| left.allocate(TxClass::Retransmit)).collect();
        assert_eq!(again.len(), RESERVE_COUNT);
        assert!(left.allocate(TxClass::Control).is_some());
        for frame in data {
            left.transmit(frame);
        }
        assert_eq!((left.tx_free_count(), right.inbound.borrow().len()), (0, WIRE_COUNT));
        drop(again);
        assert_eq!(left.lent(), WIRE_COUNT);
    }

    #[test]
    #[should_panic(expected = "a retained frame never changes")]
    fn a_retained_frame_never_changes() {
        let [mut left, _right] = pair(100);
        let mut frame = left.allocate(TxClass::Data).unwrap();
        let _kept = frame.retain();
        frame.buf_mut();
    }
}
