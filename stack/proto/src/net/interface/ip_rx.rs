//! Received IP packets that are not whole TCP segments: fragments and ICMP.

use core::net::IpAddr;

use super::{Interface, Port, Received};
use crate::counters::Counters;
use crate::device::{ChecksumMode, Device, RxFrame, TxClass, TxFrame};
use crate::net::fragments::{FragmentOutcome, Reassembled, ReassemblyFailure};
use crate::net::icmp_error::{self, IcmpError};
use crate::net::{icmp_echo, icmp_tx};
use crate::time::Instant;
use crate::wire::ethernet::VLAN_ETHERNET_LEN;
use crate::wire::ip::{self, Fragment, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, Packet};
use crate::wire::tcp::{ParseError, Segment};

/// Longest frame of an ICMP error: routers quote up to the minimum MTU of IPv6 (RFC 4443 section
/// 2.4 (c)).
const ICMP_ERROR_FRAME_LEN_MAX: usize = VLAN_ETHERNET_LEN + 1280;

impl Interface {
    /// Processes an IP packet that is not a TCP segment; `None` if it is ignored.
    pub(super) fn on_ip<D: Device>(
        &mut self,
        now: Instant,
        frame: &D::Rx,
        l3: usize,
        mac: [u8; 6],
        port: &mut Port<'_, D>,
    ) -> Option<Received> {
        let verify = self.checksum != ChecksumMode::NotNeeded;
        let head = frame.head();
        let packet = Packet::parse(head, frame.len(), l3, verify).ok()?;
        if let Some(part) = packet.fragment {
            return self.on_fragment(now, frame, &packet, &part, mac, port);
        }
        if packet.protocol == PROTOCOL_ICMPV6
            && let Some(received) = self.on_ndp_or_mld(now, head, &packet, mac, port)
        {
            return Some(received);
        }
        // No reply to multicast or broadcast packets, nor to sources that cannot be a host.
        if !self.is_answerable(head, &packet) {
            return None;
        }
        match packet.protocol {
            PROTOCOL_ICMP | PROTOCOL_ICMPV6 => parse_icmp_error(frame, packet.l3, port.counters)
                .or_else(|| self.on_echo_request(now, frame, &packet, mac, port)),
            _ => None,
        }
    }

    /// True for a unicast packet to this host from an address that another host can have.
    fn is_answerable(&self, head: &[u8], packet: &Packet) -> bool {
        head.first_chunk() == Some(&self.link.mac)
            && self.routing.is_local(packet.dst)
            && self.routing.is_other_host(packet.src)
    }

    /// Processes an IP fragment; the last missing one completes the packet. Fragments of protocols
    /// that are not served are not kept, nor those of neighbor discovery (RFC 6980).
    fn on_fragment<D: Device>(
        &mut self,
        now: Instant,
        frame: &D::Rx,
        packet: &Packet,
        part: &Fragment,
        mac: [u8; 6],
        port: &mut Port<'_, D>,
    ) -> Option<Received> {
        let is_served = match packet.src {
            IpAddr::V4(_) => matches!(packet.protocol, PROTOCOL_TCP | PROTOCOL_ICMP),
            IpAddr::V6(_) => {
                matches!(packet.protocol, PROTOCOL_TCP | PROTOCOL_ICMPV6 | ip::DESTINATION_OPTIONS)
            }
        };
        if !is_served || !self.is_answerable(frame.head(), packet) {
            return None;
        }
        port.counters.fragments_in += 1;
        let taken = self.fragments.on_fragment(now, frame, packet, part);
        port.counters.reassembly_failures = self.fragments.failure_count();
        if let Some(failure) = self.fragments.take_failure() {
            self.send_reassembly_error(now, &failure, port);
        }
        match taken {
            FragmentOutcome::Buffered => Some(Received::Handled),
            FragmentOutcome::Rejected => None,
            FragmentOutcome::Complete(whole) => {
                port.counters.packets_reassembled += 1;
                self.on_reassembled(now, whole, mac, port)
            }
        }
    }

    /// Sends an ICMP error to the source of a packet whose reassembly failed. That the source may
    /// get a reply was checked when the fragments arrived.
    #[cold]
    fn send_reassembly_error<D: Device>(
        &mut self,
        now: Instant,
        failure: &ReassemblyFailure,
        port: &mut Port<'_, D>,
    ) {
        if !self.limits.icmp_errors_out.admits(now) {
            return;
        }
        let Some(mut frame) = port.device.allocate(TxClass::Control) else { return };
        let Some(len) = icmp_tx::write_reassembly_failure(failure, self.link, frame.buf_mut())
        else {
            return;
        };
        port.transmit(frame, len);
        port.counters.icmp_errors_out += 1;
    }

    /// Processes a reassembled packet; `None` if it is ignored.
    fn on_reassembled<D: Device>(
        &mut self,
        now: Instant,
        whole: Reassembled,
        mac: [u8; 6],
        port: &mut Port<'_, D>,
    ) -> Option<Received> {
        // The link header is that of the first fragment.
        let (_, l3) = self.link.parse_header(whole.head())?;
        let parsed = match l3 {
            VLAN_ETHERNET_LEN => Segment::parse_vlan(&whole, self.checksum),
            _ => Segment::parse(&whole, self.checksum),
        };
        match parsed {
            Ok(segment) => Some(Received::Segment(segment, whole)),
            Err(ParseError::NotTcp) => {
                let packet = Packet::parse(whole.head(), whole.len(), l3, false).ok()?;
                self.on_echo_request(now, &whole, &packet, mac, port)
            }
            Err(_) => None,
        }
    }

    /// Replies to an echo request; `None` if the packet is none, or without a reply.
    fn on_echo_request<D: Device>(
        &mut self,
        now: Instant,
        frame: &impl RxFrame,
        packet: &Packet,
        mac: [u8; 6],
        port: &mut Port<'_, D>,
    ) -> Option<Received> {
        if !self.limits.echo_replies.admits(now) {
            return None;
        }
        let mtu = usize::from(self.send_mtu);
        let mut reply = port.device.allocate(TxClass::Control)?;
        let len = icmp_echo::write_reply(frame, packet, self.link, mac, mtu, reply.buf_mut())?;
        port.transmit(reply, len);
        port.counters.echo_replies_out += 1;
        Some(Received::Handled)
    }
}

/// Parses an ICMP or ICMPv6 packet to this host, whose IP header is at `l3`. `None` if it is no
/// error message, and may be another message. A malformed error is counted and ignored.
fn parse_icmp_error(frame: &impl RxFrame, l3: usize, counters: &mut Counters) -> Option<Received> {
    if frame.len() > ICMP_ERROR_FRAME_LEN_MAX {
        return None;
    }
    let mut bytes = [0; ICMP_ERROR_FRAME_LEN_MAX];
    let whole = if frame.head().len() == frame.len() {
        frame.head()
    } else {
        let whole = &mut bytes[..frame.len()];
        frame.copy_out(0, whole);
        whole
    };
    match IcmpError::parse(whole.get(l3..).unwrap_or(&[])) {
        Ok(error) => Some(Received::TcpError(error)),
        Err(icmp_error::ParseError::NotError) => None,
        Err(_) => {
            counters.icmp_errors_ignored += 1;
            Some(Received::Handled)
        }
    }
}
