//! Reasons why a received frame is dropped.

/// Reason why a frame is not a valid TCP segment. The frame is dropped and the reason counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The first segment of the frame does not hold all headers, or the frame is shorter than its
    /// IP length.
    #[error("truncated")]
    Truncated,
    /// The EtherType is neither IPv4 nor IPv6, or the number of VLAN tags is not the expected one.
    #[error("not IP")]
    NotIp,
    /// The IP version does not match the EtherType, or is neither 4 nor 6.
    #[error("wrong IP version")]
    BadVersion,
    /// A header length is below the minimum, or exceeds the packet.
    #[error("bad header length")]
    BadHeaderLength,
    /// A fragment of an IP packet, which has to be reassembled first.
    #[error("IP fragment")]
    Fragment,
    /// The protocol is not TCP.
    #[error("not TCP")]
    NotTcp,
    /// An IPv6 extension header that must not be skipped, or too many of them.
    #[error("bad IPv6 extension header")]
    BadExtension,
    /// The source address is multicast, broadcast, reserved or unspecified; or a port is 0.
    #[error("bad address")]
    BadAddress,
    /// The IPv4 header checksum is wrong.
    #[error("bad IP checksum")]
    BadIpChecksum,
    /// The TCP checksum is wrong, or the network port reports a wrong IP or TCP checksum.
    #[error("bad TCP checksum")]
    BadTcpChecksum,
    /// A TCP option has an invalid length.
    #[error("bad TCP option")]
    BadOption,
}
