//! Ports whose memory goes while they run.
//!
//! `net_memif` unmaps its rings in DPDK's interrupt thread as soon as the peer is gone, and asks
//! nobody first: a burst that is in the middle of them dies of SIGSEGV. DPDK has no lock and no
//! event for that. But the driver logs a line for whatever its socket brings, the end included,
//! before it acts on it and in the thread that will. So its log is listened to, at every level: at
//! a line of the interrupt thread no burst may begin any more, and the thread waits there until
//! none is under way (or [`QUIESCE_POLLS`] is over). An alarm, which DPDK runs in that same thread,
//! lets bursts begin again: by then the driver is done with whatever it was told. Ports are closed
//! in that thread as well.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crate::error::{Errno, Error};
use crate::sys;

/// How often the driver looks for the end of a burst, and how long it waits between looks: 80 ms at
/// least, and several times that by most clocks. A burst takes microseconds, some milliseconds if
/// it is preempted. Looks are counted, because a process that was stopped has not had the time.
const QUIESCE_POLLS: (u32, Duration) = (4000, Duration::from_micros(20));

/// How long closing a port waits for the driver's thread, which does nothing that takes long.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The bursts of this process on ports whose memory may go.
static BURSTS: Bursts = Bursts::new();

/// The driver that unmaps, as `rte_eth_dev_info` names it.
pub(crate) const DRIVER: &CStr = c"net_memif";

/// Who is in the rings, and whether anybody may be.
#[derive(Debug)]
struct Bursts {
    /// None may begin.
    quiesced: AtomicBool,
    queues: Mutex<Vec<Weak<InFlight>>>,
}

/// Whether a burst is under way at one side of one queue. On a line of its own, which only the
/// queue's owner writes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct InFlight(AtomicBool);

/// Passed through by each burst at one side of a queue.
#[derive(Debug)]
pub(crate) struct BurstLock {
    bursts: &'static Bursts,
    in_flight: Arc<InFlight>,
}

/// A burst under way.
#[derive(Debug)]
pub(crate) struct BurstGuard<'a>(&'a InFlight);

impl BurstLock {
    pub(crate) fn new() -> Self {
        BURSTS.register_queue()
    }

    /// Lets a burst begin, unless the driver may be unmapping. About 10 ns.
    #[inline]
    pub(crate) fn try_lock(&mut self) -> Option<BurstGuard<'_>> {
        // Sequentially consistent, as in `Bursts::rest`: either this sees that bursts rest, or
        // the driver's thread sees that one is under way.
        self.in_flight.0.store(true, Ordering::SeqCst);
        let inside = BurstGuard(&self.in_flight);
        (!self.bursts.quiesced.load(Ordering::SeqCst)).then_some(inside)
    }
}

impl Drop for BurstGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

impl Bursts {
    const fn new() -> Self {
        Self { quiesced: AtomicBool::new(false), queues: Mutex::new(Vec::new()) }
    }

    fn register_queue(&'static self) -> BurstLock {
        let under_way = Arc::<InFlight>::default();
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|queue| queue.strong_count() != 0);
        queues.push(Arc::downgrade(&under_way));
        BurstLock { bursts: self, in_flight: under_way }
    }

    /// Lets no burst begin, and waits until none is under way, or [`QUIESCE_POLLS`] is over.
    fn quiesce(&self) {
        self.quiesced.store(true, Ordering::SeqCst);
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut looks, interval) = QUIESCE_POLLS;
        for queue in queues.iter().filter_map(Weak::upgrade) {
            while queue.0.load(Ordering::SeqCst) && looks > 0 {
                // A burst that was preempted may wait for this very core.
                std::thread::sleep(interval);
                looks -= 1;
            }
        }
    }

    fn resume(&self) {
        self.quiesced.store(false, Ordering::SeqCst);
    }
}

/// A port to be closed, and whom to tell.
struct CloseRequest {
    port: u16,
    started: bool,
    done: Sender<()>,
}

/// Stops and closes a port in the thread in which its driver acts, lest two threads take it apart:
/// the driver frees the rings both when the peer goes and when the port is closed, and neither
/// looks whether the other is under way. In one thread they come one after the other, and the
/// driver takes its events back as it closes.
///
/// False if that thread has not come to it for [`CLOSE_TIMEOUT`]: it still may, so the port is
/// nobody's.
pub(crate) fn close(port: u16, started: bool) -> bool {
    let (done, closed) = channel();
    let closing = Box::into_raw(Box::new(CloseRequest { port, started, done }));
    // SAFETY: EAL runs, and the function takes what is made for it above, once.
    let status =
        unsafe { sys::rte_eal_alarm_set(ALARM_DELAY_US, Some(on_close_alarm), closing.cast()) };
    if status < 0 {
        // No memory for the alarm. A port that stays open does no harm but to whoever wants it.
        // SAFETY: made above, and given to nobody.
        drop(unsafe { Box::from_raw(closing) });
        return false;
    }
    closed.recv_timeout(CLOSE_TIMEOUT).is_ok()
}

extern "C" fn on_close_alarm(closing: *mut c_void) {
    // SAFETY: `close` made it for this one call.
    let CloseRequest { port, started, done } =
        *unsafe { Box::from_raw(closing.cast::<CloseRequest>()) };
    // SAFETY: an attached port whose queues are gone; who asked for this owns it, and waits or
    // has given it up.
    unsafe { stop_and_close(port, started) };
    // Whoever asked may have given up.
    let _ = done.send(());
}

/// Stops a port, if it was started, and closes it.
///
/// # Safety
/// An attached port that the caller owns, whose queues nobody uses.
pub(crate) unsafe fn stop_and_close(port: u16, started: bool) {
    if started {
        // SAFETY: the caller's promise.
        unsafe { sys::rte_eth_dev_stop(port) };
    }
    // SAFETY: the caller's promise; it is stopped.
    unsafe { sys::rte_eth_dev_close(port) };
}

/// What is told apart in the log.
#[derive(Debug)]
struct LogHook {
    /// The driver's number among those who log.
    logtype: u32,
    /// The level up to which its lines are shown. Levels grow with detail.
    level: u32,
    /// The level up to which everybody's lines are shown.
    global_level: u32,
}

static LOG_HOOK: OnceLock<Result<LogHook, Error>> = OnceLock::new();

/// Begins to listen to DPDK's log. What was shown before is shown where it was.
///
/// # Errors
/// [`Error::Log`], for good.
pub(crate) fn hook_log() -> Result<(), Error> {
    let outcome = LOG_HOOK.get_or_init(|| {
        // SAFETY: a string; a loaded driver's type exists, and is found by its name.
        let driver = unsafe { sys::rte_log_register(c"pmd.net.memif".as_ptr()) };
        let driver = check_log(driver)?;
        // SAFETY: reads a number.
        let global_level = unsafe { sys::rte_log_get_global_level() };
        // SAFETY: reads a number of a registered type.
        let shown = unsafe { sys::rte_log_get_level(driver) };
        let shown = check_log(shown)?;
        // The first alarm of a process is registered, which may log: not while the driver waits.
        check_log(schedule_resume())?;
        // SAFETY: a function that lives as long as the process, and takes whatever it is given.
        check_log(unsafe { sys::fw_log_set_handler(Some(on_log_line)) })?;
        // SAFETY: a registered type.
        check_log(unsafe { sys::rte_log_set_level(driver, sys::RTE_LOG_DEBUG) })?;
        // SAFETY: stores a number.
        unsafe { sys::rte_log_set_global_level(sys::RTE_LOG_DEBUG) };
        Ok(LogHook { logtype: driver, level: shown, global_level })
    });
    outcome.as_ref().map(|_| ()).map_err(|error| *error)
}

/// What the calls of DPDK's log answer: a number, or less than 0.
fn check_log(status: i32) -> Result<u32, Error> {
    u32::try_from(status).map_err(|_| Error::Log(Errno::from_return(status)))
}

/// When an alarm is due, in microseconds: the least there are.
const ALARM_DELAY_US: u64 = 1;

/// Has bursts begin again when the interrupt thread is done with what it is doing. Less than 0 if
/// there is no memory for it.
fn schedule_resume() -> i32 {
    // SAFETY: EAL runs, and the function takes any argument.
    unsafe { sys::rte_eal_alarm_set(ALARM_DELAY_US, Some(on_resume_alarm), core::ptr::null_mut()) }
}

extern "C" fn on_resume_alarm(_: *mut c_void) {
    BURSTS.resume();
}

/// Takes a line of the log, in the thread that wrote it.
///
/// # Safety
/// `text` points to `len` bytes.
unsafe extern "C" fn on_log_line(text: *const libc::c_char, len: usize, level: u32, kind: u32) {
    let Some(Ok(listener)) = LOG_HOOK.get() else { return };
    let is_driver = kind == listener.logtype;
    let shown = if is_driver { listener.level } else { u32::MAX };
    if level <= shown.min(listener.global_level) {
        // SAFETY: the caller's promise.
        unsafe { sys::fw_log_forward(text, len) };
    }
    // The driver also logs in threads that burst, open and close, and unmaps in none of those but
    // the last.
    // SAFETY: compares the thread with one that EAL knows.
    if is_driver && unsafe { sys::rte_thread_is_intr() } != 0 {
        BURSTS.quiesce();
        if schedule_resume() < 0 {
            BURSTS.resume();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU32;
    use std::time::Instant;

    use super::*;

    #[test]
    fn no_burst_runs_while_quiesced() {
        static TESTED: Bursts = Bursts::new();
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        static PASSED: AtomicU32 = AtomicU32::new(0);
        static DONE: AtomicBool = AtomicBool::new(false);
        let mut seen = false;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut gate = TESTED.register_queue();
                    while !DONE.load(Ordering::Relaxed) {
                        let Some(_inside) = gate.try_lock() else { continue };
                        INSIDE.fetch_add(1, Ordering::Relaxed);
                        PASSED.fetch_add(1, Ordering::Relaxed);
                        INSIDE.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..5 {
                let before = PASSED.load(Ordering::Relaxed);
                while PASSED.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
                TESTED.quiesce();
                let rested = PASSED.load(Ordering::Relaxed);
                let until = Instant::now() + Duration::from_millis(10);
                while Instant::now() < until {
                    seen |= INSIDE.load(Ordering::Relaxed) != 0;
                }
                seen |= PASSED.load(Ordering::Relaxed) != rested;
                TESTED.resume();
            }
            DONE.store(true, Ordering::Relaxed);
        });
        assert!(!seen, "bursts begun or under way");
    }

    #[test]
    fn quiesce_gives_up_on_a_stuck_burst() {
        static TESTED: Bursts = Bursts::new();
        let (mut stuck, mut other) = (TESTED.register_queue(), TESTED.register_queue());
        let inside = stuck.try_lock();
        assert!(inside.is_some());
        let began = Instant::now();
        TESTED.quiesce();
        let (looks, interval) = QUIESCE_POLLS;
        assert!(began.elapsed() >= looks * interval);
        assert!(other.try_lock().is_none());
        drop(inside);
        drop(stuck);
        TESTED.resume();
        assert!(other.try_lock().is_some());
        let began = Instant::now();
        TESTED.quiesce();
        assert!(began.elapsed() < looks * interval, "a queue that is gone holds nobody up");
    }
}
