//! Mesh: bounded single-producer rings between the shards of a port, and what the shards share.
//!
//! A ring of each shard to each other one carries frames that arrived at the wrong shard, and what
//! one shard learns or asks for all. The rings are bounded: a message for a shard whose ring is
//! full is dropped and counted, as on a wire, so a shard that stalls does not delay the others. One
//! flag for each shard tells it that its rings are not empty: without messages a pass costs one
//! load, whatever the number of shards.
//!
//! One shard, the lead, does what a host does once: it answers and asks neighbors (ARP, neighbor
//! discovery), announces the addresses, and reports memberships. The others forward what they
//! receive of that, and learn the answers from it. The lead is the live shard with the lowest
//! number.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;

use crate::net::reply_limits::ReplyLimits;
use crate::steering::backlog::Backlogs;
use crate::steering::message::Message;
use crate::steering::owners::{OwnerTable, ShardId};
use crate::steering::toeplitz::RssTable;
use crate::wire::tcp::FourTuple;

/// Maximum number of shards of a port.
pub const SHARD_COUNT_MAX: usize = 64;

/// Settings of a mesh.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// Number of shards, 1 to [`SHARD_COUNT_MAX`].
    pub shards: usize,
    /// Messages that the ring from one shard to another holds, at least 1.
    pub ring_len: usize,
    /// Maximum number of connections over all shards, those in TIME-WAIT included.
    pub connections_max: usize,
    /// SYN cookies sent per second over all shards, at most.
    pub cookies_per_second: u32,
    /// Seed of the hash keys: that of all the engines.
    pub seed: u64,
    /// Steering of the port.
    pub steering: PortSteering,
}

/// Rule by which a port chooses the queue of a segment, as far as its shards know, and the way in
/// which an active open gets its replies to its own queue.
#[derive(Clone, Debug)]
pub enum PortSteering {
    /// By RSS: it takes a source port for which this table names its queue.
    Predicted(RssTable),
    /// Queue `i` gets what the peer sends on its queue `i`: any source port will do.
    Mirrored,
    /// By a rule that is not known here: a SYN-ACK shows where the replies arrive. If that is
    /// another queue, the next source port is tried, [`source_ports_max`] at most.
    Unknown,
}

/// Source ports that an active open tries on a port with so many shards whose steering is unknown.
///
/// If the hash is even the last one leads elsewhere as well in less than one of 50 opens.
#[must_use]
pub const fn source_ports_max(shards: usize) -> usize {
    4 * shards
}

/// State of all the shards of a port.
struct Shared {
    owners: OwnerTable,
    limits: ReplyLimits,
    backlogs: Arc<Backlogs>,
    steering: PortSteering,
    /// Bit `i` is set while shard `i` lives.
    live: AtomicU64,
    /// By shard: a ring to it may hold a message.
    pending: Box<[CachePadded<AtomicBool>]>,
}

type Ring<R> = Arc<ArrayQueue<Message<R>>>;

/// A shard's ends of the rings to and from each other shard of its port, and the state that they
/// share.
pub struct MeshPort<R> {
    id: ShardId,
    shared: Arc<Shared>,
    /// Rings to the other shards, by their number; that to itself is never used.
    to: Box<[Ring<R>]>,
    /// Rings from the other shards.
    from: Box<[Ring<R>]>,
    /// Ring that is polled first next time.
    next: usize,
    pub(crate) forwarding: Forwarding<R>,
}

/// Notes of a shard while it processes messages, or forwards frames.
pub(crate) struct Forwarding<R> {
    /// Messages received with the burst, and not processed yet.
    pub(crate) messages: Vec<Message<R>>,
    /// The frame in process came from another shard, and is not forwarded again.
    pub(crate) is_forwarded: bool,
    /// The last flow of this pass whose segments were forwarded, and its owner.
    pub(crate) misdelivered: Option<(FourTuple, ShardId)>,
}

/// Reports the death of a shard to the others. Clones refer to the same mesh.
#[derive(Clone)]
pub struct MeshMonitor(Arc<Shared>);

/// Creates a mesh, and returns the port of each shard in it, in their order.
///
/// # Panics
/// If the number of shards is 0 or above [`SHARD_COUNT_MAX`], or the rings have no slot.
#[must_use]
pub fn mesh<R>(config: MeshConfig) -> Vec<MeshPort<R>> {
    let count = config.shards;
    assert!((1..=SHARD_COUNT_MAX).contains(&count), "{count} shards");
    let shared = Arc::new(Shared {
        owners: OwnerTable::new(config.connections_max, config.seed),
        limits: ReplyLimits::new(config.seed, config.cookies_per_second),
        backlogs: Arc::new(Backlogs::new(count)),
        steering: config.steering,
        live: AtomicU64::new(u64::MAX >> (SHARD_COUNT_MAX - count)),
        pending: (0..count).map(|_| CachePadded::default()).collect(),
    });
    let ring = || Arc::new(ArrayQueue::new(config.ring_len));
    // Indexed by the sender, then by the receiver.
    let rings: Vec<Vec<Ring<R>>> =
        (0..count).map(|_| (0..count).map(|_| ring()).collect()).collect();
    (0u16..)
        .take(count)
        .map(|id| {
            let at = usize::from(id);
            let forwarding =
                Forwarding { messages: Vec::new(), is_forwarded: false, misdelivered: None };
            let to = rings[at].iter().map(Arc::clone).collect();
            let from = rings.iter().enumerate().filter(|&(sender, _)| sender != at);
            let from = from.map(|(_, to)| Arc::clone(&to[at])).collect();
            MeshPort { id: ShardId(id), shared: Arc::clone(&shared), to, from, next: 0, forwarding }
        })
        .collect()
}

impl<R> MeshPort<R> {
    /// Number of this shard.
    #[must_use]
    pub const fn id(&self) -> ShardId {
        self.id
    }

    /// Number of shards, those that have died included.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.to.len()
    }

    /// The owners of all four-tuples.
    #[must_use]
    pub fn owners(&self) -> &OwnerTable {
        &self.shared.owners
    }

    /// Returns a handle by which the death of a shard is reported.
    #[must_use]
    pub fn monitor(&self) -> MeshMonitor {
        MeshMonitor(Arc::clone(&self.shared))
    }

    /// Limits on the replies of all shards.
    pub(crate) fn limits(&self) -> &ReplyLimits {
        &self.shared.limits
    }

    /// Steering of the port.
    pub(crate) fn steering(&self) -> &PortSteering {
        &self.shared.steering
    }

    /// Passive connections in setup, over all shards.
    pub(crate) fn backlogs(&self) -> &Arc<Backlogs> {
        &self.shared.backlogs
    }

    /// Returns the lead: the live shard that answers and asks neighbors.
    pub(crate) fn lead(&self) -> ShardId {
        let live = self.shared.live.load(Ordering::Relaxed);
        ShardId(u16::try_from(live.trailing_zeros()).unwrap_or(u16::MAX))
    }

    /// True if this shard is the lead.
    pub(crate) fn is_lead(&self) -> bool {
        self.lead() == self.id
    }

    /// Returns the live shard that a hash selects.
    pub(crate) fn select(&self, hash: u64) -> ShardId {
        let live = self.shared.live.load(Ordering::Relaxed);
        let mut skip = hash % u64::from(live.count_ones().max(1));
        let mut left = live;
        while skip > 0 {
            left &= left - 1;
            skip -= 1;
        }
        ShardId(u16::try_from(left.trailing_zeros()).unwrap_or(u16::MAX))
    }

    /// Returns the other shards that live.
    pub(crate) fn others(&self) -> impl Iterator<Item = ShardId> + use<R> {
        let (live, own) = (self.shared.live.load(Ordering::Relaxed), self.id);
        (0..64).map(ShardId).filter(move |&shard| shard != own && live >> shard.0 & 1 != 0)
    }

    /// Sends a message to another shard. False if it was dropped: the ring is full, or the shard
    /// has died.
    pub(crate) fn send(&self, to: ShardId, message: Message<R>) -> bool {
        let lives = self.shared.live.load(Ordering::Relaxed) >> (to.0 & 63) & 1 != 0;
        let Some(ring) = self.to.get(to.index()).filter(|_| lives && to != self.id) else {
            return false;
        };
        let is_sent = ring.push(message).is_ok();
        let pending = &self.shared.pending[to.index()];
        // The receiver clears the flag before it reads the rings: it finds the message then, or the
        // flag set again.
        if is_sent {
            pending.store(true, Ordering::SeqCst);
        }
        is_sent
    }

    /// True if messages may have arrived.
    #[inline]
    #[must_use]
    pub fn has_messages(&self) -> bool {
        self.shared.pending[self.id.index()].load(Ordering::Relaxed)
    }

    /// Receives messages, from each ring in turn, so that at most `max` wait to be processed.
    pub(crate) fn receive(&mut self, max: usize) {
        let out = &mut self.forwarding.messages;
        let max = max.saturating_sub(out.len());
        // Before the rings are read: a message sent later sets it again.
        self.shared.pending[self.id.index()].swap(false, Ordering::SeqCst);
        let (count, mut left, mut empty) = (self.from.len(), max, 0);
        while left > 0 && empty < count {
            match self.from[self.next % count].pop() {
                Some(message) => {
                    out.push(message);
                    (left, empty) = (left - 1, 0);
                }
                None => {
                    // The other messages of a ring belong to one train: it is left when empty.
                    self.next = (self.next + 1) % count;
                    empty += 1;
                }
            }
        }
        if empty < count {
            self.next = (self.next + 1) % count;
            self.shared.pending[self.id.index()].store(true, Ordering::SeqCst);
        }
    }
}

impl MeshMonitor {
    /// Records that a shard has died: its four-tuples, and its part of the limits of listeners, are
    /// released, nothing is sent to it any more, and if it was the lead another takes over.
    pub fn on_shard_death(&self, shard: ShardId) {
        let bit = 1_u64.checked_shl(u32::from(shard.0)).unwrap_or(0);
        self.0.live.fetch_and(!bit, Ordering::Relaxed);
        self.0.owners.release_all(shard);
        self.0.backlogs.release_all(shard);
    }

    /// Returns the number of connections over all shards, those in TIME-WAIT included.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.0.owners.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(shards: usize, ring_len: usize) -> Vec<MeshPort<u32>> {
        let (connections_max, cookies_per_second, seed) = (10, 10, 7);
        let steering = PortSteering::Mirrored;
        mesh(MeshConfig { shards, ring_len, connections_max, cookies_per_second, seed, steering })
    }

    fn received(port: &mut MeshPort<u32>, max: usize) -> Vec<u32> {
        port.receive(max);
        let out = std::mem::take(&mut port.forwarding.messages);
        let number = |message| match message {
            Message::Frame(number) => number,
            other => panic!("{other:?}"),
        };
        out.into_iter().map(number).collect()
    }

    #[test]
    fn messages_arrive_once_in_the_order_of_each_sender() {
        let mut ports = ports(3, 4);
        for number in 0..3 {
            assert!(ports[0].send(ShardId(2), Message::Frame(number)));
            assert!(ports[1].send(ShardId(2), Message::Frame(10 + number)));
        }
        assert!(ports[2].has_messages() && !ports[0].has_messages());
        let mut all = received(&mut ports[2], 4);
        assert!(ports[2].has_messages(), "some are left");
        all.extend(received(&mut ports[2], 100));
        assert!(!ports[2].has_messages());
        for first in [0, 10] {
            let of_one: Vec<_> = all.iter().filter(|&&n| n / 10 == first / 10).collect();
            assert_eq!(of_one, [&first, &(first + 1), &(first + 2)]);
        }
        assert_eq!(all.len(), 6);
    }

    #[test]
    fn full_ring_drops_and_leaves_the_others_alone() {
        let mut ports = ports(3, 2);
        let sent = [0, 1, 2].map(|number| ports[0].send(ShardId(1), Message::Frame(number)));
        assert_eq!(sent, [true, true, false]);
        assert!(ports[0].send(ShardId(2), Message::Frame(3)));
        assert!(ports[2].send(ShardId(1), Message::Frame(4)));
        assert_eq!(received(&mut ports[1], 100), [0, 1, 4]);
        assert!(!ports[0].send(ShardId(0), Message::Frame(5)), "to itself");
        assert!(!ports[0].send(ShardId(9), Message::Frame(5)), "to none");
    }

    #[test]
    fn dead_shard_gets_nothing_and_the_next_one_leads() {
        let ports = ports(3, 2);
        let selected = |port: &MeshPort<u32>| (0..6).map(|hash| port.select(hash).0).max();
        assert!(ports[0].is_lead() && !ports[1].is_lead());
        assert_eq!(selected(&ports[1]), Some(2));
        let tuple = crate::wire::tcp::FourTuple {
            local: "198.18.0.1:1".parse().unwrap(),
            remote: "198.18.0.2:2".parse().unwrap(),
        };
        ports[0].owners().reserve(&tuple, ShardId(0)).unwrap();
        ports[1].monitor().on_shard_death(ShardId(0));
        assert!(ports[1].is_lead());
        assert_eq!(ports[2].owners().owner(&tuple), None);
        assert!(!ports[1].send(ShardId(0), Message::Frame(1)));
        assert_eq!(ports[1].others().collect::<Vec<_>>(), [ShardId(2)]);
        assert!((0..6).all(|hash| ports[1].select(hash) != ShardId(0)));
    }

    #[test]
    fn no_message_is_overlooked_between_two_threads() {
        const COUNT: u32 = 100_000;
        let mut ports = ports(2, 8);
        let mut receiver = ports.pop().unwrap();
        let sender = ports.pop().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..COUNT {
                    while !sender.send(ShardId(1), Message::Frame(number)) {
                        std::thread::yield_now();
                    }
                }
            });
            let mut expected = 0;
            while expected < COUNT {
                if !receiver.has_messages() {
                    std::thread::yield_now();
                    continue;
                }
                for number in received(&mut receiver, 32) {
                    assert_eq!(number, expected);
                    expected += 1;
                }
            }
        });
    }
}
