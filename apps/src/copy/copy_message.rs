//! Messages between source and sink, carried by Sends on the connection that also transfers the
//! file. Big-endian; the first byte is the message type.

use crate::copy::Digest;
use crate::peer_text::{bounded, shown_reason};

/// Length of the longest message in bytes; it fits inline into a request.
pub const LEN_MAX: usize = 96;
const MAGIC: u32 = 0x4657_4350;
const VERSION: u16 = 1;

/// RDMA operation that transfers the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RdmaOp {
    /// The source writes into the sink's memory.
    Write,
    /// The sink reads from the source's memory.
    Read,
}

/// Slots of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotRegion {
    /// Tagged offset of the first slot.
    pub addr: u64,
    /// STag.
    pub rkey: u32,
    /// Number of slots.
    pub count: u32,
    /// Bytes per slot.
    pub len: u32,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// 1, source: announces the file.
    Open {
        /// RDMA operation.
        by: RdmaOp,
        /// Length of the file in bytes.
        len: u64,
        /// The source's slots.
        slots: SlotRegion,
    },
    /// 2, sink: ready to receive.
    Ready {
        /// The sink's slots.
        slots: SlotRegion,
    },
    /// 3, source: the next slot (with RDMA Write: of the sink) is filled.
    Filled {
        /// Bytes in the slot.
        len: u32,
    },
    /// 4, sink: slot credits.
    Consumed {
        /// Slots consumed since the start.
        count: u64,
    },
    /// 5, source: end of file.
    End {
        /// Digest of the file as read.
        digest: Digest,
    },
    /// 6, sink: the file is complete.
    Done {
        /// Digest of the file as received.
        digest: Digest,
    },
    /// 7, either: the copy failed; the connection is closed next.
    Failure {
        /// Reason, in UTF-8; cut to what fits.
        reason: String,
    },
}

impl Message {
    /// Returns the encoded message.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        match self {
            Self::Open { by, len, slots } => {
                out.push(1);
                out.push(u8::from(*by == RdmaOp::Read));
                out.extend_from_slice(&VERSION.to_be_bytes());
                out.extend_from_slice(&MAGIC.to_be_bytes());
                out.extend_from_slice(&len.to_be_bytes());
                emit_slots(slots, &mut out);
            }
            Self::Ready { slots } => {
                out.push(2);
                emit_slots(slots, &mut out);
            }
            Self::Filled { len } => {
                out.push(3);
                out.extend_from_slice(&len.to_be_bytes());
            }
            Self::Consumed { count } => {
                out.push(4);
                out.extend_from_slice(&count.to_be_bytes());
            }
            Self::End { digest } => {
                out.push(5);
                out.extend_from_slice(digest);
            }
            Self::Done { digest } => {
                out.push(6);
                out.extend_from_slice(digest);
            }
            Self::Failure { reason } => {
                out.push(7);
                out.extend_from_slice(bounded(reason, LEN_MAX - 1).as_bytes());
            }
        }
        out
    }

    /// Parses a message; `None` if it is malformed.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (&code, rest) = bytes.split_first()?;
        match code {
            1 => {
                let (&[by, v0, v1], rest) = rest.split_first_chunk()?;
                let (magic, rest) = rest.split_first_chunk()?;
                let (len, rest) = rest.split_first_chunk()?;
                let by = match by {
                    0 => RdmaOp::Write,
                    1 => RdmaOp::Read,
                    _ => return None,
                };
                let is_valid =
                    u16::from_be_bytes([v0, v1]) == VERSION && u32::from_be_bytes(*magic) == MAGIC;
                let open =
                    Self::Open { by, len: u64::from_be_bytes(*len), slots: parse_slots(rest)? };
                is_valid.then_some(open)
            }
            2 => Some(Self::Ready { slots: parse_slots(rest)? }),
            3 => Some(Self::Filled { len: u32::from_be_bytes(rest.try_into().ok()?) }),
            4 => Some(Self::Consumed { count: u64::from_be_bytes(rest.try_into().ok()?) }),
            5 => Some(Self::End { digest: rest.try_into().ok()? }),
            6 => Some(Self::Done { digest: rest.try_into().ok()? }),
            7 => Some(Self::Failure { reason: shown_reason(rest) }),
            _ => None,
        }
    }
}

fn emit_slots(slots: &SlotRegion, out: &mut Vec<u8>) {
    out.extend_from_slice(&slots.addr.to_be_bytes());
    out.extend_from_slice(&slots.rkey.to_be_bytes());
    out.extend_from_slice(&slots.count.to_be_bytes());
    out.extend_from_slice(&slots.len.to_be_bytes());
}

fn parse_slots(bytes: &[u8]) -> Option<SlotRegion> {
    let (addr, rest) = bytes.split_first_chunk()?;
    let (rkey, rest) = rest.split_first_chunk()?;
    let (count, rest) = rest.split_first_chunk()?;
    Some(SlotRegion {
        addr: u64::from_be_bytes(*addr),
        rkey: u32::from_be_bytes(*rkey),
        count: u32::from_be_bytes(*count),
        len: u32::from_be_bytes(rest.try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_cut_to_the_message_and_escaped() {
        let sent = |reason: &str| Message::Failure { reason: reason.to_owned() }.emit();
        let parsed = |reason: &str| Message::parse(&sent(reason));
        let failure = |reason: &str| Some(Message::Failure { reason: reason.to_owned() });
        assert_eq!(parsed("File exists"), failure("File exists"));
        assert_eq!(parsed("a\x1b[2J\n"), failure("a\\u{1b}[2J\\n"));
        assert_eq!(sent(&"ü".repeat(300)).len(), LEN_MAX - 1);
        assert_eq!(Message::parse(&[7, 0xff]), failure("\u{fffd}"));
    }

    #[test]
    fn messages_round_trip_and_garbage_is_rejected() {
        let slots = SlotRegion { addr: 1 << 40, rkey: 0xA0B0_C0D0, count: 8, len: 1 << 20 };
        for message in [
            Message::Open { by: RdmaOp::Write, len: 1 << 33, slots },
            Message::Open { by: RdmaOp::Read, len: 0, slots },
            Message::Ready { slots },
            Message::Filled { len: 5 },
            Message::Consumed { count: 1 << 40 },
            Message::End { digest: [7; 32] },
            Message::Done { digest: [9; 32] },
        ] {
            let bytes = message.emit();
            assert!(bytes.len() <= LEN_MAX);
            assert_eq!(Message::parse(&bytes), Some(message));
            for len in 0..bytes.len() {
                assert_eq!(Message::parse(&bytes[..len]), None);
            }
            let longer: Vec<u8> = bytes.into_iter().chain([0]).collect();
            assert_eq!(Message::parse(&longer), None);
        }
        let mut other = Message::Open { by: RdmaOp::Write, len: 1, slots }.emit();
        other[4] ^= 1;
        assert_eq!(Message::parse(&other), None);
        assert_eq!(Message::parse(&[77; 40]), None);
    }
}
