//! Address resolution: ARP and neighbor discovery messages received, solicitations and
//! announcements sent.

use core::net::IpAddr;

use super::{Interface, Port, Received};
use crate::device::Device;
use crate::net::neighbor::{Advert, CacheUpdate, Solicit};
use crate::net::{arp, mld, ndp};
use crate::time::Instant;
use crate::wire::ethernet;
use crate::wire::ip::Packet;
use crate::wire::tcp::IPV6_LEN;

impl Interface {
    /// Processes an ARP packet, unicast or broadcast; `None` if it is ignored.
    pub(super) fn on_arp<D: Device>(
        &mut self,
        now: Instant,
        packet: &[u8],
        is_ours: bool,
        port: &mut Port<'_, D>,
    ) -> Option<Received> {
        let packet = arp::parse(packet)?;
        let (sender, mac) = packet.sender;
        if !ethernet::is_unicast(mac) {
            return None;
        }
        let is_for_local_address = packet.is_request && self.routing.is_local(packet.target.into());
        // An unspecified sender address is a probe for an address conflict (RFC 5227).
        if !sender.is_unspecified() {
            let solicited =
                is_ours && !packet.is_request && self.routing.is_local(packet.target.into());
            let (ip, mac) = (sender.into(), Some(mac));
            self.on_neighbor_advert(now, &Advert { ip, mac, solicited, overrides: true }, port)?;
            if !self.routing.is_other_host(ip) {
                return None;
            }
        }
        if is_for_local_address && self.limits.neighbor_replies.admits(now) {
            let link = self.link;
            port.send_control_frame(|out| {
                arp::write_reply(link, packet.target, packet.sender, out)
            });
        }
        Some(Received::Handled)
    }

    /// Processes a neighbor discovery message or an MLD query; `None` if it is neither, or is
    /// ignored.
    pub(super) fn on_ndp_or_mld<D: Device>(
        &mut self,
        now: Instant,
        head: &[u8],
        packet: &Packet,
        sender_mac: [u8; 6],
        port: &mut Port<'_, D>,
    ) -> Option<Received> {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (packet.src, packet.dst) else { return None };
        // Addressed to this host, or to a group that it has joined.
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
            return self.on_mld_query(now, &query).then_some(Received::Handled);
        }
        // RFC 4861 section 7.1: an invalid message is discarded.
        match ndp::parse(src, dst, packet.hop_limit, message)? {
            ndp::Message::Solicitation { mac: Some(mac), .. } if !ethernet::is_unicast(mac) => {
                return None;
            }
            ndp::Message::Solicitation { target, source, mac } => {
                // Section 7.2.3: the solicitor's address updates its entry.
                let solicitor = source.map(|ip| (ip, mac.unwrap_or(sender_mac)));
                if let (Some(source), Some(_)) = (source, mac) {
                    let ip = source.into();
                    let advert = Advert { ip, mac, solicited: false, overrides: true };
                    self.on_neighbor_advert(now, &advert, port)?;
                }
                // Without a source it is a probe for an address conflict (RFC 4862).
                if source.is_some_and(|ip| !self.routing.is_other_host(ip.into())) {
                    return None;
                }
                // Section 7.2.4: the answer, if the target is an address of this host.
                if self.routing.is_local(target.into()) && self.limits.neighbor_replies.admits(now)
                {
                    let link = self.link;
                    port.send_control_frame(|out| {
                        ndp::write_advertisement(link, target, solicitor, out)
                    });
                }
            }
            // Section 7.2.5.
            ndp::Message::Advertisement { target, mac, solicited, overrides } => {
                let advert = Advert { ip: target.into(), mac, solicited, overrides };
                self.on_neighbor_advert(now, &advert, port)?;
            }
        }
        Some(Received::Handled)
    }

    /// Processes an address advertised by a neighbor; `None` if it cannot be valid.
    fn on_neighbor_advert<D: Device>(
        &mut self,
        now: Instant,
        advert: &Advert,
        port: &mut Port<'_, D>,
    ) -> Option<()> {
        if advert.mac == Some(self.link.mac) {
            return None;
        }
        if self.routing.is_local(advert.ip) {
            // Counted for monitoring. The address is defended by replies to ARP and ND requests.
            port.counters.address_conflicts += 1;
            return None;
        }
        match self.neighbors.on_advert(now, advert) {
            CacheUpdate::LladdrChanged => port.counters.neighbor_mac_changes += 1,
            CacheUpdate::Resolved | CacheUpdate::Unchanged => {}
        }
        self.last_advert = Some(*advert);
        Some(())
    }

    /// Sends an ARP request or a neighbor solicitation.
    pub(super) fn send_solicit<D: Device>(&self, solicit: Solicit, port: &mut Port<'_, D>) {
        let Solicit { ip, mac } = solicit;
        let (Some(source), link) = (self.routing.select_source(ip, ip), self.link) else { return };
        port.counters.neighbor_solicits_out += 1;
        port.send_control_frame(|out| match (source, ip) {
            (IpAddr::V4(source), IpAddr::V4(ip)) => arp::write_request(link, source, ip, mac, out),
            (IpAddr::V6(source), IpAddr::V6(ip)) => {
                ndp::write_solicitation(link, source, ip, mac, out)
            }
            _ => 0,
        });
    }

    /// Announces our addresses on the link before anything else is sent, by gratuitous ARP (RFC
    /// 5227) or unsolicited neighbor advertisements (RFC 4861 section 7.2.6): neighbors with other
    /// cached hardware addresses update them.
    #[cold]
    pub(super) fn announce_addresses<D: Device>(&mut self, port: &mut Port<'_, D>) {
        let link = self.link;
        while let Some(&ours) = self.unannounced.last() {
            let sent = port.send_control_frame(|out| match ours {
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
