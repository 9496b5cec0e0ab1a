//! The private data that says what a connection is for.

use crate::perf::codec::{Reader, Writer};
use crate::perf::control::{ControlError, MAGIC, VERSION};

/// Bytes of the private data.
pub const PRIVATE_DATA_LEN: usize = 24;

/// What a connection is for; travels in its private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnRole {
    /// Role 0: carries the control exchange of a session. The numbers are those of its `Hello`;
    /// the responder needs them before that to provide queues.
    Control {
        /// Names the session.
        token: u32,
        /// Data connections.
        qps: u32,
        /// Requests outstanding per data connection.
        tx_depth: u32,
        /// Receives per data connection.
        rx_depth: u32,
    },
    /// Role 1: a data connection.
    Data {
        /// The session's.
        token: u32,
        /// From zero.
        index: u32,
    },
}

impl ConnRole {
    /// The private data.
    #[must_use]
    pub fn emit(self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(PRIVATE_DATA_LEN));
        out.u32(MAGIC).u16(VERSION);
        match self {
            Self::Control { token, qps, tx_depth, rx_depth } => {
                out.u16(0).u32(token).u32(qps).u32(tx_depth).u32(rx_depth);
            }
            Self::Data { token, index } => {
                out.u16(1).u32(token).u32(index).u64(0);
            }
        }
        out.0
    }

    /// Reads private data.
    ///
    /// # Errors
    /// [`ControlError`], for any bytes whatever.
    pub fn parse(bytes: &[u8]) -> Result<Self, ControlError> {
        let mut rest = Reader(bytes);
        rest.preamble()?;
        let role = rest.u16()?;
        let (token, count) = (rest.u32()?, rest.u32()?);
        let (tx_depth, rx_depth) = (rest.u32()?, rest.u32()?);
        match role {
            0 => Ok(Self::Control { token, qps: count, tx_depth, rx_depth }),
            1 => Ok(Self::Data { token, index: count }),
            other => Err(ControlError::Unknown(other)),
        }
    }
}
