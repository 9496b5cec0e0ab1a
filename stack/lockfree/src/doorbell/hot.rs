//! Hot queue pairs: those whose tails the shard polls, so that posting rings no doorbell.
//!
//! A queue pair is in one of two states, which the shard changes, and which its threads that post
//! read after they have published requests (stored a tail):
//!
//! | State | Thread that posts | Shard |
//! |---|---|---|
//! | cold | sets the doorbell, an atomic read-modify-write or two | serves doorbells that are set |
//! | hot | nothing more | loads the tails in every poll |
//!
//! Transitions, by the holder of the shard's lock alone:
//!
//! - cold to hot ([`HotFlag::promote`]), when a doorbell is served and fewer than [`HOT_COUNT_MAX`]
//!   queue pairs are hot. From then on every poll loads the tails. A thread that still reads
//!   "cold" sets the doorbell, which does no harm.
//! - hot to cold ([`demote`]), for queue pairs that have become idle: the flags are cleared, a
//!   barrier follows, and then the tails are loaded once more. For one with requests that were not
//!   taken the shard sets the doorbell itself.
//!
//! A thread that posts stores a tail and then loads the flag, the shard stores the flag and then
//! loads the tail (Dekker): one of the two has to see the other's store, and for that each needs a
//! full barrier between its two steps. The shard's is `membarrier(2)`, which executes one on all
//! processors that run a thread of the process. So a thread that posts needs none of its own, only
//! that the compiler keeps the order ([`barrier`]): either its load came before the barrier that
//! the system call executed there, and with it its store, which the shard then sees; or it came
//! after, and returns "cold". Where the kernel lacks the call, no queue pair becomes hot.
//!
//! A helper thread that is about to sleep demotes all queue pairs first, as a hot one wakes nobody.

use crate::sync::{AtomicBool, Ordering, barrier};

/// Maximum number of hot queue pairs of a shard: as many tails are loaded in a poll.
pub const HOT_COUNT_MAX: usize = 64;

/// Returns the maximum number of hot queue pairs of a shard: none if the kernel lacks the barrier.
pub fn count_max() -> usize {
    if barrier::is_available() { HOT_COUNT_MAX } else { 0 }
}

/// State of a queue pair: true while it is hot.
#[derive(Debug, Default)]
pub struct HotFlag(AtomicBool);

impl HotFlag {
    /// Called by a thread that has published requests. True if the shard finds them without a
    /// doorbell. A compiler barrier and one load.
    #[inline]
    pub fn is_hot(&self) -> bool {
        self.is_hot_after(barrier::light)
    }

    #[inline(always)]
    fn is_hot_after(&self, barrier: impl FnOnce()) -> bool {
        barrier();
        self.0.load(Ordering::Relaxed)
    }

    /// The caller loads the tails in each poll from now on.
    #[inline]
    pub fn promote(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Demotes queue pairs. If true, the caller loads their tails once more, and sets the doorbells of
/// those with requests. If false, the barrier failed, and they are still hot.
#[must_use]
pub fn demote<'a>(flags: impl Iterator<Item = &'a HotFlag> + Clone) -> bool {
    demote_before(flags, barrier::heavy)
}

#[inline(always)]
fn demote_before<'a>(
    flags: impl Iterator<Item = &'a HotFlag> + Clone,
    barrier: impl FnOnce() -> bool,
) -> bool {
    for flag in flags.clone() {
        flag.0.store(false, Ordering::Relaxed);
    }
    let is_ordered = barrier();
    if !is_ordered {
        flags.for_each(HotFlag::promote);
    }
    is_ordered
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn failed_barrier_leaves_queue_pairs_hot() {
        let flags = [HotFlag::default(), HotFlag::default()];
        flags.iter().for_each(HotFlag::promote);
        assert!(!demote_before(flags.iter(), || false));
        assert!(flags.iter().all(HotFlag::is_hot));
        assert!(demote_before(flags.iter(), || true));
        assert!(!flags.iter().any(HotFlag::is_hot));
    }
}

#[cfg(all(test, loom))]
mod proofs {
    use loom::thread;

    use super::*;
    use crate::doorbell::Doorbells;
    use crate::sync::{Arc, AtomicU64};

    /// A queue pair, hot or cold: its flag, the tail of its requests, and the doorbells.
    #[derive(Clone)]
    struct Shared {
        hot: Arc<HotFlag>,
        tail: Arc<AtomicU64>,
        doorbells: Arc<Doorbells>,
    }

    impl Shared {
        fn new(is_hot: bool) -> Self {
            let hot = Arc::new(HotFlag::default());
            if is_hot {
                hot.promote();
            }
            let (tail, doorbells) = (Arc::new(AtomicU64::new(0)), Arc::new(Doorbells::new(1)));
            Self { hot, tail, doorbells }
        }

        fn seen(&self) -> u64 {
            self.tail.load(Ordering::Acquire)
        }

        /// A thread that posts `count` requests. Its result: the shard has failed, and does not
        /// take the last of them.
        fn post(&self, count: u64, light: fn()) -> thread::JoinHandle<bool> {
            let Self { hot, tail, doorbells } = self.clone();
            thread::spawn(move || {
                let mut is_late = false;
                for posted in 1..=count {
                    tail.store(posted, Ordering::Release);
                    if !hot.is_hot_after(light) {
                        doorbells.ring(0);
                        is_late = doorbells.is_closed();
                    }
                }
                is_late
            })
        }
    }

    /// The shard demotes a hot queue pair while a thread posts to it twice, and serves doorbells
    /// later: true if it has seen all that was posted. The barriers are arguments.
    fn posts_are_seen(light: fn(), heavy: fn() -> bool) {
        let shared = Shared::new(true);
        let application = shared.post(2, light);
        let mut seen = shared.seen();
        assert!(demote_before([&*shared.hot].into_iter(), heavy));
        if shared.seen() != seen {
            shared.doorbells.ring(0);
        }
        let mut serve = |_| seen = shared.seen();
        shared.doorbells.drain_all(&mut serve);
        application.join().unwrap();
        shared.doorbells.drain_all(&mut serve);
        assert_eq!(seen, 2, "a request is lost");
    }

    /// No request is lost when a queue pair becomes cold.
    #[test]
    fn no_post_is_lost_by_a_demotion() {
        loom::model(|| posts_are_seen(barrier::light, barrier::heavy));
    }

    /// The barrier of the shard is needed.
    #[test]
    #[should_panic(expected = "a request is lost")]
    fn demotion_without_its_barrier_loses_a_post() {
        loom::model(|| posts_are_seen(barrier::light, || true));
    }

    /// So is what it does to the threads that post.
    #[test]
    #[should_panic(expected = "a request is lost")]
    fn demotion_loses_a_post_of_a_thread_without_a_barrier() {
        loom::model(|| posts_are_seen(|| (), barrier::heavy));
    }

    /// A shard fails while a thread posts to a hot queue pair: what it posted is flushed by the
    /// shard, or the thread finds out that it has to do that itself.
    #[test]
    fn no_post_is_lost_across_the_end_of_a_shard() {
        loom::model(|| {
            let shared = Shared::new(true);
            let application = shared.post(1, barrier::light);
            assert!(demote([&*shared.hot].into_iter()));
            shared.doorbells.close();
            let is_flushed = shared.seen() == 1;
            let is_late = application.join().unwrap();
            assert!(is_flushed || is_late, "a request is lost");
        });
    }

    /// A queue pair that becomes hot while a thread posts to it: its tail is polled afterwards, or
    /// its doorbell is set.
    #[test]
    fn no_post_is_lost_by_a_promotion() {
        loom::model(|| {
            let shared = Shared::new(false);
            let application = shared.post(2, barrier::light);
            let mut polled = false;
            let mut seen = 0;
            let mut poll = || {
                shared.doorbells.drain_all(|_| {
                    seen = shared.seen();
                    shared.hot.promote();
                    polled = true;
                });
                if polled {
                    seen = shared.seen();
                }
                seen
            };
            poll();
            application.join().unwrap();
            assert_eq!(poll(), 2, "a request is lost");
        });
    }
}
