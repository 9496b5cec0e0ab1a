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
        let there = len.min(segment.len());
        // req: RDMAP-089, RDMAP-258
        self.segment_len = Some(u16::try_from(segment.len()).unwrap_or(u16::MAX));
        self.ddp = [0; UNTAGGED_LEN];
        // req: RDMAP-026
        self.ddp[..there].copy_from_slice(&segment[..there]);
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
    let copies = bytes.get(CONTROL_LEN + LENGTH_LEN..).map_or(0, |copies| copies.len());
    let is_siw_bit_order = match present {
        0 => !is_defined(kind >> 4, kind & 0x0f, code),
        // siw sets R for any message; a Read Request header follows only if it was a Read Request.
        _ if present & 0x02 != 0 => copies >= ddp_len(&bytes[bytes.len() - copies..]),
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tagged DDP header: STag 0x01020304, TO 0x1122334455667788.
    const TAGGED: [u8; 14] =
        [0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];

    /// DDP and RDMAP header of a Read Request: QN 1, MSN 7; Data Sink STag 0x0a0b0c0d, TO
    /// 0x0102030405060708; 4096 bytes; Data Source STag 0xdeadbeef, TO 0x1112131415161718.
    const READ_REQUEST: [u8; 46] = [
        0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d, 1, 2,
        3, 4, 5, 6, 7, 8, 0, 0, 0x10, 0, 0xde, 0xad, 0xbe, 0xef, 0x11, 0x12, 0x13, 0x14, 0x15,
        0x16, 0x17, 0x18,
    ];

    fn emitted(terminate: &Terminate) -> Vec<u8> {
        let mut out = vec![0xee; terminate.wire_len()];
        terminate.emit(&mut out);
        out
    }

    // req-test: RDMAP-086, RDMAP-087, RDMAP-092, RDMAP-115, RDMAP-119
    #[test]
    fn four_forms_match_golden_bytes() {
        let crc = Terminate::new(2, 0, 2);
        assert_eq!(emitted(&crc), [0x20, 0x02, 0x00, 0x00]);

        let segment = [&TAGGED[..], b"abc"].concat();
        let write = Terminate::new(1, 1, 0).with_segment(&segment);
        let golden = [
            0x11, 0x00, 0xc0, 0x00, 0x00, 17, 0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55,
            0x66, 0x77, 0x88,
        ];
        assert_eq!(emitted(&write), golden);

        let send = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0];
        let too_long = Terminate::new(1, 2, 5).with_segment(&[&send[..], &[7; 982]].concat());
        let golden = [
            0x12, 0x05, 0xc0, 0x00, 0x03, 0xe8, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0,
            0, 0, 0,
        ];
        assert_eq!(emitted(&too_long), golden);

        let read = Terminate::new(0, 1, 2).with_read_request(&READ_REQUEST);
        let golden = [
            0x01, 0x02, 0xe0, 0x00, 0x00, 46, 0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0,
            0, 0, 0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x10, 0, 0xde, 0xad, 0xbe,
            0xef, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
        ];
        assert_eq!(emitted(&read), golden);
        for terminate in [crc, write, too_long, read] {
            assert_eq!(Terminate::parse(&emitted(&terminate)), Some(terminate));
        }
    }

    // req-test: RDMAP-118, RDMAP-120, RDMAP-122, RDMAP-123
    #[test]
    fn segment_shorter_than_its_header_is_copied_and_zero_padded() {
        let terminate = Terminate::new(1, 2, 6).with_segment(&[0x02, 0x42]);
        assert_eq!((terminate.segment_len, terminate.wire_len()), (Some(2), 24));
        assert_eq!(terminate.ddp_header(), [&[0x02, 0x42][..], &[0; 16]].concat());
        let terminate = Terminate::new(1, 1, 4).with_segment(&[0xc2; 13]);
        assert_eq!((terminate.segment_len, terminate.wire_len()), (Some(13), 20));
        assert_eq!(terminate.ddp_header(), [&[0xc2; 13][..], &[0]].concat());
    }

    // req-test: RDMAP-116, RDMAP-117
    #[test]
    fn reserved_bits_are_ignored() {
        let terminate = Terminate::new(1, 1, 0).with_segment(&TAGGED);
        let mut bytes = emitted(&terminate);
        bytes[2] |= 0x1f;
        bytes[3] = 0xff;
        assert_eq!(Terminate::parse(&bytes), Some(terminate));
        assert_eq!(Terminate::parse(&[0x11, 0, 0x1f, 0xff]), Some(Terminate::new(1, 1, 0)));
    }

    #[test]
    fn truncated_header_copies_are_ignored() {
        let bytes = emitted(&Terminate::new(0, 1, 2).with_read_request(&READ_REQUEST));
        for len in 4..bytes.len() {
            let terminate = Terminate::parse(&bytes[..len]).unwrap();
            assert_eq!(terminate.cause(), (0, 1, 2));
            assert_eq!(terminate.segment_len.is_some(), len >= 6);
            assert_eq!(terminate.ddp_header().len(), if len >= 24 { 18 } else { 0 });
            assert_eq!(terminate.rdma_header(), [0; 0]);
        }
        for len in 0..4 {
            assert_eq!(Terminate::parse(&bytes[..len]), None);
        }
        // HdrCt 0, followed by zeros: a sender may zero the absent fields instead of omitting them.
        let zeros = [&[0x02, 0x05, 0, 0][..], &[0; 48]].concat();
        assert_eq!(Terminate::parse(&zeros), Some(Terminate::new(0, 2, 5)));
        // D without M: the DDP Segment Length is present but not valid.
        let mut bytes = emitted(&Terminate::new(1, 1, 1).with_segment(&TAGGED));
        bytes[2] = 0x40;
        let terminate = Terminate::parse(&bytes).unwrap();
        assert_eq!((terminate.segment_len, terminate.ddp_header()), (None, &TAGGED[..]));
    }

    // req-test: RDMAP-094, RDMAP-097
    #[test]
    fn undefined_error_codes_are_parsed_unchanged() {
        for code in 0..=255 {
            assert_eq!(Terminate::parse(&[0x00, code, 0, 0]).unwrap().cause(), (0, 0, code));
        }
        assert_eq!(Terminate::parse(&[0xf7, 3, 0, 0]).unwrap().cause(), (15, 7, 3));
    }

    #[test]
    fn siw_bit_order_is_recognised() {
        let cause = |bytes: &[u8]| Terminate::parse(bytes).unwrap().cause();
        // As captured: CRC error, without copied headers.
        assert_eq!(cause(&[0x02, 0x02, 0x00, 0x00]), (2, 0, 2));
        // Invalid DDP version of an untagged segment, without copied headers.
        assert_eq!(cause(&[0x21, 0x06, 0x00, 0x00]), (1, 2, 6));
        // Invalid STag of a Write, with length and tagged header; of a Read, with all three.
        let write = [&[0x11, 0x00, 0x03, 0x00, 0, 3][..], &TAGGED].concat();
        assert_eq!(Terminate::parse(&write).unwrap().ddp_header(), TAGGED);
        let read = [&[0x10, 0x00, 0x07, 0x00, 0, 0][..], &READ_REQUEST].concat();
        let terminate = Terminate::parse(&read).unwrap();
        assert_eq!((terminate.cause(), terminate.segment_len), ((0, 1, 0), Some(0)));
        assert_eq!(terminate.rdma_header(), &READ_REQUEST[18..]);
        // R is set for a Send, no Read Request header follows.
        let send = [&[0x10, 0x09, 0x07, 0x00, 0, 0][..], &[0x41; 18]].concat();
        let terminate = Terminate::parse(&send).unwrap();
        assert_eq!((terminate.cause(), terminate.rdma_header()), ((0, 1, 9), &[][..]));
    }

    #[test]
    fn defined_error_codes_are_never_reordered() {
        for layer in 0..=2 {
            for error_type in 0..=3 {
                for code in (0..=10).chain([0xff]) {
                    if !is_defined(layer, error_type, code) {
                        continue;
                    }
                    let plain = Terminate::new(layer, error_type, code);
                    let tagged = plain.with_segment(&TAGGED);
                    let read = plain.with_read_request(&READ_REQUEST);
                    for terminate in [plain, tagged, read] {
                        assert_eq!(Terminate::parse(&emitted(&terminate)), Some(terminate));
                    }
                }
            }
        }
        // A cause that is undefined in both bit orders is parsed in the order of RFC 5040.
        assert_eq!(Terminate::parse(&[0x3f, 0, 0, 0]).unwrap().cause(), (3, 15, 0));
    }

    proptest! {
        #[test]
        fn round_trip(bytes in proptest::collection::vec(any::<u8>(), 4..80)) {
            let terminate = Terminate::parse(&bytes).unwrap();
            prop_assert!(terminate.wire_len() <= TERMINATE_LEN_MAX);
            let again = Terminate::parse(&emitted(&terminate)).unwrap();
            // The bit order of an undefined cause is ambiguous.
            if is_defined(terminate.layer, terminate.error_type, terminate.code) {
                prop_assert_eq!(again, terminate);
            }
        }
    }
}
