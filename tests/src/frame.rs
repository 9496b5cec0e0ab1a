//! A received frame in memory.

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;

use ferrowarp_proto::device::{ChecksumRequest, ChecksumState, Retained, RxFrame, TxFrame};

thread_local! {
    static PARSES: Cell<u64> = const { Cell::new(0) };
}

/// Number of times that frames were parsed in this thread: each time their checksums are verified.
#[must_use]
pub fn parses() -> u64 {
    PARSES.get()
}

/// A received frame: the first `head_len` bytes are contiguous, the rest is only copied out. A
/// clone of one made by `Frame::from` shares its bytes.
#[derive(Clone, Debug)]
pub struct Frame<B = Rc<[u8]>> {
    /// The whole frame.
    pub bytes: B,
    head_len: usize,
    checksum: ChecksumState,
    is_hairpinned: bool,
}

impl<B: Deref<Target = [u8]>> Frame<B> {
    /// A contiguous frame whose checksums the device has not verified.
    pub fn new(bytes: B) -> Self {
        let head_len = bytes.len();
        Self { bytes, head_len, checksum: ChecksumState::Unknown, is_hairpinned: false }
    }

    /// Splits it after at most `len` bytes.
    #[must_use]
    pub fn split_at(self, len: usize) -> Self {
        Self { head_len: len.min(self.bytes.len()), ..self }
    }

    /// Sets what the device knows of its checksums.
    #[must_use]
    pub fn with_checksum(self, checksum: ChecksumState) -> Self {
        Self { checksum, ..self }
    }

    /// Marks it as one that the device has returned.
    #[must_use]
    pub fn hairpinned(self) -> Self {
        Self { is_hairpinned: true, ..self }
    }
}

impl From<Vec<u8>> for Frame {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes.into())
    }
}

impl<B: Deref<Target = [u8]>> RxFrame for Frame<B> {
    fn head(&self) -> &[u8] {
        &self.bytes[..self.head_len]
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes[offset..offset + out.len()]);
    }

    fn checksum(&self) -> ChecksumState {
        PARSES.set(PARSES.get() + 1);
        self.checksum
    }

    fn is_hairpinned(&self) -> bool {
        self.is_hairpinned
    }
}

impl Retained for Frame {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A frame to be sent; what is retained of it is a copy.
pub struct OutFrame(pub Vec<u8>);

impl TxFrame for OutFrame {
    type Retained = Frame;

    fn buf_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn set_len(&mut self, len: usize) {
        self.0.truncate(len);
    }

    fn retain(&mut self) -> Frame {
        Frame::new(self.0.as_slice().into())
    }

    fn request_checksum(&mut self, _: &ChecksumRequest) {}
}

/// True if the frame is an MLD report, the only packet sent with hop-by-hop options.
#[must_use]
pub fn is_membership_report(frame: &[u8]) -> bool {
    let l3 = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    frame[l3 - 2..l3] == [0x86, 0xdd] && frame[l3 + 6] == 0
}
