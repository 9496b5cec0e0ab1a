//! RDMAP control byte and Read Request header (RFC 5040 section 4).

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::ddp::{CONTROL_LAST, CONTROL_TAGGED, TAGGED_LEN, Version};

/// Length of the RDMA Read Request header, which follows the untagged DDP header, in bytes.
pub const READ_REQUEST_LEN: usize = 28;

/// Queue number of Sends (and Immediate Data).
pub const QN_SEND: u32 = 0;
/// Queue number of RDMA Read Requests (and Atomic Requests).
pub const QN_READ_REQUEST: u32 = 1;
/// Queue number of the Terminate message.
pub const QN_TERMINATE: u32 = 2;

/// RDMAP opcodes (RFC 5040 section 4.3, RFC 7306 section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// RDMA Write.
    Write,
    /// RDMA Read Request.
    ReadRequest,
    /// RDMA Read Response.
    ReadResponse,
    /// Send, with or without Invalidate and Solicited Event.
    Send {
        /// Invalidates the STag in the header.
        invalidate: bool,
        /// Requests a Solicited Event.
        solicited: bool,
    },
    /// Terminate.
    Terminate,
    /// Immediate Data, with or without Solicited Event. This opcode and those below exist in the
    /// IETF version only.
    Immediate {
        /// Requests a Solicited Event.
        solicited: bool,
    },
    /// Atomic Request.
    AtomicRequest,
    /// Atomic Response.
    AtomicResponse,
}

/// Reason why a control byte is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlError {
    /// RV is not the stream's.
    Version,
    /// Reserved opcode.
    Opcode,
}

impl Opcode {
    /// Parses the RDMAP control byte: RV, two reserved bits that are not checked, opcode.
    ///
    /// # Errors
    /// [`ControlError`].
    pub const fn parse(control: u8, version: Version) -> Result<Self, ControlError> {
        // req: RDMAP-055, RDMAP-056, RDMAP-105, RDMAP-264, RDMAP-269
        if control >> 6 != version.rv() {
            return Err(ControlError::Version);
        }
        // req: RDMAP-058
        let code = control & 0x0f;
        // req: RDMAP-052
        Ok(match code {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            // req: RDMAP-065
            3 => Self::Send { invalidate: false, solicited: false },
            4 => Self::Send { invalidate: true, solicited: false },
            5 => Self::Send { invalidate: false, solicited: true },
            6 => Self::Send { invalidate: true, solicited: true },
            7 => Self::Terminate,
            // req: RDMAP-070
            _ => return Self::parse_extension(code, version),
        })
    }

    /// Parses the opcodes of RFC 7306, which are reserved in the other versions.
    #[cold]
    const fn parse_extension(code: u8, version: Version) -> Result<Self, ControlError> {
        Ok(match (version, code) {
            (Version::Ietf, 8) => Self::Immediate { solicited: false },
            (Version::Ietf, 9) => Self::Immediate { solicited: true },
            (Version::Ietf, 10) => Self::AtomicRequest,
            (Version::Ietf, 11) => Self::AtomicResponse,
            _ => return Err(ControlError::Opcode),
        })
    }

    /// Returns the RDMAP control byte for this opcode.
    #[must_use]
    pub const fn control(self, version: Version) -> u8 {
        let code = match self {
            // req: RDMAP-062
            Self::Write => 0,
            // req: RDMAP-063
            Self::ReadRequest => 1,
            // req: RDMAP-064
            Self::ReadResponse => 2,
            Self::Send { invalidate: false, solicited: false } => 3,
            Self::Send { invalidate: true, solicited: false } => 4,
            // req: RDMAP-067
            Self::Send { invalidate: false, solicited: true } => 5,
            Self::Send { invalidate: true, solicited: true } => 6,
            Self::Terminate => 7,
            Self::Immediate { solicited: false } => 8,
            Self::Immediate { solicited: true } => 9,
            Self::AtomicRequest => 10,
            Self::AtomicResponse => 11,
        };
        // req: RDMAP-045, RDMAP-048, RDMAP-049, RDMAP-057
        (version.rv() << 6) | code
    }
}

/// Control bytes of DDP and RDMAP at the start of a segment, without the L flag and relative to the
/// stream's DV and RV: one value for each form of segment, whatever the version.
///
/// The constants are the forms whose headers need no further check. Anything else, a reserved bit
/// that is set included, has to be parsed with [`Header::parse`](crate::wire::ddp::Header::parse)
/// and [`Opcode::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentControl(u16);

impl SegmentControl {
    /// RDMA Write.
    pub(crate) const WRITE: Self = Self::new(CONTROL_TAGGED, Opcode::Write);
    /// Send, neither solicited nor with Invalidate.
    pub(crate) const SEND: Self =
        Self::new(0, Opcode::Send { invalidate: false, solicited: false });
    /// RDMA Read Request.
    pub(crate) const READ_REQUEST: Self = Self::new(0, Opcode::ReadRequest);
    /// RDMA Read Response.
    pub(crate) const READ_RESPONSE: Self = Self::new(CONTROL_TAGGED, Opcode::ReadResponse);
    /// Shorter than any header.
    const TRUNCATED: Self = Self(u16::MAX);

    const fn new(ddp: u8, opcode: Opcode) -> Self {
        Self(u16::from_le_bytes([ddp, opcode.control(Version::Rdmac)]))
    }

    /// Reads the control bytes of a ULPDU.
    // req: RDMAP-264
    #[inline(always)]
    pub(crate) fn of(ulpdu: &[u8], version: Version) -> Self {
        let Some(&[ddp, rdmap, ..]) = ulpdu.first_chunk::<TAGGED_LEN>() else {
            return Self::TRUNCATED;
        };
        let control = u16::from_le_bytes([ddp, rdmap]) & !u16::from(CONTROL_LAST);
        Self(control ^ version.control_bytes())
    }
}

/// Wire format of an RDMA Read Request header (RFC 5040 section 4.4).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
// req: RDMAP-077, RDMAP-083
struct ReadRequestWire {
    sink_stag: U32,
    sink_to: U64,
    len: U32,
    source_stag: U32,
    source_to: U64,
}

const _: () = assert!(size_of::<ReadRequestWire>() == READ_REQUEST_LEN);

/// Fields of an RDMA Read Request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Data Sink STag, echoed in the Read Response.
    pub sink_stag: u32,
    /// Data Sink Tagged Offset: TO of the first byte of the Read Response.
    pub sink_to: u64,
    /// RDMA Read Message Size, in bytes.
    pub len: u32,
    /// Data Source STag.
    pub source_stag: u32,
    /// Data Source Tagged Offset: TO of the first byte to read.
    pub source_to: u64,
}

impl ReadRequest {
    /// Parses a header of exactly 28 bytes; `None` for any other length.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let wire = ReadRequestWire::ref_from_bytes(bytes).ok()?;
        Some(Self {
            sink_stag: wire.sink_stag.get(),
            // req: RDMAP-081, RDMAP-164
            sink_to: wire.sink_to.get(),
            // req: RDMAP-153
            len: wire.len.get(),
            source_stag: wire.source_stag.get(),
            // req: RDMAP-084
            source_to: wire.source_to.get(),
        })
    }

    /// Writes the header to the first 28 bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub fn emit(&self, out: &mut [u8]) {
        let wire = ReadRequestWire {
            sink_stag: self.sink_stag.into(),
            sink_to: self.sink_to.into(),
            len: self.len.into(),
            source_stag: self.source_stag.into(),
            source_to: self.source_to.into(),
        };
        out[..READ_REQUEST_LEN].copy_from_slice(wire.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // req-test: RDMAP-052, RDMAP-070
    #[test]
    fn control_fields_of_all_opcodes_round_trip() {
        for code in 0..=7 {
            let control = 0x40 | code;
            let opcode = Opcode::parse(control, Version::Ietf).unwrap();
            assert_eq!(opcode.control(Version::Ietf), control);
            assert_eq!(Opcode::parse(control | 0x30, Version::Ietf), Ok(opcode));
            assert_eq!(Opcode::parse(code, Version::Ietf), Err(ControlError::Version));
            assert_eq!(Opcode::parse(code, Version::Rdmac), Ok(opcode));
            assert_eq!(Opcode::parse(control, Version::Draft00), Ok(opcode));
            assert_eq!(opcode.control(Version::Draft00), control);
        }
        for code in 8..=11 {
            let opcode = Opcode::parse(0x40 | code, Version::Ietf).unwrap();
            assert_eq!(opcode.control(Version::Ietf), 0x40 | code);
            assert_eq!(Opcode::parse(code, Version::Rdmac), Err(ControlError::Opcode));
            assert_eq!(Opcode::parse(0x40 | code, Version::Draft00), Err(ControlError::Opcode));
        }
        for code in 12..16 {
            assert_eq!(Opcode::parse(0x40 | code, Version::Ietf), Err(ControlError::Opcode));
        }
    }

    #[test]
    fn read_request_matches_golden_bytes() {
        let request = ReadRequest {
            sink_stag: 0x0a0b_0c0d,
            sink_to: 0x0102_0304_0506_0708,
            len: 0x1000,
            source_stag: 0xdead_beef,
            source_to: 0x1112_1314_1516_1718,
        };
        let golden = [
            0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x10, 0, 0xde, 0xad, 0xbe, 0xef,
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
        ];
        let mut out = [0; READ_REQUEST_LEN];
        request.emit(&mut out);
        assert_eq!(out, golden);
        assert_eq!(ReadRequest::parse(&golden), Some(request));
        assert_eq!(ReadRequest::parse(&golden[..27]), None);
    }
}
