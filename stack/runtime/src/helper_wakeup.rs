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
pub(crate) const TAKEOVER_NS: u64 = 20_000;

/// What the helper does, for those who might have to wake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum HelperState {
    /// Nothing that has to be ended.
    Awake = 0,
    /// It leaves the work to the application. Also where there is no helper.
    Standby = 1,
    /// It has nothing to do, and looks again soon.
    ShortSleep = 2,
    /// It has had nothing to do for some time, and nobody has begun to wait meanwhile.
    LongSleep = 3,
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
pub(crate) struct HelperWakeup {
    /// When the application last drove, in nanoseconds of the shard's clock; 0: it does not now.
    app_polled_at: CachePadded<AtomicU64>,
    /// A [`HelperState`].
    state: CachePadded<AtomicU32>,
    /// Those who sleep, or may be about to, until the shard has something for them.
    waiter_count: AtomicU32,
    /// See [`Waiters::fd_exported`].
    fd_exported: AtomicBool,
    /// See [`Waiters::wait_seq`].
    wait_seq: AtomicU32,
    helper: OnceLock<Thread>,
}

impl HelperWakeup {
    pub(crate) fn new() -> Self {
        Self {
            app_polled_at: CachePadded::new(AtomicU64::new(0)),
            state: CachePadded::new(AtomicU32::new(HelperState::Standby as u32)),
            waiter_count: AtomicU32::new(0),
            fd_exported: AtomicBool::new(false),
            wait_seq: AtomicU32::new(0),
            helper: OnceLock::new(),
        }
    }

    /// The application drives, at this moment.
    #[inline]
    pub(crate) fn on_app_poll(&self, now_ns: u64) {
        self.app_polled_at.store(now_ns, Ordering::Relaxed);
    }

    /// Nanoseconds since the application last drove; very many if it has handed over since.
    pub(crate) fn app_idle_ns(&self, now_ns: u64) -> u64 {
        match self.app_polled_at.load(Ordering::Relaxed) {
            0 => u64::MAX,
            driven => now_ns.saturating_sub(driven),
        }
    }

    /// Work was posted, and its bell rung. One load while the application drives.
    #[inline]
    pub(crate) fn on_post(&self) {
        if self.state.load(Ordering::Relaxed) != HelperState::Standby as u32 {
            self.wake_from(HelperState::ShortSleep);
        }
    }

    /// The application does not drive from now on: it sleeps until the shard has something for
    /// it.
    pub(crate) fn on_app_sleep(&self) {
        self.app_polled_at.store(0, Ordering::Relaxed);
        self.wake_from(HelperState::Standby);
    }

    /// Somebody sleeps, or is about to, until the shard has something: the helper is to look often
    /// for a while. Counts until as many calls of [`HelperWakeup::remove_waiter`].
    pub(crate) fn add_waiter(&self) {
        self.waiter_count.fetch_add(1, Ordering::Relaxed);
        self.wait_seq.fetch_add(1, Ordering::Relaxed);
        self.wake_from(HelperState::LongSleep);
    }

    /// Somebody has a descriptor from now on, and may sleep on it at any time.
    pub(crate) fn on_fd_exported(&self) {
        self.fd_exported.store(true, Ordering::Relaxed);
        self.wait_seq.fetch_add(1, Ordering::Relaxed);
        self.wake_from(HelperState::LongSleep);
    }

    /// Ends what [`HelperWakeup::add_waiter`] began; may come before it.
    pub(crate) fn remove_waiter(&self) {
        self.waiter_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if somebody sleeps. Calls may overtake each other: for a moment the count is below 0.
    fn has_waiters(&self) -> bool {
        matches!(self.waiter_count.load(Ordering::Relaxed), 1..0x8000_0000)
    }

    /// See [`Waiters`].
    pub(crate) fn waiters(&self) -> Waiters {
        Waiters {
            sleeping: self.has_waiters(),
            fd_exported: self.fd_exported.load(Ordering::Relaxed),
            wait_seq: self.wait_seq.load(Ordering::Relaxed),
        }
    }

    /// Ends the helper's nap if it is of this kind or a longer one.
    fn wake_from(&self, least: HelperState) {
        const AWAKE: u32 = HelperState::Awake as u32;
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) >= least as u32
            // The thread that ends a sleep wakes the helper, whichever kind of sleep it is by now.
            && self.state.swap(AWAKE, Ordering::AcqRel) != AWAKE
            && let Some(helper) = self.helper.get()
        {
            helper.unpark();
        }
    }

    /// Called by the helper before anything else.
    pub(crate) fn start_helper(&self, helper: Thread) {
        // A shard has one helper.
        let _ = self.helper.set(helper);
        self.state.store(HelperState::Awake as u32, Ordering::Release);
    }

    /// The helper naps for at most `limit`, unless there is reason not to: `reason` looks for what
    /// those who wake the helper from such a nap have written before.
    pub(crate) fn sleep(&self, rest: HelperState, limit: Duration, reason: impl FnOnce() -> bool) {
        self.state.store(rest as u32, Ordering::Release);
        fence(Ordering::SeqCst);
        if !reason() {
            park_timeout(limit);
        }
        self.state.store(HelperState::Awake as u32, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_counted() {
        let wakeup = HelperWakeup::new();
        let start = wakeup.waiters();
        assert!(!start.any());
        wakeup.add_waiter();
        let one_waiter = wakeup.waiters();
        assert!(one_waiter.any() && one_waiter.sleeping && one_waiter.wait_seq != start.wait_seq);
        // Another one, beside.
        wakeup.add_waiter();
        assert_ne!(wakeup.waiters().wait_seq, one_waiter.wait_seq);
        wakeup.remove_waiter();
        assert!(wakeup.waiters().sleeping);
        wakeup.remove_waiter();
        assert!(!wakeup.waiters().any());
        let before = wakeup.waiters();
        wakeup.on_fd_exported();
        let watched = wakeup.waiters();
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
        wakeup: &Arc<HelperWakeup>,
        act: impl FnOnce(&HelperWakeup) + 'static,
    ) -> thread::JoinHandle<()> {
        let wakeup = Arc::clone(wakeup);
        thread::spawn(move || {
            wakeup.start_helper(thread::current());
            act(&wakeup);
        })
    }

    /// Work that is posted while the helper lies down is found, or wakes it.
    #[test]
    fn posted_work_ends_a_sleep() {
        loom::model(|| {
            let wakeup = Arc::new(HelperWakeup::new());
            let doorbells = Arc::new(Doorbells::new(64));
            let helper = {
                let doorbells = Arc::clone(&doorbells);
                helper(&wakeup, move |wakeup| {
                    while !doorbells.drain(|index| assert_eq!(index, 3)) {
                        wakeup.sleep(HelperState::ShortSleep, Duration::MAX, || {
                            doorbells.is_pending()
                        });
                    }
                })
            };
            // It has taken over.
            while wakeup.state.load(Ordering::Acquire) == HelperState::Standby as u32 {
                thread::yield_now();
            }
            doorbells.ring(3);
            wakeup.on_post();
            helper.join().unwrap();
        });
    }

    /// An application that hands over is seen, or wakes the helper that had left the work to it.
    #[test]
    fn sleeping_application_wakes_the_helper() {
        loom::model(|| {
            let wakeup = Arc::new(HelperWakeup::new());
            wakeup.on_app_poll(7);
            let helper = helper(&wakeup, |wakeup| {
                while wakeup.app_idle_ns(8) < TAKEOVER_NS {
                    let drives = || wakeup.app_idle_ns(8) < TAKEOVER_NS;
                    wakeup.sleep(HelperState::Standby, Duration::MAX, || !drives());
                }
            });
            wakeup.on_app_sleep();
            helper.join().unwrap();
        });
    }

    /// Whoever arms a queue and sleeps is known to the helper before it naps for long, also beside
    /// somebody who has slept for some time.
    #[test]
    fn new_waiter_ends_a_long_sleep() {
        loom::model(|| {
            let wakeup = Arc::new(HelperWakeup::new());
            wakeup.add_waiter();
            let seen = wakeup.waiters().wait_seq;
            let helper = helper(&wakeup, move |wakeup| {
                let has_begun = || wakeup.waiters().wait_seq != seen;
                while !has_begun() {
                    wakeup.sleep(HelperState::LongSleep, Duration::MAX, has_begun);
                }
            });
            wakeup.add_waiter();
            helper.join().unwrap();
        });
    }
}
