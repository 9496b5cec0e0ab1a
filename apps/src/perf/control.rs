//! The control exchange: what the two ends of a test say to each other, and its bytes.
//!
//! Fixed layouts, big-endian, at most [`RECEIVE_LEN`] bytes, so that a program in another
//! language can be the other end. `CONTROL.md` beside this package describes the exchange; this
//! file is its codec and nothing else.

use crate::perf::codec::{Reader, Writer};
use crate::perf::options::Test;

/// First four bytes of each message and of the private data: `FWPF`.
pub const MAGIC: u32 = 0x4657_5046;
/// Version of the exchange.
pub const VERSION: u16 = 1;
/// Bytes each end provides for a message.
pub const RECEIVE_LEN: usize = 256;
/// Bytes of the longest message that this program sends: they fit into a request.
pub const SEND_LEN_MAX: usize = 96;
const HEADER_LEN: usize = 12;
const TEXT_LEN_MAX: usize = SEND_LEN_MAX - HEADER_LEN - 4;

/// The messages are verified: every byte, against `crate::pattern`.
pub const FLAG_VERIFY: u8 = 1;
/// Both ends are active.
pub const FLAG_BIDIRECTIONAL: u8 = 2;
/// The initiator asked for CRCs (for the record; MPA negotiates them).
pub const FLAG_CRC: u8 = 4;
/// Atomic operations compare and swap, rather than add.
pub const FLAG_CMP_SWAP: u8 = 8;
/// RDMA Writes have immediate data, and use up receives.
pub const FLAG_IMMEDIATE: u8 = 16;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// Fewer bytes than the type of message has.
    Truncated,
    /// The first four bytes are not [`MAGIC`].
    NotControl,
    /// Another version of the exchange.
    Version(u16),
    /// A type, test or role that this version does not have.
    Unknown(u16),
}

impl core::fmt::Display for ControlError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated => write!(f, "the other end sent a control message that is too short"),
            Self::NotControl => write!(f, "the other end does not speak iwperf's control exchange"),
            Self::Version(v) => {
                write!(f, "the other end speaks version {v} of the control exchange, not {VERSION}")
            }
            Self::Unknown(v) => write!(f, "the other end sent control value {v}, which is unknown"),
        }
    }
}

impl core::error::Error for ControlError {}

/// A region of the other end: `len` bytes from tagged offset `addr` under `rkey`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Tagged offset of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// STag.
    pub rkey: u32,
}

/// What the initiator wants; the first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The test.
    pub test: Test,
    /// `FLAG_*`.
    pub flags: u8,
    /// Data connections.
    pub qps: u16,
    /// Requests outstanding per data connection.
    pub tx_depth: u32,
    /// Receives that each passive end posts per data connection.
    pub rx_depth: u32,
    /// Names the session in the private data of its data connections.
    pub token: u32,
    /// Bytes of each region that belong to one data connection.
    pub span: u64,
    /// Where the initiator's own messages are built; the other end reads them from here.
    pub tx: Region,
    /// Where the other end's messages arrive.
    pub rx: Region,
}

impl Hello {
    /// True if `flag` is set.
    #[must_use]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The responder's regions; answers [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Where the responder's own messages are built.
    pub tx: Region,
    /// Where the initiator's messages arrive.
    pub rx: Region,
}

/// One run: one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Bytes per message.
    pub size: u64,
    /// Messages per data connection and direction; 0: until `duration_ms` is over.
    pub iterations: u64,
    /// Milliseconds to run when `iterations` is 0.
    pub duration_ms: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Slots that messages use in turn.
    pub slots: u32,
    /// Messages that may be sent on each data connection before the first credit; 0: no limit.
    pub credits: u32,
}

/// What one end counted in a run, over all data connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes compared with the pattern.
    pub verified: u64,
    /// Bytes that were not as the pattern says.
    pub errors: u64,
    /// Nanoseconds on the clock of the end that says so.
    pub duration_ns: u64,
}

/// A message. `run` of the enclosing [`ControlFrame`] numbers the run it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// 1, initiator: what it wants.
    Hello(Hello),
    /// 2, responder: agreed.
    Welcome(Welcome),
    /// 3, initiator: prepare this run.
    Run(Run),
    /// 4, responder: prepared.
    Ready,
    /// 5, initiator: the run begins.
    Go,
    /// 6, sink of messages: how many it has consumed on one data connection.
    Consumed {
        /// Data connection, from zero.
        qp: u32,
        /// Since the run began.
        count: u64,
    },
    /// 7, active end: this is all it sent.
    Done(Tally),
    /// 8, passive end: all of it arrived, this was counted.
    Counted(Tally),
    /// 9, responder: its part of the run is over; its own figures as an active end.
    Report(Tally),
    /// 10, initiator: no further run. The responder answers with the same, and the initiator
    /// disconnects.
    Bye,
    /// 11, either: the session failed; the connection is closed next.
    Failure(String),
    /// 12, source of RDMA Reads: the slots of this many consumed messages have been rewritten.
    Refilled {
        /// Data connection, from zero.
        qp: u32,
        /// Since the run began.
        count: u64,
    },
    /// 13, either: sent about once a second while a run goes on.
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
    /// The bytes, at most [`SEND_LEN_MAX`]. The text of a failure is cut to fit.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(SEND_LEN_MAX));
        out.u32(MAGIC).u16(VERSION).u16(self.message.code()).u32(self.run);
        match &self.message {
            Message::Hello(hello) => {
                out.u8(hello.test.code()).u8(hello.flags).u16(hello.qps);
                out.u32(hello.tx_depth).u32(hello.rx_depth).u32(hello.token).u64(hello.span);
                out.region(hello.tx).region(hello.rx);
            }
            Message::Welcome(welcome) => {
                out.region(welcome.tx).region(welcome.rx);
            }
            Message::Run(run) => {
                out.u64(run.size).u64(run.iterations).u64(run.duration_ms).u64(run.stride);
                out.u32(run.slots).u32(run.credits);
            }
            Message::Consumed { qp, count } | Message::Refilled { qp, count } => {
                out.u32(*qp).u32(0).u64(*count);
            }
            Message::Done(tally) | Message::Counted(tally) | Message::Report(tally) => {
                out.u64(tally.messages).u64(tally.bytes).u64(tally.verified);
                out.u64(tally.errors).u64(tally.duration_ns);
            }
            Message::Failure(text) => {
                let mut end = text.len().min(TEXT_LEN_MAX);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                out.u32(u32::try_from(end).expect("at most TEXT_LEN_MAX"));
                out.0.extend_from_slice(&text.as_bytes()[..end]);
            }
            Message::Ready | Message::Go | Message::Bye | Message::Alive => {}
        }
        out.0
    }

    /// Reads a message. Bytes behind its fields are ignored: later versions may add some.
    ///
    /// # Errors
    /// [`ControlError`], for any bytes whatever.
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
                    qps: rest.u16()?,
                    tx_depth: rest.u32()?,
                    rx_depth: rest.u32()?,
                    token: rest.u32()?,
                    span: rest.u64()?,
                    tx: rest.region()?,
                    rx: rest.region()?,
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
                // It is shown on a terminal: nothing but printable characters gets there.
                let printable = String::from_utf8_lossy(text)
                    .chars()
                    .map(|c| if c.is_control() { ' ' } else { c })
                    .collect();
                Message::Failure(printable)
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
