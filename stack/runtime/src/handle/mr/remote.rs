//! Memory of the peer, and a region as its owner advertises it.

use ferrowarp_proto::ddp::regions::Stag;

/// Place in the peer's memory (verbs: `remote_addr` and `rkey`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address: the tagged offset.
    pub addr: u64,
    /// STag at the peer.
    pub rkey: Stag,
}

/// A region or a part of one as its owner advertises it to the peer: the protocol has no message
/// for that, so [`RemoteMr::to_bytes`] goes into private data or a Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMr {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// STag.
    pub rkey: Stag,
}

impl RemoteMr {
    /// Length of [`RemoteMr::to_bytes`].
    pub const WIRE_LEN: usize = 20;

    /// The place `offset` bytes behind the first. An offset beyond the region is refused by the
    /// peer.
    #[must_use]
    pub const fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }

    /// Returns address, length and STag, in network byte order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::WIRE_LEN] {
        let mut bytes = [0; Self::WIRE_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Reads what [`RemoteMr::to_bytes`] returned, from the beginning of `bytes`; `None` if they
    /// are fewer.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (addr, rest) = bytes.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let rkey = rest.first_chunk()?;
        let (addr, len) = (u64::from_be_bytes(*addr), u64::from_be_bytes(*len));
        Some(Self { addr, len, rkey: Stag::from_be_bytes(*rkey) })
    }
}

impl From<RemoteMr> for RemoteAddr {
    fn from(remote: RemoteMr) -> Self {
        remote.at(0)
    }
}
