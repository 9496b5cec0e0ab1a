//! Demultiplexing of received frames: TCP segments directly, all other protocols off the fast path.

use core::net::IpAddr;

use crate::ddp::memory::Memory;
use crate::device::{ChecksumMode, Device, RxFrame, TxClass, TxFrame};
use crate::engine::Engine;
use crate::engine::rx_ooo::PortFrame;
use crate::net::fragments::{FragmentOutcome, Reassembled, ReassemblyFailure};
use crate::net::neighbor::{Advert, CacheUpdate};
use crate::net::{arp, icmp_echo, icmp_tx, mld, ndp, routing};
use crate::time::Instant;
use crate::verbs::wc::Completions;
use crate::wire::ethernet::{
    self, BROADCAST, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, VLAN_ETHERNET_LEN,
};
use crate::wire::ip::{self, Fragment, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, Packet};
use crate::wire::tcp::{IPV6_LEN, ParseError, Segment};

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Receives a burst of frames from the port, for the next [`Engine::drive`] to process.
    ///
    /// A caller that collects work posted by other threads calls this first. Work that a thread
    /// posts before it lets the peer send is then in the engine when the peer's frames are
    /// processed. Frames that arrive after this call wait for the next one, even if this burst is
    /// empty.
    #[inline]
    pub fn rx_burst(&mut self) {
        self.rx_burst_done = true;
        if self.burst.is_empty() {
            let count = self.device.receive(&mut self.burst, super::BURST_LEN);
            self.verbs.counters.frames_in += count as u64;
        }
    }

    /// Processes one burst of frames to completion.
    pub(super) fn process_rx(&mut self, now: Instant) -> bool {
        if !self.rx_burst_done {
            self.rx_burst();
        }
        self.rx_burst_done = false;
        let mut burst = std::mem::take(&mut self.burst);
        let worked = !burst.is_empty();
        for frame in burst.drain(..) {
            self.on_frame(now, frame);
        }
        self.burst = burst;
        worked
    }

    /// Processes one frame. An untagged TCP segment to this port takes one comparison of its
    /// destination address and one parse; other frames are parsed again.
    fn on_frame(&mut self, now: Instant, frame: D::Rx) {
        let mode = self.capabilities.checksum;
        let is_ours = frame.head().first_chunk() == Some(&self.link.mac);
        if is_ours
            && self.link.vlan.is_none()
            && let Ok(segment) = Segment::parse(&frame, mode)
        {
            self.on_segment(now, &segment, PortFrame(frame));
        } else {
            self.on_vlan_frame(now, frame, is_ours);
        }
    }

    /// Processes a frame that is no untagged TCP segment: TCP with a VLAN tag, or another protocol.
    #[inline(never)]
    fn on_vlan_frame(&mut self, now: Instant, frame: D::Rx, is_ours: bool) {
        if is_ours
            && self.link.parse_header(frame.head()).is_some_and(|(_, l3)| l3 == VLAN_ETHERNET_LEN)
            && let Ok(segment) = Segment::parse_vlan(&frame, self.capabilities.checksum)
        {
            self.on_segment(now, &segment, PortFrame(frame));
        } else {
            self.on_non_tcp_frame(now, &frame);
        }
    }

    /// Processes a frame that is no TCP segment to this port.
    #[cold]
    fn on_non_tcp_frame(&mut self, now: Instant, frame: &D::Rx) {
        let head = frame.head();
        let destination = head.first_chunk();
        let is_ours = destination == Some(&self.link.mac);
        let is_group = destination.is_some_and(|mac| mac[0] & 1 != 0);
        let sender = ethernet::source_mac(head).filter(|&mac| mac != self.link.mac);
        let taken = match (self.link.parse_header(head), sender) {
            (Some((ETHERTYPE_ARP, l3)), Some(_)) if is_ours || destination == Some(&BROADCAST) => {
                self.on_arp(now, &head[l3..], is_ours)
            }
            (Some((ETHERTYPE_IPV4, l3)), Some(mac)) if is_ours => self.on_ip(now, frame, l3, mac),
            (Some((ETHERTYPE_IPV6, l3)), Some(mac)) if is_ours || is_group => {
                self.on_ip(now, frame, l3, mac)
            }
            _ => None,
        };
        if taken.is_none() {
            self.verbs.counters.frames_dropped += 1;
        }
    }

    /// Processes an ARP packet, unicast or broadcast; `None` if it is ignored.
    fn on_arp(&mut self, now: Instant, packet: &[u8], is_ours: bool) -> Option<()> {
        let packet = arp::parse(packet)?;
        let (sender, mac) = packet.sender;
        if !ethernet::is_unicast(mac) {
            return None;
        }
        let asks_us = packet.is_request && self.routing.is_local(packet.target.into());
        // An unspecified sender address is a probe for an address conflict (RFC 5227).
        if !sender.is_unspecified() {
            let solicited =
                is_ours && !packet.is_request && self.routing.is_local(packet.target.into());
            let mac = Some(mac);
            self.on_neighbor_advert(
                now,
                &Advert { ip: sender.into(), mac, solicited, overrides: true },
            )?;
        }
        if asks_us && self.neighbor_reply_limit.admits(now) {
            let link = self.link;
            self.send_control_frame(|out| {
                arp::write_reply(link, packet.target, packet.sender, out)
            });
        }
        Some(())
    }

    /// Processes an IP packet that is not a TCP segment; `None` if it is ignored.
    fn on_ip(&mut self, now: Instant, frame: &D::Rx, l3: usize, mac: [u8; 6]) -> Option<()> {
        let verify = self.capabilities.checksum != ChecksumMode::NotNeeded;
        let head = frame.head();
        let packet = Packet::parse(head, frame.len(), l3, verify).ok()?;
        if let Some(part) = packet.fragment {
            return self.on_fragment(now, frame, &packet, &part, mac);
        }
        if packet.protocol == PROTOCOL_ICMPV6
            && self.on_ndp_or_mld(now, head, &packet, mac).is_some()
        {
            return Some(());
        }
        // No reply to multicast or broadcast packets, nor to sources that cannot be a host.
        if !self.is_answerable(head, &packet) {
            return None;
        }
        match packet.protocol {
            PROTOCOL_ICMP | PROTOCOL_ICMPV6 if self.on_icmp_error(now, frame, packet.l3) => {
                Some(())
            }
            PROTOCOL_ICMP | PROTOCOL_ICMPV6 => self.on_echo_request(now, frame, &packet, mac),
            _ => None,
        }
    }

    /// True for a unicast packet to this host from an address that can be a host.
    fn is_answerable(&self, head: &[u8], packet: &Packet) -> bool {
        head.first_chunk() == Some(&self.link.mac)
            && self.routing.is_local(packet.dst)
            && routing::is_unicast_host(packet.src)
    }

    /// Processes an IP fragment; the last missing one completes the packet. Fragments of protocols
    /// that are not served are not kept, nor those of neighbor discovery (RFC 6980).
    fn on_fragment(
        &mut self,
        now: Instant,
        frame: &D::Rx,
        packet: &Packet,
        part: &Fragment,
        mac: [u8; 6],
    ) -> Option<()> {
        let is_served = match packet.src {
            IpAddr::V4(_) => matches!(packet.protocol, PROTOCOL_TCP | PROTOCOL_ICMP),
            IpAddr::V6(_) => {
                matches!(packet.protocol, PROTOCOL_TCP | PROTOCOL_ICMPV6 | ip::DESTINATION_OPTIONS)
            }
        };
        if !is_served || !self.is_answerable(frame.head(), packet) {
            return None;
        }
        self.verbs.counters.fragments_in += 1;
        let taken = self.fragments.on_fragment(now, frame, packet, part);
        self.verbs.counters.reassembly_failures = self.fragments.failure_count();
        if let Some(given_up) = self.fragments.take_failure() {
            self.send_reassembly_time_exceeded(now, &given_up);
        }
        match taken {
            FragmentOutcome::Buffered => Some(()),
            FragmentOutcome::Rejected => None,
            FragmentOutcome::Complete(whole) => {
                self.verbs.counters.packets_reassembled += 1;
                self.on_reassembled(now, whole, mac)
            }
        }
    }

    /// Sends an ICMP error to the source of a packet whose reassembly failed. That the source may
    /// get a reply was checked when the fragments arrived.
    #[cold]
    fn send_reassembly_time_exceeded(&mut self, now: Instant, failure: &ReassemblyFailure) {
        if !self.icmp_error_out_limit.admits(now) {
            return;
        }
        let Some(mut frame) = self.device.allocate(TxClass::Control) else { return };
        let Some(len) = icmp_tx::write_reassembly_failure(failure, self.link, frame.buf_mut())
        else {
            return;
        };
        frame.set_len(len);
        self.device.transmit(frame);
        self.verbs.counters.frames_out += 1;
        self.verbs.counters.icmp_errors_out += 1;
    }

    /// Processes a reassembled packet.
    fn on_reassembled(&mut self, now: Instant, whole: Reassembled, mac: [u8; 6]) -> Option<()> {
        let mode = self.capabilities.checksum;
        // The link header is that of the first fragment.
        let (_, l3) = self.link.parse_header(whole.head())?;
        let parsed = match l3 {
            VLAN_ETHERNET_LEN => Segment::parse_vlan(&whole, mode),
            _ => Segment::parse(&whole, mode),
        };
        match parsed {
            Ok(segment) => self.on_segment(now, &segment, whole),
            Err(ParseError::NotTcp) => {
                let packet = Packet::parse(whole.head(), whole.len(), l3, false).ok()?;
                self.on_echo_request(now, &whole, &packet, mac)?;
            }
            Err(_) => return None,
        }
        Some(())
    }

    fn on_echo_request(
        &mut self,
        now: Instant,
        frame: &impl RxFrame,
        packet: &Packet,
        mac: [u8; 6],
    ) -> Option<()> {
        if !self.echo_reply_limit.admits(now) {
            return None;
        }
        let (link, mtu) = (self.link, usize::from(self.capabilities.send_mtu));
        let mut reply = self.device.allocate(TxClass::Control)?;
        let len = icmp_echo::write_reply(frame, packet, link, mac, mtu, reply.buf_mut())?;
        reply.set_len(len);
        self.device.transmit(reply);
        self.verbs.counters.frames_out += 1;
        self.verbs.counters.echo_replies_out += 1;
        Some(())
    }

    /// Processes a neighbor discovery message or an MLD query; `None` if it is neither, or is
    /// ignored.
    fn on_ndp_or_mld(
        &mut self,
        now: Instant,
        head: &[u8],
        packet: &Packet,
        sender_mac: [u8; 6],
    ) -> Option<()> {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (packet.src, packet.dst) else { return None };
        let is_for_us = if dst.is_multicast() {
            self.routing
                .addresses()
                .any(|ours| matches!(ours, IpAddr::V6(ours) if ndp::listens_to(ours, dst)))
        } else {
            self.routing.is_local(packet.dst)
        };
        if !is_for_us {
            return None;
        }
        let message = head.get(packet.l4..packet.end)?;
        // An MLD query has a hop-by-hop options header (RFC 3810 section 5).
        let has_options = packet.l4 > packet.l3 + IPV6_LEN;
        if has_options && let Some(query) = mld::parse(src, dst, packet.hop_limit, message) {
            return self.on_mld_query(now, &query).then_some(());
        }
        match ndp::parse(src, dst, packet.hop_limit, message)? {
            ndp::Message::Solicitation { mac: Some(mac), .. } if !ethernet::is_unicast(mac) => {
                return None;
            }
            ndp::Message::Solicitation { target, source, mac } => {
                let asker = source.map(|ip| (ip, mac.unwrap_or(sender_mac)));
                if let (Some(source), Some(_)) = (source, mac) {
                    let ip = source.into();
                    self.on_neighbor_advert(
                        now,
                        &Advert { ip, mac, solicited: false, overrides: true },
                    )?;
                }
                if self.routing.is_local(target.into()) && self.neighbor_reply_limit.admits(now) {
                    let link = self.link;
                    self.send_control_frame(|out| {
                        ndp::write_advertisement(link, target, asker, out)
                    });
                }
            }
            ndp::Message::Advertisement { target, mac, solicited, overrides } => {
                self.on_neighbor_advert(
                    now,
                    &Advert { ip: target.into(), mac, solicited, overrides },
                )?;
            }
        }
        Some(())
    }

    /// Processes an address advertised by a neighbor; `None` if it cannot be valid.
    fn on_neighbor_advert(&mut self, now: Instant, advert: &Advert) -> Option<()> {
        if advert.mac == Some(self.link.mac) {
            return None;
        }
        if self.routing.is_local(advert.ip) {
            // Counted for monitoring. The address is defended by replies to ARP and ND requests.
            self.verbs.counters.address_conflicts += 1;
            return None;
        }
        match self.neighbors.on_advert(now, advert) {
            CacheUpdate::LladdrChanged => self.verbs.counters.neighbor_mac_changes += 1,
            CacheUpdate::Resolved | CacheUpdate::Unchanged => {}
        }
        Some(())
    }

    /// Sends one frame without stream bytes; false if none is free or the transmit queue is full.
    pub(super) fn send_control_frame(&mut self, write: impl FnOnce(&mut [u8]) -> usize) -> bool {
        if self.device.tx_free_count() == 0 {
            return false;
        }
        let Some(mut frame) = self.device.allocate(TxClass::Control) else { return false };
        let len = write(frame.buf_mut());
        frame.set_len(len);
        self.device.transmit(frame);
        self.verbs.counters.frames_out += 1;
        true
    }

    /// Announces our addresses on the link before anything else is sent, by gratuitous ARP (RFC
    /// 5227) or unsolicited neighbor advertisements (RFC 4861 section 7.2.6): neighbors with other
    /// cached hardware addresses update them.
    #[cold]
    pub(super) fn announce_addresses(&mut self) {
        let link = self.link;
        while let Some(&ours) = self.unannounced.last() {
            let sent = self.send_control_frame(|out| match ours {
                IpAddr::V4(ours) => arp::write_announcement(link, ours, out),
                IpAddr::V6(ours) => ndp::write_advertisement(link, ours, None, out),
            });
            if !sent {
                return;
            }
            self.unannounced.pop();
        }
    }
}
