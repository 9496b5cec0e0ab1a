//! A link that fragments IP packets, as a router before a link with a smaller MTU does.

use crate::ip::set_checksum;

/// Fragments the IP packet in `frame` into fragments of at most `mtu` bytes. Other frames, and
/// packets that fit, are returned unchanged. `id` is the Identification field.
#[must_use]
pub fn fragment(frame: Vec<u8>, mtu: usize, id: u32) -> Vec<Vec<u8>> {
    let l3 = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    let is_v4 = match frame[l3 - 2..l3] {
        [0x08, 0x00] => true,
        [0x86, 0xdd] => false,
        _ => return vec![frame],
    };
    if frame.len() - l3 <= mtu {
        return vec![frame];
    }
    let header_len = if is_v4 { 20 } else { 48 };
    let (header, payload) = frame.split_at(l3 + if is_v4 { 20 } else { 40 });
    let piece_len = (mtu - header_len) / 8 * 8;
    let count = payload.len().div_ceil(piece_len);
    let fragment = |(number, piece): (usize, &[u8])| {
        let (offset, more) = (number * piece_len, number + 1 < count);
        let place = |unit: usize, flag| {
            let place = u16::try_from(offset / 8 * unit).expect("a packet is below 64 KiB");
            place | if more { flag } else { 0 }
        };
        let mut part = header.to_vec();
        let len = |more: usize| u16::try_from(piece.len() + more).expect("it fits the MTU");
        if is_v4 {
            let ip = &mut part[l3..];
            ip[2..4].copy_from_slice(&len(20).to_be_bytes());
            ip[4..6].copy_from_slice(&id.to_be_bytes()[2..]);
            ip[6..8].copy_from_slice(&place(1, 0x2000).to_be_bytes());
            set_checksum(ip, 10);
        } else {
            part[l3 + 4..l3 + 6].copy_from_slice(&len(8).to_be_bytes());
            let next = std::mem::replace(&mut part[l3 + 6], 44);
            part.extend([next, 0]);
            part.extend(place(8, 1).to_be_bytes());
            part.extend(id.to_be_bytes());
        }
        part.extend_from_slice(piece);
        part
    };
    payload.chunks(piece_len).enumerate().map(fragment).collect()
}
