//! Ports whose driver unmaps their rings while they run (`net_memif`).
//!
//! `net_memif` unmaps its rings in DPDK's interrupt thread when the peer disconnects, without
//! waiting for bursts in flight: a burst that accesses the rings then gets SIGSEGV. DPDK has
//! neither a lock nor an event for this. But for each event of its control socket, disconnection
//! included, the driver writes a log line first, in the thread that handles the event. So DPDK's
//! log is hooked, at every level. On a line of the driver in the interrupt thread, bursts are
//! quiesced: no new burst may begin, and the thread waits in the hook until none is in flight, at
//! most [`QUIESCE_POLLS`]. An EAL alarm, which runs in that same thread and so after the driver has
//! handled the event, lets bursts begin again. Ports are closed in that thread as well.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crate::error::{Errno, Error};
use crate::sys;

/// Number of polls for the end of the bursts, and sleep between them: 80 ms in all at least, and
/// several times that with most timers. A burst takes microseconds, or some milliseconds if it is
/// preempted. Polls are counted instead of time, because a stopped process makes no progress.
const QUIESCE_POLLS: (u32, Duration) = (4000, Duration::from_micros(20));

/// Timeout for closing a port in the interrupt thread, which does nothing that takes long.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Burst state of all ports of this process whose rings may be unmapped.
static BURSTS: Bursts = Bursts::new();

/// Name of the driver that unmaps its rings, as in `rte_eth_dev_info`.
pub(crate) const DRIVER: &CStr = c"net_memif";

/// Bursts in flight on each queue, and the flag that forbids new ones.
#[derive(Debug)]
struct Bursts {
    /// No burst may begin.
    quiesced: AtomicBool,
    queues: Mutex<Vec<Weak<InFlight>>>,
}

/// Set while a burst is in flight on one receive or transmit queue. On a cache line of its own,
/// written only by the queue's owner.
#[derive(Debug, Default)]
#[repr(align(64))]
struct InFlight(AtomicBool);

/// Lock that each burst of one receive or transmit queue holds. The bursts are the readers, and
/// the driver's unmapping is the writer.
#[derive(Debug)]
pub(crate) struct BurstLock {
    bursts: &'static Bursts,
    in_flight: Arc<InFlight>,
}

/// A burst in flight.
#[derive(Debug)]
pub(crate) struct BurstGuard<'a>(&'a InFlight);

impl BurstLock {
    pub(crate) fn new() -> Self {
        BURSTS.register_queue()
    }

    /// Begins a burst; `None` while the driver may unmap the rings. About 10 ns.
    #[inline]
    pub(crate) fn try_lock(&mut self) -> Option<BurstGuard<'_>> {
        // Sequentially consistent, as in `Bursts::quiesce`: either this thread sees `quiesced`, or
        // the driver's thread sees `in_flight`.
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

    /// Forbids new bursts and waits until none is in flight, at most [`QUIESCE_POLLS`].
    fn quiesce(&self) {
        self.quiesced.store(true, Ordering::SeqCst);
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut looks, interval) = QUIESCE_POLLS;
        for queue in queues.iter().filter_map(Weak::upgrade) {
            while queue.0.load(Ordering::SeqCst) && looks > 0 {
                // A preempted burst may be waiting for this core.
                std::thread::sleep(interval);
                looks -= 1;
            }
        }
    }

    fn resume(&self) {
        self.quiesced.store(false, Ordering::SeqCst);
    }
}

/// A port to close, and the channel on which completion is reported.
struct CloseRequest {
    port: u16,
    started: bool,
    done: Sender<()>,
}

/// Stops and closes a port in DPDK's interrupt thread. The driver frees the rings both when the
/// peer disconnects and when the port is closed, without synchronisation between the two. In one
/// thread they are serialised, and closing cancels the driver's pending events.
///
/// False if the port was not closed within [`CLOSE_TIMEOUT`]. It may still be closed later, so the
/// port must not be used again.
pub(crate) fn close(port: u16, started: bool) -> bool {
    let (done, closed) = channel();
    let closing = Box::into_raw(Box::new(CloseRequest { port, started, done }));
    // SAFETY: EAL runs, and the function takes what is made for it above, once.
    let status =
        unsafe { sys::rte_eal_alarm_set(ALARM_DELAY_US, Some(on_close_alarm), closing.cast()) };
    if status < 0 {
        // No memory for the alarm. The port stays open, which only prevents its use by others.
        // SAFETY: made above, and passed to no one.
        drop(unsafe { Box::from_raw(closing) });
        return false;
    }
    closed.recv_timeout(CLOSE_TIMEOUT).is_ok()
}

extern "C" fn on_close_alarm(closing: *mut c_void) {
    // SAFETY: `close` made it for this one call.
    let CloseRequest { port, started, done } =
        *unsafe { Box::from_raw(closing.cast::<CloseRequest>()) };
    // SAFETY: an attached port whose queues are dropped; the caller of `close` owns it, and waits
    // or no longer uses it.
    unsafe { stop_and_close(port, started) };
    // The receiver is gone if `close` timed out.
    let _ = done.send(());
}

/// Stops a port, if it was started, and closes it.
///
/// # Safety
/// `port` is an attached port that the caller owns and whose queues are not in use.
pub(crate) unsafe fn stop_and_close(port: u16, started: bool) {
    if started {
        // SAFETY: the caller's promise.
        unsafe { sys::rte_eth_dev_stop(port) };
    }
    // SAFETY: the caller's promise; it is stopped.
    unsafe { sys::rte_eth_dev_close(port) };
}

/// The driver's log type, and the log levels from before the log was hooked.
#[derive(Debug)]
struct LogHook {
    /// Log type of the driver.
    logtype: u32,
    /// Highest level of the driver's lines that is forwarded. Levels grow with detail.
    level: u32,
    /// Highest level of any line that is forwarded.
    global_level: u32,
}

static LOG_HOOK: OnceLock<Result<LogHook, Error>> = OnceLock::new();

/// Hooks DPDK's log. Lines that were printed before are still printed to the same stream.
///
/// # Errors
/// [`Error::Log`], which is permanent.
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
        // The first alarm of a process registers an interrupt handler, which may log. That must not
        // happen while the driver waits in the hook.
        check_log(schedule_resume())?;
        // SAFETY: a function that lives as long as the process and accepts any arguments.
        check_log(unsafe { sys::fw_log_set_handler(Some(on_log_line)) })?;
        // SAFETY: a registered type.
        check_log(unsafe { sys::rte_log_set_level(driver, sys::RTE_LOG_DEBUG) })?;
        // SAFETY: stores a number.
        unsafe { sys::rte_log_set_global_level(sys::RTE_LOG_DEBUG) };
        Ok(LogHook { logtype: driver, level: shown, global_level })
    });
    outcome.as_ref().map(|_| ()).map_err(|error| *error)
}

/// Checks the return value of a DPDK log function: a number, or less than 0.
fn check_log(status: i32) -> Result<u32, Error> {
    u32::try_from(status).map_err(|_| Error::Log(Errno::from_return(status)))
}

/// Delay of an alarm in microseconds: the minimum.
const ALARM_DELAY_US: u64 = 1;

/// Lets bursts begin again when the interrupt thread has finished its current work. Returns less
/// than 0 if there is no memory for the alarm.
fn schedule_resume() -> i32 {
    // SAFETY: EAL runs, and the function takes any argument.
    unsafe { sys::rte_eal_alarm_set(ALARM_DELAY_US, Some(on_resume_alarm), core::ptr::null_mut()) }
}

extern "C" fn on_resume_alarm(_: *mut c_void) {
    BURSTS.resume();
}

/// Handles a log line, in the thread that wrote it.
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
    // The driver also logs in threads that run bursts, open ports and close ports. Of these it
    // unmaps only in a closing thread, whose port has no queues in use.
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
