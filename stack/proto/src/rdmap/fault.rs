//! Errors of a stream, and the one table that maps each to a Terminate (RFC 5040 section 4.8,
//! RFC 5041 section 7.2, RFC 5044 section 8).

use crate::ddp::memory::MemoryFault;
use crate::ddp::untagged::UntaggedFault;
use crate::wire::ddp::HeaderError;
use crate::wire::rdmap::{ControlError, TerminateHeader};

/// What broke a stream, as found on the receiving side or while answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An FPDU's CRC does not match (MPA).
    Crc,
    /// A marker and the lengths disagree on where an FPDU begins (MPA).
    Marker,
    /// The responder issues more Reads than this end can serve (start-up of MPA revision 2).
    TooManyReads,
    /// No ready-to-receive message that both ends know (start-up of MPA revision 2).
    NoCommonRtr,
    /// The segment is no DDP segment of this stream.
    Header(HeaderError),
    /// The control octet is no RDMAP message of this stream.
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
    /// A message that is a header alone has more than one segment, or octets behind it.
    HeaderTooLong,
    /// A Read Request of more than one segment, or with octets behind its header.
    ReadRequestTooLong,
    /// The STag of a Send with Invalidate names nothing.
    InvalidateUnknown,
    /// The STag of a Send with Invalidate is not the stream's to invalidate.
    InvalidateForeign,
    /// The STag of a Send with Invalidate is shared by streams, or windows are bound to it.
    InvalidateShared,
    /// Something failed here; the peer is not to blame.
    LocalCatastrophic,
}

const RDMAP: u8 = 0;
const DDP: u8 = 1;
const MPA: u8 = 2;

impl Fault {
    /// Layer, error type and code, and which copies go along when a segment caused it.
    #[must_use]
    pub const fn terminate(self) -> TerminateHeader {
        let (layer, error_type, code) = self.triple();
        let has_ddp = match layer {
            RDMAP => error_type != 0,
            DDP => true,
            _ => false,
        };
        TerminateHeader {
            layer,
            error_type,
            code,
            has_length: has_ddp,
            has_ddp,
            has_rdma: matches!(self, Self::ReadSource(_)),
        }
    }

    const fn triple(self) -> (u8, u8, u8) {
        match self {
            Self::Crc => (MPA, 0, 2),
            Self::Marker => (MPA, 0, 3),
            Self::TooManyReads => (MPA, 0, 6),
            Self::NoCommonRtr => (MPA, 0, 7),
            // A segment shorter than its header has no code of its own in DDP; the choice here
            // is RDMAP's "catastrophic error of this stream".
            Self::Header(HeaderError::Truncated) => (RDMAP, 2, 7),
            Self::Header(HeaderError::VersionTagged) => (DDP, 1, 4),
            Self::Header(HeaderError::VersionUntagged) => (DDP, 2, 6),
            Self::Control(ControlError::Version) => (RDMAP, 2, 5),
            Self::Control(ControlError::Opcode) | Self::UnexpectedOpcode => (RDMAP, 2, 6),
            Self::QueueNumber => (DDP, 2, 1),
            Self::Tagged(fault) => (DDP, 1, tagged_code(fault)),
            Self::Untagged(fault) => match fault {
                UntaggedFault::NoBuffer => (DDP, 2, 2),
                UntaggedFault::MsnRange => (DDP, 2, 3),
                UntaggedFault::MessageOffset => (DDP, 2, 4),
                UntaggedFault::TooLong { .. } => (DDP, 2, 5),
                UntaggedFault::Local { .. } => (DDP, 0, 0),
            },
            Self::ReadRequestTooLong | Self::HeaderTooLong => (DDP, 2, 5),
            Self::ReadSource(fault) | Self::AtomicTarget(fault) => (RDMAP, 1, read_code(fault)),
            Self::AtomicOperation => (RDMAP, 2, 6),
            // RFC 7306 asks for a Terminate and has no code of its own: "unspecified".
            Self::AtomicMisaligned => (RDMAP, 2, 0xff),
            Self::InvalidateForeign => (RDMAP, 1, 9),
            Self::InvalidateUnknown | Self::InvalidateShared => (RDMAP, 2, 9),
            Self::LocalCatastrophic => (RDMAP, 0, 0),
        }
    }
}

/// DDP has no code for missing rights; an STag that does not allow the access is as good as none.
const fn tagged_code(fault: MemoryFault) -> u8 {
    match fault {
        MemoryFault::InvalidStag | MemoryFault::AccessRights => 0,
        MemoryFault::Bounds => 1,
        MemoryFault::NotAssociated => 2,
        MemoryFault::Wrap => 3,
    }
}

const fn read_code(fault: MemoryFault) -> u8 {
    match fault {
        MemoryFault::InvalidStag => 0,
        MemoryFault::Bounds => 1,
        MemoryFault::AccessRights => 2,
        MemoryFault::NotAssociated => 3,
        MemoryFault::Wrap => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let wr_id = 0;
        let fault = MemoryFault::Bounds;
        let rows = [
            (Fault::Crc, "2/0/2 ..."),
            (Fault::Marker, "2/0/3 ..."),
            (Fault::TooManyReads, "2/0/6 ..."),
            (Fault::NoCommonRtr, "2/0/7 ..."),
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
            (Fault::Untagged(UntaggedFault::Local { wr_id, fault }), "1/0/0 MD."),
            (Fault::ReadRequestTooLong, "1/2/5 MD."),
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
        for (fault, expected) in rows {
            let t = fault.terminate();
            let flag = |set: bool, letter| if set { letter } else { '.' };
            let row = format!(
                "{}/{}/{} {}{}{}",
                t.layer,
                t.error_type,
                t.code,
                flag(t.has_length, 'M'),
                flag(t.has_ddp, 'D'),
                flag(t.has_rdma, 'R')
            );
            assert_eq!(row, expected, "{fault:?}");
        }
    }
}
