//! Headers of sent segments.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{
    ETHERNET_LEN, Ecn, Flags, FourTuple, IPV4_LEN, IPV6_LEN, Options, PROTOCOL_TCP, PlainHeader,
    Segment, TCP_LEN, VLAN_ETHERNET_LEN, pseudo_sum,
};
use crate::device::{ChecksumMode, ChecksumRequest};
use crate::wire::bytes::{array_at, be16, be32};
use crate::wire::checksum;
use crate::wire::ethernet::EthernetLink;
use crate::wire::ip::IpFields;
use crate::wire::seq::Seq;

/// Header fields that vary between the sent segments of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// Sequence number.
    pub seq: Seq,
    /// Acknowledgment number.
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// Window field, already shifted by the window scale.
    pub window: u16,
    /// ECN field of the IP header.
    pub ecn: Ecn,
    /// TCP options.
    pub options: Options,
}

/// Header layout of a connection's frames: IP version, with or without VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum HeaderLayout {
    V4 = 0,
    V6 = 1,
    VlanV4 = 2,
    VlanV6 = 3,
}

/// Header template of one connection: its addresses and ports in the format of sent headers.
/// Ethernet, IP and TCP headers are written from it with a few stores, and the four-tuples of
/// received segments are compared with it.
///
/// It is small because each connection has one: 64 bytes, of which IPv4 uses the first 43.
///
/// In IPv4 headers DF is set and the identification is 0 (RFC 6864 section 4.1).
#[derive(Clone, Debug)]
#[repr(C)]
pub struct HeaderTemplate {
    /// Destination and source address of the Ethernet header.
    pub(super) macs: [u8; 12],
    /// Folded sum of the IP addresses.
    pub(super) address_sum: u16,
    /// Folded sum of `ip`, for IPv4.
    pub(super) ip_sum: u16,
    /// Tag control information of the 802.1Q tag; 0 and unused without a tag.
    pub(super) vlan: u16,
    pub(super) layout: HeaderLayout,
    /// Local and remote port.
    pub(super) ports: [u8; 4],
    /// IP header, with zeros for length, ECN field and checksum; an IPv4 header ends before the
    /// rest, which is zero.
    pub(super) ip: [u8; IPV6_LEN],
}

const _: () = assert!(size_of::<HeaderTemplate>() <= 64, "every connection has one");

impl HeaderTemplate {
    /// Creates a template for segments from `tuple.local` to `tuple.remote`, without VLAN tag.
    /// `src_mac` is the port's address, `dst_mac` that of the next hop.
    ///
    /// # Panics
    /// If one address is IPv4 and the other IPv6.
    #[must_use]
    pub fn new(src_mac: [u8; 6], dst_mac: [u8; 6], tuple: FourTuple) -> Self {
        Self::with_link(EthernetLink::without_vlan(src_mac), dst_mac, tuple)
    }

    /// As [`HeaderTemplate::new`], with the VLAN tag of `link`, if it has one.
    ///
    /// # Panics
    /// If one address is IPv4 and the other IPv6.
    #[must_use]
    pub fn with_link(link: EthernetLink, dst_mac: [u8; 6], tuple: FourTuple) -> Self {
        let mut ip = [0; IPV6_LEN];
        let (is_v6, addresses) = match (tuple.local.ip(), tuple.remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                // Version and IHL; DF.
                (ip[0], ip[6], ip[9]) = (0x45, 0x40, PROTOCOL_TCP);
                ip[12..16].copy_from_slice(&local.octets());
                ip[16..20].copy_from_slice(&remote.octets());
                (false, 12..20)
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                (ip[0], ip[6]) = (0x60, PROTOCOL_TCP);
                ip[8..24].copy_from_slice(&local.octets());
                ip[24..].copy_from_slice(&remote.octets());
                (true, 8..40)
            }
            _ => panic!("a connection has two addresses of one family"),
        };
        let layout = match (link.vlan, is_v6) {
            (None, false) => HeaderLayout::V4,
            (None, true) => HeaderLayout::V6,
            (Some(_), false) => HeaderLayout::VlanV4,
            (Some(_), true) => HeaderLayout::VlanV6,
        };
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&dst_mac);
        macs[6..].copy_from_slice(&link.mac);
        let mut ports = [0; 4];
        ports[..2].copy_from_slice(&tuple.local.port().to_be_bytes());
        ports[2..].copy_from_slice(&tuple.remote.port().to_be_bytes());
        let (address_sum, vlan) = (checksum::sum(&ip[addresses]), link.vlan.unwrap_or(0));
        let mut template = Self { macs, address_sum, ip_sum: 0, vlan, layout, ports, ip };
        template.set_ip_fields(IpFields::DEFAULT);
        template
    }

    /// Returns the four-tuple of the connection.
    #[must_use]
    pub fn tuple(&self) -> FourTuple {
        let ips: [IpAddr; 2] = if self.is_v6() {
            [8, 24].map(|at| Ipv6Addr::from(*array_at::<16>(&self.ip, at)).into())
        } else {
            [12, 16].map(|at| Ipv4Addr::from(*array_at::<4>(&self.ip, at)).into())
        };
        FourTuple {
            local: SocketAddr::new(ips[0], be16(&self.ports, 0)),
            remote: SocketAddr::new(ips[1], be16(&self.ports, 2)),
        }
    }

    /// True if the connection has this four-tuple.
    #[inline]
    #[must_use]
    pub fn matches(&self, tuple: &FourTuple) -> bool {
        let ports = u32::from(tuple.local.port()) << 16 | u32::from(tuple.remote.port());
        ports == be32(&self.ports, 0)
            && match (tuple.local.ip(), tuple.remote.ip()) {
                (IpAddr::V4(local), IpAddr::V4(remote)) => {
                    let bits = u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits());
                    !self.is_v6() && bits == u64::from_be_bytes(*array_at(&self.ip, 12))
                }
                (IpAddr::V6(local), IpAddr::V6(remote)) => {
                    self.is_v6()
                        && local.octets() == self.ip[8..24]
                        && remote.octets() == self.ip[24..]
                }
                _ => false,
            }
    }

    /// Sets the IPv6 flow label to the low 20 bits of `label`. Routers use it with the addresses
    /// to distribute flows over paths (RFC 6438). Initially 0: no label.
    pub const fn set_flow_label(&mut self, label: u32) {
        let [_, high, middle, low] = label.to_be_bytes();
        self.ip[1] = self.ip[1] & 0xf0 | high & 0x0f;
        (self.ip[2], self.ip[3]) = (middle, low);
    }

    /// Sets DSCP and time to live of all further frames; the flow label stays.
    pub fn set_ip_fields(&mut self, IpFields { dscp, ttl }: IpFields) {
        if self.is_v6() {
            // The traffic class lies across the first two bytes.
            self.ip[0] = 0x60 | dscp >> 2;
            self.ip[1] = dscp << 6 | self.ip[1] & 0x0f;
            self.ip[7] = ttl;
        } else {
            (self.ip[1], self.ip[8]) = (dscp << 2, ttl);
            self.ip_sum = checksum::sum(&self.ip[..IPV4_LEN]);
        }
    }

    /// Returns DSCP and time to live.
    #[must_use]
    pub const fn ip_fields(&self) -> IpFields {
        let ip = &self.ip;
        if self.is_v6() {
            IpFields { dscp: (ip[0] & 0x0f) << 2 | ip[1] >> 6, ttl: ip[7] }
        } else {
            IpFields { dscp: ip[1] >> 2, ttl: ip[8] }
        }
    }

    /// Sets the destination MAC address (the next hop's has changed).
    pub fn set_remote_mac(&mut self, mac: [u8; 6]) {
        self.macs[..6].copy_from_slice(&mac);
    }

    /// Returns the destination MAC address.
    #[must_use]
    pub const fn remote_mac(&self) -> [u8; 6] {
        let [m0, m1, m2, m3, m4, m5, ..] = self.macs;
        [m0, m1, m2, m3, m4, m5]
    }

    pub(super) const fn is_v6(&self) -> bool {
        matches!(self.layout, HeaderLayout::V6 | HeaderLayout::VlanV6)
    }

    /// Returns the header length without TCP options: Ethernet, IP and the fixed TCP header.
    #[inline]
    #[must_use]
    pub const fn base_len(&self) -> usize {
        self.l4() + TCP_LEN
    }

    /// Returns the offset of the TCP header in the frame.
    #[inline]
    pub(super) const fn l4(&self) -> usize {
        let (l2, l3) = self.l2_l3_len();
        l2 + l3
    }

    /// Returns the request of checksums for a frame with headers of `header_len` bytes, in a mode
    /// in which the port computes them.
    #[must_use]
    pub fn checksum_request(&self, header_len: usize, mode: ChecksumMode) -> ChecksumRequest {
        let (l2_len, l3_len) = self.l2_l3_len();
        let l4_len = header_len - l2_len - l3_len;
        ChecksumRequest { l2_len, l3_len, l4_len, ipv4: mode == ChecksumMode::Offload }
    }

    /// Returns the lengths of the link and network headers.
    #[inline]
    #[must_use]
    pub const fn l2_l3_len(&self) -> (usize, usize) {
        // Computed from the bits of the layout: the compiler would look them up in tables.
        let bits = self.layout as usize;
        let (is_v6, has_vlan) = (bits & 1, bits >> 1);
        (
            ETHERNET_LEN + has_vlan * (VLAN_ETHERNET_LEN - ETHERNET_LEN),
            IPV4_LEN + is_v6 * (IPV6_LEN - IPV4_LEN),
        )
    }

    /// Writes the headers to the start of `buf` and returns the length of the frame. The
    /// `payload_len` bytes of payload must already follow them in `buf`.
    ///
    /// Cost: about 10 ns, and in mode `Software` one pass over the payload. The TCP checksum field
    /// holds the folded pseudo-header sum if the port computes it, zero in mode `NotNeeded`.
    ///
    /// # Panics
    /// If `buf` is shorter than headers and payload, or the IP packet longer than 65,535 bytes.
    #[inline]
    pub fn emit(
        &self,
        buf: &mut [u8],
        fields: &Fields,
        payload_len: usize,
        mode: ChecksumMode,
    ) -> usize {
        let header_len = self.emit_headers(buf, fields, payload_len, mode);
        let total = header_len + payload_len;
        if mode != ChecksumMode::NotNeeded {
            self.emit_checksum(&mut buf[self.l4()..total], mode);
        }
        total
    }

    /// As [`HeaderTemplate::emit`], without the TCP checksum, which is zero. Returns the length of
    /// the headers.
    ///
    /// # Panics
    /// If `buf` is shorter than the headers, or the IP packet longer than 65,535 bytes.
    fn emit_headers(
        &self,
        buf: &mut [u8],
        fields: &Fields,
        payload_len: usize,
        mode: ChecksumMode,
    ) -> usize {
        let &Fields { seq, ack, flags, window, ecn, ref options } = fields;
        let header = PlainHeader { seq, ack, flags, window, ecn, ts: None };
        let options_len = options.wire_len();
        let base_len = self.emit_base(buf, &header, options_len, payload_len, mode);
        options.emit(&mut buf[base_len..base_len + options_len]);
        base_len + options_len
    }

    /// Writes the checksum of `segment`, TCP header and payload, in mode `Software`; the folded
    /// pseudo-header sum if the port computes it. The field was zero.
    #[inline]
    pub fn emit_checksum(&self, segment: &mut [u8], mode: ChecksumMode) {
        let pseudo = pseudo_sum(self.address_sum, segment.len());
        let sum = match mode {
            ChecksumMode::NotNeeded => return,
            ChecksumMode::OffloadTcp | ChecksumMode::Offload => pseudo,
            ChecksumMode::Software => !checksum::add(pseudo, checksum::sum(segment)),
        };
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
    }

    /// Writes the folded sum of the pseudo-header without length to the TCP header at the start of
    /// `segment`: the port adds the length of each segment that it cuts.
    pub fn emit_segmentation_sum(&self, segment: &mut [u8]) {
        segment[16..18].copy_from_slice(&pseudo_sum(self.address_sum, 0).to_be_bytes());
    }
}

/// Returns the RST in reply to a segment without a connection (state CLOSED, RFC 9293 section
/// 3.10.7.1); `None` if that segment is an RST itself. The caller limits the rate.
#[must_use]
pub fn rst_reply(segment: &Segment) -> Option<Fields> {
    if segment.flags.has(Flags::RST) {
        return None;
    }
    Some(if segment.flags.has(Flags::ACK) {
        Fields { seq: segment.ack, flags: Flags::RST, ..Fields::default() }
    } else {
        Fields {
            ack: segment.seq + segment.seq_len(),
            flags: Flags::RST | Flags::ACK,
            ..Fields::default()
        }
    })
}
