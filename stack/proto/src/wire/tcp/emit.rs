//! Headers of segments this host sends.

use core::net::IpAddr;

use super::options::TIMESTAMPS_PREFIX;
use super::{
    ETHERNET_LEN, Ecn, Flags, FourTuple, IPV4_LEN, IPV6_LEN, Options, PROTOCOL_TCP, Segment,
    TAGGED_LEN, TCP_LEN, pseudo_sum,
};
use crate::device::ChecksumMode;
use crate::wire::checksum;
use crate::wire::link::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Link};
use crate::wire::seq::Seq;

/// What varies from segment to segment in the headers this host sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// Sequence number.
    pub seq: Seq,
    /// Acknowledgment number.
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// Window field, already scaled down.
    pub window: u16,
    /// ECN field of the IP header.
    pub ecn: Ecn,
    /// Options.
    pub options: Options,
}

/// Where the TCP header lies in each kind of frame.
const UNTAGGED_V4: usize = ETHERNET_LEN + IPV4_LEN;
const UNTAGGED_V6: usize = ETHERNET_LEN + IPV6_LEN;
const TAGGED_V4: usize = TAGGED_LEN + IPV4_LEN;

/// Ethernet, IP and TCP headers of one connection, prebuilt: per segment a fixed copy and a few
/// stores.
///
/// Time to live 64, "don't fragment" set, identification 0 (RFC 6864 section 4.1).
#[derive(Clone, Debug)]
pub struct HeaderTemplate {
    octets: [u8; TAGGED_LEN + IPV6_LEN + TCP_LEN],
    /// Where the TCP header starts. Tells the four kinds of frame apart.
    l4: usize,
    /// Folded sum of the addresses.
    address_sum: u16,
    /// Folded sum of the IPv4 header with length and checksum zero.
    ipv4_sum: u16,
}

impl HeaderTemplate {
    /// A template for segments from `tuple.local` at `src_mac` to `tuple.remote` by way of
    /// `dst_mac`, without VLAN tag.
    ///
    /// # Panics
    /// If one address is IPv4 and the other IPv6.
    #[must_use]
    pub fn new(src_mac: [u8; 6], dst_mac: [u8; 6], tuple: FourTuple) -> Self {
        Self::on(Link::untagged(src_mac), dst_mac, tuple)
    }

    /// As [`HeaderTemplate::new`], on a link that may have tags.
    ///
    /// # Panics
    /// If one address is IPv4 and the other IPv6.
    #[must_use]
    pub fn on(link: Link, dst_mac: [u8; 6], tuple: FourTuple) -> Self {
        let mut octets = [0; TAGGED_LEN + IPV6_LEN + TCP_LEN];
        let l3 = link.header_len();
        let (ethertype, l4, addresses) = match (tuple.local.ip(), tuple.remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let ip = &mut octets[l3..];
                ip[0] = 0x45;
                ip[6] = 0x40;
                ip[8] = 64;
                ip[9] = PROTOCOL_TCP;
                ip[12..16].copy_from_slice(&local.octets());
                ip[16..20].copy_from_slice(&remote.octets());
                (ETHERTYPE_IPV4, l3 + IPV4_LEN, 12..20)
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let ip = &mut octets[l3..];
                ip[0] = 0x60;
                ip[6] = PROTOCOL_TCP;
                ip[7] = 64;
                ip[8..24].copy_from_slice(&local.octets());
                ip[24..40].copy_from_slice(&remote.octets());
                (ETHERTYPE_IPV6, l3 + IPV6_LEN, 8..40)
            }
            _ => panic!("a connection has two addresses of one family"),
        };
        link.write(dst_mac, ethertype, &mut octets);
        let ip = &octets[l3..l4];
        let (address_sum, ipv4_sum) = (checksum::sum(&ip[addresses]), checksum::sum(ip));
        octets[l4..l4 + 2].copy_from_slice(&tuple.local.port().to_be_bytes());
        octets[l4 + 2..l4 + 4].copy_from_slice(&tuple.remote.port().to_be_bytes());
        Self { octets, l4, address_sum, ipv4_sum }
    }

    /// Uses another destination MAC from now on (the neighbour moved).
    pub fn set_remote_mac(&mut self, mac: [u8; 6]) {
        self.octets[..6].copy_from_slice(&mac);
    }

    /// Where its segments go at present.
    #[must_use]
    pub const fn remote_mac(&self) -> [u8; 6] {
        let [m0, m1, m2, m3, m4, m5, ..] = self.octets;
        [m0, m1, m2, m3, m4, m5]
    }

    /// Octets before the TCP options: Ethernet, IP and the fixed TCP header.
    #[inline]
    #[must_use]
    pub const fn base_len(&self) -> usize {
        self.l4 + TCP_LEN
    }

    /// Lengths of the link and network headers, for [`crate::device::TxFrame::request_checksum`].
    #[must_use]
    pub const fn layer_lens(&self) -> (usize, usize) {
        let l3 =
            if matches!(self.l4, UNTAGGED_V4 | UNTAGGED_V6) { ETHERNET_LEN } else { TAGGED_LEN };
        (l3, self.l4 - l3)
    }

    /// Writes the headers to the start of `buf`, in front of `payload_len` octets of payload that
    /// already lie behind them; returns the length of the frame.
    ///
    /// Cost: about 10 ns, and in mode `Software` one pass over the payload. In mode `Offload` the
    /// TCP checksum field holds the folded pseudo-header sum, in mode `NotNeeded` zero.
    ///
    /// # Panics
    /// If `buf` is shorter than headers and payload, or the packet longer than 65,535 octets.
    #[inline]
    pub fn emit(
        &self,
        buf: &mut [u8],
        fields: &Fields,
        payload_len: usize,
        mode: ChecksumMode,
    ) -> usize {
        let tcp_len = TCP_LEN + fields.options.wire_len();
        let total = self.l4 + tcp_len + payload_len;
        let frame = &mut buf[..total];
        match self.l4 {
            UNTAGGED_V4 => self.emit_v4::<ETHERNET_LEN>(frame, fields.ecn, mode),
            UNTAGGED_V6 => self.emit_v6::<ETHERNET_LEN>(frame, fields.ecn),
            TAGGED_V4 => self.emit_v4::<TAGGED_LEN>(frame, fields.ecn, mode),
            _ => self.emit_v6::<TAGGED_LEN>(frame, fields.ecn),
        }
        let tcp = &mut frame[self.l4..];
        tcp[4..8].copy_from_slice(&fields.seq.0.to_be_bytes());
        tcp[8..12].copy_from_slice(&fields.ack.0.to_be_bytes());
        // The header is at most 60 octets: 15 words.
        tcp[12] = u8::try_from(tcp_len / 4).unwrap_or(15) << 4;
        tcp[13] = fields.flags.0;
        tcp[14..16].copy_from_slice(&fields.window.to_be_bytes());
        if tcp_len > TCP_LEN {
            if fields.options.is_plain() {
                let (val, ecr) = fields.options.ts.unwrap_or_default();
                tcp[20..24].copy_from_slice(&TIMESTAMPS_PREFIX);
                tcp[24..28].copy_from_slice(&val.to_be_bytes());
                tcp[28..32].copy_from_slice(&ecr.to_be_bytes());
            } else {
                fields.options.emit(&mut tcp[TCP_LEN..tcp_len]);
            }
        }
        let sum = match mode {
            ChecksumMode::NotNeeded => return total,
            ChecksumMode::Offload => pseudo_sum(self.address_sum, tcp_len + payload_len),
            ChecksumMode::Software => {
                let pseudo = pseudo_sum(self.address_sum, tcp_len + payload_len);
                !checksum::add(pseudo, checksum::sum(tcp))
            }
        };
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        total
    }

    /// Headers up to TCP's of a frame whose IPv4 header lies at `L3`.
    #[inline(always)]
    fn emit_v4<const L3: usize>(&self, frame: &mut [u8], ecn: Ecn, mode: ChecksumMode) {
        let ip_len = u16::try_from(frame.len() - L3).expect("an IPv4 packet fits 16 bits");
        frame[..L3 + IPV4_LEN + TCP_LEN].copy_from_slice(&self.octets[..L3 + IPV4_LEN + TCP_LEN]);
        frame[L3 + 2..L3 + 4].copy_from_slice(&ip_len.to_be_bytes());
        // The template's traffic class is zero.
        let ecn = ecn as u8;
        frame[L3 + 1] = ecn;
        if mode == ChecksumMode::Software {
            let varying = u32::from(ip_len) + u32::from(ecn);
            let sum = !checksum::fold(u32::from(self.ipv4_sum) + varying);
            frame[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Headers up to TCP's of a frame whose IPv6 header lies at `L3`.
    #[inline(always)]
    fn emit_v6<const L3: usize>(&self, frame: &mut [u8], ecn: Ecn) {
        let len = u16::try_from(frame.len() - L3 - IPV6_LEN).expect("a payload fits 16 bits");
        frame[..L3 + IPV6_LEN + TCP_LEN].copy_from_slice(&self.octets[..L3 + IPV6_LEN + TCP_LEN]);
        frame[L3 + 4..L3 + 6].copy_from_slice(&len.to_be_bytes());
        // The traffic class straddles the first two octets; the flow label is zero.
        frame[L3 + 1] = (ecn as u8) << 4;
    }
}

/// Writes to `buf` the RST that answers a segment for which there is no connection; returns the
/// frame's length, or `None` if the segment is itself a RST (RFC 9293 section 3.10.7.1).
///
/// It goes from `link` to `dst_mac`. The caller limits the rate.
///
/// # Panics
/// If `buf` is shorter than [`super::MAX_HEADER_LEN`] and the frame does not fit.
pub fn reset_for(
    segment: &Segment,
    link: Link,
    dst_mac: [u8; 6],
    buf: &mut [u8],
    mode: ChecksumMode,
) -> Option<usize> {
    if segment.flags.has(Flags::RST) {
        return None;
    }
    let fields = if segment.flags.has(Flags::ACK) {
        Fields { seq: segment.ack, flags: Flags::RST, ..Fields::default() }
    } else {
        Fields {
            ack: segment.seq + segment.seq_len(),
            flags: Flags::RST | Flags::ACK,
            ..Fields::default()
        }
    };
    let template = HeaderTemplate::on(link, dst_mac, segment.tuple);
    Some(template.emit(buf, &fields, 0, mode))
}
