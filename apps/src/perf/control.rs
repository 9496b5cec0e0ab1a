//! The control exchange: encoding of the messages between initiator and responder of a test.
//!
//! Fixed layouts, big-endian, at most [`RECEIVE_LEN`] bytes, so that a program in another
//! language can be the peer. `CONTROL.md` beside this package describes the exchange; this file is
//! only its codec.

use crate::peer_text::{bounded, shown_reason};
use crate::perf::codec::{Reader, Writer};
use crate::perf::kind::Test;
use crate::perf::message::{ControlError, Hello, MAGIC, Message, Run, VERSION, Welcome};

/// Length of each posted receive in bytes.
pub const RECEIVE_LEN: usize = 256;
/// Length of the longest message that this program sends, in bytes; it fits inline into a request.
pub const SEND_LEN_MAX: usize = 96;
const HEADER_LEN: usize = 12;
const TEXT_LEN_MAX: usize = SEND_LEN_MAX - HEADER_LEN - 4;

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
