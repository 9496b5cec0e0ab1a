//! DDP segment headers (RFC 5041 section 4, RDMA Consortium DDP 1.0 section 6).

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a tagged header, in bytes.
pub const TAGGED_LEN: usize = 14;
/// Length of an untagged header, in bytes.
pub const UNTAGGED_LEN: usize = 18;

// req: DDP-034, DDP-051
pub(super) const CONTROL_TAGGED: u8 = 0x80;
// req: DDP-034
pub(crate) const CONTROL_LAST: u8 = 0x40;
// req: DDP-045, DDP-175, DDP-182
const CONTROL_VERSION: u8 = 0x03;

/// Protocol versions of a stream: DV of DDP and RV of RDMAP, fixed when the stream starts. No
/// specification describes any other pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u16)]
pub enum Version {
    /// RDMA Consortium: DV 0, RV 0.
    Rdmac = versions(0, 0),
    /// draft-ietf-rddp-rdmap-00 over the RDMA Consortium's DDP 1.0: DV 0, RV 1.
    Draft00 = versions(0, 1),
    /// IETF: DV 1, RV 1.
    #[default]
    Ietf = versions(1, 1),
}

/// Packs DV and RV as they stand in the two control bytes of a segment.
const fn versions(dv: u8, rv: u8) -> u16 {
    u16::from_le_bytes([dv, rv << 6])
}

impl Version {
    /// Returns the value of the DV field.
    // req: DDP-046, DDP-047
    #[inline]
    #[must_use]
    pub const fn dv(self) -> u8 {
        let [dv, _] = self.control_bytes().to_le_bytes();
        dv
    }

    /// Returns the value of the RV field.
    // req: RDMAP-054, RDMAP-055
    #[inline]
    #[must_use]
    pub const fn rv(self) -> u8 {
        let [_, rv] = self.control_bytes().to_le_bytes();
        rv >> 6
    }

    /// Returns DV and RV where they stand in the two control bytes of a segment, little-endian.
    #[inline]
    pub(super) const fn control_bytes(self) -> u16 {
        self as u16
    }
}

/// Wire format of a tagged header: 14 bytes, big-endian (RFC 5041 section 4.2).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
// req: DDP-049, DDP-050
struct TaggedWire {
    control: u8,
    rsvd_ulp: u8,
    stag: U32,
    to: U64,
}

/// Wire format of an untagged header: 18 bytes, big-endian (RFC 5041 section 4.3).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
// req: DDP-067, DDP-068
struct UntaggedWire {
    control: u8,
    rsvd_ulp: u8,
    rsvd_ulp_rest: U32,
    qn: U32,
    msn: U32,
    mo: U32,
}

const _: () = assert!(size_of::<TaggedWire>() == TAGGED_LEN);
const _: () = assert!(size_of::<UntaggedWire>() == UNTAGGED_LEN);

/// Fields of a tagged header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// Last segment of its message.
    pub last: bool,
    /// `RsvdULP`: the ULP's byte.
    pub rsvd_ulp: u8,
    /// STag: identifies the tagged buffer.
    pub stag: u32,
    /// Tagged Offset: bytes from the start of the tagged buffer's address space.
    pub to: u64,
}

/// Fields of an untagged header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untagged {
    /// Last segment of its message.
    pub last: bool,
    /// `RsvdULP`: the ULP's first byte.
    pub rsvd_ulp: u8,
    /// `RsvdULP`: the ULP's other four bytes.
    pub rsvd_ulp_rest: u32,
    /// Queue number.
    pub qn: u32,
    /// Message sequence number in the queue; the first is 1.
    pub msn: u32,
    /// Message offset: bytes from the start of the message.
    pub mo: u32,
}

/// Header of a DDP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Tagged: for a tagged buffer.
    Tagged(Tagged),
    /// Untagged: for the untagged buffers of a queue.
    Untagged(Untagged),
}

/// Reason why a ULPDU is not a DDP segment of this stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// DV of a tagged segment is not the stream's.
    VersionTagged,
    /// DV of an untagged segment is not the stream's.
    VersionUntagged,
    /// The ULPDU is shorter than its header.
    Truncated,
}

impl Tagged {
    /// Parses a header whose control byte was checked.
    #[inline(always)]
    pub(crate) fn from_bytes(bytes: &[u8; TAGGED_LEN]) -> Self {
        let wire: &TaggedWire = zerocopy::transmute_ref!(bytes);
        Self {
            // req: DDP-042, DDP-043
            last: wire.control & CONTROL_LAST != 0,
            // req: DDP-054, DDP-119
            rsvd_ulp: wire.rsvd_ulp,
            // req: DDP-061
            stag: wire.stag.get(),
            // req: DDP-065, DDP-157, RDMAP-136, RDMAP-137
            to: wire.to.get(),
        }
    }
}

impl Untagged {
    /// Parses a header whose control byte was checked.
    #[inline(always)]
    pub(crate) fn from_bytes(bytes: &[u8; UNTAGGED_LEN]) -> Self {
        let wire: &UntaggedWire = zerocopy::transmute_ref!(bytes);
        Self {
            // req: DDP-042, DDP-043
            last: wire.control & CONTROL_LAST != 0,
            // req: DDP-072, DDP-119
            rsvd_ulp: wire.rsvd_ulp,
            // req: DDP-072, DDP-119, RDMAP-076, RDMAP-344
            rsvd_ulp_rest: wire.rsvd_ulp_rest.get(),
            // req: DDP-076, DDP-144
            qn: wire.qn.get(),
            // req: DDP-148
            msn: wire.msn.get(),
            // req: DDP-086
            mo: wire.mo.get(),
        }
    }
}

impl Header {
    /// Parses the header of a ULPDU; the payload follows it at [`Header::wire_len`]. Reserved bits
    /// are not checked (RFC 5041 section 4.1).
    ///
    /// # Errors
    /// [`HeaderError`]; the version is checked first, since another version may have another header
    /// layout.
    pub fn parse(ulpdu: &[u8], version: Version) -> Result<Self, HeaderError> {
        let control = *ulpdu.first().ok_or(HeaderError::Truncated)?;
        let is_tagged = control & CONTROL_TAGGED != 0;
        // req: DDP-048
        if control & CONTROL_VERSION != version.dv() {
            return Err(if is_tagged {
                HeaderError::VersionTagged
            } else {
                HeaderError::VersionUntagged
            });
        }
        // req: DDP-036, DDP-037, DDP-069, DDP-088
        if is_tagged {
            let bytes = ulpdu.first_chunk().ok_or(HeaderError::Truncated)?;
            Ok(Self::Tagged(Tagged::from_bytes(bytes)))
        } else {
            let bytes = ulpdu.first_chunk().ok_or(HeaderError::Truncated)?;
            Ok(Self::Untagged(Untagged::from_bytes(bytes)))
        }
    }

    /// Returns the length of the header, in bytes.
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        match self {
            Self::Tagged(_) => TAGGED_LEN,
            Self::Untagged(_) => UNTAGGED_LEN,
        }
    }

    /// Returns the ULP's first byte, the control byte of RDMAP.
    #[must_use]
    pub const fn rsvd_ulp(&self) -> u8 {
        match self {
            Self::Tagged(h) => h.rsvd_ulp,
            Self::Untagged(h) => h.rsvd_ulp,
        }
    }
}

impl Tagged {
    /// Writes the header to the first 14 bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub fn emit(&self, version: Version, out: &mut [u8]) {
        let wire = TaggedWire {
            // req: DDP-044, DDP-051, RDMAP-051
            control: CONTROL_TAGGED | last_bit(self.last) | version.dv(),
            // req: DDP-052, DDP-053, DDP-055, RDMAP-024, DDP-056
            rsvd_ulp: self.rsvd_ulp,
            // req: DDP-057, DDP-060, DDP-062, DDP-063
            stag: self.stag.into(),
            // req: DDP-101, DDP-006, DDP-066
            to: self.to.into(),
        };
        out[..TAGGED_LEN].copy_from_slice(wire.as_bytes());
    }
}

impl Untagged {
    /// Writes the header to the first 18 bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub fn emit(&self, version: Version, out: &mut [u8]) {
        let wire = UntaggedWire {
            // req: DDP-044
            control: last_bit(self.last) | version.dv(),
            // req: DDP-071, DDP-073
            rsvd_ulp: self.rsvd_ulp,
            // req: DDP-070, RDMAP-025
            rsvd_ulp_rest: self.rsvd_ulp_rest.into(),
            // req: DDP-077, DDP-078, DDP-079
            qn: self.qn.into(),
            // req: DDP-081, DDP-082, DDP-084, DDP-085
            msn: self.msn.into(),
            // req: DDP-087, DDP-099
            mo: self.mo.into(),
        };
        out[..UNTAGGED_LEN].copy_from_slice(wire.as_bytes());
    }
}

// req: DDP-038, DDP-039
const fn last_bit(last: bool) -> u8 {
    last as u8 * CONTROL_LAST
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tagged_header_matches_golden_bytes() {
        let header =
            Tagged { last: true, rsvd_ulp: 0x40, stag: 0x0102_0304, to: 0x1122_3344_5566_7788 };
        let golden = [0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
        let mut out = [0; TAGGED_LEN];
        header.emit(Version::Ietf, &mut out);
        assert_eq!(out, golden);
        assert_eq!(Header::parse(&golden, Version::Ietf), Ok(Header::Tagged(header)));
        header.emit(Version::Rdmac, &mut out);
        assert_eq!(out[0], 0xc0);
    }

    #[test]
    fn untagged_header_matches_golden_bytes() {
        let header =
            Untagged { last: false, rsvd_ulp: 0x43, rsvd_ulp_rest: 9, qn: 1, msn: 2, mo: 3 };
        let golden = [1, 0x43, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3];
        let mut out = [0; UNTAGGED_LEN];
        header.emit(Version::Ietf, &mut out);
        assert_eq!(out, golden);
        assert_eq!(Header::parse(&golden, Version::Ietf), Ok(Header::Untagged(header)));
    }

    #[test]
    fn version_is_checked_before_length() {
        assert_eq!(Header::parse(&[0xc0], Version::Ietf), Err(HeaderError::VersionTagged));
        assert_eq!(Header::parse(&[0x42], Version::Ietf), Err(HeaderError::VersionUntagged));
        assert_eq!(Header::parse(&[0xc1; 13], Version::Ietf), Err(HeaderError::Truncated));
        assert_eq!(Header::parse(&[0x41; 17], Version::Ietf), Err(HeaderError::Truncated));
        assert_eq!(Header::parse(&[], Version::Ietf), Err(HeaderError::Truncated));
    }

    proptest! {
        #[test]
        fn reserved_bits_are_ignored(rsvd in 0u8..16, bytes: [u8; 18]) {
            let mut with = bytes;
            with[0] = (bytes[0] & !0x3f) | 1;
            let plain = Header::parse(&with, Version::Ietf);
            with[0] |= rsvd << 2;
            prop_assert_eq!(Header::parse(&with, Version::Ietf), plain);
        }

        #[test]
        fn round_trip(bytes: [u8; 18]) {
            let mut bytes = bytes;
            bytes[0] = (bytes[0] & 0xc0) | 1;
            let mut out = [0; 18];
            let header = Header::parse(&bytes, Version::Ietf).unwrap();
            match header {
                Header::Tagged(h) => h.emit(Version::Ietf, &mut out),
                Header::Untagged(h) => h.emit(Version::Ietf, &mut out),
            }
            prop_assert_eq!(&out[..header.wire_len()], &bytes[..header.wire_len()]);
        }
    }
}
