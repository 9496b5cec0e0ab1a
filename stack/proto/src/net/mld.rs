//! Multicast listener discovery, host part (RFC 3810; RFC 2710 for MLDv1 queriers).
//!
//! A switch with MLD snooping forwards frames of a group only to hosts that have reported
//! membership, and Neighbor Solicitations are sent to solicited-node groups: a host that sends no
//! reports cannot be resolved. So each solicited-node group is reported (RFC 4862 section 5.4.2),
//! at the start and in answer to queries.

use core::net::Ipv6Addr;

use crate::net::ndp::multicast_mac;
use crate::time::MILLISECOND;
use crate::wire::checksum;
use crate::wire::ethernet::{ETHERTYPE_IPV6, EthernetLink};
use crate::wire::ip::{IPV6_LEN, PROTOCOL_ICMPV6};

/// Limit on the groups of one report: its packet then fits the smallest MTU of a port.
pub const GROUPS_MAX: usize = 8;

/// All MLDv2-capable routers: destination of MLDv2 reports.
const ALL_MLDV2_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Hop limit of all MLD messages.
const HOP_LIMIT: u8 = 1;
const QUERY: u8 = 130;
const REPORT_V1: u8 = 131;
const REPORT_V2: u8 = 143;
/// Hop-by-hop options header: router alert (MLD) and padding; the next header is ICMPv6.
const HOP_BY_HOP: [u8; 8] = [PROTOCOL_ICMPV6, 0, 5, 2, 0, 0, 1, 0];
/// Bytes of an MLDv1 message, and of the shortest MLDv2 query.
const V1_LEN: usize = 24;
const V2_QUERY_LEN: usize = 28;
const RECORD_LEN: usize = 20;

/// Multicast Listener Query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Group of a multicast-address-specific query; `None` for a general query.
    pub group: Option<Ipv6Addr>,
    /// Maximum response delay, in nanoseconds.
    pub delay_max_ns: u64,
    /// MLDv1 query: the querier understands version 1 only.
    pub is_v1: bool,
}

/// Multicast address record type of an MLDv2 report. The source list is empty, so that both mean
/// "all sources".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordType {
    /// Current state, in answer to a query (`MODE_IS_EXCLUDE`).
    ModeIsExclude = 2,
    /// Filter mode change: the group was joined (`CHANGE_TO_EXCLUDE_MODE`).
    ChangeToExclude = 4,
}

/// Parses an ICMPv6 message from `src` to `dst` that follows a hop-by-hop options header, with this
/// hop limit. `None` if it is not a query or violates RFC 3810 section 6.2.
#[must_use]
pub fn parse(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, message: &[u8]) -> Option<Query> {
    let fixed = message.first_chunk::<V1_LEN>()?;
    let is_v1 = message.len() == V1_LEN;
    if fixed[0] != QUERY
        || hop_limit != HOP_LIMIT
        || !src.is_unicast_link_local()
        || !(is_v1 || message.len() >= V2_QUERY_LEN)
        || icmpv6_sum(src, dst, message) != 0xffff
    {
        return None;
    }
    let code = u64::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    // From 32,768 on the field is a floating-point value (RFC 3810 section 5.1.3).
    let delay_ms = if is_v1 || code < 0x8000 {
        code
    } else {
        (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3)
    };
    let mut group = [0; 16];
    group.copy_from_slice(&fixed[8..]);
    let group = Ipv6Addr::from(group);
    if !(group.is_unspecified() || group.is_multicast()) {
        return None;
    }
    let group = Some(group).filter(|group| !group.is_unspecified());
    Some(Query { group, delay_max_ns: delay_ms * MILLISECOND, is_v1 })
}

/// Writes to `out` the MLDv2 report of `groups`; returns the length of the frame. `source` is a
/// link-local address, or unspecified if there is none (RFC 3810 section 5.2.13).
///
/// # Panics
/// With more than [`GROUPS_MAX`] groups; if `out` is shorter than the frame.
pub fn write_report(
    link: EthernetLink,
    source: Ipv6Addr,
    record: RecordType,
    groups: &[Ipv6Addr],
    out: &mut [u8],
) -> usize {
    assert!(groups.len() <= GROUPS_MAX, "the packet fits the least MTU");
    let mut message = [0; 8 + GROUPS_MAX * RECORD_LEN];
    message[0] = REPORT_V2;
    for (at, group) in groups.iter().enumerate() {
        let record_bytes = &mut message[8 + at * RECORD_LEN..][..RECORD_LEN];
        record_bytes[0] = record as u8;
        record_bytes[4..].copy_from_slice(&group.octets());
        // Number of multicast address records.
        message[7] += 1;
    }
    let len = 8 + groups.len() * RECORD_LEN;
    write(link, source, ALL_MLDV2_ROUTERS, &mut message[..len], out)
}

/// Writes to `out` the MLDv1 report of `group`; returns the length of the frame.
///
/// # Panics
/// If `out` is shorter than the frame.
pub fn write_report_v1(
    link: EthernetLink,
    source: Ipv6Addr,
    group: Ipv6Addr,
    out: &mut [u8],
) -> usize {
    let mut message = [0; V1_LEN];
    message[0] = REPORT_V1;
    message[8..].copy_from_slice(&group.octets());
    write(link, source, group, &mut message, out)
}

fn write(
    link: EthernetLink,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    message: &mut [u8],
    out: &mut [u8],
) -> usize {
    let sum = !icmpv6_sum(src, dst, message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let packet = link.write_header(multicast_mac(dst), ETHERTYPE_IPV6, out);
    let payload_len = HOP_BY_HOP.len() + message.len();
    let [high, low] = u16::try_from(payload_len).unwrap_or(0).to_be_bytes();
    packet[..8].copy_from_slice(&[0x60, 0, 0, 0, high, low, 0, HOP_LIMIT]);
    packet[8..24].copy_from_slice(&src.octets());
    packet[24..IPV6_LEN].copy_from_slice(&dst.octets());
    let (options, rest) = packet[IPV6_LEN..].split_at_mut(HOP_BY_HOP.len());
    options.copy_from_slice(&HOP_BY_HOP);
    rest[..message.len()].copy_from_slice(message);
    link.header_len() + IPV6_LEN + payload_len
}

/// Ones' complement sum of a message and its pseudo-header: 0xffff if its checksum is correct.
fn icmpv6_sum(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> u16 {
    let mut pseudo = [0; IPV6_LEN];
    pseudo[..16].copy_from_slice(&src.octets());
    pseudo[16..32].copy_from_slice(&dst.octets());
    pseudo[32..36].copy_from_slice(&u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
    pseudo[39] = PROTOCOL_ICMPV6;
    checksum::add(checksum::sum(&pseudo), checksum::sum(message))
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{Icmpv6Packet, Icmpv6Repr, Ipv6Packet, MldRepr};

    use super::{Query, RecordType, icmpv6_sum, parse, write_report, write_report_v1};
    use crate::net::ndp::{ALL_NODES, solicited_node};
    use crate::time::{MILLISECOND, SECOND};
    use crate::wire::ethernet::EthernetLink;

    const QUERIER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const LOCAL: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 7, 0, 0, 0, 2);

    fn query(len: usize, code: u16, group: Ipv6Addr) -> Vec<u8> {
        let mut message = vec![0; len];
        message[0] = 130;
        message[4..6].copy_from_slice(&code.to_be_bytes());
        message[8..24].copy_from_slice(&group.octets());
        let sum = !icmpv6_sum(QUERIER, ALL_NODES, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        message
    }

    #[test]
    fn report_is_parsed_by_smoltcp() {
        let link = EthernetLink::without_vlan([2, 0, 0, 0, 0, 2]);
        let groups = [solicited_node(LOCAL), solicited_node(QUERIER)];
        let mut out = [0xee; 256];
        let len = write_report(link, QUERIER, RecordType::ChangeToExclude, &groups, &mut out);
        assert_eq!(out[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
        let ip = Ipv6Packet::new_checked(&out[14..len]).unwrap();
        assert_eq!((ip.hop_limit(), ip.next_header().into()), (1, 0u8));
        assert_eq!(ip.payload()[..8], [58, 0, 5, 2, 0, 0, 1, 0]);
        let packet = Icmpv6Packet::new_checked(&ip.payload()[8..]).unwrap();
        let (src, dst) = (ip.src_addr(), ip.dst_addr());
        let repr = Icmpv6Repr::parse(&src, &dst, &packet, &ChecksumCapabilities::default());
        let Ok(Icmpv6Repr::Mld(MldRepr::Report { nr_mcast_addr_rcrds: 2, data })) = repr else {
            panic!("{repr:?}")
        };
        for (record, group) in data.chunks(20).zip(groups) {
            assert_eq!((&record[..4], &record[4..]), (&[4, 0, 0, 0][..], &group.octets()[..]));
        }
    }

    #[test]
    fn v1_report_is_sent_to_its_group() {
        let group = solicited_node(LOCAL);
        let mut out = [0xee; 256];
        let link = EthernetLink::without_vlan([2, 0, 0, 0, 0, 2]);
        let len = write_report_v1(link, QUERIER, group, &mut out);
        let ip = Ipv6Packet::new_checked(&out[14..len]).unwrap();
        assert_eq!((ip.dst_addr(), ip.hop_limit()), (group, 1));
        let message = &ip.payload()[8..];
        assert_eq!((message[0], &message[8..]), (131, &group.octets()[..]));
        assert_eq!(icmpv6_sum(QUERIER, group, message), 0xffff);
    }

    #[test]
    fn v1_and_v2_queries_are_parsed() {
        let parse = |message: &[u8]| parse(QUERIER, ALL_NODES, 1, message);
        let general = Query { group: None, delay_max_ns: 10 * SECOND, is_v1: false };
        assert_eq!(parse(&query(28, 10_000, Ipv6Addr::UNSPECIFIED)), Some(general));
        let old = Query { is_v1: true, ..general };
        assert_eq!(parse(&query(24, 10_000, Ipv6Addr::UNSPECIFIED)), Some(old));
        let group = solicited_node(LOCAL);
        let long = Query { group: Some(group), delay_max_ns: 0x8000 * MILLISECOND, is_v1: false };
        assert_eq!(parse(&query(48, 0x8000, group)), Some(long));
    }

    #[test]
    fn query_breaking_rfc_3810_section_6_2_is_rejected() {
        let good = query(28, 1000, Ipv6Addr::UNSPECIFIED);
        assert!(parse(QUERIER, ALL_NODES, 1, &good).is_some());
        assert_eq!(parse(QUERIER, ALL_NODES, 255, &good), None, "hop limit");
        assert_eq!(parse(LOCAL, ALL_NODES, 1, &good), None, "not of the link");
        assert_eq!(parse(QUERIER, LOCAL, 1, &good), None, "checksum");
        assert_eq!(parse(QUERIER, ALL_NODES, 1, &good[..27]), None, "length");
        assert_eq!(parse(QUERIER, ALL_NODES, 1, &query(28, 1000, LOCAL)), None, "no group");
    }
}
