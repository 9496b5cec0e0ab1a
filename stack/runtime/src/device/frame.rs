//! The protocol core's frame traits, implemented by the mbuf types of [`dpdk_sys::mbuf`].

use dpdk_sys::{Mbuf, RetainedMbuf, RxChecksum, TxMbuf};
use ferrowarp_proto::device::{ChecksumRequest, ChecksumState, Retained, RxFrame, TxFrame};

/// A received frame. Over `ring` it is the sender's own mbuf, and immutable.
#[derive(Debug)]
pub struct DpdkRx(pub(super) Mbuf);

impl RxFrame for DpdkRx {
    #[inline]
    fn head(&self) -> &[u8] {
        self.0.head()
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        self.0.copy_out(offset, out);
    }

    #[inline]
    fn checksum(&self) -> ChecksumState {
        match self.0.checksum() {
            RxChecksum::Unknown => ChecksumState::Unknown,
            RxChecksum::TransportGood => ChecksumState::TransportGood,
            RxChecksum::Good => ChecksumState::Good,
            RxChecksum::Bad => ChecksumState::Bad,
        }
    }

    fn is_hairpinned(&self) -> bool {
        self.0.is_returned()
    }
}

/// A frame under construction.
///
/// [`TxFrame::buf_mut`] panics while a retained reference exists. A frame whose retained reference
/// is dropped before the frame is sent is exclusively owned again.
#[derive(Debug)]
pub struct DpdkTx(pub(super) TxMbuf);

impl TxFrame for DpdkTx {
    type Retained = DpdkRetained;

    #[inline]
    fn buf_mut(&mut self) -> &mut [u8] {
        self.0.buf_mut()
    }

    #[inline]
    fn set_len(&mut self, len: usize) {
        self.0.set_len(len);
    }

    #[inline]
    fn retain(&mut self) -> DpdkRetained {
        DpdkRetained(self.0.retain())
    }

    fn request_checksum(&mut self, request: &ChecksumRequest) {
        let &ChecksumRequest { l2_len, l3_len, l4_len, ipv4 } = request;
        self.0.request_checksum(l2_len, l3_len, l4_len, ipv4);
    }

    fn append(&mut self, payloads: impl Iterator<Item = Self>) {
        self.0.append(payloads.map(|payload| payload.0));
    }
}

/// A frame retained for retransmission. Dropping the last reference frees the mbuf.
#[derive(Clone, Debug)]
pub struct DpdkRetained(RetainedMbuf);

impl Retained for DpdkRetained {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}
