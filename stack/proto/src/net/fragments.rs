//! IP fragment reassembly with bounded memory (RFC 791, RFC 8200 section 4.5).
//!
//! A packet is reassembled from fragments that leave no gap and do not overlap. On an overlap the
//! packet is discarded together with its later fragments (RFC 5722), so that no fragment can
//! replace a header that was already checked. A packet is charged for the bytes that arrived, not
//! for the length that its fragments claim.

mod queue;
#[cfg(test)]
mod tests;

use queue::{
    FRAGMENT_OVERHEAD, FragmentQueue, Header, InsertOutcome, Key, PACKET_OVERHEAD, StoredFragment,
    fragment_payload, has_ce, reassemble,
};
pub use queue::{FailureReason, Reassembled, ReassemblyFailure};

use crate::device::RxFrame;
use crate::time::{Instant, SECOND};
use crate::wire::ip::{Fragment, Packet};

/// Limits of reassembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReassemblyConfig {
    /// Reassembly timeout, from the first fragment that arrived. RFC 791 specifies at least 15
    /// seconds; RFC 8200 specifies 60, for paths with a longer packet lifetime.
    pub timeout_ns: u64,
    /// Limit on packets being reassembled.
    pub packets_max: usize,
    /// Limit on their memory, in bytes.
    pub bytes_max: usize,
}

impl Default for ReassemblyConfig {
    fn default() -> Self {
        Self { timeout_ns: 15 * SECOND, packets_max: 64, bytes_max: 1 << 20 }
    }
}

/// Result of [`Reassembler::on_fragment`].
#[derive(Debug, PartialEq, Eq)]
pub enum FragmentOutcome {
    /// Stored; other fragments of the packet are missing.
    Buffered,
    /// Malformed, or inconsistent with stored fragments: it and its packet are discarded.
    Rejected,
    /// The packet is complete.
    Complete(Reassembled),
}

/// Reassembly of all packets.
#[derive(Debug)]
pub struct Reassembler {
    config: ReassemblyConfig,
    queues: Vec<FragmentQueue>,
    /// Memory charged, in bytes.
    bytes: usize,
    failure_count: u64,
    /// Latest failure of which the source can be notified.
    last_failure: Option<ReassemblyFailure>,
}

impl Reassembler {
    /// Creates an empty reassembler; allocates nothing.
    #[must_use]
    pub const fn new(config: ReassemblyConfig) -> Self {
        Self { config, queues: Vec::new(), bytes: 0, failure_count: 0, last_failure: None }
    }

    /// Packets discarded: by timeout, by eviction, or as inconsistent.
    #[must_use]
    pub const fn failure_count(&self) -> u64 {
        self.failure_count
    }

    /// Takes the latest failure by timeout or eviction.
    #[inline]
    pub const fn take_failure(&mut self) -> Option<ReassemblyFailure> {
        self.last_failure.take()
    }

    /// Processes a received fragment; `part` is the fragment field of `packet`.
    ///
    /// Cost: the bytes are copied twice; one linear search over the packets.
    pub fn on_fragment(
        &mut self,
        now: Instant,
        frame: &impl RxFrame,
        packet: &Packet,
        part: &Fragment,
    ) -> FragmentOutcome {
        // RFC 8200 section 4.5: a packet that is not complete in time is discarded.
        self.drop_expired(now);
        // RFC 791, RFC 8200 section 4.5: fragments of one packet agree in these fields.
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
        // Atomic fragment: processed independently of other fragments (RFC 6946).
        if part.offset == 0 && !part.more {
            let Some(header) = Header::from_first_fragment(frame.head(), packet, part) else {
                return FragmentOutcome::Rejected;
            };
            let fragment = StoredFragment { start: 0, bytes };
            return reassemble(header, &[fragment], has_ce(packet))
                .map_or(FragmentOutcome::Rejected, FragmentOutcome::Complete);
        }
        // RFC 8200 section 4.5: the first fragment to arrive starts the reassembly timer.
        let at = match self.queues.iter().position(|partial| partial.key == key) {
            Some(at) => at,
            None => self.create_queue(now, key),
        };
        let cost = bytes.len() + FRAGMENT_OVERHEAD;
        let partial = &mut self.queues[at];
        if partial.rejected {
            return FragmentOutcome::Rejected;
        }
        // RFC 5722 section 4: an overlap discards the packet, and its later fragments.
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
        // RFC 8200 section 4.5: the header of the first fragment, without a fragment header, and
        // the data of all.
        let partial = self.queues.remove(at);
        self.bytes -= partial.cost();
        match partial.reassemble() {
            Some(reassembled) => FragmentOutcome::Complete(reassembled),
            None => {
                self.failure_count += 1;
                FragmentOutcome::Rejected
            }
        }
    }

    fn create_queue(&mut self, now: Instant, key: Key) -> usize {
        if self.queues.len() >= self.config.packets_max.max(1) {
            // Sorted by age: the first is the oldest.
            self.drop_queue(0, FailureReason::Evicted);
        }
        self.bytes += PACKET_OVERHEAD;
        self.queues.push(FragmentQueue::new(now, key));
        self.queues.len() - 1
    }

    /// Discards the oldest packets except `key` until the memory limit is met.
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

    /// Discards a packet; its later fragments are rejected until the timeout.
    fn reject(&mut self, key: &Key) {
        let found = self.queues.iter_mut().find(|partial| partial.key == *key);
        let Some(partial) = found.filter(|partial| !partial.rejected) else { return };
        self.bytes -= partial.cost() - PACKET_OVERHEAD;
        partial.reject();
        self.failure_count += 1;
    }
}
