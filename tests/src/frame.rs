//! A frame on the heap, as a test hands it to the stack or takes it from there.

use std::rc::Rc;

use ferrowarp_proto::device::{ChecksumState, Retained, RxFrame};

/// A frame in one run of octets, whose checksums nobody has looked at. A copy shares the octets.
#[derive(Clone, Debug)]
pub struct Frame(pub Rc<[u8]>);

impl From<Vec<u8>> for Frame {
    fn from(octets: Vec<u8>) -> Self {
        Self(octets.into())
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
    fn octets(&self) -> &[u8] {
        &self.0
    }
}
