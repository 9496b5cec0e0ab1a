//! Private data of a connection request: the role of the connection.

use crate::perf::codec::{Reader, Writer};
use crate::perf::message::{ControlError, MAGIC, VERSION};

/// Length of the private data in bytes.
pub const PRIVATE_DATA_LEN: usize = 24;

/// Role of a connection, carried in its private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnRole {
    /// Role 0: carries the control exchange of a session. The numbers are those of its `Hello`;
    /// the responder needs them earlier to create its queues.
    Control {
        /// Identifies the session.
        token: u32,
        /// Number of data connections.
        qps: u32,
        /// Outstanding requests per data connection.
        tx_depth: u32,
        /// Receives per data connection.
        rx_depth: u32,
    },
    /// Role 1: a data connection.
    Data {
        /// Token of the session.
        token: u32,
        /// Index of the connection, from zero.
        index: u32,
    },
}

impl ConnRole {
    /// Returns the encoded private data.
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

    /// Parses private data.
    ///
    /// # Errors
    /// [`ControlError`] for any malformed input.
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
