//! Errors of a stream, and the one table that maps each to a Terminate (RFC 5040 section 4.8,
//! RFC 5041 section 7.2, RFC 5044 section 8).

use crate::ddp::memory::MemoryFault;
use crate::ddp::untagged::UntaggedFault;
use crate::wire::ddp::{HeaderError, UNTAGGED_LEN, Version};
use crate::wire::rdmap::{ControlError, Opcode, QN_READ_REQUEST, READ_REQUEST_LEN};
use crate::wire::terminate::{LAYER_DDP as DDP, LAYER_MPA as MPA, LAYER_RDMAP as RDMAP, Terminate};

/// What broke a stream, as found on the receiving side or while answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An FPDU's CRC does not match (MPA).
    Crc,
    /// A marker and the lengths disagree on where an FPDU begins (MPA).
    Marker,
    /// The responder issues more Reads than this end can serve (start-up of MPA revision 2).
    InsufficientIrd,
    /// No ready-to-receive message that both ends know (start-up of MPA revision 2).
    NoMatchingRtr,
    /// The segment is no DDP segment of this stream.
    Header(HeaderError),
    /// The control byte is no RDMAP message of this stream.
    Control(ControlError),
    /// The opcode does not belong on this queue or buffer model, or answers nothing.
    UnexpectedOpcode,
    /// A queue that the stream does not have.
    QueueNumber,
    /// A tagged segment may not be placed.
    Tagged(MemoryFault),
    /// An untagged segment may not be placed.
    Untagged(UntaggedFault),
    /// A Read Request may not read its source.
    ReadSource(MemoryFault),
    /// An Atomic Request may not change its word.
    AtomicTarget(MemoryFault),
    /// The word of an Atomic Request does not begin at a multiple of eight.
    AtomicMisaligned,
    /// An Atomic Request for an operation that is not assigned.
    AtomicOperation,
    /// A message that is a header alone has more than one segment, or bytes behind it.
    HeaderTooLong,
    /// A Read Request of more than one segment, or with bytes behind its header.
    ReadRequestTooLong,
    /// A Read Request that lacks bytes of its header.
    ReadRequestTooShort,
    /// The STag of a Send with Invalidate names nothing.
    InvalidateUnknown,
    /// The STag of a Send with Invalidate is not the stream's to invalidate.
    InvalidateForeign,
    /// The STag of a Send with Invalidate is shared by streams, or windows are bound to it.
    InvalidateShared,
    /// Something failed here; the peer is not to blame.
    LocalCatastrophic,
    /// The layer above asked for it.
    UlpAbort(Abort),
}

/// Why the layer above ends a stream by force, as the peer is told (RFC 5040 Figure 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// Catastrophic error, of this stream alone.
    Stream,
    /// Catastrophic error, of all streams: the process or the device is done for.
    Global,
    /// Unspecified error of protection: an access that the rules of the layer above forbid.
    Protection,
    /// Unspecified error of operation: a message that makes no sense to the layer above.
    Operation,
}

/// Error type of what is local to the end that reports it, in the layers RDMAP and DDP; of MPA's
/// errors each has it.
const ETYPE_LOCAL: u8 = 0;
/// Code of RDMAP for what has none of its own.
const CODE_UNSPECIFIED: u8 = 0xff;

impl Fault {
    /// What the peer is told of the fault, found in the ULPDU `segment` (empty if in none) of a
    /// stream of this version: layer, error type and code, and the copies that belong to them
    /// (RFC 5040 Figure 10 and section 7.1).
    #[must_use]
    pub fn to_terminate(self, version: Version, segment: &[u8]) -> Terminate {
        let (layer, error_type, code) = self.layer_etype_code(version);
        let terminate = Terminate::new(layer, error_type, code);
        // What is local to this end, and what MPA found, is told without copies.
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

    // req: DDP-166, DDP-167, RDMAP-095
    const fn layer_etype_code(self, version: Version) -> (u8, u8, u8) {
        match self {
            // req: DDP-183
            Self::Crc => (MPA, 0, 2),
            Self::Marker => (MPA, 0, 3),
            Self::InsufficientIrd => (MPA, 0, 6),
            Self::NoMatchingRtr => (MPA, 0, 7),
            // A segment shorter than its header has no code of its own in DDP; the choice here
            // is RDMAP's "catastrophic error of this stream".
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
            Self::Tagged(fault) => (DDP, 1, tagged_buffer_code(fault, version)),
            Self::Untagged(fault) => match fault {
                UntaggedFault::NoBuffer => (DDP, 2, 2),
                UntaggedFault::MsnRange => (DDP, 2, 3),
                UntaggedFault::MessageOffset => (DDP, 2, 4),
                UntaggedFault::TooLong { .. } => (DDP, 2, 5),
                // req: DDP-169
                UntaggedFault::Local { .. } => (DDP, ETYPE_LOCAL, 0),
            },
            Self::ReadRequestTooLong | Self::HeaderTooLong => (DDP, 2, 5),
            // Nor has RDMAP one for a header cut short.
            Self::ReadRequestTooShort => (RDMAP, 2, CODE_UNSPECIFIED),
            Self::ReadSource(fault) | Self::AtomicTarget(fault) => {
                (RDMAP, 1, remote_protection_code(fault, version))
            }
            Self::AtomicOperation => (RDMAP, 2, 6),
            // RFC 7306 asks for a Terminate and has no code of its own.
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

/// A whole Read Request on its own queue, whatever else is wrong with it.
fn is_read_request(ulpdu: &[u8; UNTAGGED_LEN + READ_REQUEST_LEN]) -> bool {
    let [ddp, rdmap, _, _, _, _, queue @ ..] = ulpdu;
    ddp & 0x80 == 0
        && rdmap & 0x0f == Opcode::ReadRequest.control(Version::Rdmac)
        && queue.starts_with(&QN_READ_REQUEST.to_be_bytes())
}

/// DDP has no code for missing rights; an STag that does not allow the access is as good as none.
/// For an STag of another stream it has one in every version, and draft-ietf-rddp-rdmap-00 section
/// 10.3, item 5, wants "Invalid STag" all the same.
const fn tagged_buffer_code(fault: MemoryFault, version: Version) -> u8 {
    match (fault, version) {
        (MemoryFault::InvalidStag | MemoryFault::AccessRights, _) => 0,
        // req: RDMAP-333
        (MemoryFault::NotAssociated, Version::Rdmac | Version::Draft00) => 0,
        (MemoryFault::Bounds, _) => 1,
        // req: DDP-173
        (MemoryFault::NotAssociated, Version::Ietf) => 2,
        // req: DDP-174, DDP-159
        (MemoryFault::Wrap, _) => 3,
    }
}

/// The older texts call an STag of another stream invalid (draft-ietf-rddp-rdmap-00 section 10.3,
/// item 5); the newer ones have a code for it.
// req: RDMAP-328, RDMAP-330
const fn remote_protection_code(fault: MemoryFault, version: Version) -> u8 {
    match (fault, version) {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            // The older texts call an STag of another stream invalid.
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
