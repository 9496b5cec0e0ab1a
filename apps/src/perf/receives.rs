//! Receives of the data connections: in a queue of each queue pair, or in a shared one.

use anyhow::Context as _;
use ferrowarp::Srq;

use crate::endpoint::Endpoint;
use crate::perf::control::{FLAG_BIDIRECTIONAL, FLAG_SRQ, Hello};
use crate::perf::kind::Transfer;

/// Receives of one end's data connections.
pub enum Receives {
    /// Each queue pair has its own, without memory: messages only consume them.
    Empty,
    /// Each queue pair has its own, for the messages of Sends.
    Own,
    /// All queue pairs take them from this queue, for the messages of Sends.
    Shared(Srq),
}

impl Receives {
    /// Returns the receives that a session needs at one end.
    ///
    /// # Errors
    /// If a limit of the context is reached.
    pub fn new(end: &Endpoint, hello: &Hello, initiator: bool) -> anyhow::Result<Self> {
        if hello.test.transfer() != Transfer::Send {
            return Ok(Self::Empty);
        }
        let both = hello.test.is_latency() || hello.has(FLAG_BIDIRECTIONAL);
        if !hello.has(FLAG_SRQ) || (initiator && !both) {
            return Ok(Self::Own);
        }
        let count = usize::try_from(u64::from(hello.rx_depth) * u64::from(hello.qps))?;
        let srq = end.pd.create_srq(count).context("cannot create the shared receive queue")?;
        Ok(Self::Shared(srq))
    }

    /// Returns the shared queue.
    #[must_use]
    pub const fn shared(&self) -> Option<&Srq> {
        match self {
            Self::Shared(srq) => Some(srq),
            Self::Empty | Self::Own => None,
        }
    }
}
