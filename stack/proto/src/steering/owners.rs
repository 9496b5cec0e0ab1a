//! Owner table: the shard of each four-tuple.
//!
//! A four-tuple is reserved before its connection is created, by an active open, a SYN or the ACK
//! of a SYN cookie, and stays reserved through TIME-WAIT. Two shards therefore never have a
//! connection between the same two ends, whichever of them its segments reach. A segment without
//! connection is looked up here before a listener or RST may answer it.

use core::hash::BuildHasher;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::net::siphash_keys::SipBuildHasher;
use crate::wire::tcp::FourTuple;

/// Parts of the table with a lock each: shards that set up connections at the same time rarely
/// meet.
const STRIPE_COUNT: usize = 64;

/// Number of a shard: that of its port queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl ShardId {
    /// The number, to index with.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Reason why a four-tuple was not reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// Another shard has reserved it.
    #[error("another shard owns this four-tuple")]
    Owned(ShardId),
    /// The limit of connections over all shards is reached.
    #[error("the limit of connections is reached")]
    Full,
}

#[derive(Clone, Copy)]
struct Reserved {
    tuple: FourTuple,
    owner: ShardId,
}

/// See the [module's documentation](self).
///
/// Cost of each operation: a keyed hash, and a lock that is held for one search of a hash table.
/// Segments of established connections that arrive at their owner do not come here.
pub struct OwnerTable {
    stripes: Box<[Mutex<HashTable<Reserved>>]>,
    hash: SipBuildHasher,
    count: AtomicUsize,
    count_max: usize,
}

impl OwnerTable {
    /// Creates an empty table for at most `count_max` four-tuples.
    #[must_use]
    pub fn new(count_max: usize, seed: u64) -> Self {
        Self {
            stripes: (0..STRIPE_COUNT).map(|_| Mutex::default()).collect(),
            hash: SipBuildHasher::new(seed),
            count: AtomicUsize::new(0),
            count_max,
        }
    }

    /// Reserves a four-tuple, unless it is reserved already.
    ///
    /// # Errors
    /// [`ReserveError`]; nothing is changed. A four-tuple that `shard` owns already is no error.
    pub fn reserve(&self, tuple: &FourTuple, shard: ShardId) -> Result<(), ReserveError> {
        let (hash, mut stripe) = self.stripe(tuple);
        let hasher = |entry: &Reserved| self.hash.hash_one(entry.tuple);
        match stripe.entry(hash, |entry| entry.tuple == *tuple, hasher) {
            Entry::Occupied(entry) if entry.get().owner == shard => Ok(()),
            Entry::Occupied(entry) => Err(ReserveError::Owned(entry.get().owner)),
            Entry::Vacant(entry) => {
                if self.count.fetch_add(1, Ordering::Relaxed) >= self.count_max {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                    return Err(ReserveError::Full);
                }
                entry.insert(Reserved { tuple: *tuple, owner: shard });
                Ok(())
            }
        }
    }

    /// Returns the owner of a four-tuple.
    #[must_use]
    pub fn owner(&self, tuple: &FourTuple) -> Option<ShardId> {
        let (hash, stripe) = self.stripe(tuple);
        stripe.find(hash, |entry| entry.tuple == *tuple).map(|entry| entry.owner)
    }

    /// Releases a four-tuple of this shard.
    pub fn release(&self, tuple: &FourTuple, shard: ShardId) {
        let (hash, mut stripe) = self.stripe(tuple);
        let is_it = |entry: &Reserved| entry.tuple == *tuple && entry.owner == shard;
        if let Ok(entry) = stripe.find_entry(hash, is_it) {
            entry.remove();
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Releases all four-tuples of a shard that has died.
    pub fn release_all(&self, shard: ShardId) {
        for stripe in &self.stripes {
            let mut stripe = lock(stripe);
            let before = stripe.len();
            stripe.retain(|entry| entry.owner != shard);
            self.count.fetch_sub(before - stripe.len(), Ordering::Relaxed);
        }
    }

    /// Returns the number of four-tuples reserved.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// True if no more can be reserved.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() >= self.count_max
    }

    /// True if none is reserved.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn stripe(&self, tuple: &FourTuple) -> (u64, MutexGuard<'_, HashTable<Reserved>>) {
        let hash = self.hash.hash_one(tuple);
        // The table uses the lowest and the highest bits.
        let at = (hash >> 40) as usize % STRIPE_COUNT;
        (hash, lock(&self.stripes[at]))
    }
}

/// A panic within these short sections leaves a valid table.
fn lock(stripe: &Mutex<HashTable<Reserved>>) -> MutexGuard<'_, HashTable<Reserved>> {
    stripe.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    fn tuple(port: u16) -> FourTuple {
        FourTuple {
            local: SocketAddr::from(([198, 18, 0, 1], port)),
            remote: SocketAddr::from(([198, 18, 0, 2], 4420)),
        }
    }

    const SHARDS: [ShardId; 2] = [ShardId(0), ShardId(1)];

    #[test]
    fn four_tuple_has_one_owner_until_it_is_released() {
        let table = OwnerTable::new(10, 7);
        assert_eq!(table.owner(&tuple(1)), None);
        assert_eq!(table.reserve(&tuple(1), SHARDS[1]), Ok(()));
        assert_eq!(table.reserve(&tuple(1), SHARDS[1]), Ok(()), "its own");
        assert_eq!(table.reserve(&tuple(1), SHARDS[0]), Err(ReserveError::Owned(SHARDS[1])));
        assert_eq!((table.owner(&tuple(1)), table.len()), (Some(SHARDS[1]), 1));
        table.release(&tuple(1), SHARDS[0]);
        assert_eq!(table.len(), 1, "that of another shard stays");
        table.release(&tuple(1), SHARDS[1]);
        assert_eq!(table.reserve(&tuple(1), SHARDS[0]), Ok(()));
    }

    #[test]
    fn limit_counts_all_shards() {
        let table = OwnerTable::new(3, 7);
        let reserve = |port| table.reserve(&tuple(port), SHARDS[usize::from(port % 2)]);
        assert_eq!([1, 2, 3, 4].map(reserve).map(|done| done.is_ok()), [true, true, true, false]);
        assert_eq!(reserve(5), Err(ReserveError::Full));
        table.release_all(SHARDS[1]);
        assert_eq!((table.len(), table.owner(&tuple(2))), (1, Some(SHARDS[0])));
        assert_eq!(reserve(5), Ok(()));
    }

    #[test]
    fn one_of_several_threads_reserves() {
        const TUPLES: u16 = 2000;
        let table = OwnerTable::new(usize::from(TUPLES), 7);
        let won: usize = std::thread::scope(|scope| {
            let reserve_all = |shard| {
                (0..TUPLES).filter(|&port| table.reserve(&tuple(port), shard).is_ok()).count()
            };
            SHARDS
                .map(|shard| scope.spawn(move || reserve_all(shard)))
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!((won, table.len()), (usize::from(TUPLES), usize::from(TUPLES)));
    }
}
