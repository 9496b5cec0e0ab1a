//! Control exchange between initiator and responder of a test: its messages and their encoding.
//!
//! Fixed layouts, big-endian, at most [`RECEIVE_LEN`] bytes, so that a program in another
//! language can be the peer. `CONTROL.md` next to this package describes the exchange.

use ferrowarp::RemoteAddr;

use crate::peer_text::{bounded, shown_reason};
use crate::perf::codec::{Reader, Writer};
use crate::perf::kind::Test;

/// First four bytes of each message and of the private data: `FWPF`.
pub const MAGIC: u32 = 0x4657_5046;
/// Version of the exchange.
pub const VERSION: u16 = 1;

/// Every byte of the messages is verified against `crate::pattern`.
pub const FLAG_VERIFY: u8 = 1;
/// Both sides are active.
pub const FLAG_BIDIRECTIONAL: u8 = 2;
/// The initiator requested CRC (for the record; MPA negotiates it).
pub const FLAG_CRC: u8 = 4;
/// Atomic operations are compare-and-swap instead of fetch-and-add.
pub const FLAG_CMP_SWAP: u8 = 8;
/// RDMA Writes carry immediate data and consume receives.
pub const FLAG_IMMEDIATE: u8 = 16;
/// Flag: the data connections use the same bytes of each region.
pub const FLAG_SHARED_BUFFER: u8 = 32;

/// The Data Sink receives Sends from a shared receive queue.
pub const FLAG_SRQ: u8 = 64;
/// Both ends sleep while nothing completes.
pub const FLAG_EVENTS: u8 = 128;

/// Duration of a run, in milliseconds, that ends when the initiator's messages end.
pub const ENDLESS_MS: u64 = u64::MAX;

/// Length of each posted receive in bytes.
pub const RECEIVE_LEN: usize = 256;
/// Length of the longest message that this program sends, in bytes; it fits inline into a request.
pub const SEND_LEN_MAX: usize = 96;
const HEADER_LEN: usize = 12;
const TEXT_LEN_MAX: usize = SEND_LEN_MAX - HEADER_LEN - 4;

/// Error of parsing a control message or private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// Fewer bytes than the type of message has.
    Truncated,
    /// The first four bytes are not [`MAGIC`].
    NotControl,
    /// Another version of the exchange.
    Version(u16),
    /// A message type, test or role that this version does not define.
    Unknown(u16),
}

impl core::fmt::Display for ControlError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated => write!(f, "the peer sent a control message that is too short"),
            Self::NotControl => write!(f, "the peer does not follow iwperf's control exchange"),
            Self::Version(v) => {
                write!(f, "the peer uses version {v} of the control exchange, not {VERSION}")
            }
            Self::Unknown(v) => write!(f, "the peer sent control value {v}, which is unknown"),
        }
    }
}

impl core::error::Error for ControlError {}

/// Advertised memory region: `len` bytes from tagged offset `addr` under `rkey`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Tagged offset of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// STag.
    pub rkey: u32,
}

impl Region {
    /// Returns the place `offset` bytes behind the first.
    #[inline]
    #[must_use]
    pub const fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }
}

/// Session parameters requested by the initiator; the first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The test.
    pub test: Test,
    /// `FLAG_*`.
    pub flags: u8,
    /// Number of data connections, at most 65,536.
    pub qps: u32,
    /// Outstanding requests per data connection.
    pub tx_depth: u32,
    /// Receives that each passive side posts per data connection.
    pub rx_depth: u32,
    /// Identifies the session in the private data of its data connections.
    pub token: u32,
    /// Bytes of each region that belong to one data connection, or to all with
    /// [`FLAG_SHARED_BUFFER`].
    pub span: u64,
    /// Region in which the initiator's messages are built, and from which the responder reads them.
    pub tx: Region,
    /// Region in which the responder's messages arrive.
    pub rx: Region,
    /// Longest message in bytes that an active side copies into its request; 0: none.
    pub inline_size: u32,
}

impl Hello {
    /// True if `flag` is set.
    #[must_use]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the offset in each region of the bytes of data connection `qp`.
    #[inline]
    #[must_use]
    pub const fn start(&self, qp: u16) -> u64 {
        if self.has(FLAG_SHARED_BUFFER) { 0 } else { qp as u64 * self.span }
    }

    /// Returns the number of data connections that have bytes of their own in each region.
    #[must_use]
    pub const fn buffers(&self) -> u32 {
        if self.has(FLAG_SHARED_BUFFER) { 1 } else { self.qps }
    }
}

/// The responder's regions; the reply to [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Region in which the responder's messages are built.
    pub tx: Region,
    /// Region in which the initiator's messages arrive.
    pub rx: Region,
}

/// Parameters of a run, which has one message size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Bytes per message.
    pub size: u64,
    /// Messages per data connection and direction; 0: until `duration_ms` is over.
    pub iterations: u64,
    /// Milliseconds to run when `iterations` is 0.
    pub duration_ms: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Number of slots, which messages use cyclically.
    pub slots: u32,
    /// Messages that may be sent on each data connection before the first credit; 0: no limit.
    pub credits: u32,
    /// Requests that are posted together; 0: as many as the active side likes.
    pub post_list: u32,
    /// Requests per signaled one; 0: as the active side likes.
    pub cq_mod: u32,
}

/// Counts of one side in a run, over all data connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes compared with the pattern.
    pub verified: u64,
    /// Bytes that differ from the pattern.
    pub errors: u64,
    /// Nanoseconds on the clock of the sender of the message.
    pub duration_ns: u64,
}

/// A message. `run` of the enclosing [`ControlFrame`] numbers
/// the run it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// 1, initiator: requests a session.
    Hello(Hello),
    /// 2, responder: accepts it.
    Welcome(Welcome),
    /// 3, initiator: prepare this run.
    Run(Run),
    /// 4, responder: prepared.
    Ready,
    /// 5, initiator: the run begins.
    Go,
    /// 6, Data Sink: credits, as messages consumed on one data connection.
    Consumed {
        /// Data connection, from zero.
        qp: u32,
        /// Since the run began.
        count: u64,
    },
    /// 7, active side: end of its messages, and their counts.
    Done(Tally),
    /// 8, passive side: all messages have arrived, and their counts.
    Counted(Tally),
    /// 9, responder: its part of the run is finished; its counts as an active side.
    Report(Tally),
    /// 10, initiator: no further run. The responder replies with the same message, and the
    /// initiator disconnects.
    Bye,
    /// 11, either: the session failed; the connection is closed next.
    Failure(String),
    /// 12, Data Source of RDMA Reads: the slots of so many consumed messages have been refilled.
    Refilled {
        /// Data connection, from zero.
        qp: u32,
        /// Since the run began.
        count: u64,
    },
    /// 13, either: keepalive, sent about once a second during a run.
    Alive,
}

impl Message {
    const fn code(&self) -> u16 {
        match self {
            Self::Hello(_) => 1,
            Self::Welcome(_) => 2,
            Self::Run(_) => 3,
            Self::Ready => 4,
            Self::Go => 5,
            Self::Consumed { .. } => 6,
            Self::Done(_) => 7,
            Self::Counted(_) => 8,
            Self::Report(_) => 9,
            Self::Bye => 10,
            Self::Failure(_) => 11,
            Self::Refilled { .. } => 12,
            Self::Alive => 13,
        }
    }
}

/// A message with the number of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlFrame {
    /// Run, from zero; 0 outside runs.
    pub run: u32,
    /// The message.
    pub message: Message,
}

impl ControlFrame {
    /// Returns the encoded message, at most [`SEND_LEN_MAX`] bytes. The text of a failure is
    /// truncated to fit.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(SEND_LEN_MAX));
        out.u32(MAGIC).u16(VERSION).u16(self.message.code()).u32(self.run);
        match &self.message {
            Message::Hello(hello) => {
                // 65,536 connections are encoded as 0.
                #[expect(clippy::cast_possible_truncation, reason = "modulo 2^16")]
                let qps = hello.qps as u16;
                out.u8(hello.test.code()).u8(hello.flags).u16(qps);
                out.u32(hello.tx_depth).u32(hello.rx_depth).u32(hello.token).u64(hello.span);
                out.region(hello.tx).region(hello.rx).u32(hello.inline_size);
            }
            Message::Welcome(welcome) => {
                out.region(welcome.tx).region(welcome.rx);
            }
            Message::Run(run) => {
                out.u64(run.size).u64(run.iterations).u64(run.duration_ms).u64(run.stride);
                out.u32(run.slots).u32(run.credits).u32(run.post_list).u32(run.cq_mod);
            }
            Message::Consumed { qp, count } | Message::Refilled { qp, count } => {
                out.u32(*qp).u32(0).u64(*count);
            }
            Message::Done(tally) | Message::Counted(tally) | Message::Report(tally) => {
                out.u64(tally.messages).u64(tally.bytes).u64(tally.verified);
                out.u64(tally.errors).u64(tally.duration_ns);
            }
            Message::Failure(text) => {
                let text = bounded(text, TEXT_LEN_MAX);
                out.u32(u32::try_from(text.len()).expect("at most TEXT_LEN_MAX"));
                out.0.extend_from_slice(text.as_bytes());
            }
            Message::Ready | Message::Go | Message::Bye | Message::Alive => {}
        }
        out.0
    }

    /// Parses a message. Bytes after its fields are ignored: later versions may add some.
    ///
    /// # Errors
    /// [`ControlError`] for any malformed input.
    pub fn parse(bytes: &[u8]) -> Result<Self, ControlError> {
        let mut rest = Reader(bytes);
        rest.preamble()?;
        let code = rest.u16()?;
        let run = rest.u32()?;
        let message = match code {
            1 => {
                let test = rest.u8()?;
                Message::Hello(Hello {
                    test: Test::from_code(test).ok_or(ControlError::Unknown(test.into()))?,
                    flags: rest.u8()?,
                    qps: u32::from(rest.u16()?.wrapping_sub(1)) + 1,
                    tx_depth: rest.u32()?,
                    rx_depth: rest.u32()?,
                    token: rest.u32()?,
                    span: rest.u64()?,
                    tx: rest.region()?,
                    rx: rest.region()?,
                    inline_size: rest.optional_u32(),
                })
            }
            2 => Message::Welcome(Welcome { tx: rest.region()?, rx: rest.region()? }),
            3 => Message::Run(Run {
                size: rest.u64()?,
                iterations: rest.u64()?,
                duration_ms: rest.u64()?,
                stride: rest.u64()?,
                slots: rest.u32()?,
                credits: rest.u32()?,
                post_list: rest.optional_u32(),
                cq_mod: rest.optional_u32(),
            }),
            4 => Message::Ready,
            5 => Message::Go,
            6 => {
                let (qp, count) = rest.credit()?;
                Message::Consumed { qp, count }
            }
            7 => Message::Done(rest.tally()?),
            8 => Message::Counted(rest.tally()?),
            9 => Message::Report(rest.tally()?),
            10 => Message::Bye,
            11 => {
                let len = usize::try_from(rest.u32()?).map_err(|_| ControlError::Truncated)?;
                let text = rest.0.get(..len).ok_or(ControlError::Truncated)?;
                Message::Failure(shown_reason(text))
            }
            12 => {
                let (qp, count) = rest.credit()?;
                Message::Refilled { qp, count }
            }
            13 => Message::Alive,
            other => return Err(ControlError::Unknown(other)),
        };
        Ok(Self { run, message })
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
