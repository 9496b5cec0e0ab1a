//! IP interface of a port: addresses, routes, neighbors, and all frames that are not TCP segments
//! to this port.
//!
//! The interface processes ARP, neighbor discovery, MLD, IP fragments and ICMP, replies where a
//! reply is due, and returns what concerns TCP ([`Received`]). It has no device of its own: its
//! methods take the device and the counters of the caller. The caller invokes
//! [`Interface::poll_transmit`] at the start of each pass and [`Interface::send_solicits`] after
//! its neighbor lookups.

mod ip_rx;
mod multicast;
mod neighbor_rx;

use core::hash::{BuildHasher, Hash, Hasher};
use core::net::IpAddr;

use crate::counters::Counters;
use crate::device::{Capabilities, ChecksumMode, Device, RxFrame, TxClass, TxFrame};
use crate::net::fragments::{Reassembled, Reassembler, ReassemblyConfig};
use crate::net::icmp_error::IcmpError;
use crate::net::memberships::Memberships;
use crate::net::neighbor::{
    Advert, CacheUpdate, Lookup, NeighborCache, NeighborConfig, Solicit, StaticNeighbor,
};
use crate::net::next_hop::{NextHop, Traffic};
use crate::net::recent_solicits::RecentSolicits;
use crate::net::reply_limits::ReplyLimits;
use crate::net::routing::{InterfaceAddress, Route, RoutingTable};
use crate::net::siphash_keys::{KeyPurpose, Secret, SipBuildHasher};
use crate::time::Instant;
use crate::wire::ethernet::{
    self, BROADCAST, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetLink,
};
use crate::wire::ip::{IpFields, PROTOCOL_ICMPV6, Packet};
use crate::wire::tcp::{FourTuple, HeaderTemplate, Segment};

/// Settings of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InterfaceConfig<'a> {
    /// Local addresses.
    pub(crate) addresses: &'a [InterfaceAddress],
    /// Routes to destinations off the link.
    pub(crate) routes: &'a [Route],
    /// VLAN ID of all frames; `None`: untagged.
    pub(crate) vlan: Option<u16>,
    /// Fields of the IP headers of TCP segments.
    pub(crate) ip: IpFields,
    /// Neighbors that are not resolved.
    pub(crate) static_neighbors: &'a [StaticNeighbor],
    /// Timing of the neighbor cache.
    pub(crate) neighbors: NeighborConfig,
    /// Limits of IP reassembly.
    pub(crate) fragments: ReassemblyConfig,
    /// Seed of hash keys and random delays.
    pub(crate) seed: u64,
}

/// Types of ICMPv6 messages that concern neighbors and memberships: MLD (RFC 2710, RFC 3810) and
/// neighbor discovery (RFC 4861).
const NEIGHBOR_TYPES: [u8; 8] = [130, 131, 132, 133, 134, 135, 136, 137];

/// Class of a frame that is no TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameClass {
    /// ARP, neighbor discovery or MLD.
    Neighbor,
    /// A fragment of an IP packet, with a hash that all its fragments have.
    Fragment(u64),
    /// Anything else.
    Other,
}

/// Result of [`Interface::on_frame`].
#[derive(Debug)]
#[must_use]
pub(crate) enum Received {
    /// Processed; nothing left to do.
    Handled,
    /// Dropped: malformed, bad checksum, an unknown protocol or address, or over a rate limit.
    Dropped,
    /// TCP segment to a port of this host, reassembled from fragments.
    Segment(Segment, Reassembled),
    /// Well-formed ICMP error about a TCP segment. It may be spoofed; see [`IcmpError`].
    TcpError(IcmpError),
}

/// See the [module's documentation](self).
pub(crate) struct Interface {
    link: EthernetLink,
    ip_fields: IpFields,
    checksum: ChecksumMode,
    send_mtu: u16,
    routing: RoutingTable,
    neighbors: NeighborCache,
    fragments: Reassembler,
    /// Local addresses not announced on the link yet.
    unannounced: Vec<IpAddr>,
    /// Membership reports for the solicited-node multicast groups of our addresses (MLD).
    memberships: Memberships,
    /// Hash for the random delays of MLD.
    hash: SipBuildHasher,
    /// Key of the flow labels (RFC 6437): an off-path attacker must not guess them.
    flow_labels: Secret,
    limits: ReplyLimits,
    /// Solicitations sent lately.
    recent_solicits: RecentSolicits,
    /// Address that a neighbor has advertised in the last frame.
    last_advert: Option<Advert>,
}

impl Interface {
    /// Creates the interface of a port with these capabilities.
    #[must_use]
    pub(crate) fn new(
        config: &InterfaceConfig<'_>,
        capabilities: &Capabilities,
        limits: ReplyLimits,
    ) -> Self {
        let addresses = config.addresses.iter().map(|address| address.ip);
        let mut neighbors =
            NeighborCache::new(config.neighbors, config.seed, limits.solicits.clone());
        config.static_neighbors.iter().for_each(|&neighbor| neighbors.insert_static(neighbor));
        Self {
            link: EthernetLink { mac: capabilities.mac, vlan: config.vlan },
            ip_fields: config.ip,
            checksum: capabilities.checksum,
            send_mtu: capabilities.send_mtu,
            routing: RoutingTable::new(config.addresses, config.routes),
            neighbors,
            fragments: Reassembler::new(config.fragments),
            memberships: Memberships::new(addresses.clone().any(|ip| ip.is_ipv6())),
            unannounced: addresses.rev().collect(),
            hash: SipBuildHasher::new(config.seed),
            flow_labels: Secret::new(config.seed, KeyPurpose::FlowLabels),
            recent_solicits: RecentSolicits::new(config.neighbors.retrans_timer_ns / 2),
            last_advert: None,
            limits,
        }
    }

    /// Returns the hardware address and the VLAN of the port.
    #[inline]
    #[must_use]
    pub(crate) const fn link(&self) -> &EthernetLink {
        &self.link
    }

    /// Returns DSCP and time to live of segments whose connection has none of its own.
    #[must_use]
    pub(crate) const fn ip_fields(&self) -> IpFields {
        self.ip_fields
    }

    /// Returns local addresses and routes.
    #[must_use]
    pub(crate) const fn routing(&self) -> &RoutingTable {
        &self.routing
    }

    /// True if a segment of no connection, from the link, is for this host, and its sender is
    /// another one that may get a reply.
    #[must_use]
    pub(crate) fn may_answer(&self, tuple: &FourTuple) -> bool {
        let FourTuple { local, remote } = tuple;
        self.routing.is_local(local.ip()) && self.routing.is_other_host(remote.ip())
    }

    /// Builds the header template for segments between the ends of `tuple`. Over IPv6 all of them,
    /// of a connection or not, have the same flow label: a keyed hash of the four-tuple, which
    /// cannot be predicted (RFC 6437 section 3).
    #[expect(clippy::cast_possible_truncation, reason = "part of a hash")]
    #[must_use]
    pub(crate) fn header_template(&self, remote_mac: [u8; 6], tuple: FourTuple) -> HeaderTemplate {
        let mut template = HeaderTemplate::with_link(self.link, remote_mac, tuple);
        template.set_ip_fields(self.ip_fields);
        if tuple.remote.is_ipv6() {
            let mut hasher = self.flow_labels.hasher();
            tuple.hash(&mut hasher);
            template.set_flow_label((hasher.finish() as u32 & 0xf_ffff).max(1));
        }
        template
    }

    /// Counter that changes whenever a neighbor lookup may return another result; see
    /// [`NeighborCache::epoch`].
    #[inline]
    #[must_use]
    pub(crate) const fn neighbor_epoch(&self) -> u32 {
        self.neighbors.epoch()
    }

    /// True for a connection to the port's own hardware address, which has no neighbor and keeps
    /// that address.
    fn keeps_next_hop(&self, now: Instant, hop: &mut NextHop, remote_mac: [u8; 6]) -> bool {
        let is_own = remote_mac == self.link.mac;
        if is_own {
            hop.keep(now, self.neighbors.epoch());
        }
        is_own
    }

    /// Looks up the neighbor of a connection that waits for address resolution; see
    /// [`NextHop::resolve`].
    pub(crate) fn resolve_next_hop(
        &mut self,
        now: Instant,
        hop: &mut NextHop,
        (remote, remote_mac): (IpAddr, [u8; 6]),
    ) -> Lookup {
        if self.keeps_next_hop(now, hop, remote_mac) {
            return Lookup::Found(remote_mac);
        }
        hop.resolve(now, &mut self.neighbors, &self.routing, remote)
    }

    /// Updates the next hop of a connection; see [`NextHop::refresh`].
    pub(crate) fn refresh_next_hop(
        &mut self,
        now: Instant,
        hop: &mut NextHop,
        traffic: &Traffic,
    ) -> Lookup {
        if self.keeps_next_hop(now, hop, traffic.remote_mac) {
            return Lookup::Found(traffic.remote_mac);
        }
        hop.refresh(now, &mut self.neighbors, &self.routing, traffic)
    }

    /// Processes a frame that is no TCP segment to this port.
    #[cold]
    pub(crate) fn on_frame<D: Device>(
        &mut self,
        now: Instant,
        frame: &D::Rx,
        device: &mut D,
        counters: &mut Counters,
    ) -> Received {
        let mut port = Port { device, counters };
        let head = frame.head();
        let destination = head.first_chunk();
        let is_ours = destination == Some(&self.link.mac);
        let is_group = destination.is_some_and(|mac| mac[0] & 1 != 0);
        let sender = ethernet::source_mac(head).filter(|&mac| mac != self.link.mac);
        let taken = match (self.link.parse_header(head), sender) {
            (Some((ETHERTYPE_ARP, l3)), Some(_)) if is_ours || destination == Some(&BROADCAST) => {
                self.on_arp(now, &head[l3..], is_ours, &mut port)
            }
            (Some((ETHERTYPE_IPV4, l3)), Some(mac)) if is_ours => {
                self.on_ip(now, frame, l3, mac, &mut port)
            }
            (Some((ETHERTYPE_IPV6, l3)), Some(mac)) if is_ours || is_group => {
                self.on_ip(now, frame, l3, mac, &mut port)
            }
            _ => None,
        };
        taken.unwrap_or(Received::Dropped)
    }

    /// Sends the address announcements and the MLD reports that are due.
    #[inline]
    pub(crate) fn poll_transmit<D: Device>(
        &mut self,
        now: Instant,
        device: &mut D,
        counters: &mut Counters,
    ) {
        if !self.unannounced.is_empty() {
            self.announce_addresses(&mut Port { device, counters });
        }
        if self.memberships.is_due(now) {
            self.send_mld_reports(now, &mut Port { device, counters });
        }
    }

    /// True if [`Interface::send_solicits`] may have something to do.
    #[inline]
    pub(crate) const fn has_due_solicits(&self, now: Instant) -> bool {
        self.neighbors.is_timer_due(now)
    }

    /// Sends the ARP requests and neighbor solicitations that are due.
    pub(crate) fn send_solicits<D: Device>(
        &mut self,
        now: Instant,
        device: &mut D,
        counters: &mut Counters,
    ) {
        while let Some(solicit) = self.neighbors.next_solicit(now) {
            self.send_solicit_once(now, solicit, device, counters);
        }
    }

    /// Returns the next solicitation that is due, for another engine to send.
    pub(crate) fn next_solicit(&mut self, now: Instant) -> Option<Solicit> {
        self.neighbors.next_solicit(now)
    }

    /// Sends a solicitation, of this engine or for another, unless the same was just sent: several
    /// engines may ask for one neighbor.
    pub(crate) fn send_solicit_once<D: Device>(
        &mut self,
        now: Instant,
        solicit: Solicit,
        device: &mut D,
        counters: &mut Counters,
    ) {
        if self.recent_solicits.insert(now, solicit) {
            self.send_solicit(solicit, &mut Port { device, counters });
        }
    }

    /// Takes the address that a neighbor has advertised in the last frame, for other engines.
    pub(crate) const fn take_advert(&mut self) -> Option<Advert> {
        self.last_advert.take()
    }

    /// Processes an address that a neighbor has advertised to another engine of the port.
    pub(crate) fn learn(&mut self, now: Instant, advert: &Advert, counters: &mut Counters) {
        if self.neighbors.on_advert(now, advert) == CacheUpdate::LladdrChanged {
            counters.neighbor_mac_changes += 1;
        }
    }

    /// Returns the part of the host that a frame concerns, if it is no TCP segment.
    pub(crate) fn classify(&self, frame: &impl RxFrame) -> FrameClass {
        let head = frame.head();
        let Some((ethertype, l3)) = self.link.parse_header(head) else { return FrameClass::Other };
        if ethertype == ETHERTYPE_ARP {
            return FrameClass::Neighbor;
        }
        let Ok(packet) = Packet::parse(head, frame.len(), l3, false) else {
            return FrameClass::Other;
        };
        if let Some(part) = packet.fragment {
            let protocol = packet.src.is_ipv4().then_some(packet.protocol);
            let key = (packet.src, packet.dst, protocol, part.id);
            return FrameClass::Fragment(self.hash.hash_one(key));
        }
        let is_icmpv6 = packet.protocol == PROTOCOL_ICMPV6;
        match head.get(packet.l4) {
            Some(&kind) if is_icmpv6 && NEIGHBOR_TYPES.contains(&kind) => FrameClass::Neighbor,
            _ => FrameClass::Other,
        }
    }

    /// Returns the time at which [`Interface::poll_transmit`] or [`Interface::send_solicits`] is
    /// due; `None` if no timer runs. `announces`: this engine calls the first of them.
    #[must_use]
    pub(crate) fn poll_timeout(&self, announces: bool) -> Option<Instant> {
        let memberships = self.memberships.deadline().filter(|_| announces);
        [self.neighbors.deadline(), memberships].into_iter().flatten().min()
    }
}

/// Device and counters of the caller, with which the interface transmits and counts.
struct Port<'a, D> {
    device: &'a mut D,
    counters: &'a mut Counters,
}

impl<D: Device> Port<'_, D> {
    /// Sends one frame without stream bytes; false if none is free or the transmit queue is full.
    fn send_control_frame(&mut self, write: impl FnOnce(&mut [u8]) -> usize) -> bool {
        if self.device.tx_free_count() == 0 {
            return false;
        }
        let Some(mut frame) = self.device.allocate(TxClass::Control) else { return false };
        let len = write(frame.buf_mut());
        self.transmit(frame, len);
        true
    }

    /// Sends the first `len` bytes of a frame.
    fn transmit(&mut self, mut frame: D::Tx, len: usize) {
        frame.set_len(len);
        self.device.transmit(frame);
        self.counters.frames_out += 1;
    }
}

#[cfg(test)]
mod tests;
