//! Packets other than TCP that hand-made peers and routers send: ARP replies and ICMP errors.
//! Independent of the stack's own code.

/// The Internet checksum (RFC 1071).
#[must_use]
pub fn checksum(bytes: &[u8]) -> [u8; 2] {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [.., high, low] = (!sum).to_be_bytes();
    [high, low]
}

/// Sets the checksum of an IPv4 header or an ICMP message, which is at `at`.
pub fn set_checksum(bytes: &mut [u8], at: usize) {
    bytes[at..at + 2].fill(0);
    let sum = checksum(bytes);
    bytes[at..at + 2].copy_from_slice(&sum);
}

/// An IPv4 packet. `fragment` is the word of flags and fragment offset.
///
/// # Panics
/// If it is longer than 64 KiB.
#[must_use]
pub fn ipv4_packet(
    protocol: u8,
    [src, dst]: [[u8; 4]; 2],
    id: u16,
    fragment: u16,
    payload: &[u8],
) -> Vec<u8> {
    let len = u16::try_from(20 + payload.len()).expect("at most 64 KiB");
    let words = [len, id, fragment].map(u16::to_be_bytes).concat();
    let mut packet = [&[0x45, 0], &words[..], &[64, protocol, 0, 0], &src, &dst].concat();
    set_checksum(&mut packet, 10);
    packet.extend_from_slice(payload);
    packet
}

/// The checksum of a TCP segment or an ICMPv6 message between these addresses, both of one family.
///
/// # Panics
/// If it is longer than 64 KiB.
#[must_use]
pub fn transport_checksum(addresses: &[u8], protocol: u8, bytes: &[u8]) -> [u8; 2] {
    let len = u16::try_from(bytes.len()).expect("at most 64 KiB").to_be_bytes();
    checksum(&[addresses, &[0, protocol], &len, bytes].concat())
}

/// An ICMP message: `word` follows the checksum, then `body`.
#[must_use]
pub fn icmp_message((kind, code): (u8, u8), word: u32, body: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0], &word.to_be_bytes()[..], body].concat();
    set_checksum(&mut message, 2);
    message
}

/// Bytes that routers usually quote of an IPv6 packet.
const QUOTED_MAX: usize = 1232;

/// The ICMP error of a router about the packet at offset `l3` of `frame`. `kind` is type and code,
/// `word` the 32 bits after the checksum. Quotes as much as routers usually do.
#[must_use]
pub fn icmp_error(frame: &[u8], l3: usize, kind: (u8, u8), word: u32) -> Vec<u8> {
    let packet = &frame[l3..];
    if packet[0] >> 4 == 4 {
        icmp_error_from(&[198, 18, 0, 99], 28, frame, l3, kind, word)
    } else {
        let router = [0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x99];
        icmp_error_from(&router, packet.len().min(QUOTED_MAX), frame, l3, kind, word)
    }
}

/// Like [`icmp_error`], from this address, quoting `quoted_len` bytes.
///
/// # Panics
/// If the addresses are of different families.
#[must_use]
pub fn icmp_error_from(
    source: &[u8],
    quoted_len: usize,
    frame: &[u8],
    l3: usize,
    kind: (u8, u8),
    word: u32,
) -> Vec<u8> {
    let (header, packet) = frame.split_at(l3);
    let mut icmp = icmp_message(kind, word, &packet[..quoted_len]);
    let link = [&header[6..12], &header[..6], &header[12..]].concat();
    let packet = if let Ok(source) = source.try_into() {
        let dst = *packet[12..].first_chunk().expect("a source address");
        ipv4_packet(1, [source, dst], 0, 0, &icmp)
    } else {
        let addresses = [source, &packet[8..24]].concat();
        icmp[2..4].fill(0);
        let sum = transport_checksum(&addresses, 58, &icmp);
        icmp[2..4].copy_from_slice(&sum);
        let [high, low] = u16::try_from(icmp.len()).expect("an error is short").to_be_bytes();
        [&[0x60, 0, 0, 0, high, low, 58, 64], &addresses[..], &icmp].concat()
    };
    [link, packet].concat()
}

/// The reply of the host with this MAC address to an ARP request for any address. `None` for other
/// frames, and for ARP announcements.
#[must_use]
pub fn arp_reply(request: &[u8], mac: [u8; 6]) -> Option<Vec<u8>> {
    if request.get(12..14)? != [8, 6] || request.get(20..22)? != [0, 1] {
        return None;
    }
    let (sender, target) = (request.get(28..32)?, request.get(38..42)?);
    if sender == target {
        return None;
    }
    let link = [&request[6..12], &mac, &request[12..20]].concat();
    Some([&link[..], &[0, 2], &mac, target, &request[22..32]].concat())
}
