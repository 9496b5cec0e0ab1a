//! Requests to the kernel's routing socket (rtnetlink): addresses and flags of interfaces.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

/// Length of the header of a message (`nlmsghdr`).
const HEADER_LEN: usize = 16;
/// Number of our requests: there is one at a time.
const SEQUENCE: u32 = 1;
/// Address without duplicate address detection: nobody else is on the interface.
const IFA_F_NODAD: u8 = 0x02;

/// A routing socket, in the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct RoutingSocket(OwnedFd);

impl RoutingSocket {
    pub(crate) fn open() -> io::Result<Self> {
        let protocol = SockProtocol::NetlinkRoute;
        let flags = SockFlag::SOCK_CLOEXEC;
        Ok(Self(socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?))
    }

    /// Adds an address to an interface, with a prefix of all its bits: the kernel gets no route to
    /// other addresses of the link.
    pub(crate) fn add_host_address(&self, index: u32, ip: IpAddr) -> io::Result<()> {
        let (family, bytes) = match ip {
            IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
            IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
        };
        let prefix_len = if ip.is_ipv4() { 32 } else { 128 };
        // `ifaddrmsg`: family, prefix length, flags, scope, index.
        let mut body = vec![family.to_le_bytes()[0], prefix_len, IFA_F_NODAD, 0];
        body.extend_from_slice(&index.to_ne_bytes());
        for kind in [libc::IFA_LOCAL, libc::IFA_ADDRESS] {
            // `rtattr`: length with itself, type.
            let len = u16::try_from(4 + bytes.len()).map_err(io::Error::other)?;
            body.extend_from_slice(&len.to_ne_bytes());
            body.extend_from_slice(&kind.to_ne_bytes());
            body.extend_from_slice(&bytes);
        }
        self.request(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &body)
    }

    /// Sets flags of an interface (`IFF_*`).
    pub(crate) fn set_flags(&self, index: u32, flags: libc::c_int) -> io::Result<()> {
        // `ifinfomsg`: family and padding, type, index, flags, mask of the flags to change.
        let mut body = vec![0; 4];
        body.extend_from_slice(&index.to_ne_bytes());
        body.extend_from_slice(&flags.to_ne_bytes());
        body.extend_from_slice(&flags.to_ne_bytes());
        self.request(libc::RTM_NEWLINK, 0, &body)
    }

    /// Sends a request and waits for its acknowledgment.
    fn request(&self, kind: u16, flags: libc::c_int, body: &[u8]) -> io::Result<()> {
        let flags = flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        let len = u32::try_from(HEADER_LEN + body.len()).map_err(io::Error::other)?;
        let flags = u16::try_from(flags).map_err(io::Error::other)?;
        let mut message = Vec::new();
        message.extend_from_slice(&len.to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&flags.to_ne_bytes());
        message.extend_from_slice(&SEQUENCE.to_ne_bytes());
        // The sender's number: the kernel fills it in.
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(body);
        let socket = self.0.as_raw_fd();
        sendto(socket, &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        let mut answer = [0; 256];
        let received = recv(socket, &mut answer, MsgFlags::empty())?;
        acknowledged(&answer[..received])
    }
}

/// Returns the error that an acknowledgment (`nlmsgerr`) has; zero is none.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let error = answer.get(HEADER_LEN..HEADER_LEN + 4).and_then(|bytes| bytes.try_into().ok());
    match error.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(error.wrapping_neg())),
        None => Err(io::Error::other("an answer without a result")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgment_has_the_error() {
        let answer = |error: i32| [&[0; HEADER_LEN][..], &error.to_ne_bytes()].concat();
        assert!(acknowledged(&answer(0)).is_ok());
        let error = acknowledged(&answer(-libc::EEXIST)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        assert!(acknowledged(&[0; HEADER_LEN]).is_err());
    }
}
