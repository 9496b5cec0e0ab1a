//! Encoding and decoding of DDP and RDMAP headers (RFC 5041 section 4, RFC 5040 section 4).

use std::io;

use super::invalid_data;

/// Bytes of a tagged header.
pub(super) const TAGGED_LEN: usize = 14;
/// Bytes of an untagged header.
pub(super) const UNTAGGED_LEN: usize = 18;

/// RDMAP opcodes (RFC 5040 section 4.3, RFC 7306 section 3.2).
pub mod opcode {
    /// RDMA Write.
    pub const WRITE: u8 = 0;
    /// RDMA Read Request.
    pub const READ_REQUEST: u8 = 1;
    /// RDMA Read Response.
    pub const READ_RESPONSE: u8 = 2;
    /// Send.
    pub const SEND: u8 = 3;
    /// Send with Invalidate.
    pub const SEND_INVALIDATE: u8 = 4;
    /// Send with Solicited Event.
    pub const SEND_SOLICITED: u8 = 5;
    /// Send with Solicited Event and Invalidate.
    pub const SEND_SOLICITED_INVALIDATE: u8 = 6;
    /// Terminate.
    pub const TERMINATE: u8 = 7;
    /// Immediate Data.
    pub const IMMEDIATE: u8 = 8;
    /// Immediate Data with Solicited Event.
    pub const IMMEDIATE_SOLICITED: u8 = 9;
    /// Atomic Request.
    pub const ATOMIC_REQUEST: u8 = 10;
    /// Atomic Response.
    pub const ATOMIC_RESPONSE: u8 = 11;
}

/// Toggles a ULPDU's DDP and RDMAP versions between the IETF's (DV 1, RV 1) and the
/// RDMA Consortium (DV 0, RV 0).
pub fn toggle_versions(ulpdu: &mut [u8]) {
    for (byte, bits) in ulpdu.iter_mut().zip([0x01, 0x40]) {
        *byte ^= bits;
    }
}

/// A DDP header with its RDMAP control field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// RDMA Write and Read Response.
    Tagged {
        /// RDMAP opcode.
        opcode: u8,
        /// Last segment of the message.
        last: bool,
        /// Data Sink's STag.
        stag: u32,
        /// Tagged offset.
        to: u64,
    },
    /// Sends, Read Request, Terminate.
    Untagged {
        /// RDMAP opcode.
        opcode: u8,
        /// Last segment of the message.
        last: bool,
        /// STag to invalidate, or 0.
        invalidate: u32,
        /// Queue number.
        qn: u32,
        /// Message sequence number.
        msn: u32,
        /// Message offset.
        mo: u32,
    },
}

impl Header {
    /// Returns the header of a segment of an RDMA Write.
    #[must_use]
    pub const fn write(stag: u32, to: u64, last: bool) -> Self {
        Self::Tagged { opcode: opcode::WRITE, last, stag, to }
    }

    /// Returns the header of a segment of a Send.
    #[must_use]
    pub const fn send(msn: u32, mo: u32, last: bool) -> Self {
        Self::Untagged { opcode: opcode::SEND, last, invalidate: 0, qn: 0, msn, mo }
    }

    /// Returns the header of a Read Request.
    #[must_use]
    pub const fn read(msn: u32) -> Self {
        let opcode = opcode::READ_REQUEST;
        Self::Untagged { opcode, last: true, invalidate: 0, qn: 1, msn, mo: 0 }
    }

    /// Encodes header and payload as one ULPDU with versions 1 (IETF); see [`toggle_versions`].
    #[must_use]
    pub fn encode(&self, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(UNTAGGED_LEN + payload.len());
        match *self {
            Self::Tagged { opcode, last, stag, to } => {
                bytes.push(if last { 0xC1 } else { 0x81 });
                bytes.push(0x40 | opcode);
                bytes.extend_from_slice(&stag.to_be_bytes());
                bytes.extend_from_slice(&to.to_be_bytes());
            }
            Self::Untagged { opcode, last, invalidate, qn, msn, mo } => {
                bytes.push(if last { 0x41 } else { 0x01 });
                bytes.push(0x40 | opcode);
                bytes.extend_from_slice(&invalidate.to_be_bytes());
                bytes.extend_from_slice(&qn.to_be_bytes());
                bytes.extend_from_slice(&msn.to_be_bytes());
                bytes.extend_from_slice(&mo.to_be_bytes());
            }
        }
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Decodes a ULPDU into header and payload, with all checks that need no state.
    ///
    /// # Errors
    /// `InvalidData` naming the violated rule.
    pub fn decode(ulpdu: &[u8]) -> io::Result<(Self, &[u8])> {
        let (&[ddp, rdmap], _) = ulpdu
            .split_first_chunk()
            .ok_or_else(|| invalid_data("a ULPDU without control bytes"))?;
        if ddp & 0x3F != 0x01 {
            return Err(invalid_data(format!("DDP control byte {ddp:#04x}")));
        }
        if rdmap & 0xF0 != 0x40 {
            return Err(invalid_data(format!("RDMAP control byte {rdmap:#04x}")));
        }
        let last = ddp & 0x40 != 0;
        let opcode = rdmap & 0x0F;
        if ddp & 0x80 != 0 {
            let (header, payload) = ulpdu
                .split_first_chunk::<TAGGED_LEN>()
                .ok_or_else(|| invalid_data("a tagged header cut short"))?;
            if opcode != opcode::WRITE && opcode != opcode::READ_RESPONSE {
                return Err(invalid_data(format!("opcode {opcode} in a tagged segment")));
            }
            if payload.is_empty() && !last {
                return Err(invalid_data("an empty segment that is not the last"));
            }
            let to = u64::from_be_bytes(header[6..14].try_into().expect("eight bytes"));
            return Ok((Self::Tagged { opcode, last, stag: be32(header, 2), to }, payload));
        }
        let (header, payload) = ulpdu
            .split_first_chunk::<UNTAGGED_LEN>()
            .ok_or_else(|| invalid_data("an untagged header cut short"))?;
        let (invalidate, qn) = (be32(header, 2), be32(header, 6));
        let expected_qn = match opcode {
            opcode::SEND..=opcode::SEND_SOLICITED_INVALIDATE
            | opcode::IMMEDIATE
            | opcode::IMMEDIATE_SOLICITED => 0,
            opcode::READ_REQUEST | opcode::ATOMIC_REQUEST => 1,
            opcode::TERMINATE => 2,
            opcode::ATOMIC_RESPONSE => 3,
            _ => return Err(invalid_data(format!("opcode {opcode} in an untagged segment"))),
        };
        if qn != expected_qn {
            return Err(invalid_data(format!("opcode {opcode} on queue {qn}")));
        }
        let has_invalidate =
            matches!(opcode, opcode::SEND_INVALIDATE | opcode::SEND_SOLICITED_INVALIDATE);
        if !has_invalidate && invalidate != 0 {
            return Err(invalid_data(format!("opcode {opcode} with an STag to invalidate")));
        }
        let (msn, mo) = (be32(header, 10), be32(header, 14));
        Ok((Self::Untagged { opcode, last, invalidate, qn, msn, mo }, payload))
    }
}

/// Read Request header, 28 bytes (RFC 5040 section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Data Sink STag.
    pub sink_stag: u32,
    /// Data Sink tagged offset.
    pub sink_to: u64,
    /// RDMA Read Message Size.
    pub len: u32,
    /// Data Source STag.
    pub source_stag: u32,
    /// Data Source tagged offset.
    pub source_to: u64,
}

impl ReadRequest {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(28);
        bytes.extend_from_slice(&self.sink_stag.to_be_bytes());
        bytes.extend_from_slice(&self.sink_to.to_be_bytes());
        bytes.extend_from_slice(&self.len.to_be_bytes());
        bytes.extend_from_slice(&self.source_stag.to_be_bytes());
        bytes.extend_from_slice(&self.source_to.to_be_bytes());
        bytes
    }

    pub(super) fn decode(payload: &[u8], last: bool, mo: u32) -> io::Result<Self> {
        let bytes: &[u8; 28] = payload
            .try_into()
            .map_err(|_| invalid_data("a Read Request without exactly 28 bytes"))?;
        if !last || mo != 0 {
            return Err(invalid_data("a Read Request in more than one segment"));
        }
        Ok(Self {
            sink_stag: be32(bytes, 0),
            sink_to: be64(bytes, 4),
            len: be32(bytes, 12),
            source_stag: be32(bytes, 16),
            source_to: be64(bytes, 20),
        })
    }
}

/// Atomic Request header, 52 bytes (RFC 7306 section 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Operation: 0 FetchAdd, 1 Swap, 2 CmpSwap.
    pub operation: u8,
    /// Request Identifier, copied into the response.
    pub id: u32,
    /// Remote STag.
    pub stag: u32,
    /// Remote tagged offset.
    pub to: u64,
    /// Add or Swap Data, and its mask.
    pub data: [u64; 2],
    /// Compare Data, and its mask.
    pub compare: [u64; 2],
}

impl AtomicRequest {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, self.operation];
        bytes.extend_from_slice(&self.id.to_be_bytes());
        bytes.extend_from_slice(&self.stag.to_be_bytes());
        let words = [self.to, self.data[0], self.data[1], self.compare[0], self.compare[1]];
        bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        bytes
    }

    pub(super) fn decode(payload: &[u8], last: bool, mo: u32) -> io::Result<Self> {
        let bytes: &[u8; 52] = payload
            .try_into()
            .map_err(|_| invalid_data("an Atomic Request without exactly 52 bytes"))?;
        if !last || mo != 0 {
            return Err(invalid_data("an Atomic Request in more than one segment"));
        }
        if bytes[..3] != [0; 3] || bytes[3] > 2 {
            return Err(invalid_data(format!("atomic operation {:02x?}", &bytes[..4])));
        }
        Ok(Self {
            operation: bytes[3],
            id: be32(bytes, 4),
            stag: be32(bytes, 8),
            to: be64(bytes, 12),
            data: [be64(bytes, 20), be64(bytes, 28)],
            compare: [be64(bytes, 36), be64(bytes, 44)],
        })
    }
}

/// Atomic Response header, 12 bytes (RFC 7306 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// Original Request Identifier.
    pub id: u32,
    /// Original Remote Data Value: the word before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.id.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.original.to_be_bytes());
        bytes
    }

    pub(super) fn decode(payload: &[u8], last: bool, mo: u32) -> io::Result<Self> {
        let bytes: &[u8; 12] = payload
            .try_into()
            .map_err(|_| invalid_data("an Atomic Response without exactly 12 bytes"))?;
        if !last || mo != 0 {
            return Err(invalid_data("an Atomic Response in more than one segment"));
        }
        Ok(Self { id: be32(bytes, 0), original: be64(bytes, 4) })
    }
}

/// A received Terminate (RFC 5040 section 4.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// 0 RDMAP, 1 DDP, 2 MPA.
    pub layer: u8,
    /// Error type.
    pub error_type: u8,
    /// Error code.
    pub code: u8,
    /// DDP Segment Length, if included (HdrCt bit M).
    pub segment_len: Option<u16>,
    /// Terminated DDP header, if included (bit D).
    pub ddp_header: Vec<u8>,
    /// Terminated RDMA header, if included (bit R).
    pub rdma_header: Vec<u8>,
}

impl Terminate {
    /// Returns layer, error type and error code.
    #[must_use]
    pub const fn cause(&self) -> (u8, u8, u8) {
        (self.layer, self.error_type, self.code)
    }

    /// Decodes the payload of a Terminate strictly.
    ///
    /// # Errors
    /// `InvalidData` naming the violated rule.
    pub fn decode(payload: &[u8]) -> io::Result<Self> {
        let (&[kind, code, control, reserved], rest) =
            payload.split_first_chunk().ok_or_else(|| invalid_data("a Terminate cut short"))?;
        if control & 0x1F != 0 || reserved != 0 {
            return Err(invalid_data("reserved bits of a Terminate are set"));
        }
        let (has_len, has_ddp, has_rdma) =
            (control & 0x80 != 0, control & 0x40 != 0, control & 0x20 != 0);
        let (mut ddp_header, mut rdma_header) = (Vec::new(), Vec::new());
        let (mut rest, mut segment_len) = (rest, None);
        if has_len || has_ddp {
            let (len, after) =
                rest.split_first_chunk().ok_or_else(|| invalid_data("no DDP Segment Length"))?;
            segment_len = has_len.then_some(u16::from_be_bytes(*len));
            rest = after;
        }
        if has_ddp {
            let tagged = rest.first().is_some_and(|byte| byte & 0x80 != 0);
            let len = if tagged { TAGGED_LEN } else { UNTAGGED_LEN };
            let (header, after) =
                rest.split_at_checked(len).ok_or_else(|| invalid_data("no DDP header"))?;
            ddp_header = header.to_vec();
            rest = after;
        }
        if has_rdma {
            let (header, after) =
                rest.split_at_checked(28).ok_or_else(|| invalid_data("no RDMA header"))?;
            rdma_header = header.to_vec();
            rest = after;
        }
        if !rest.is_empty() {
            return Err(invalid_data("a Terminate with trailing bytes"));
        }
        let (layer, error_type) = (kind >> 4, kind & 0x0F);
        Ok(Self { layer, error_type, code, segment_len, ddp_header, rdma_header })
    }
}

/// Reads a big-endian `u32` at `at`.
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Reads a big-endian `u64` at `at`.
fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
