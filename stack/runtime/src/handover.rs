//! Who drives in mode `Helper`: the application while it polls, the helper's thread otherwise.
//!
//! The helper learns in two ways that it is its turn: it looks, after naps of bounded length, and
//! it is woken by those who know. A thread that posts while the helper naps for want of work wakes
//! it; so does one that is about to sleep until the shard has something for it. Each of them
//! writes what it has to say (a bell, a wish, the handing over) and looks at the helper's state
//! then; the helper writes its state and looks at all of that then. With a fence between the two
//! steps on both sides one of them sees the other. While the application drives, the helper says
//! so in its state, and posting pays neither the fence nor a wake-up for it.

use std::sync::OnceLock;
use std::time::Duration;

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, Thread, fence, park_timeout};

/// The helper takes over when the application has not driven for this long.
pub(crate) const HANDOVER_NS: u64 = 20_000;

/// What the helper does, for those who might have to wake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Rest {
    /// Nothing that has to be ended.
    Awake = 0,
    /// It leaves the work to the application. Also where there is no helper.
    Aside = 1,
    /// It has nothing to do, and looks again soon.
    Brief = 2,
    /// It has had nothing to do for some time, and nobody has begun to wait meanwhile.
    Long = 3,
}

/// Who waits until the shard has something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiters {
    /// Threads sleep, or may be about to.
    pub(crate) sleeping: bool,
    /// The application has a file descriptor, and may sleep on it at any time.
    pub(crate) fd_exported: bool,
    /// Another number whenever a wait begins.
    pub(crate) wait_seq: u32,
}

impl Waiters {
    /// True if somebody may wait.
    pub(crate) const fn any(self) -> bool {
        self.sleeping || self.fd_exported
    }
}

/// The state of the handing over.
pub(crate) struct Handover {
    /// When the application last drove, in nanoseconds of the shard's clock; 0: it does not now.
    driven: CachePadded<AtomicU64>,
    /// A [`Rest`].
    rest: CachePadded<AtomicU32>,
    /// Those who sleep, or may be about to, until the shard has something for them.
    sleepers: AtomicU32,
    /// See [`Waiters::fd_exported`].
    fd_exported: AtomicBool,
    /// See [`Waiters::wait_seq`].
    wait_seq: AtomicU32,
    helper: OnceLock<Thread>,
}

impl Handover {
    pub(crate) fn new() -> Self {
        Self {
            driven: CachePadded::new(AtomicU64::new(0)),
            rest: CachePadded::new(AtomicU32::new(Rest::Aside as u32)),
            sleepers: AtomicU32::new(0),
            fd_exported: AtomicBool::new(false),
            wait_seq: AtomicU32::new(0),
            helper: OnceLock::new(),
        }
    }

    /// The application drives, at this moment.
    #[inline]
    pub(crate) fn drives(&self, now_ns: u64) {
        self.driven.store(now_ns, Ordering::Relaxed);
    }

    /// Nanoseconds since the application last drove; very many if it has handed over since.
    pub(crate) fn idle_ns(&self, now_ns: u64) -> u64 {
        match self.driven.load(Ordering::Relaxed) {
            0 => u64::MAX,
            driven => now_ns.saturating_sub(driven),
        }
    }

    /// Work was posted, and its bell rung. One load while the application drives.
    #[inline]
    pub(crate) fn posted(&self) {
        if self.rest.load(Ordering::Relaxed) != Rest::Aside as u32 {
            self.wake(Rest::Brief);
        }
    }

    /// The application does not drive from now on: it sleeps until the shard has something for
    /// it.
    pub(crate) fn hand_over(&self) {
        self.driven.store(0, Ordering::Relaxed);
        self.wake(Rest::Aside);
    }

    /// Somebody sleeps, or is about to, until the shard has something: the helper is to look often
    /// for a while. Counts until as many calls of [`Handover::forget`].
    pub(crate) fn expect(&self) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        self.wait_seq.fetch_add(1, Ordering::Relaxed);
        self.wake(Rest::Long);
    }

    /// Somebody has a descriptor from now on, and may sleep on it at any time.
    pub(crate) fn watch(&self) {
        self.fd_exported.store(true, Ordering::Relaxed);
        self.wait_seq.fetch_add(1, Ordering::Relaxed);
        self.wake(Rest::Long);
    }

    /// Ends what [`Handover::expect`] began; may come before it.
    pub(crate) fn forget(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if somebody sleeps. Calls may overtake each other: for a moment the count is below 0.
    fn is_expected(&self) -> bool {
        matches!(self.sleepers.load(Ordering::Relaxed), 1..0x8000_0000)
    }

    /// See [`Waiters`].
    pub(crate) fn waiters(&self) -> Waiters {
        Waiters {
            sleeping: self.is_expected(),
            fd_exported: self.fd_exported.load(Ordering::Relaxed),
            wait_seq: self.wait_seq.load(Ordering::Relaxed),
        }
    }

    /// Ends the helper's nap if it is of this kind or a longer one.
    fn wake(&self, least: Rest) {
        fence(Ordering::SeqCst);
        if self.rest.load(Ordering::Relaxed) >= least as u32
            // Whoever ends a nap wakes the helper, of whatever kind it has become meanwhile.
            && self.rest.swap(Rest::Awake as u32, Ordering::AcqRel) != Rest::Awake as u32
            && let Some(helper) = self.helper.get()
        {
            helper.unpark();
        }
    }

    /// Called by the helper before anything else.
    pub(crate) fn begin(&self, helper: Thread) {
        // A shard has one helper.
        let _ = self.helper.set(helper);
        self.rest.store(Rest::Awake as u32, Ordering::Release);
    }

    /// The helper naps for at most `limit`, unless there is reason not to: `reason` looks for what
    /// those who wake the helper from such a nap have written before.
    pub(crate) fn nap(&self, rest: Rest, limit: Duration, reason: impl FnOnce() -> bool) {
        self.rest.store(rest as u32, Ordering::Release);
        fence(Ordering::SeqCst);
        if !reason() {
            park_timeout(limit);
        }
        self.rest.store(Rest::Awake as u32, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_counted() {
        let handover = Handover::new();
        let start = handover.waiters();
        assert!(!start.any());
        handover.expect();
        let asleep = handover.waiters();
        assert!(asleep.any() && asleep.sleeping && asleep.wait_seq != start.wait_seq);
        // Another one, beside.
        handover.expect();
        assert_ne!(handover.waiters().wait_seq, asleep.wait_seq);
        handover.forget();
        assert!(handover.waiters().sleeping);
        handover.forget();
        assert!(!handover.waiters().any());
        let before = handover.waiters();
        handover.watch();
        let watched = handover.waiters();
        assert!(watched.any() && !watched.sleeping && watched.wait_seq != before.wait_seq);
    }
}

#[cfg(all(test, loom))]
mod proofs {
    use loom::thread;

    use super::*;
    use crate::doorbell::Doorbells;
    use crate::sync::Arc;

    // Naps have no end here but being woken: whoever is not woken sleeps for ever, which loom
    // reports.

    fn helper(
        handover: &Arc<Handover>,
        act: impl FnOnce(&Handover) + 'static,
    ) -> thread::JoinHandle<()> {
        let handover = Arc::clone(handover);
        thread::spawn(move || {
            handover.begin(thread::current());
            act(&handover);
        })
    }

    /// Work that is posted while the helper lies down is found, or wakes it.
    #[test]
    fn nothing_posted_waits_for_a_nap_to_end() {
        loom::model(|| {
            let handover = Arc::new(Handover::new());
            let bells = Arc::new(Doorbells::new(64));
            let helper = {
                let bells = Arc::clone(&bells);
                helper(&handover, move |handover| {
                    while !bells.answer(|index| assert_eq!(index, 3)) {
                        handover.nap(Rest::Brief, Duration::MAX, || bells.any());
                    }
                })
            };
            // It has taken over.
            while handover.rest.load(Ordering::Acquire) == Rest::Aside as u32 {
                thread::yield_now();
            }
            bells.ring(3);
            handover.posted();
            helper.join().unwrap();
        });
    }

    /// An application that hands over is seen, or wakes the helper that had left the work to it.
    #[test]
    fn an_application_that_goes_to_sleep_wakes_the_helper() {
        loom::model(|| {
            let handover = Arc::new(Handover::new());
            handover.drives(7);
            let helper = helper(&handover, |handover| {
                while handover.idle_ns(8) < HANDOVER_NS {
                    let drives = || handover.idle_ns(8) < HANDOVER_NS;
                    handover.nap(Rest::Aside, Duration::MAX, || !drives());
                }
            });
            handover.hand_over();
            helper.join().unwrap();
        });
    }

    /// Whoever arms a queue and sleeps is known to the helper before it naps for long, also beside
    /// somebody who has slept for some time.
    #[test]
    fn a_sleeper_ends_long_naps() {
        loom::model(|| {
            let handover = Arc::new(Handover::new());
            handover.expect();
            let seen = handover.waiters().wait_seq;
            let helper = helper(&handover, move |handover| {
                let has_begun = || handover.waiters().wait_seq != seen;
                while !has_begun() {
                    handover.nap(Rest::Long, Duration::MAX, has_begun);
                }
            });
            handover.expect();
            helper.join().unwrap();
        });
    }
}
