//! MPA Request and Reply Frames (RFC 5044 section 7.1, RFC 6581 section 9).

use crate::bounded_vec::BoundedVec;

/// Length of a startup frame before its private data, in bytes.
pub const STARTUP_HEADER_LEN: usize = 20;
/// Maximum value of `PD_Length`: private data, with the enhanced connection establishment data.
pub const PRIVATE_DATA_LEN_MAX: usize = 512;
/// Private data of a startup frame.
pub type PrivateData = BoundedVec<u8, PRIVATE_DATA_LEN_MAX>;
/// Length of the enhanced connection establishment data, which precedes the private data.
pub const ENHANCED_LEN: usize = 4;
/// IRD or ORD value for "no automatic negotiation"; also the mask of both fields (RFC 6581 section
/// 9.1).
pub const NOT_NEGOTIATED: u16 = 0x3fff;

/// Most RDMA Reads that one connection serves or issues at a time.
pub const READ_DEPTH_MAX: u16 = 128;

const KEY_REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const KEY_REPLY: &[u8; 16] = b"MPA ID Rep Frame";

const FLAG_MARKERS: u8 = 0x80;
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECT: u8 = 0x20;
const FLAG_ENHANCED: u8 = 0x10;

/// Kind of startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// MPA Request Frame, sent by the initiator.
    Request,
    /// MPA Reply Frame, sent by the responder.
    Reply,
}

/// Enhanced RDMA connection establishment data (RFC 6581 section 9.1): IRD, ORD, control flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhanced {
    /// Flag A: peer-to-peer model.
    pub peer_to_peer: bool,
    /// Flag B: a zero-length Send may be the ready-to-receive (RTR) message.
    pub rtr_send: bool,
    /// Flag C: a zero-length RDMA Write may be the RTR message.
    pub rtr_write: bool,
    /// Flag D: a zero-length RDMA Read may be the RTR message.
    pub rtr_read: bool,
    /// IRD of the frame's sender, 0..=0x3fff.
    pub ird: u16,
    /// ORD of the frame's sender, 0..=0x3fff.
    pub ord: u16,
}

/// MPA Request or Reply Frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Startup {
    /// Request or Reply.
    pub kind: FrameKind,
    /// M: the frame's sender requires markers in the FPDUs that it receives.
    pub markers: bool,
    /// C: the frame's sender requests CRCs.
    pub crc: bool,
    /// R: the connection is rejected. Significant in a Reply only.
    pub reject: bool,
    /// Rev: revision of MPA.
    pub revision: u8,
    /// Enhanced connection establishment data, present if S is set.
    pub enhanced: Option<Enhanced>,
    /// Private data of the ULP, without the enhanced connection establishment data.
    pub private_data: PrivateData,
}

/// Reason why received bytes are not a valid startup frame. The connection is closed (RFC 5044
/// section 7.1, MPA error 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartupError {
    /// The key is not that of the expected kind.
    BadKey,
    /// `PD_Length` is above 512.
    PrivateDataTooLong,
    /// S is set, but `PD_Length` is less than [`ENHANCED_LEN`].
    EnhancedTruncated,
}

impl Startup {
    /// Parses a frame of the expected kind at the start of a stream. Returns the frame and its
    /// length in bytes, or `Ok(None)` if more bytes are needed.
    ///
    /// The received part of the key is checked even if incomplete, so that a peer with another
    /// protocol is rejected at its first wrong byte. Reserved bits are not checked.
    ///
    /// # Errors
    /// [`StartupError`].
    pub fn parse(bytes: &[u8], kind: FrameKind) -> Result<Option<(Self, usize)>, StartupError> {
        let key = match kind {
            FrameKind::Request => KEY_REQUEST,
            FrameKind::Reply => KEY_REPLY,
        };
        // RFC 5044 section 7.1.1: the key, as far as it has arrived.
        let seen = bytes.len().min(key.len());
        if bytes[..seen] != key[..seen] {
            return Err(StartupError::BadKey);
        }
        let Some((header, rest)) = bytes.split_at_checked(STARTUP_HEADER_LEN) else {
            return Ok(None);
        };
        let (flags, revision) = (header[16], header[17]);
        // Section 7.1.1: PD_Length is at most 512.
        let data_len = usize::from(u16::from_be_bytes([header[18], header[19]]));
        if data_len > PRIVATE_DATA_LEN_MAX {
            return Err(StartupError::PrivateDataTooLong);
        }
        // Before revision 2, S is a reserved bit and not checked.
        let is_enhanced = flags & FLAG_ENHANCED != 0 && revision >= 2;
        if is_enhanced && data_len < ENHANCED_LEN {
            return Err(StartupError::EnhancedTruncated);
        }
        let Some(mut data) = rest.get(..data_len) else { return Ok(None) };
        // RFC 6581 section 9: the enhanced data comes first and is not the application's.
        let mut enhanced = None;
        if is_enhanced {
            let (block, own) = data.split_at(ENHANCED_LEN);
            enhanced = Some(Enhanced::parse([block[0], block[1], block[2], block[3]]));
            data = own;
        }
        let private_data =
            PrivateData::try_from(data).map_err(|_| StartupError::PrivateDataTooLong)?;
        // RFC 5044 section 7.1.1: M, C and R; RFC 6581 section 9: Rev and S.
        let frame = Self {
            kind,
            markers: flags & FLAG_MARKERS != 0,
            crc: flags & FLAG_CRC != 0,
            reject: flags & FLAG_REJECT != 0,
            revision,
            enhanced,
            private_data,
        };
        Ok(Some((frame, STARTUP_HEADER_LEN + data_len)))
    }

    /// Returns the length of the frame, in bytes.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        let block = if self.enhanced.is_some() { ENHANCED_LEN } else { 0 };
        STARTUP_HEADER_LEN + block + self.private_data.len()
    }

    /// Writes the frame to the start of `out` and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`Startup::wire_len`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.wire_len();
        let out = &mut out[..len];
        out[..16].copy_from_slice(match self.kind {
            FrameKind::Request => KEY_REQUEST,
            FrameKind::Reply => KEY_REPLY,
        });
        let mut flags = 0;
        for (set, bit) in [
            (self.markers, FLAG_MARKERS),
            (self.crc, FLAG_CRC),
            (self.reject, FLAG_REJECT),
            (self.enhanced.is_some(), FLAG_ENHANCED),
        ] {
            flags |= if set { bit } else { 0 };
        }
        out[16] = flags;
        out[17] = self.revision;
        let data_len = u16::try_from(len - STARTUP_HEADER_LEN).expect("at most 516 bytes");
        out[18..20].copy_from_slice(&data_len.to_be_bytes());
        let mut data = &mut out[STARTUP_HEADER_LEN..];
        if let Some(enhanced) = self.enhanced {
            data[..ENHANCED_LEN].copy_from_slice(&enhanced.emit());
            data = &mut data[ENHANCED_LEN..];
        }
        data.copy_from_slice(&self.private_data);
        len
    }
}

impl Enhanced {
    fn parse(block: [u8; ENHANCED_LEN]) -> Self {
        let ird = u16::from_be_bytes([block[0], block[1]]);
        let ord = u16::from_be_bytes([block[2], block[3]]);
        Self {
            peer_to_peer: ird & 0x8000 != 0,
            rtr_send: ird & 0x4000 != 0,
            rtr_write: ord & 0x8000 != 0,
            rtr_read: ord & 0x4000 != 0,
            ird: ird & NOT_NEGOTIATED,
            ord: ord & NOT_NEGOTIATED,
        }
    }

    fn emit(self) -> [u8; ENHANCED_LEN] {
        let flag = |set: bool, bit: u16| if set { bit } else { 0 };
        let ird = flag(self.peer_to_peer, 0x8000) | flag(self.rtr_send, 0x4000) | self.ird;
        let ord = flag(self.rtr_write, 0x8000) | flag(self.rtr_read, 0x4000) | self.ord;
        let ([a, b], [c, d]) = (ird.to_be_bytes(), ord.to_be_bytes());
        [a, b, c, d]
    }
}

/// Most RDMA Reads and atomic operations outstanding at a time, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadDepths {
    /// IRD: those that the local peer serves.
    pub ird: u16,
    /// ORD: those that the local peer issues.
    pub ord: u16,
}

/// RTR (ready to receive) message: after it a responder may send (RFC 6581 section 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// Zero-length Send.
    Send,
    /// Zero-length RDMA Write.
    Write,
    /// Zero-length RDMA Read.
    Read,
}

/// Set of RTR message types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrKinds {
    /// [`Rtr::Send`].
    pub send: bool,
    /// [`Rtr::Write`].
    pub write: bool,
    /// [`Rtr::Read`].
    pub read: bool,
}

impl RtrKinds {
    /// All types.
    pub const ALL: Self = Self { send: true, write: true, read: true };

    pub(crate) const fn from_enhanced(frame: &Enhanced) -> Self {
        Self { send: frame.rtr_send, write: frame.rtr_write, read: frame.rtr_read }
    }

    pub(crate) const fn intersection(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// Selects the RTR message to send: RDMA Write first, as it needs no resources of either peer.
    pub(crate) const fn choose(self) -> Option<Rtr> {
        match self {
            Self { write: true, .. } => Some(Rtr::Write),
            Self { read: true, .. } => Some(Rtr::Read),
            Self { send: true, .. } => Some(Rtr::Send),
            _ => None,
        }
    }

    pub(crate) const fn write_to(self, frame: &mut Enhanced) {
        frame.peer_to_peer = true;
        frame.rtr_send = self.send;
        frame.rtr_write = self.write;
        frame.rtr_read = self.read;
    }
}

impl Default for RtrKinds {
    fn default() -> Self {
        Self::ALL
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> Startup {
        Startup {
            kind: FrameKind::Request,
            markers: false,
            crc: true,
            reject: false,
            revision: 1,
            enhanced: None,
            private_data: PrivateData::new(),
        }
    }

    #[test]
    fn flags_revision_and_length_match_golden_bytes() {
        let mut out = [0; 64];
        assert_eq!(frame().emit(&mut out), 20);
        assert_eq!(&out[..20], b"MPA ID Req Frame\x40\x01\x00\x00");
        let enhanced = Startup {
            revision: 2,
            enhanced: Some(Enhanced {
                ird: 8,
                ord: 0x3fff,
                rtr_write: true,
                ..Enhanced::default()
            }),
            ..frame()
        };
        assert_eq!(enhanced.emit(&mut out), 24);
        assert_eq!(&out[16..24], &[0x50, 2, 0, 4, 0, 8, 0xbf, 0xff]);
    }

    #[test]
    fn wrong_key_is_rejected_at_its_first_byte() {
        assert_eq!(Startup::parse(b"G", FrameKind::Request), Err(StartupError::BadKey));
        assert_eq!(Startup::parse(b"MPA ID Re", FrameKind::Request), Ok(None));
        let mut out = [0; 20];
        frame().emit(&mut out);
        assert_eq!(Startup::parse(&out, FrameKind::Reply), Err(StartupError::BadKey));
    }

    #[test]
    fn impossible_private_data_lengths_are_rejected() {
        let mut out = [0; 20];
        frame().emit(&mut out);
        out[18..20].copy_from_slice(&513u16.to_be_bytes());
        let refused = Startup::parse(&out, FrameKind::Request);
        assert_eq!(refused, Err(StartupError::PrivateDataTooLong));
        out[16..20].copy_from_slice(&[0x50, 2, 0, 3]);
        let refused = Startup::parse(&out, FrameKind::Request);
        assert_eq!(refused, Err(StartupError::EnhancedTruncated));
    }

    proptest! {
        #[test]
        fn emitted_frame_parses_back(
            reply: bool, markers: bool, crc: bool, reject: bool, a: bool, b: bool, c: bool, d: bool,
            ird in 0u16..0x4000, ord in 0u16..0x4000, with_block: bool,
            data in proptest::collection::vec(any::<u8>(), 0..=508), cut in 0usize..540,
        ) {
            let enhanced = with_block.then_some(Enhanced {
                peer_to_peer: a, rtr_send: b, rtr_write: c, rtr_read: d, ird, ord,
            });
            let frame = Startup {
                kind: if reply { FrameKind::Reply } else { FrameKind::Request },
                markers, crc, reject,
                revision: if with_block { 2 } else { 1 },
                enhanced,
                private_data: PrivateData::try_from(&data[..]).unwrap(),
            };
            let mut out = [0xff; 600];
            let len = frame.emit(&mut out);
            prop_assert_eq!(len, frame.wire_len());
            if cut < len {
                prop_assert_eq!(Startup::parse(&out[..cut], frame.kind), Ok(None));
            }
            prop_assert_eq!(Startup::parse(&out, frame.kind), Ok(Some((frame, len))));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let mut with_key = bytes.clone();
            if let Some(head) = with_key.get_mut(..16) {
                head.copy_from_slice(KEY_REQUEST);
            }
            let _ = Startup::parse(&bytes, FrameKind::Reply);
            if let Ok(Some((_, used))) = Startup::parse(&with_key, FrameKind::Request) {
                prop_assert!(used <= with_key.len());
            }
        }
    }
}
