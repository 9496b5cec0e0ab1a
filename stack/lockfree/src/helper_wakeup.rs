//! Hand-over of polling in mode `Helper`: the application polls the shard while it is active, the
//! helper thread otherwise.
//!
//! The helper finds out in two ways that it has to poll: it checks after sleeps of bounded length,
//! and other threads wake it. A thread that posts while the helper sleeps for lack of work wakes
//! it; so does one that is about to sleep until the shard has something for it. Each of them writes
//! its reason (a doorbell, the number of hot queue pairs, a notification request, the hand-over)
//! and then loads the helper's state; the helper writes its state and then loads all of those. With
//! a fence between the two steps on both sides one of them sees the other. While the application
//! polls, the helper's state is `Standby`, and posting pays neither the fence nor a wake-up.
//!
//! A thread that changes the shard under its lock, such as an application that polls and starts a
//! timer, needs no fence: the helper writes its state before it takes that lock for its last look.
//! Either the look sees the change, or the thread has the lock later, and sees the state.

use std::sync::OnceLock;

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// State of the helper, for threads that may have to wake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum HelperState {
    /// Not sleeping.
    Awake = 0,
    /// Leaves polling to the application. Also the state where there is no helper, while no thread
    /// of the application sleeps on the port.
    Standby = 1,
    /// Idle, sleeps briefly.
    ShortSleep = 2,
    /// Idle for some time, without a new waiter since: sleeps longer.
    LongSleep = 3,
}

/// Threads that wait for the shard.
#[derive(Clone, Copy, Debug)]
pub struct Waiters {
    /// Threads sleep, or may be about to.
    pub sleeping: bool,
    /// The application has the file descriptor of an event channel, and may sleep on it at any
    /// time.
    pub fd_exported: bool,
    /// Changes whenever a wait begins.
    pub wait_seq: u32,
}

impl Waiters {
    /// True if a thread may be waiting.
    pub const fn any(self) -> bool {
        self.sleeping || self.fd_exported
    }
}

/// Stands for the time of a poll that has not ended: none is later.
const POLLING: u64 = u64::MAX;

/// Shared state of the hand-over.
pub struct HelperWakeup {
    /// Polls of the application.
    app_polls: CachePadded<AppPolls>,
    /// Time of the application's last poll that found something to do.
    app_busy_at: CachePadded<AtomicU64>,
    /// A [`HelperState`].
    state: CachePadded<AtomicU32>,
    /// Threads that sleep, or may be about to, until the shard has something for them.
    waiter_count: AtomicU32,
    /// See [`Waiters::fd_exported`].
    fd_exported: AtomicBool,
    /// See [`Waiters::wait_seq`].
    wait_seq: AtomicU32,
    /// Ends the helper's sleep, or its next one.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Polls of the application.
struct AppPolls {
    /// End of the last one, in nanoseconds of the shard's clock; 0: handed over; [`POLLING`]: it
    /// polls now.
    at: AtomicU64,
    /// ID of the thread that began the last one.
    thread: AtomicU32,
}

/// Without a helper.
impl Default for HelperWakeup {
    fn default() -> Self {
        Self {
            app_polls: CachePadded::new(AppPolls {
                at: AtomicU64::new(0),
                thread: AtomicU32::new(0),
            }),
            app_busy_at: CachePadded::new(AtomicU64::new(0)),
            state: CachePadded::new(AtomicU32::new(HelperState::Standby as u32)),
            waiter_count: AtomicU32::new(0),
            fd_exported: AtomicBool::new(false),
            wait_seq: AtomicU32::new(0),
            wake: OnceLock::new(),
        }
    }
}

impl HelperWakeup {
    /// The application begins to poll the shard, in this thread.
    #[inline]
    pub fn on_app_poll(&self, thread: u32) {
        self.app_polls.at.store(POLLING, Ordering::Relaxed);
        self.app_polls.thread.store(thread, Ordering::Relaxed);
    }

    /// Thread in which the application polled last.
    pub fn app_thread(&self) -> u32 {
        self.app_polls.thread.load(Ordering::Relaxed)
    }

    /// The application has polled the shard.
    #[inline]
    pub fn on_app_polled(&self, now_ns: u64) {
        self.app_polls.at.store(now_ns, Ordering::Relaxed);
    }

    /// Nanoseconds since the application last polled, 0 while it polls; `u64::MAX` if it has handed
    /// over since.
    pub fn app_idle_ns(&self, now_ns: u64) -> u64 {
        match self.app_polls.at.load(Ordering::Relaxed) {
            0 => u64::MAX,
            driven => now_ns.saturating_sub(driven),
        }
    }

    /// True if the application has handed over since its last poll.
    pub fn is_handed_over(&self) -> bool {
        self.app_polls.at.load(Ordering::Relaxed) == 0
    }

    /// The application's poll found something to do.
    #[inline]
    pub fn on_app_busy(&self, now_ns: u64) {
        self.app_busy_at.store(now_ns, Ordering::Relaxed);
    }

    /// Time of the application's last poll that found something to do; 0 if there was none.
    pub fn app_busy_at(&self) -> u64 {
        self.app_busy_at.load(Ordering::Relaxed)
    }

    /// Work was posted, and its doorbell rung. One load while the application polls.
    #[inline]
    pub fn on_post(&self) {
        if self.state.load(Ordering::Relaxed) != HelperState::Standby as u32 {
            self.wake_from(HelperState::ShortSleep);
        }
    }

    /// The application's poll has changed the shard's state: queue pairs are hot, or timers run. If
    /// the helper sleeps for lack of work, or is about to, it may not have seen that, and is woken.
    /// The caller has just released the shard's lock.
    #[inline]
    pub fn on_app_change(&self) {
        if self.state.load(Ordering::Relaxed) >= HelperState::ShortSleep as u32 {
            self.wake_from(HelperState::ShortSleep);
        }
    }

    /// A control call has changed the shard's state: the helper polls once, because timers may run
    /// and frames may wait. The caller has just released the shard's lock.
    pub fn on_control(&self) {
        self.wake_from(HelperState::ShortSleep);
    }

    /// The application stops polling: it sleeps until the shard has something for it.
    pub fn on_app_sleep(&self) {
        self.app_polls.at.store(0, Ordering::Relaxed);
        self.wake_from(HelperState::Standby);
    }

    /// A thread sleeps, or is about to, until the shard has something: the helper polls often for a
    /// while. Balanced by one call of [`HelperWakeup::remove_waiter`].
    pub fn add_waiter(&self) {
        self.waiter_count.fetch_add(1, Ordering::Relaxed);
        self.wait_seq.fetch_add(1, Ordering::Relaxed);
        self.wake_from(HelperState::LongSleep);
    }

    /// The application has a file descriptor from now on, and may sleep on it at any time.
    pub fn on_fd_exported(&self) {
        self.fd_exported.store(true, Ordering::Relaxed);
        self.wait_seq.fetch_add(1, Ordering::Relaxed);
        self.wake_from(HelperState::LongSleep);
    }

    /// Undoes one [`HelperWakeup::add_waiter`]; may run before it.
    pub fn remove_waiter(&self) {
        self.waiter_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if a thread waits. Calls may be reordered: for a moment the count is below 0.
    fn has_waiters(&self) -> bool {
        matches!(self.waiter_count.load(Ordering::Relaxed), 1..0x8000_0000)
    }

    /// See [`Waiters`].
    pub fn waiters(&self) -> Waiters {
        Waiters {
            sleeping: self.has_waiters(),
            fd_exported: self.fd_exported.load(Ordering::Relaxed),
            wait_seq: self.wait_seq.load(Ordering::Relaxed),
        }
    }

    /// Wakes the helper if it is in the state `least` or a later one.
    fn wake_from(&self, least: HelperState) {
        const AWAKE: u32 = HelperState::Awake as u32;
        fence(Ordering::SeqCst);
        let mut state = self.state.load(Ordering::Relaxed);
        while state >= least as u32 {
            // Not a swap: the state of a helper that has woken meanwhile is not written.
            let ended =
                self.state.compare_exchange(state, AWAKE, Ordering::AcqRel, Ordering::Relaxed);
            match ended {
                // The thread that ends the sleep wakes the helper.
                Ok(_) => {
                    self.interrupt_sleep();
                    return;
                }
                Err(now) => state = now,
            }
        }
    }

    /// Ends the helper's sleep, or its next one, whatever its state.
    pub fn interrupt_sleep(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// Called by the helper before any other method. `wake` ends its sleep, or its next one.
    pub fn start_helper(&self, wake: impl Fn() + Send + Sync + 'static) {
        // A shard has one helper.
        let _ = self.wake.set(Box::new(wake));
        self.state.store(HelperState::Awake as u32, Ordering::Release);
    }

    /// The caller of [`HelperWakeup::start_helper`], a thread of the application, leaves polling to
    /// the others: posting pays nothing for it until its next sleep.
    pub fn stand_by(&self) {
        self.state.store(HelperState::Standby as u32, Ordering::Release);
    }

    /// The helper calls `sleep`, unless `reason` returns true: it checks what threads that wake the
    /// helper from `rest` have written before.
    pub fn sleep(&self, rest: HelperState, reason: impl FnOnce() -> bool, sleep: impl FnOnce()) {
        self.sleep_after(rest, || (!reason()).then_some(()), |()| sleep());
    }

    /// As [`HelperWakeup::sleep`], with the result of a last look at the shard: `None` is a reason
    /// to stay awake. `look` takes the shard's lock, so that it sees changes of the shard itself.
    pub fn sleep_after<T>(
        &self,
        rest: HelperState,
        look: impl FnOnce() -> Option<T>,
        sleep: impl FnOnce(T),
    ) {
        self.state.store(rest as u32, Ordering::Release);
        fence(Ordering::SeqCst);
        if let Some(seen) = look() {
            sleep(seen);
        }
        self.state.store(HelperState::Awake as u32, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_counted() {
        let wakeup = HelperWakeup::default();
        let start = wakeup.waiters();
        assert!(!start.any());
        wakeup.add_waiter();
        let one_waiter = wakeup.waiters();
        assert!(one_waiter.any() && one_waiter.sleeping && one_waiter.wait_seq != start.wait_seq);
        // A second waiter.
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
    use loom::model::Builder;
    use loom::sync::Mutex;
    use loom::thread;

    use super::*;
    use crate::doorbell::Doorbells;
    use crate::doorbell::hot::{HotFlag, demote};
    use crate::sync::Arc;

    // Sleeps end here only by a wake-up: a helper that is not woken sleeps forever, and loom
    // reports that.

    fn helper(
        wakeup: &Arc<HelperWakeup>,
        act: impl FnOnce(&HelperWakeup) + 'static,
    ) -> thread::JoinHandle<()> {
        let wakeup = Arc::clone(wakeup);
        thread::spawn(move || {
            let own = thread::current();
            wakeup.start_helper(move || own.unpark());
            act(&wakeup);
        })
    }

    /// Work that is posted while the helper goes to sleep is found, or wakes it.
    #[test]
    fn posted_work_ends_a_sleep() {
        loom::model(|| {
            let wakeup = Arc::new(HelperWakeup::default());
            let doorbells = Arc::new(Doorbells::new(64));
            let helper = {
                let doorbells = Arc::clone(&doorbells);
                helper(&wakeup, move |wakeup| {
                    while !doorbells.drain_all(|index| assert_eq!(index, 3)) {
                        let is_pending = || doorbells.is_pending();
                        wakeup.sleep(HelperState::ShortSleep, is_pending, thread::park);
                    }
                })
            };
            // The helper has taken over.
            while wakeup.state.load(Ordering::Acquire) == HelperState::Standby as u32 {
                thread::yield_now();
            }
            doorbells.ring(3);
            wakeup.on_post();
            helper.join().unwrap();
        });
    }

    /// A poll of the application makes a queue pair hot while the helper goes to sleep, and then
    /// the application posts to it: the helper finds the request, or is woken.
    #[test]
    fn hot_queue_pair_ends_a_sleep() {
        let mut model = Builder::new();
        // All interleavings are too many.
        model.preemption_bound = Some(4);
        model.check(|| {
            let wakeup = Arc::new(HelperWakeup::default());
            let doorbells = Arc::new(Doorbells::new(1));
            let hot = Arc::new(HotFlag::default());
            let tail = Arc::new(AtomicU64::new(0));
            let shard_lock = Arc::new(Mutex::new(()));
            let helper = {
                let (doorbells, hot, tail, shard_lock) = (
                    Arc::clone(&doorbells),
                    Arc::clone(&hot),
                    Arc::clone(&tail),
                    Arc::clone(&shard_lock),
                );
                helper(&wakeup, move |wakeup| {
                    while !doorbells.drain_all(|_| assert_eq!(tail.load(Ordering::Acquire), 1)) {
                        let lock = shard_lock.lock();
                        if doorbells.has_hot() {
                            assert!(demote([&*hot].into_iter()));
                            if tail.load(Ordering::Acquire) != 0 {
                                doorbells.ring(0);
                            }
                            doorbells.set_hot_count(0);
                        }
                        drop(lock);
                        let has_work = || doorbells.has_hot() || doorbells.is_pending();
                        wakeup.sleep(HelperState::ShortSleep, has_work, thread::park);
                    }
                })
            };
            while wakeup.state.load(Ordering::Acquire) == HelperState::Standby as u32 {
                thread::yield_now();
            }
            let lock = shard_lock.lock();
            hot.promote();
            doorbells.set_hot_count(1);
            drop(lock);
            if doorbells.has_hot() {
                wakeup.on_app_change();
            }
            tail.store(1, Ordering::Release);
            if !hot.is_hot() {
                doorbells.ring(0);
                wakeup.on_post();
            }
            helper.join().unwrap();
        });
    }

    /// The helper on standby sees that the application hands over, or is woken by it.
    #[test]
    fn sleeping_application_wakes_the_helper() {
        loom::model(|| {
            let wakeup = Arc::new(HelperWakeup::default());
            wakeup.on_app_polled(7);
            let helper = helper(&wakeup, |wakeup| {
                let is_over = || wakeup.is_handed_over();
                while !is_over() {
                    wakeup.sleep(HelperState::Standby, is_over, thread::park);
                }
            });
            wakeup.on_app_sleep();
            helper.join().unwrap();
        });
    }

    /// A timer that another thread starts while the helper goes to sleep is seen, or `announce`
    /// wakes it.
    fn new_timer_ends_a_sleep(announce: fn(&HelperWakeup)) {
        loom::model(move || {
            let wakeup = Arc::new(HelperWakeup::default());
            let deadline = Arc::new(Mutex::new(None));
            let helper = {
                let deadline = Arc::clone(&deadline);
                helper(&wakeup, move |wakeup| {
                    let mut is_seen = false;
                    while !is_seen {
                        let look = || {
                            is_seen = deadline.lock().unwrap().is_some();
                            (!is_seen).then_some(())
                        };
                        wakeup.sleep_after(HelperState::ShortSleep, look, |()| thread::park());
                    }
                })
            };
            while wakeup.state.load(Ordering::Acquire) == HelperState::Standby as u32 {
                thread::yield_now();
            }
            *deadline.lock().unwrap() = Some(7);
            announce(&wakeup);
            helper.join().unwrap();
        });
    }

    #[test]
    fn timer_of_a_control_call_ends_a_sleep() {
        new_timer_ends_a_sleep(HelperWakeup::on_control);
    }

    #[test]
    fn timer_of_an_application_poll_ends_a_sleep() {
        new_timer_ends_a_sleep(HelperWakeup::on_app_change);
    }

    /// The helper sees a thread that arms a queue before it sleeps for long, also if another thread
    /// has waited for some time.
    #[test]
    fn new_waiter_ends_a_long_sleep() {
        loom::model(|| {
            let wakeup = Arc::new(HelperWakeup::default());
            wakeup.add_waiter();
            let seen = wakeup.waiters().wait_seq;
            let helper = helper(&wakeup, move |wakeup| {
                let has_begun = || wakeup.waiters().wait_seq != seen;
                while !has_begun() {
                    wakeup.sleep(HelperState::LongSleep, has_begun, thread::park);
                }
            });
            wakeup.add_waiter();
            helper.join().unwrap();
        });
    }
}
