//! Values negotiated by the enhanced connection establishment data (RFC 6581 section 9): read
//! depths and the RTR (ready to receive) message.

use crate::wire::mpa::Enhanced;

/// Most RDMA Reads that one connection serves or issues at a time.
pub const READ_DEPTH_MAX: u16 = 128;

/// Most RDMA Reads and atomic operations outstanding at a time, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadDepths {
    /// IRD: those that the local peer serves.
    pub ird: u16,
    /// ORD: those that the local peer issues.
    pub ord: u16,
}

/// RTR (ready to receive) message: after it a responder may send (RFC 6581 section 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// Zero-length Send.
    Send,
    /// Zero-length RDMA Write.
    Write,
    /// Zero-length RDMA Read.
    Read,
}

/// Set of RTR message types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrKinds {
    /// [`Rtr::Send`].
    pub send: bool,
    /// [`Rtr::Write`].
    pub write: bool,
    /// [`Rtr::Read`].
    pub read: bool,
}

impl RtrKinds {
    /// All types.
    pub const ALL: Self = Self { send: true, write: true, read: true };

    pub(crate) const fn from_enhanced(frame: &Enhanced) -> Self {
        Self { send: frame.rtr_send, write: frame.rtr_write, read: frame.rtr_read }
    }

    pub(crate) const fn intersection(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// Selects the RTR message to send: RDMA Write first, as it needs no resources of either peer.
    pub(crate) const fn choose(self) -> Option<Rtr> {
        match self {
            Self { write: true, .. } => Some(Rtr::Write),
            Self { read: true, .. } => Some(Rtr::Read),
            Self { send: true, .. } => Some(Rtr::Send),
            _ => None,
        }
    }

    pub(crate) const fn write_to(self, frame: &mut Enhanced) {
        frame.peer_to_peer = true;
        frame.rtr_send = self.send;
        frame.rtr_write = self.write;
        frame.rtr_read = self.read;
    }
}

impl Default for RtrKinds {
    fn default() -> Self {
        Self::ALL
    }
}
