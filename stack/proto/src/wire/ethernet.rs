//! Ethernet header, with or without an 802.1Q tag.

/// Length of an Ethernet header, in bytes.
pub const ETHERNET_LEN: usize = 14;
/// Length of an Ethernet header with one 802.1Q tag, in bytes.
pub const VLAN_ETHERNET_LEN: usize = ETHERNET_LEN + 4;
const _: () = assert!(VLAN_ETHERNET_LEN == crate::device::LINK_HEADER_LEN_MAX);

/// `EtherType` of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// `EtherType` of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// `EtherType` of an 802.1Q tag (TPID).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// `EtherType` of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Broadcast hardware address.
pub const BROADCAST: [u8; 6] = [0xff; 6];
/// Largest VLAN identifier; 4095 is reserved (IEEE 802.1Q table 9-2).
pub const VLAN_MAX: u16 = 4094;

/// Ethernet address and VLAN of the port, as in the headers of all its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetLink {
    /// Hardware address of the port.
    pub mac: [u8; 6],
    /// VLAN identifier of all frames, 1 to [`VLAN_MAX`]; `None`: frames have no tag.
    pub vlan: Option<u16>,
}

impl EthernetLink {
    /// Creates a link without VLAN tags.
    #[must_use]
    pub const fn without_vlan(mac: [u8; 6]) -> Self {
        Self { mac, vlan: None }
    }

    /// Returns the length of the header: 14 bytes, or 18 with a tag.
    #[must_use]
    pub const fn header_len(self) -> usize {
        if self.vlan.is_some() { VLAN_ETHERNET_LEN } else { ETHERNET_LEN }
    }

    /// Parses the header of a received frame. Returns the `EtherType` and the offset of the
    /// payload, [`ETHERNET_LEN`] or [`VLAN_ETHERNET_LEN`]; `None` if the frame is too short or
    /// belongs to another VLAN. Priority and drop eligibility are ignored. A priority-tagged frame
    /// (VLAN identifier 0) is handled as untagged (IEEE 802.1Q section 9.6).
    #[must_use]
    pub fn parse_header(self, head: &[u8]) -> Option<(u16, usize)> {
        let outer = u16::from_be_bytes(*head.get(12..14)?.first_chunk()?);
        if outer != ETHERTYPE_VLAN {
            return self.vlan.is_none().then_some((outer, ETHERNET_LEN));
        }
        let tag = u16::from_be_bytes(*head.get(14..16)?.first_chunk()?);
        let inner = u16::from_be_bytes(*head.get(16..18)?.first_chunk()?);
        (tag & 0x0fff == self.vlan.unwrap_or(0)).then_some((inner, VLAN_ETHERNET_LEN))
    }

    /// Writes the header of a frame to `destination`, with priority 0 if tagged; returns the rest
    /// of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`EthernetLink::header_len`].
    pub fn write_header(self, destination: [u8; 6], ethertype: u16, out: &mut [u8]) -> &mut [u8] {
        let (header, rest) = out.split_at_mut(self.header_len());
        header[..6].copy_from_slice(&destination);
        header[6..12].copy_from_slice(&self.mac);
        let end = header.len();
        if let Some(vlan) = self.vlan {
            header[12..14].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
            header[14..16].copy_from_slice(&vlan.to_be_bytes());
        }
        header[end - 2..].copy_from_slice(&ethertype.to_be_bytes());
        rest
    }
}

/// Returns the source hardware address of a frame; `None` if it is not unicast or cut off.
#[must_use]
pub fn source_mac(head: &[u8]) -> Option<[u8; 6]> {
    let mac = *head.get(6..12)?.first_chunk::<6>()?;
    is_unicast(mac).then_some(mac)
}

/// True for a unicast hardware address: neither a group address nor all zeros.
#[must_use]
pub const fn is_unicast(mac: [u8; 6]) -> bool {
    let [m0, m1, m2, m3, m4, m5] = mac;
    m0 & 1 == 0 && m0 | m1 | m2 | m3 | m4 | m5 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    #[test]
    fn vlan_tag_is_between_addresses_and_ethertype() {
        let mut out = [0xee; 20];
        let plain = EthernetLink::without_vlan(MAC);
        assert_eq!(plain.write_header(PEER, ETHERTYPE_ARP, &mut out).len(), 6);
        assert_eq!(out[..15], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 6, 0xee]);
        assert_eq!(plain.parse_header(&out), Some((ETHERTYPE_ARP, 14)));
        let tagged = EthernetLink { mac: MAC, vlan: Some(0x123) };
        assert_eq!(
            tagged.parse_header(&out),
            None,
            "frames without a VLAN tag are not for this port"
        );
        assert_eq!(tagged.write_header(PEER, ETHERTYPE_IPV6, &mut out).len(), 2);
        assert_eq!(out[12..], [0x81, 0, 0x01, 0x23, 0x86, 0xdd, 0xee, 0xee]);
        assert_eq!(tagged.parse_header(&out), Some((ETHERTYPE_IPV6, 18)));
        assert_eq!(plain.parse_header(&out), None);
        assert_eq!(EthernetLink { vlan: Some(0x124), ..tagged }.parse_header(&out), None);
        // Priority 7, drop eligible.
        out[14] |= 0xf0;
        assert_eq!(tagged.parse_header(&out), Some((ETHERTYPE_IPV6, 18)));
        assert_eq!(tagged.parse_header(&out[..17]), None);
        // VLAN identifier 0: a priority tag.
        out[14..16].copy_from_slice(&[0xe0, 0]);
        assert_eq!(plain.parse_header(&out), Some((ETHERTYPE_IPV6, 18)));
        assert_eq!(plain.parse_header(&out[..17]), None);
        assert_eq!(tagged.parse_header(&out), None);
        assert_eq!(plain.parse_header(&out[..13]), None);
    }

    #[test]
    fn group_and_zero_source_macs_are_rejected() {
        let mut head = [0; 14];
        assert_eq!(source_mac(&head), None);
        head[6..12].copy_from_slice(&PEER);
        assert_eq!(source_mac(&head), Some(PEER));
        head[6] |= 1;
        assert_eq!(source_mac(&head), None);
        assert_eq!(source_mac(&head[..10]), None);
    }
}
