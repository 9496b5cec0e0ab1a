//! Private data of a connection request: the role of the connection.

use crate::perf::codec::{Reader, Writer};
use crate::perf::control::{ControlError, MAGIC, VERSION};

/// Length of the private data in bytes, of a session by itself.
pub const PRIVATE_DATA_LEN: usize = 24;

/// Sessions of one client, one for each of its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Token of the first session.
    pub token: u32,
    /// Number of sessions.
    pub sessions: u32,
}

impl Group {
    /// A session by itself.
    #[must_use]
    pub const fn single(token: u32) -> Self {
        Self { token, sessions: 1 }
    }
}

/// Role of a connection, carried in its private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnRole {
    /// Role 0: carries the control exchange of a session. `Hello` repeats the numbers; the
    /// responder needs them earlier, to create its queues.
    Control {
        /// Identifies the session.
        token: u32,
        /// Number of data connections.
        qps: u32,
        /// Outstanding requests per data connection.
        tx_depth: u32,
        /// Receives per data connection.
        rx_depth: u32,
        /// Sessions of the same client, which are served at the same time.
        group: Group,
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
            Self::Control { token, qps, tx_depth, rx_depth, group } => {
                out.u16(0).u32(token).u32(qps).u32(tx_depth).u32(rx_depth);
                // A session by itself has none, as before there were groups.
                if group.sessions > 1 {
                    out.u32(group.token).u32(group.sessions);
                }
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
            0 => {
                let group = match (rest.u32(), rest.u32()) {
                    (Ok(first), Ok(sessions)) if sessions > 1 => Group { token: first, sessions },
                    _ => Group::single(token),
                };
                Ok(Self::Control { token, qps: count, tx_depth, rx_depth, group })
            }
            1 => Ok(Self::Data { token, index: count }),
            other => Err(ControlError::Unknown(other)),
        }
    }
}
