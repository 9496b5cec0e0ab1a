//! Modifies segments in flight: changes TCP header fields and recomputes checksums; drops,
//! duplicates, replays, splits or fragments segments; answers them with ICMP errors.
//!
//! Payloads stay unchanged, so that all data delivered must be correct.

use std::collections::VecDeque;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::fragmenter::fragment;
use crate::ip;

/// Segments kept for replay.
const OLD_MAX: usize = 32;

/// Bytes of an FPDU with an empty RDMA Write.
const SHORTEST_FPDU: usize = 20;

/// Source of decisions.
enum Source {
    Seed(SmallRng),
    /// Input bytes, each used once; when they run out, no more segments are changed.
    Bytes(VecDeque<u8>),
}

/// Frames that result from one frame.
#[derive(Debug, Default)]
pub struct Mutated {
    /// Forwarded to the receiver.
    pub forward: Vec<Vec<u8>>,
    /// Returned to the sender.
    pub reverse: Vec<Vec<u8>>,
}

/// Modifies segments.
pub struct SegmentMutator {
    source: Source,
    /// Frames changed, out of 256.
    rate: u8,
    /// Leaves sequence and acknowledgment numbers unchanged, so that neither end gets a false view
    /// of the other that no later segment corrects.
    keeps_seq: bool,
    replayable: VecDeque<Vec<u8>>,
    /// Number of frames changed.
    pub changes: u64,
}

/// Offsets in a TCP segment.
#[derive(Clone, Copy)]
struct Parts {
    is_v4: bool,
    tcp: usize,
    payload: usize,
}

/// Offset of the network header: VLAN tags are not supported.
const L3: usize = 14;

fn parts(frame: &[u8]) -> Option<Parts> {
    let (is_v4, tcp, protocol) = match *frame.get(12..14)? {
        [8, 0] => (true, L3 + 20, *frame.get(L3 + 9)?),
        [0x86, 0xdd] => (false, L3 + 40, *frame.get(L3 + 6)?),
        _ => return None,
    };
    let words = usize::from(*frame.get(tcp + 12)? >> 4);
    let payload = tcp + words * 4;
    (protocol == 6 && words >= 5 && payload <= frame.len()).then_some(Parts { is_v4, tcp, payload })
}

/// Returns the byte of the data offset with another offset, drawn from `byte`.
///
/// Returns a wrong data offset. A valid one moves the payload by less than an FPDU: otherwise
/// intact FPDUs could be accepted at the place of others, and the displaced ones would be lost
/// unnoticed.
fn wrong_data_offset(original: u8, byte: u8) -> u8 {
    let words = byte >> 4;
    let is_valid = words >= 5;
    let moves_an_fpdu = usize::from(words.abs_diff(original >> 4)) * 4 >= SHORTEST_FPDU;
    let words = if is_valid && moves_an_fpdu { words % 5 } else { words };
    original & 0x0f | words << 4
}

fn put16(frame: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).expect("a packet is below 64 KiB");
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn add32(frame: &mut [u8], at: usize, delta: u32) {
    let value = u32::from_be_bytes(frame[at..at + 4].try_into().expect("four bytes"));
    frame[at..at + 4].copy_from_slice(&value.wrapping_add(delta).to_be_bytes());
}

/// Recomputes lengths and checksums of a TCP segment.
fn fix_lengths_and_checksums(frame: &mut [u8], at: Parts) {
    let len = frame.len() - L3;
    let addresses = if at.is_v4 {
        put16(frame, L3 + 2, len);
        ip::set_checksum(&mut frame[L3..L3 + 20], 10);
        L3 + 12..L3 + 20
    } else {
        put16(frame, L3 + 4, len - 40);
        L3 + 8..L3 + 40
    };
    frame[at.tcp + 16..at.tcp + 18].fill(0);
    let sum = ip::transport_checksum(&frame[addresses], 6, &frame[at.tcp..]);
    frame[at.tcp + 16..at.tcp + 18].copy_from_slice(&sum);
}

/// Cuts a TCP segment into several of at most `max` bytes of payload. Others, and those with SYN or
/// FIN, stay as they are.
#[must_use]
pub fn cut_payload(frame: Vec<u8>, max: usize) -> Vec<Vec<u8>> {
    let Some(at) = parts(&frame).filter(|at| frame[at.tcp + 13] & 3 == 0) else {
        return vec![frame];
    };
    if frame.len() - at.payload <= max {
        return vec![frame];
    }
    let (header, payload) = frame.split_at(at.payload);
    let piece = |(index, bytes): (usize, &[u8])| {
        let mut piece = [header, bytes].concat();
        add32(&mut piece, at.tcp + 4, u32::try_from(index * max).expect("short"));
        fix_lengths_and_checksums(&mut piece, at);
        piece
    };
    payload.chunks(max).enumerate().map(piece).collect()
}

impl SegmentMutator {
    /// Takes decisions from a generator with this seed.
    #[must_use]
    pub fn from_seed(seed: u64, rate: u8, keeps_seq: bool) -> Self {
        let source = Source::Seed(SmallRng::seed_from_u64(seed));
        Self { source, rate, keeps_seq, replayable: VecDeque::new(), changes: 0 }
    }

    /// Takes decisions from `bytes`: one byte for each frame, more for each change.
    #[must_use]
    pub fn from_input(bytes: &[u8], keeps_seq: bool) -> Self {
        let source = Source::Bytes(bytes.iter().copied().collect());
        Self { source, rate: 128, keeps_seq, replayable: VecDeque::new(), changes: 0 }
    }

    fn byte(&mut self) -> u8 {
        match &mut self.source {
            Source::Seed(rng) => rng.random(),
            // Above any rate: no change.
            Source::Bytes(bytes) => bytes.pop_front().unwrap_or(u8::MAX),
        }
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// Returns a number below `end`.
    fn below(&mut self, end: usize) -> usize {
        (usize::from(self.byte()) << 8 | usize::from(self.byte())) % end.max(1)
    }

    /// Returns the frames that replace `frame`.
    pub fn mutate(&mut self, frame: Vec<u8>) -> Mutated {
        let Some(at) = parts(&frame) else {
            return Mutated { forward: vec![frame], ..Mutated::default() };
        };
        if self.replayable.len() == OLD_MAX {
            self.replayable.pop_front();
        }
        self.replayable.push_back(frame.clone());
        if self.byte() >= self.rate {
            return Mutated { forward: vec![frame], ..Mutated::default() };
        }
        self.changes += 1;
        let kind = self.byte();
        let mut out = Mutated::default();
        match kind % 16 {
            0 => {}
            1 => out.forward = vec![frame.clone(), frame],
            2 => {
                let old = self.below(self.replayable.len());
                out.forward = vec![frame, self.replayable[old].clone()];
            }
            3 => out.forward = self.fragments(frame),
            4 => {
                out.reverse.push(self.icmp_error(&frame, at));
                out.forward = vec![frame];
            }
            5 | 6 => out.forward = self.split(&frame, at),
            7 => {
                // Replaces the segment; case 2 adds to it.
                let old = self.below(self.replayable.len());
                out.forward = vec![self.replayable[old].clone()];
            }
            _ => out.forward = vec![self.change(kind, frame, at)],
        }
        out
    }

    /// Changes one header field, then recomputes lengths and checksums.
    fn change(&mut self, kind: u8, mut frame: Vec<u8>, at: Parts) -> Vec<u8> {
        let tcp = at.tcp;
        let options = tcp + 20..at.payload;
        match kind % 16 {
            8 => frame[tcp + 13] ^= 1 << (self.byte() % 8),
            9 => frame[tcp + 14..tcp + 16].copy_from_slice(&self.word().to_be_bytes()[..2]),
            10 | 11 if !options.is_empty() => {
                let at = options.start + self.below(options.len());
                frame[at] = self.byte();
            }
            12 => {
                // A wrong data offset turns options into payload or payload into options. With
                // `keeps_seq`, only segments without payload get one, which points past the end of
                // the packet.
                if !self.keeps_seq {
                    frame[tcp + 12] = wrong_data_offset(frame[tcp + 12], self.byte());
                } else if at.payload == frame.len() {
                    frame[tcp + 12] |= 0xf0;
                }
            }
            13 => frame[tcp + 18..tcp + 20].copy_from_slice(&self.word().to_be_bytes()[..2]),
            14 if !self.keeps_seq => {
                // Odd, never a multiple of four: otherwise intact FPDUs could be accepted at the
                // place of others.
                let delta = self.word() >> (self.byte() % 31) | 1;
                add32(&mut frame, tcp + 4, delta);
            }
            15 if !self.keeps_seq => {
                let delta = self.word() >> (self.byte() % 31);
                add32(&mut frame, tcp + 8, delta);
            }
            _ => frame[tcp + 13] ^= 0xc0,
        }
        fix_lengths_and_checksums(&mut frame, at);
        frame
    }

    /// Splits a segment into two, which may be reordered or lose the second.
    fn split(&mut self, frame: &[u8], at: Parts) -> Vec<Vec<u8>> {
        let len = frame.len() - at.payload;
        // Segments with SYN or FIN are not split.
        if len < 2 || frame[at.tcp + 13] & 3 != 0 {
            return vec![frame.to_vec()];
        }
        let cut = 1 + self.below(len - 1);
        let mut first = frame[..at.payload + cut].to_vec();
        let mut second = frame[..at.payload].to_vec();
        second.extend_from_slice(&frame[at.payload + cut..]);
        add32(&mut second, at.tcp + 4, u32::try_from(cut).expect("short"));
        fix_lengths_and_checksums(&mut first, at);
        fix_lengths_and_checksums(&mut second, at);
        match self.byte() % 4 {
            0 => vec![first],
            1 => vec![second, first],
            _ => vec![first, second],
        }
    }

    /// Fragments the packet; a fragment may be dropped or duplicated, or the order reversed.
    fn fragments(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let mtu = 100 + self.below(1300);
        let id = self.word();
        let mut pieces = fragment(frame, mtu, id);
        let index = self.below(pieces.len());
        match self.byte() % 4 {
            0 => drop(pieces.remove(index)),
            1 => pieces.push(pieces[index].clone()),
            2 => pieces.reverse(),
            _ => {}
        }
        pieces
    }

    /// An ICMP error about the packet, as a router might send: packet too big, or unreachable.
    fn icmp_error(&mut self, frame: &[u8], at: Parts) -> Vec<u8> {
        let mtu = u32::try_from(self.below(1500)).expect("below 1500");
        let is_too_big = self.byte().is_multiple_of(2);
        let code = self.byte() % 16;
        let quoted_len = frame.len().min(at.tcp + 20) - L3;
        let (kind, source) = match (at.is_v4, is_too_big) {
            (true, true) => ((3, 4), L3 + 16..L3 + 20),
            (true, false) => ((3, code), L3 + 16..L3 + 20),
            (false, true) => ((2, 0), L3 + 24..L3 + 40),
            (false, false) => ((1, code % 8), L3 + 24..L3 + 40),
        };
        ip::icmp_error_from(&frame[source], quoted_len, frame, L3, kind, mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_data_offset_moves_no_fpdu_to_the_place_of_another() {
        for original in (5..=15).map(|words: u8| words << 4 | 1) {
            for byte in 0..=u8::MAX {
                let changed = wrong_data_offset(original, byte);
                assert_eq!(changed & 0x0f, 1);
                let words = changed >> 4;
                let moved = usize::from(words.abs_diff(original >> 4)) * 4;
                assert!(words < 5 || moved < SHORTEST_FPDU, "{original:x} to {changed:x}");
            }
        }
    }
}
