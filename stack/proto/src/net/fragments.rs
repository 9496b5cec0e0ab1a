//! IP fragments put together again, within bounds (RFC 791, RFC 8200 section 4.5).
//!
//! A packet is made whole from pieces that fit without a gap and without an overlap; where two
//! disagree, the packet is given up with all that may still come of it (RFC 5722), so that
//! nobody can slip a header under one that was checked. Pieces take the memory that arrived, not
//! what they claim to be part of.

#[cfg(test)]
mod tests;

use core::net::IpAddr;

use crate::device::{ChecksumState, RxFrame};
use crate::time::{Instant, SECOND};
use crate::wire::checksum;
use crate::wire::ip::{Fragment, IPV6_LEN, PROTOCOL_TCP, Packet};
use crate::wire::tcp::TCP_LEN;

/// Largest length that an IP header can say.
const PACKET_LEN_MAX: usize = 65_535;
/// Pieces of one packet: 64 KiB at an MTU of 576 are 119.
const FRAGMENT_COUNT_MAX: usize = 128;
/// What a piece costs besides its bytes, and a packet besides its pieces.
const FRAGMENT_OVERHEAD: usize = 64;
const PACKET_OVERHEAD: usize = 256;
/// Least that the first piece must hold of what follows the IP header.
const FIRST_FRAGMENT_LEN_MIN: usize = 8;
/// Bytes behind the headers that errors quote.
const QUOTED_LEN: usize = 64;

/// Bounds of reassembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReassemblyConfig {
    /// How long the pieces of a packet are waited for, from the first that came. RFC 791 has 15
    /// seconds at least; RFC 8200 has 60, for links that hold packets longer than ours.
    pub timeout_ns: u64,
    /// Packets at a time.
    pub packets_max: usize,
    /// Bytes of memory over all of them.
    pub bytes_max: usize,
}

impl Default for ReassemblyConfig {
    fn default() -> Self {
        Self { timeout_ns: 15 * SECOND, packets_max: 64, bytes_max: 1 << 20 }
    }
}

/// What became of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum FragmentOutcome {
    /// Others of its packet are missing.
    Buffered,
    /// It makes no sense, or not with the others: it and its packet are given up.
    Rejected,
    /// It was the last that was missing.
    Complete(Reassembled),
}

/// A frame with a whole packet, in memory of its own.
#[derive(Debug, PartialEq, Eq)]
pub struct Reassembled(Vec<u8>);

impl RxFrame for Reassembled {
    fn head(&self) -> &[u8] {
        &self.0
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.0[offset..offset + out.len()]);
    }

    fn checksum(&self) -> ChecksumState {
        // No port can have looked over all the pieces.
        ChecksumState::Unknown
    }
}

/// Why a packet was given up that was not at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// The rest of it did not come in time.
    Timeout,
    /// There was no room to wait for the rest of it.
    Evicted,
}

/// A packet with a TCP segment that was given up, the first fragment of which was here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReassemblyFailure {
    /// Why.
    pub reason: FailureReason,
    /// The hardware address it came from.
    pub mac: [u8; 6],
    /// Its first fragment, without the Ethernet header, as far as errors quote it.
    pub quote: Vec<u8>,
    /// Bytes of that fragment, header and all.
    pub fragment_len: u16,
}

/// What names a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    src: IpAddr,
    dst: IpAddr,
    id: u32,
    /// For IPv4 only.
    protocol: Option<u8>,
}

#[derive(Debug)]
struct StoredFragment {
    start: usize,
    bytes: Box<[u8]>,
}

impl StoredFragment {
    const fn end(&self) -> usize {
        self.start + self.bytes.len()
    }
}

/// A packet of which something is missing.
#[derive(Debug)]
struct FragmentQueue {
    key: Key,
    created_at: Instant,
    /// Ethernet and IP header of the first fragment as they will be, lengths aside.
    header: Option<Header>,
    /// In order, none touching another's bytes.
    fragments: Vec<StoredFragment>,
    /// Bytes of the pieces together.
    received_len: usize,
    /// Bytes of the whole, once the last fragment was here.
    total_len: Option<usize>,
    /// A router on the way was congested (RFC 3168 section 5.3).
    ce_marked: bool,
    /// Given up: what still comes is refused.
    rejected: bool,
}

#[derive(Debug)]
struct Header {
    bytes: Vec<u8>,
    l3: usize,
    /// The headers of the packet as they came.
    raw: Vec<u8>,
    is_tcp: bool,
}

/// The fragments of all packets.
#[derive(Debug)]
pub struct Reassembler {
    config: ReassemblyConfig,
    queues: Vec<FragmentQueue>,
    /// Memory in use, as it is counted.
    bytes: usize,
    failure_count: u64,
    /// The latest of these that its source can be told of.
    last_failure: Option<ReassemblyFailure>,
}

impl Reassembler {
    /// None yet; nothing is allocated.
    #[must_use]
    pub const fn new(config: ReassemblyConfig) -> Self {
        Self { config, queues: Vec::new(), bytes: 0, failure_count: 0, last_failure: None }
    }

    /// Packets given up so far: too late, for want of room, or refused.
    #[must_use]
    pub const fn failure_count(&self) -> u64 {
        self.failure_count
    }

    /// The latest packet given up for want of time or room, once.
    #[inline]
    pub const fn take_failure(&mut self) -> Option<ReassemblyFailure> {
        self.last_failure.take()
    }

    /// Takes a fragment, `part` being what `packet` says of it.
    ///
    /// Cost: the bytes are copied twice; one pass over the packets at hand.
    pub fn on_fragment(
        &mut self,
        now: Instant,
        frame: &impl RxFrame,
        packet: &Packet,
        part: &Fragment,
    ) -> FragmentOutcome {
        self.drop_expired(now);
        let key = Key {
            src: packet.src,
            dst: packet.dst,
            id: part.id,
            protocol: packet.src.is_ipv4().then_some(packet.protocol),
        };
        let Some(bytes) = fragment_payload(frame, packet, part) else {
            self.reject(&key);
            return FragmentOutcome::Rejected;
        };
        // All of a packet in one fragment: it has nothing to do with others (RFC 6946).
        if part.offset == 0 && !part.more {
            let Some(header) = Header::from_first_fragment(frame.head(), packet, part) else {
                return FragmentOutcome::Rejected;
            };
            let piece = StoredFragment { start: 0, bytes };
            return reassemble(header, &[piece], has_ce(packet))
                .map_or(FragmentOutcome::Rejected, FragmentOutcome::Complete);
        }
        let at = match self.queues.iter().position(|partial| partial.key == key) {
            Some(at) => at,
            None => self.create_queue(now, key),
        };
        let cost = bytes.len() + FRAGMENT_OVERHEAD;
        let partial = &mut self.queues[at];
        if partial.rejected {
            return FragmentOutcome::Rejected;
        }
        match partial.insert(frame.head(), packet, part, bytes) {
            InsertOutcome::Duplicate => return FragmentOutcome::Buffered,
            InsertOutcome::Conflict => {
                self.reject(&key);
                return FragmentOutcome::Rejected;
            }
            InsertOutcome::Inserted => self.bytes += cost,
        }
        if !partial.is_complete() {
            self.evict(&key);
            return FragmentOutcome::Buffered;
        }
        let mut partial = self.queues.remove(at);
        self.bytes -= partial.cost();
        let whole = partial.header.take();
        let whole =
            whole.and_then(|header| reassemble(header, &partial.fragments, partial.ce_marked));
        match whole {
            Some(whole) => FragmentOutcome::Complete(whole),
            None => {
                self.failure_count += 1;
                FragmentOutcome::Rejected
            }
        }
    }

    fn create_queue(&mut self, now: Instant, key: Key) -> usize {
        if self.queues.len() >= self.config.packets_max.max(1) {
            // The oldest stands first.
            self.drop_queue(0, FailureReason::Evicted);
        }
        self.bytes += PACKET_OVERHEAD;
        self.queues.push(FragmentQueue {
            key,
            created_at: now,
            header: None,
            fragments: Vec::new(),
            received_len: 0,
            total_len: None,
            ce_marked: false,
            rejected: false,
        });
        self.queues.len() - 1
    }

    /// Gives up the oldest packets but `key` until what is left fits.
    // req: MPA-172
    fn evict(&mut self, key: &Key) {
        while self.bytes > self.config.bytes_max {
            let Some(at) = self.queues.iter().position(|partial| partial.key != *key) else {
                break;
            };
            self.drop_queue(at, FailureReason::Evicted);
        }
    }

    fn drop_queue(&mut self, at: usize, reason: FailureReason) {
        let partial = self.queues.remove(at);
        self.bytes -= partial.cost();
        self.failure_count += u64::from(!partial.rejected);
        self.last_failure = partial.failure(reason).or(self.last_failure.take());
    }

    fn drop_expired(&mut self, now: Instant) {
        let timeout = self.config.timeout_ns;
        while self.queues.first().is_some_and(|oldest| now.since(oldest.created_at) >= timeout) {
            self.drop_queue(0, FailureReason::Timeout);
        }
    }

    /// Gives up a packet, and remembers that for its time.
    fn reject(&mut self, key: &Key) {
        let found = self.queues.iter_mut().find(|partial| partial.key == *key);
        let Some(partial) = found.filter(|partial| !partial.rejected) else { return };
        self.bytes -= partial.cost() - PACKET_OVERHEAD;
        partial.rejected = true;
        partial.fragments = Vec::new();
        partial.header = None;
        partial.received_len = 0;
        self.failure_count += 1;
    }
}

/// What became of a piece.
enum InsertOutcome {
    Inserted,
    /// The same came before.
    Duplicate,
    /// It contradicts another, or there are too many.
    Conflict,
}

impl FragmentQueue {
    /// Memory in use, as it is counted.
    fn cost(&self) -> usize {
        PACKET_OVERHEAD + self.received_len + self.fragments.len() * FRAGMENT_OVERHEAD
    }

    /// What its source is to be told, if the first fragment is here: errors about others are not
    /// sent (RFC 1122 section 3.2.2).
    fn failure(&self, reason: FailureReason) -> Option<ReassemblyFailure> {
        let header = self.header.as_ref().filter(|header| header.is_tcp)?;
        let first = self.fragments.first().filter(|piece| piece.start == 0)?;
        let mut quote = header.raw.clone();
        quote.extend(first.bytes.iter().take(QUOTED_LEN));
        let fragment_len = u16::try_from(header.raw.len() + first.bytes.len()).ok()?;
        let mac = *header.bytes.get(6..)?.first_chunk()?;
        Some(ReassemblyFailure { reason, mac, quote, fragment_len })
    }

    fn is_complete(&self) -> bool {
        self.total_len == Some(self.received_len) && self.header.is_some()
    }

    fn insert(
        &mut self,
        head: &[u8],
        packet: &Packet,
        part: &Fragment,
        bytes: Box<[u8]>,
    ) -> InsertOutcome {
        let piece = StoredFragment { start: part.offset, bytes };
        let at = self.fragments.partition_point(|other| other.start < piece.start);
        if let Some(other) = self.fragments.get(at).filter(|other| other.start == piece.start) {
            // A wire may repeat a frame.
            return if other.bytes == piece.bytes {
                InsertOutcome::Duplicate
            } else {
                InsertOutcome::Conflict
            };
        }
        let overlaps = at > 0 && self.fragments[at - 1].end() > piece.start
            || self.fragments.get(at).is_some_and(|next| next.start < piece.end());
        let end = piece.end();
        let fits = match (part.more, self.total_len) {
            // There is one last fragment, and nothing behind it.
            (false, total) => total.is_none() && at == self.fragments.len(),
            (true, total) => total.is_none_or(|total| end <= total),
        };
        if overlaps || !fits || self.fragments.len() >= FRAGMENT_COUNT_MAX {
            return InsertOutcome::Conflict;
        }
        if part.offset == 0 {
            let Some(header) = Header::from_first_fragment(head, packet, part) else {
                return InsertOutcome::Conflict;
            };
            self.header = Some(header);
        }
        if !part.more {
            self.total_len = Some(end);
        }
        self.ce_marked |= has_ce(packet);
        self.received_len += piece.bytes.len();
        // req: MPA-168, MPA-170
        self.fragments.insert(at, piece);
        InsertOutcome::Inserted
    }
}

impl Header {
    /// The headers in front of the fragments, that of fragments taken out.
    fn from_first_fragment(head: &[u8], packet: &Packet, part: &Fragment) -> Option<Self> {
        let end = if packet.src.is_ipv4() { packet.l4 } else { packet.l4.checked_sub(8)? };
        let mut bytes = head.get(..end)?.to_vec();
        *bytes.get_mut(part.protocol_at)? = packet.protocol;
        let raw = head.get(packet.l3..packet.l4)?.to_vec();
        let is_tcp = packet.protocol == PROTOCOL_TCP;
        Some(Self { bytes, l3: packet.l3, raw, is_tcp })
    }
}

/// The bytes of a fragment; `None` if no packet can have it.
fn fragment_payload(frame: &impl RxFrame, packet: &Packet, part: &Fragment) -> Option<Box<[u8]>> {
    let len = packet.end.checked_sub(packet.l4).filter(|&len| len > 0)?;
    if part.offset + len > PACKET_LEN_MAX || part.more && len % 8 != 0 {
        return None;
    }
    let mut bytes = vec![0; len].into_boxed_slice();
    frame.copy_out(packet.l4, &mut bytes);
    // The headers that decide where a packet goes lie in its first fragment (RFC 1858, RFC 7112).
    if part.offset == 0 {
        let needed = if packet.protocol == PROTOCOL_TCP {
            bytes.get(12).map_or(TCP_LEN, |byte| usize::from(byte >> 4) * 4).max(TCP_LEN)
        } else {
            FIRST_FRAGMENT_LEN_MIN
        };
        if len < needed {
            return None;
        }
    }
    Some(bytes)
}

const fn has_ce(packet: &Packet) -> bool {
    packet.traffic_class & 3 == 3
}

/// Puts the packet together; `None` if it is longer than a packet can be.
fn reassemble(header: Header, pieces: &[StoredFragment], congested: bool) -> Option<Reassembled> {
    let Header { mut bytes, l3, .. } = header;
    bytes.reserve(pieces.iter().map(|piece| piece.bytes.len()).sum());
    let header_end = bytes.len();
    for piece in pieces {
        bytes.extend_from_slice(&piece.bytes);
    }
    let len = bytes.len() - l3;
    let ip = &mut bytes[l3..];
    if ip[0] >> 4 == 4 {
        let total = u16::try_from(len).ok()?;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[6..8].fill(0);
        // What is not capable cannot have been marked by a router that keeps the rules.
        if congested && ip[1] & 3 != 0 {
            ip[1] |= 3;
        }
        ip[10..12].fill(0);
        let sum = !checksum::sum(&ip[..header_end - l3]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let payload_len = u16::try_from(len - IPV6_LEN).ok()?;
        ip[4..6].copy_from_slice(&payload_len.to_be_bytes());
        if congested && ip[1] & 0x30 != 0 {
            ip[1] |= 0x30;
        }
    }
    Some(Reassembled(bytes))
}
