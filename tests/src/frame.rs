//! Frames on the heap that tests exchange with the stack.

use std::rc::Rc;

use ferrowarp_proto::device::{ChecksumState, Retained, RxFrame};

/// A contiguous frame whose checksums are not verified. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct Frame(pub Rc<[u8]>);

impl From<Vec<u8>> for Frame {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl RxFrame for Frame {
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

impl Retained for Frame {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// True if the frame is an MLD report, the only packet sent with hop-by-hop options.
#[must_use]
pub fn is_membership_report(frame: &[u8]) -> bool {
    let l3 = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    frame[l3 - 2..l3] == [0x86, 0xdd] && frame[l3 + 6] == 0
}
