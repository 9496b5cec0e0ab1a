//! Faults of a stream, and the one Terminate table, which maps each to a Terminate (RFC 5040
//! section 4.8, RFC 5041 section 7.2, RFC 5044 section 8).

use crate::ddp::memory::MemoryFault;
use crate::ddp::untagged::UntaggedFault;
use crate::wire::ddp::{HeaderError, UNTAGGED_LEN, Version};
use crate::wire::rdmap::{ControlError, Opcode, QN_READ_REQUEST, READ_REQUEST_LEN};
use crate::wire::terminate::{LAYER_DDP as DDP, LAYER_MPA as MPA, LAYER_RDMAP as RDMAP, Terminate};

/// Fault that ends a stream, found in a received segment or while a response is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The CRC of an FPDU does not match (MPA).
    Crc,
    /// Marker and ULPDU length mismatch: they disagree on the start of an FPDU (MPA).
    Marker,
    /// "Insufficient IRD Resources": the responder's ORD exceeds the local IRD limit (startup of
    /// MPA revision 2).
    InsufficientIrd,
    /// "No Matching RTR Option": no common ready-to-receive message (startup of MPA revision 2).
    NoMatchingRtr,
    /// Invalid DDP header: truncated, or the DV of another version.
    Header(HeaderError),
    /// Invalid RDMAP control byte: the RV of another version, or a reserved opcode.
    Control(ControlError),
    /// "Unexpected OpCode": not allowed on this queue or in this buffer model, or a response
    /// without a request.
    UnexpectedOpcode,
    /// "Invalid QN": the stream has no such queue.
    QueueNumber,
    /// A tagged segment cannot be placed.
    Tagged(MemoryFault),
    /// An untagged segment cannot be placed.
    Untagged(UntaggedFault),
    /// A Read Request has no access to its source.
    ReadSource(MemoryFault),
    /// An Atomic Request has no access to its word.
    AtomicTarget(MemoryFault),
    /// The word of an Atomic Request does not begin at a multiple of eight.
    AtomicMisaligned,
    /// An Atomic Request has an unassigned operation code.
    AtomicOperation,
    /// A header-only message has more than one segment, or bytes after its header.
    HeaderTooLong,
    /// A Read Request has more than one segment, or bytes after its header.
    ReadRequestTooLong,
    /// A Read Request has a truncated header.
    ReadRequestTooShort,
    /// The STag of a Send with Invalidate is not valid.
    InvalidateUnknown,
    /// The STag of a Send with Invalidate belongs to another stream or protection domain.
    InvalidateForeign,
    /// The STag of a Send with Invalidate is shared by streams, grants no remote rights, or has
    /// windows bound to it.
    InvalidateShared,
    /// Local error, not caused by the peer.
    LocalCatastrophic,
    /// The ULP aborted the stream.
    UlpAbort(Abort),
}

/// Reason why the ULP aborts a stream, sent to the peer in the Terminate (RFC 5040 Figure 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Abort {
    /// Catastrophic error, localized to this stream.
    Stream,
    /// Catastrophic error, global: the process or the device cannot continue.
    Global,
    /// Unspecified remote protection error: an access that the rules of the ULP forbid.
    Protection,
    /// Unspecified remote operation error: a message that is invalid for the ULP.
    Operation,
}

/// Error type 0: Local Catastrophic Error of RDMAP and DDP, and the error type of all MPA errors.
const ETYPE_LOCAL: u8 = 0;
/// "Unspecified Error" of RDMAP: for faults without a code of their own.
const CODE_UNSPECIFIED: u8 = 0xff;

impl Fault {
    /// Returns the Terminate for this fault, found in the ULPDU `segment` (empty if in none) of a
    /// stream of this version: layer, error type and code, and the HdrCt bits with the headers
    /// copied from the terminated segment (RFC 5040 Figure 10 and section 7.1).
    #[must_use]
    pub fn to_terminate(self, version: Version, segment: &[u8]) -> Terminate {
        let (layer, error_type, code) = self.layer_etype_code(version);
        let terminate = Terminate::new(layer, error_type, code);
        // Local errors and MPA errors have HdrCt 0: no headers are copied.
        // req: RDMAP-121, RDMAP-132
        if error_type == ETYPE_LOCAL {
            return terminate;
        }
        if segment.is_empty() {
            return terminate;
        }
        match segment.try_into() {
            // req: RDMAP-091, RDMAP-129, RDMAP-259
            Ok(request) if layer == RDMAP && is_read_request(request) => {
                terminate.with_read_request(request)
            }
            _ => terminate.with_segment(segment),
        }
    }

    /// Terminate table: layer, error type and error code of each fault.
    // req: DDP-166, DDP-167, RDMAP-095
    const fn layer_etype_code(self, version: Version) -> (u8, u8, u8) {
        match self {
            // req: DDP-183
            Self::Crc => (MPA, 0, 2),
            Self::Marker => (MPA, 0, 3),
            Self::InsufficientIrd => (MPA, 0, 6),
            Self::NoMatchingRtr => (MPA, 0, 7),
            // DDP has no code for a segment shorter than its header; the choice here is RDMAP's
            // "Catastrophic error, localized to RDMAP Stream".
            // req: MPA-049, RDMAP-107
            Self::Header(HeaderError::Truncated) => (RDMAP, 2, 7),
            Self::Header(HeaderError::VersionTagged) => (DDP, 1, 4),
            Self::Header(HeaderError::VersionUntagged) => (DDP, 2, 6),
            Self::Control(ControlError::Version) => (RDMAP, 2, 5),
            // req: RDMAP-106
            Self::Control(ControlError::Opcode) | Self::UnexpectedOpcode => (RDMAP, 2, 6),
            // req: DDP-176, DDP-177
            Self::QueueNumber => (DDP, 2, 1),
            // req: DDP-170
            Self::Tagged(fault) => tagged_buffer_error(fault, version),
            Self::Untagged(fault) => match fault {
                UntaggedFault::NoBuffer => (DDP, 2, 2),
                UntaggedFault::MsnRange => (DDP, 2, 3),
                UntaggedFault::MessageOffset => (DDP, 2, 4),
                UntaggedFault::TooLong { .. } => (DDP, 2, 5),
                // req: DDP-169
                UntaggedFault::Local { .. } => (DDP, ETYPE_LOCAL, 0),
            },
            Self::ReadRequestTooLong | Self::HeaderTooLong => (DDP, 2, 5),
            // RDMAP has no code for a truncated header either.
            Self::ReadRequestTooShort => (RDMAP, 2, CODE_UNSPECIFIED),
            Self::ReadSource(fault) | Self::AtomicTarget(fault) => {
                remote_protection_error(fault, version)
            }
            Self::AtomicOperation => (RDMAP, 2, 6),
            // RFC 7306 requires a Terminate and defines no code for it.
            Self::AtomicMisaligned => (RDMAP, 2, CODE_UNSPECIFIED),
            Self::InvalidateForeign => (RDMAP, 1, 9),
            // req: RDMAP-109
            Self::InvalidateUnknown | Self::InvalidateShared => (RDMAP, 2, 9),
            // req: RDMAP-096
            Self::LocalCatastrophic => (RDMAP, ETYPE_LOCAL, 0),
            Self::UlpAbort(Abort::Stream) => (RDMAP, 2, 7),
            // req: RDMAP-108
            Self::UlpAbort(Abort::Global) => (RDMAP, 2, 8),
            // req: RDMAP-104
            Self::UlpAbort(Abort::Protection) => (RDMAP, 1, CODE_UNSPECIFIED),
            // req: RDMAP-110
            Self::UlpAbort(Abort::Operation) => (RDMAP, 2, CODE_UNSPECIFIED),
        }
    }
}

/// True for a complete Read Request on its queue, whatever else is wrong with it.
fn is_read_request(ulpdu: &[u8; UNTAGGED_LEN + READ_REQUEST_LEN]) -> bool {
    let [ddp, rdmap, _, _, _, _, queue @ ..] = ulpdu;
    ddp & 0x80 == 0
        && rdmap & 0x0f == Opcode::ReadRequest.control(Version::Rdmac)
        && queue.starts_with(&QN_READ_REQUEST.to_be_bytes())
}

/// Returns DDP's error for a fault of a tagged buffer. DDP has no code for missing access rights:
/// such an STag counts as invalid. It has one for an STag of another stream in every version, but
/// draft-ietf-rddp-rdmap-00 section 10.3, item 5, requires "Invalid STag".
const fn tagged_buffer_error(fault: MemoryFault, version: Version) -> (u8, u8, u8) {
    let code = match (fault, version) {
        (MemoryFault::InvalidStag | MemoryFault::AccessRights, _) => 0,
        // req: RDMAP-333
        (MemoryFault::NotAssociated, Version::Rdmac | Version::Draft00) => 0,
        (MemoryFault::Bounds, _) => 1,
        // req: DDP-173
        (MemoryFault::NotAssociated, Version::Ietf) => 2,
        // req: DDP-174, DDP-159
        (MemoryFault::Wrap, _) => 3,
        // req: DDP-169
        (MemoryFault::Page(_), _) => return (DDP, ETYPE_LOCAL, 0),
    };
    (DDP, 1, code)
}

/// Returns RDMAP's Remote Protection Error. In the older versions an STag of another stream is
/// "Invalid STag" (draft-ietf-rddp-rdmap-00 section 10.3, item 5); the newer ones have a code for
/// it.
// req: RDMAP-328, RDMAP-330
const fn remote_protection_error(fault: MemoryFault, version: Version) -> (u8, u8, u8) {
    let code = match (fault, version) {
        // req: RDMAP-098, RDMAP-270
        (MemoryFault::InvalidStag, _)
        | (MemoryFault::NotAssociated, Version::Rdmac | Version::Draft00) => 0,
        // req: RDMAP-099
        (MemoryFault::Bounds, _) => 1,
        // req: RDMAP-100
        (MemoryFault::AccessRights, _) => 2,
        // req: RDMAP-101
        (MemoryFault::NotAssociated, Version::Ietf) => 3,
        // req: RDMAP-102, RDMAP-274
        (MemoryFault::Wrap, _) => 4,
        // req: RDMAP-096
        (MemoryFault::Page(_), _) => return (RDMAP, ETYPE_LOCAL, 0),
    };
    (RDMAP, 1, code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::memory::PageFault;

    const WRITE: [u8; 14] = [0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const READ: [u8; 46] = {
        let mut bytes = [0; 46];
        (bytes[0], bytes[1], bytes[9]) = (0x41, 0x41, 1);
        bytes
    };

    // req-test: RDMAP-121, RDMAP-132
    #[test]
    fn hdrct_is_zero_for_local_and_mpa_errors_only() {
        for (fault, is_copied) in [
            (Fault::LocalCatastrophic, false),
            (Fault::Crc, false),
            (Fault::Marker, false),
            (Fault::UnexpectedOpcode, true),
            (Fault::QueueNumber, true),
        ] {
            let terminate = fault.to_terminate(Version::Ietf, &WRITE);
            let seen = (terminate.segment_len.is_some(), !terminate.ddp_header().is_empty());
            assert_eq!(seen, (is_copied, is_copied), "{fault:?}");
        }
    }

    // req-test: DDP-166, DDP-167, RDMAP-089, RDMAP-090, RDMAP-091
    #[test]
    fn each_fault_has_its_codes_and_hdrct() {
        let wr_id = 0;
        let fault = MemoryFault::Bounds;
        let rows = [
            (Fault::Crc, "2/0/2 ..."),
            (Fault::Marker, "2/0/3 ..."),
            (Fault::InsufficientIrd, "2/0/6 ..."),
            (Fault::NoMatchingRtr, "2/0/7 ..."),
            (Fault::Header(HeaderError::VersionTagged), "1/1/4 MD."),
            (Fault::Header(HeaderError::VersionUntagged), "1/2/6 MD."),
            (Fault::Control(ControlError::Version), "0/2/5 MD."),
            (Fault::Control(ControlError::Opcode), "0/2/6 MD."),
            (Fault::UnexpectedOpcode, "0/2/6 MD."),
            (Fault::QueueNumber, "1/2/1 MD."),
            (Fault::Untagged(UntaggedFault::NoBuffer), "1/2/2 MD."),
            (Fault::Untagged(UntaggedFault::MsnRange), "1/2/3 MD."),
            (Fault::Untagged(UntaggedFault::MessageOffset), "1/2/4 MD."),
            (Fault::Untagged(UntaggedFault::TooLong { wr_id }), "1/2/5 MD."),
            (Fault::Untagged(UntaggedFault::Local { wr_id, fault }), "1/0/0 ..."),
            (Fault::ReadRequestTooLong, "1/2/5 MD."),
            (Fault::ReadRequestTooShort, "0/2/255 MD."),
            (Fault::Header(HeaderError::Truncated), "0/2/7 MD."),
            (Fault::Tagged(MemoryFault::InvalidStag), "1/1/0 MD."),
            (Fault::Tagged(MemoryFault::AccessRights), "1/1/0 MD."),
            (Fault::Tagged(MemoryFault::Bounds), "1/1/1 MD."),
            (Fault::Tagged(MemoryFault::NotAssociated), "1/1/2 MD."),
            (Fault::Tagged(MemoryFault::Wrap), "1/1/3 MD."),
            (Fault::Tagged(MemoryFault::Page(PageFault)), "1/0/0 ..."),
            (Fault::ReadSource(MemoryFault::Page(PageFault)), "0/0/0 ..."),
            (Fault::AtomicTarget(MemoryFault::Page(PageFault)), "0/0/0 ..."),
            (Fault::ReadSource(MemoryFault::InvalidStag), "0/1/0 MDR"),
            (Fault::ReadSource(MemoryFault::Bounds), "0/1/1 MDR"),
            (Fault::ReadSource(MemoryFault::AccessRights), "0/1/2 MDR"),
            (Fault::ReadSource(MemoryFault::NotAssociated), "0/1/3 MDR"),
            (Fault::ReadSource(MemoryFault::Wrap), "0/1/4 MDR"),
            (Fault::AtomicTarget(MemoryFault::InvalidStag), "0/1/0 MD."),
            (Fault::AtomicTarget(MemoryFault::Bounds), "0/1/1 MD."),
            (Fault::AtomicTarget(MemoryFault::AccessRights), "0/1/2 MD."),
            (Fault::AtomicTarget(MemoryFault::NotAssociated), "0/1/3 MD."),
            (Fault::AtomicTarget(MemoryFault::Wrap), "0/1/4 MD."),
            (Fault::AtomicMisaligned, "0/2/255 MD."),
            (Fault::AtomicOperation, "0/2/6 MD."),
            (Fault::HeaderTooLong, "1/2/5 MD."),
            (Fault::InvalidateForeign, "0/1/9 MD."),
            (Fault::InvalidateUnknown, "0/2/9 MD."),
            (Fault::InvalidateShared, "0/2/9 MD."),
            (Fault::LocalCatastrophic, "0/0/0 ..."),
        ];
        let versions = [Version::Ietf, Version::Rdmac, Version::Draft00];
        for ((fault, expected), version) in
            rows.into_iter().flat_map(|row| versions.map(|version| (row, version)))
        {
            let read = matches!(fault, Fault::ReadSource(_));
            let t = fault.to_terminate(version, if read { &READ } else { &WRITE });
            // In the older versions an STag of another stream is "Invalid STag".
            let expected = match version {
                Version::Rdmac | Version::Draft00 => {
                    expected.replace("0/1/3", "0/1/0").replace("1/1/2", "1/1/0")
                }
                Version::Ietf => expected.to_owned(),
            };
            let flag = |set: bool, letter| if set { letter } else { '.' };
            let row = format!(
                "{}/{}/{} {}{}{}",
                t.layer,
                t.error_type,
                t.code,
                flag(t.segment_len.is_some(), 'M'),
                flag(!t.ddp_header().is_empty(), 'D'),
                flag(!t.rdma_header().is_empty(), 'R')
            );
            assert_eq!(row, expected, "{fault:?}, {version:?}");
        }
    }
}
