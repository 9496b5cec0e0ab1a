//! ARP over `smoltcp::wire` (RFC 826).

use core::net::Ipv4Addr;

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
};

/// Octets of an ARP frame.
pub const FRAME_LEN: usize = 14 + 28;

/// A received ARP packet, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// It asks for `target`.
    pub is_request: bool,
    /// Who sent it.
    pub sender: (Ipv4Addr, [u8; 6]),
    /// Whom it is about.
    pub target: Ipv4Addr,
}

/// Parses a frame of `EtherType` ARP; `None` if it is malformed or about another network.
#[must_use]
pub fn parse(frame: &[u8]) -> Option<Arp> {
    let packet = ArpPacket::new_checked(frame.get(14..)?).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr,
        ..
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    Some(Arp {
        is_request: operation == ArpOperation::Request,
        sender: (source_protocol_addr, source_hardware_addr.0),
        target: target_protocol_addr,
    })
}

/// Writes the question for `target` to `out`; returns its length.
///
/// # Panics
/// If `out` is shorter than [`FRAME_LEN`].
pub fn write_request(source: (Ipv4Addr, [u8; 6]), target: Ipv4Addr, out: &mut [u8]) -> usize {
    write(ArpOperation::Request, source, (target, [0; 6]), [0xff; 6], out)
}

/// Writes the answer to `asker` to `out`; returns its length.
///
/// # Panics
/// If `out` is shorter than [`FRAME_LEN`].
pub fn write_reply(
    source: (Ipv4Addr, [u8; 6]),
    asker: (Ipv4Addr, [u8; 6]),
    out: &mut [u8],
) -> usize {
    write(ArpOperation::Reply, source, asker, asker.1, out)
}

fn write(
    operation: ArpOperation,
    source: (Ipv4Addr, [u8; 6]),
    target: (Ipv4Addr, [u8; 6]),
    destination: [u8; 6],
    out: &mut [u8],
) -> usize {
    let mut frame = EthernetFrame::new_unchecked(&mut out[..FRAME_LEN]);
    frame.set_src_addr(EthernetAddress(source.1));
    frame.set_dst_addr(EthernetAddress(destination));
    frame.set_ethertype(EthernetProtocol::Arp);
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(source.1),
        source_protocol_addr: source.0,
        target_hardware_addr: EthernetAddress(target.1),
        target_protocol_addr: target.0,
    };
    repr.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    FRAME_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: (Ipv4Addr, [u8; 6]) = (Ipv4Addr::new(198, 18, 0, 1), [2, 0, 0, 0, 0, 1]);
    const THEM: (Ipv4Addr, [u8; 6]) = (Ipv4Addr::new(198, 18, 0, 2), [2, 0, 0, 0, 0, 2]);

    #[test]
    fn question_and_answer_round_trip() {
        let mut out = [0xee; 64];
        assert_eq!(write_request(US, THEM.0, &mut out), FRAME_LEN);
        assert_eq!(&out[..14], &[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 6]);
        let question = parse(&out).unwrap();
        assert_eq!(question, Arp { is_request: true, sender: US, target: THEM.0 });
        write_reply(THEM, US, &mut out);
        assert_eq!(parse(&out), Some(Arp { is_request: false, sender: THEM, target: US.0 }));
        assert_eq!(parse(&out[..41]), None);
    }
}
