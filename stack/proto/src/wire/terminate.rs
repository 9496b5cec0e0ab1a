//! Terminate header: the error and the headers of the segment that caused it (RFC 5040 section 4.8,
//! draft-ietf-rddp-rdmap-00 section 6.8).
//!
//! Both specifications define the same format: 19 bits of Terminate Control and 13 reserved bits.
//! Depending on the HdrCt bits there follow the DDP Segment Length, the Terminated DDP Header and
//! the Terminated RDMA Header (of an RDMA Read Request). The draft has 13 reserved bits in its
//! figure but 8 in its text.

use crate::wire::ddp::{TAGGED_LEN, UNTAGGED_LEN};
use crate::wire::rdmap::READ_REQUEST_LEN;

/// Length of the Terminate Control field with the reserved bits, in bytes.
pub const CONTROL_LEN: usize = 4;
/// Length of the DDP Segment Length field, in bytes.
const LENGTH_LEN: usize = 2;
/// Maximum length of a Terminate header, in bytes: control, segment length, copied headers.
pub const TERMINATE_LEN_MAX: usize = CONTROL_LEN + LENGTH_LEN + UNTAGGED_LEN + READ_REQUEST_LEN;

/// HdrCt bit M: the DDP Segment Length is valid.
const HDRCT_M: u8 = 0x80;
/// HdrCt bit D: the Terminated DDP Header is included.
const HDRCT_D: u8 = 0x40;
/// HdrCt bit R: the Terminated RDMA Header is included.
const HDRCT_R: u8 = 0x20;

/// Layer field: the error was detected by RDMAP.
// req: RDMAP-088
pub const LAYER_RDMAP: u8 = 0;
/// Layer field: the error was detected by DDP.
pub const LAYER_DDP: u8 = 1;
/// Layer field: the error was detected by the LLP, which is MPA.
pub const LAYER_MPA: u8 = 2;

/// Terminate header of a sent or received Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Layer that detected the error, 4 bits: 0 RDMAP, 1 DDP, 2 LLP (MPA). Other received values
    /// are kept.
    pub layer: u8,
    /// Error Type, 4 bits.
    pub error_type: u8,
    /// Error Code.
    pub code: u8,
    /// DDP Segment Length: bytes of the terminated DDP segment, header included; `None` if M is not
    /// set. Linux siw sends the length without the header.
    pub segment_len: Option<u16>,
    has_ddp: bool,
    has_rdma: bool,
    ddp: [u8; UNTAGGED_LEN],
    rdma: [u8; READ_REQUEST_LEN],
}

impl Terminate {
    /// Creates a Terminate header without segment length and copied headers.
    #[must_use]
    pub const fn new(layer: u8, error_type: u8, code: u8) -> Self {
        Self {
            layer,
            error_type,
            code,
            segment_len: None,
            has_ddp: false,
            has_rdma: false,
            ddp: [0; UNTAGGED_LEN],
            rdma: [0; READ_REQUEST_LEN],
        }
    }

    /// Adds the length and the DDP header of `segment`, which caused the Terminate. If the segment
    /// is shorter than its header, the copy is padded with zeros; the length then shows how many of
    /// its bytes are valid.
    // req: RDMAP-118, RDMAP-120, RDMAP-122, RDMAP-123
    #[must_use]
    pub fn with_segment(mut self, segment: &[u8]) -> Self {
        let len = ddp_len(segment);
        let copied_len = len.min(segment.len());
        // req: RDMAP-089, RDMAP-258
        self.segment_len = Some(u16::try_from(segment.len()).unwrap_or(u16::MAX));
        self.ddp = [0; UNTAGGED_LEN];
        // req: RDMAP-026
        self.ddp[..copied_len].copy_from_slice(&segment[..copied_len]);
        // req: RDMAP-090, RDMAP-130, RDMAP-131, DDP-163
        self.has_ddp = true;
        self
    }

    /// Adds the length, the DDP header and the RDMAP header of the Read Request that caused the
    /// Terminate, a complete ULPDU of 46 bytes.
    // req: RDMAP-124, RDMAP-125, RDMAP-126
    #[must_use]
    pub fn with_read_request(self, segment: &[u8; UNTAGGED_LEN + READ_REQUEST_LEN]) -> Self {
        let mut terminate = self.with_segment(segment);
        terminate.rdma.copy_from_slice(&segment[UNTAGGED_LEN..]);
        terminate.has_rdma = true;
        terminate
    }

    /// Returns Layer, Error Type and Error Code.
    #[must_use]
    pub const fn cause(&self) -> (u8, u8, u8) {
        (self.layer, self.error_type, self.code)
    }

    /// Returns the Terminated DDP Header: 14 bytes if tagged, 18 if untagged, empty if not
    /// included.
    #[must_use]
    pub fn ddp_header(&self) -> &[u8] {
        &self.ddp[..self.ddp_len()]
    }

    const fn ddp_len(&self) -> usize {
        if self.has_ddp { ddp_len(&self.ddp) } else { 0 }
    }

    /// Returns the Terminated RDMA Header: the 28 bytes of the Read Request header, or empty if not
    /// included. If part of the data was sent, offsets and size are those of the remainder.
    #[must_use]
    pub fn rdma_header(&self) -> &[u8] {
        if self.has_rdma { &self.rdma } else { &[] }
    }

    /// Returns the length in bytes: 4 without copied headers (6 with the segment length), 20 or 24
    /// with the DDP header, 52 with both headers.
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        let has_length = self.segment_len.is_some() || self.has_ddp;
        CONTROL_LEN
            + if has_length { LENGTH_LEN } else { 0 }
            + self.ddp_len()
            + if self.has_rdma { READ_REQUEST_LEN } else { 0 }
    }

    /// Writes the header to the first [`Terminate::wire_len`] bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    // req: RDMAP-086, RDMAP-087, RDMAP-092, RDMAP-115, RDMAP-119
    pub fn emit(&self, out: &mut [u8]) {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        out[0] = (self.layer << 4) | (self.error_type & 0x0f);
        out[1] = self.code;
        out[2] = bit(self.segment_len.is_some(), HDRCT_M)
            | bit(self.has_ddp, HDRCT_D)
            | bit(self.has_rdma, HDRCT_R);
        out[3] = 0;
        let mut at = CONTROL_LEN;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if self.segment_len.is_some() || self.has_ddp {
            put(&self.segment_len.unwrap_or(0).to_be_bytes());
        }
        put(self.ddp_header());
        put(self.rdma_header());
    }

    /// Parses the bytes after the untagged DDP header; `None` if they are fewer than 4. Reserved
    /// bits are ignored. Fields that HdrCt announces but that are truncated are ignored. The T bit
    /// of the copied DDP header determines its length.
    // req: RDMAP-094, RDMAP-097, RDMAP-116, RDMAP-117
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let control = *bytes.first_chunk::<CONTROL_LEN>()?;
        let [kind, code, present, _] = from_siw_bit_order(bytes).unwrap_or(control);
        let mut terminate = Self::new(kind >> 4, kind & 0x0f, code);
        let mut rest = &bytes[CONTROL_LEN..];
        if present & (HDRCT_M | HDRCT_D) != 0 {
            let Some((len, after)) = rest.split_first_chunk::<LENGTH_LEN>() else {
                return Some(terminate);
            };
            terminate.segment_len = (present & HDRCT_M != 0).then_some(u16::from_be_bytes(*len));
            rest = after;
        }
        if present & HDRCT_D != 0 {
            let Some((header, after)) = rest.split_at_checked(ddp_len(rest)) else {
                return Some(terminate);
            };
            terminate.ddp[..header.len()].copy_from_slice(header);
            terminate.has_ddp = true;
            rest = after;
        }
        if present & HDRCT_R != 0
            && let Some(header) = rest.first_chunk::<READ_REQUEST_LEN>()
        {
            terminate.rdma = *header;
            terminate.has_rdma = true;
        }
        Some(terminate)
    }
}

/// Returns the length of the DDP header at the start of `bytes`, from its T bit.
const fn ddp_len(bytes: &[u8]) -> usize {
    match bytes {
        [control, ..] if *control & 0x80 != 0 => TAGGED_LEN,
        _ => UNTAGGED_LEN,
    }
}

/// True if the error tables of the three layers (RFC 5040 Figure 9, RFC 5041 section 7.2, RFC 5044
/// section 8 with RFC 6581 section 8) define this cause.
// req: RDMAP-113
#[must_use]
pub const fn is_defined(layer: u8, error_type: u8, code: u8) -> bool {
    matches!(
        (layer, error_type, code),
        (LAYER_RDMAP, 0, _)
            | (LAYER_RDMAP, 1, 0..=4 | 9 | 0xff)
            | (LAYER_RDMAP, 2, 5..=9 | 0xff)
            | (LAYER_DDP, 0, 0)
            | (LAYER_DDP, 1, 0..=4)
            | (LAYER_DDP, 2, 1..=6)
            | (LAYER_MPA, 0, 1..=7)
    )
}

/// Returns the control field in the bit order of RFC 5040 if a Linux siw peer on a little-endian
/// machine sent `bytes`; `None` otherwise. The bit-fields of siw put Layer into the low half of the
/// first byte and Error Type into the high half, and M, D and R into bits 0x01, 0x02 and 0x04 of
/// the third byte.
///
/// In siw's order the cause must be defined. Such a field is then recognized by HdrCt bits that
/// other senders leave zero, if the fields they announce follow; with HdrCt 0, by a cause that is
/// not defined in the order of RFC 5040. An ambiguous field (siw's invalid RDMAP version, `20 05`)
/// is read in the order of RFC 5040.
fn from_siw_bit_order(bytes: &[u8]) -> Option<[u8; CONTROL_LEN]> {
    let &[kind, code, present, reserved] = bytes.first_chunk::<CONTROL_LEN>()?;
    let (layer, error_type) = (kind & 0x0f, kind >> 4);
    if reserved != 0 || present & !0x07 != 0 || !is_defined(layer, error_type, code) {
        return None;
    }
    let headers_len =
        bytes.get(CONTROL_LEN + LENGTH_LEN..).map_or(0, |headers_len| headers_len.len());
    let is_siw_bit_order = match present {
        0 => !is_defined(kind >> 4, kind & 0x0f, code),
        // siw sets R for any message; a Read Request header follows only if it was a Read Request.
        _ if present & 0x02 != 0 => headers_len >= ddp_len(&bytes[bytes.len() - headers_len..]),
        _ => bytes.len() > CONTROL_LEN,
    };
    let bits = [(0x01, HDRCT_M), (0x02, HDRCT_D), (0x04, HDRCT_R)];
    let present = bits.iter().fold(
        0,
        |bits, (theirs, ours)| {
            if present & theirs != 0 { bits | ours } else { bits }
        },
    );
    is_siw_bit_order.then_some([layer << 4 | error_type, code, present, 0])
}

#[cfg(test)]
mod tests;
