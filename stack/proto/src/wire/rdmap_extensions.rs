//! Headers of the messages that RFC 7306 adds to RDMAP: Atomic Request and Atomic Response
//! (section 4), Immediate Data (section 5).
//!
//! All of them are untagged and fit one DDP segment. Nothing follows the header or the data.

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the Atomic Request header, which follows the untagged DDP header, in bytes.
pub const ATOMIC_REQUEST_LEN: usize = 52;
/// Length of the Atomic Response header, which follows the untagged DDP header, in bytes.
pub const ATOMIC_RESPONSE_LEN: usize = 12;
/// Length of Immediate Data, which follows the untagged DDP header, in bytes.
pub const IMMEDIATE_LEN: usize = 8;

/// Queue number of Atomic Responses. Atomic Requests share the queue of RDMA Read Requests.
pub const QN_ATOMIC_RESPONSE: u32 = 3;

/// Immediate Data: eight bytes in their order on the wire. Their meaning is up to the applications.
pub type ImmediateData = [u8; IMMEDIATE_LEN];

/// Returns Immediate Data of four bytes, as verbs has them (`imm_data`): `value` in network byte
/// order in the first half, and zeros.
#[must_use]
pub const fn immediate_u32(value: u32) -> ImmediateData {
    let [a, b, c, d] = value.to_be_bytes();
    [a, b, c, d, 0, 0, 0, 0]
}

const FETCH_ADD: u32 = 0;
const SWAP: u32 = 1;
const CMP_SWAP: u32 = 2;
/// Mask of the atomic operation code in the first word. The other bits are reserved.
const CODE_MASK: u32 = 0x0f;

/// Atomic operation on a 64-bit word, with its operands (RFC 7306 section 4.1).
///
/// Operands are numbers. The word is a number in the byte order of the responder's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// `FetchAdd`: adds to the word, or to each of several fields of it.
    FetchAdd {
        /// Add Data.
        add: u64,
        /// Add Mask. A set bit is the highest of a field, out of which no carry propagates. 0: one
        /// field of 64 bits.
        boundaries: u64,
    },
    /// `Swap`: replaces the bits of the word that are set in `mask`.
    Swap {
        /// Swap Data: the new bits.
        swap: u64,
        /// Swap Mask: the bits to replace. All ones: the whole word.
        mask: u64,
    },
    /// `CmpSwap`: replaces the bits of the word that are set in `swap_mask`, if the word equals
    /// `compare` in the bits that are set in `compare_mask`.
    CmpSwap {
        /// Compare Data: the expected bits.
        compare: u64,
        /// Compare Mask: the bits to compare. All ones: the whole word.
        compare_mask: u64,
        /// Swap Data: the new bits.
        swap: u64,
        /// Swap Mask: the bits to replace. All ones: the whole word.
        swap_mask: u64,
    },
}

impl AtomicOp {
    /// Returns a `FetchAdd` on the whole word.
    #[must_use]
    pub const fn fetch_add(add: u64) -> Self {
        Self::FetchAdd { add, boundaries: 0 }
    }

    /// Returns a `Swap` of the whole word.
    #[must_use]
    pub const fn swap(swap: u64) -> Self {
        Self::Swap { swap, mask: u64::MAX }
    }

    /// Returns a `CmpSwap` of the whole word: replaces it by `swap` if it is equal to `compare`.
    #[must_use]
    pub const fn cmp_swap(compare: u64, swap: u64) -> Self {
        Self::CmpSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
    }
}

/// Wire format of an Atomic Request header.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AtomicRequestWire {
    code: U32,
    id: U32,
    stag: U32,
    to: U64,
    data: U64,
    mask: U64,
    compare: U64,
    compare_mask: U64,
}

/// Wire format of an Atomic Response header.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AtomicResponseWire {
    id: U32,
    original: U64,
}

const _: () = assert!(size_of::<AtomicRequestWire>() == ATOMIC_REQUEST_LEN);
const _: () = assert!(size_of::<AtomicResponseWire>() == ATOMIC_RESPONSE_LEN);

/// Reason why a message is not a valid Atomic Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtomicError {
    /// The header does not have 52 bytes.
    Length,
    /// The atomic operation code is not assigned.
    Operation,
}

/// Fields of an Atomic Request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Request Identifier: chosen by the requester, echoed in the response.
    pub id: u32,
    /// Remote STag: identifies the memory region of the word.
    pub stag: u32,
    /// Remote Tagged Offset of the word. Has to be a multiple of eight; not checked here.
    pub to: u64,
    /// Operation and operands.
    pub op: AtomicOp,
}

impl AtomicRequest {
    /// Parses a header of exactly 52 bytes. Reserved bits are ignored, and so are the compare
    /// fields if the operation does not compare.
    ///
    /// # Errors
    /// [`AtomicError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, AtomicError> {
        let wire = AtomicRequestWire::ref_from_bytes(bytes).map_err(|_| AtomicError::Length)?;
        let (data, mask) = (wire.data.get(), wire.mask.get());
        let op = match wire.code.get() & CODE_MASK {
            FETCH_ADD => AtomicOp::FetchAdd { add: data, boundaries: mask },
            SWAP => AtomicOp::Swap { swap: data, mask },
            CMP_SWAP => AtomicOp::CmpSwap {
                compare: wire.compare.get(),
                compare_mask: wire.compare_mask.get(),
                swap: data,
                swap_mask: mask,
            },
            _ => return Err(AtomicError::Operation),
        };
        Ok(Self { id: wire.id.get(), stag: wire.stag.get(), to: wire.to.get(), op })
    }

    /// Writes the header to the first 52 bytes of `out`. Fields that the operation does not use
    /// are 0.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub fn emit(&self, out: &mut [u8]) {
        let (code, [data, mask, compare, compare_mask]) = match self.op {
            AtomicOp::FetchAdd { add, boundaries } => (FETCH_ADD, [add, boundaries, 0, 0]),
            AtomicOp::Swap { swap, mask } => (SWAP, [swap, mask, 0, 0]),
            AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask } => {
                (CMP_SWAP, [swap, swap_mask, compare, compare_mask])
            }
        };
        let wire = AtomicRequestWire {
            code: code.into(),
            id: self.id.into(),
            stag: self.stag.into(),
            to: self.to.into(),
            data: data.into(),
            mask: mask.into(),
            compare: compare.into(),
            compare_mask: compare_mask.into(),
        };
        out[..ATOMIC_REQUEST_LEN].copy_from_slice(wire.as_bytes());
    }
}

/// Fields of an Atomic Response header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// Request Identifier of the request.
    pub id: u32,
    /// Original value of the word, before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Parses a header of exactly 12 bytes; `None` for any other length.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let wire = AtomicResponseWire::ref_from_bytes(bytes).ok()?;
        Some(Self { id: wire.id.get(), original: wire.original.get() })
    }

    /// Writes the header to the first 12 bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub fn emit(&self, out: &mut [u8]) {
        let wire = AtomicResponseWire { id: self.id.into(), original: self.original.into() };
        out[..ATOMIC_RESPONSE_LEN].copy_from_slice(wire.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the number whose eight big-endian bytes count up from `first`.
    const fn run(first: u8) -> u64 {
        (first as u64) * 0x0101_0101_0101_0101 + 0x0001_0203_0405_0607
    }

    /// Returns the header bytes, written by hand from the figure of RFC 7306 section 4.2.1.
    fn golden(code: u8, fields: [u64; 4]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, code];
        bytes.extend_from_slice(&[0xca, 0xfe, 0xf0, 0x0d, 0xde, 0xad, 0xbe, 0xef]);
        bytes.extend_from_slice(&[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        for field in fields {
            bytes.extend_from_slice(&field.to_be_bytes());
        }
        bytes
    }

    #[test]
    fn atomic_requests_match_golden_bytes() {
        let [a, b, c, d] = [run(0x20), run(0x30), run(0x40), run(0x50)];
        let cases = [
            (AtomicOp::FetchAdd { add: a, boundaries: b }, golden(0, [a, b, 0, 0])),
            (AtomicOp::Swap { swap: a, mask: b }, golden(1, [a, b, 0, 0])),
            (
                AtomicOp::CmpSwap { compare: c, compare_mask: d, swap: a, swap_mask: b },
                golden(2, [a, b, c, d]),
            ),
        ];
        for (op, bytes) in cases {
            let (id, stag, to) = (0xcafe_f00d, 0xdead_beef, 0x1112_1314_1516_1718);
            let request = AtomicRequest { id, stag, to, op };
            let mut out = [0xff; ATOMIC_REQUEST_LEN];
            request.emit(&mut out);
            assert_eq!(out[..], bytes[..]);
            assert_eq!(AtomicRequest::parse(&bytes), Ok(request));
            assert_eq!(AtomicRequest::parse(&bytes[..51]), Err(AtomicError::Length));
        }
        // Add Data starts at ULPDU offset 38 (RFC 7306).
        assert_eq!(golden(0, [a, b, 0, 0])[20..24], [0x20, 0x21, 0x22, 0x23]);
    }

    #[test]
    fn atomic_response_matches_golden_bytes() {
        let response = AtomicResponse { id: 0x0a0b_0c0d, original: 0x0102_0304_0506_0708 };
        let bytes = [0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4, 5, 6, 7, 8];
        let mut out = [0; ATOMIC_RESPONSE_LEN];
        response.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(AtomicResponse::parse(&bytes), Some(response));
        assert_eq!(AtomicResponse::parse(&bytes[..11]), None);
    }

    #[test]
    fn unassigned_operations_are_rejected() {
        for code in 3..16 {
            let bytes = golden(code, [0; 4]);
            assert_eq!(AtomicRequest::parse(&bytes), Err(AtomicError::Operation), "{code}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = (AtomicRequest::parse(&bytes), AtomicResponse::parse(&bytes));
        }

        #[test]
        fn round_trip(bytes: [u8; ATOMIC_REQUEST_LEN], code in 0u8..3) {
            let mut bytes = bytes;
            bytes[3] = (bytes[3] & 0xf0) | code;
            let request = AtomicRequest::parse(&bytes).unwrap();
            let mut out = [0; ATOMIC_REQUEST_LEN];
            request.emit(&mut out);
            prop_assert_eq!(AtomicRequest::parse(&out), Ok(request));
            // Reserved bits and unused fields are sent as 0.
            bytes[..4].copy_from_slice(&[0, 0, 0, code]);
            if code < 2 {
                bytes[36..].fill(0);
            }
            prop_assert_eq!(out, bytes);
        }
    }
}
