//! Ports whose driver unmaps their rings while they run (`net_memif`).
//!
//! `net_memif` unmaps its rings in DPDK's interrupt thread when the peer disconnects, without
//! waiting for bursts in flight: a burst that accesses the rings then gets SIGSEGV. DPDK has
//! neither a lock nor an event for this. But for each event of its control socket, disconnection
//! included, the driver writes a log line first, in the thread that handles the event. So DPDK's
//! log is hooked, at every level. On a line of the driver in the interrupt thread, bursts are
//! quiesced: no new burst may begin, and the thread waits in the hook until none is in flight,
//! however long that takes, as the rings are unmapped next. The log's lock is free meanwhile: the
//! driver also logs in bursts. An EAL alarm, which runs in that same thread and so after the driver
//! has handled the event, lets bursts begin again. Whether the link comes up again (reconnect) is
//! the driver's affair. Ports are closed in that thread as well.
//!
//! A burst may be stuck: its thread is preempted or stopped, or the peer passed a descriptor for
//! interrupts to which a write blocks. Other bursts go on, and all threads may log. But until it
//! ends the interrupt thread does nothing else: no memif or virtio-user port of the process
//! connects or disconnects, no alarm runs, and closing such a port fails after [`CLOSE_TIMEOUT`],
//! in which no other port is opened or closed.
//!
//! A port is closed only while no interrupt source is ready. The interrupt thread handles the
//! events of one `epoll_wait` in sequence, and finds the callback of each by the number of its
//! descriptor. Closing a port frees the number of its control socket. If an event of that socket
//! is still to be handled and a port that is opened, or a connection that is accepted, gets the
//! number meanwhile, the event runs the callback of the new control socket. There the driver
//! receives, without `MSG_DONTWAIT`, a message that was not sent: the interrupt thread blocks,
//! for ever if it is the sender itself, and no link comes up any more. But an
//! event that is still to be handled leaves its source ready, because only that thread reads
//! control sockets. So while none is ready there is no such event; otherwise the alarm that closes
//! the port is set again, for after the events.
//!
//! This does not protect from events of descriptors that others close: a driver or the program
//! that closes an interrupt source in another thread, while its event is still to be handled and a
//! memif port is opened; or a forked child that has inherited a control socket, for which `epoll`
//! then reports events after it is closed here, until EAL has rebuilt its set. Nor does it work
//! without /proc, or if a source stays ready: after [`BUSY_POLLS`] the port is closed all the same.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::burst_lock::{BurstLock, InFlight, QUIESCE_POLLS, RingState};
use crate::error::{Errno, Error};
use crate::lock_order::{Rank, RankedMutex};
use crate::memif_ring::Ring;
use crate::{intr_sources, sys};

/// Timeout for closing a port in the interrupt thread, which does nothing that takes long.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of polls for the moment when no interrupt source is ready, and microseconds between
/// them: 1 s in all. All alarms that are due run in one event, so the interval must be longer than
/// a poll takes: the thread would not reach the other events.
const BUSY_POLLS: (u32, u64) = (100, 10_000);

/// Burst state of all ports of this process whose rings may be unmapped.
static BURSTS: Bursts = Bursts::new();

/// Name of the driver that unmaps its rings, as in `rte_eth_dev_info`.
pub(crate) const DRIVER: &CStr = c"net_memif";

/// Bursts in flight on each queue, and the flag that forbids new ones.
#[derive(Debug)]
struct Bursts {
    /// No burst may begin.
    quiesced: AtomicBool,
    queues: RankedMutex<Vec<(Weak<InFlight>, Ring)>>,
}

/// Returns the lock of a queue with this ring.
pub(crate) fn burst_lock(ring: Ring) -> BurstLock {
    BURSTS.register_queue(ring)
}

/// Returns when the interrupt thread looks at no ring of the queues that were dropped before, and
/// will not: their port may be closed by another.
pub(crate) fn forget_dropped_queues() {
    BURSTS.forget_dropped();
}

impl Bursts {
    const fn new() -> Self {
        Self { quiesced: AtomicBool::new(false), queues: RankedMutex::new(Rank::List, Vec::new()) }
    }

    fn register_queue(&'static self, ring: Ring) -> BurstLock {
        let in_flight = InFlight::new(match ring {
            Ring::Unconditional => RingState::Present,
            Ring::Unconfigured => RingState::Absent,
            Ring::Queue(_) => RingState::LinkDown,
        });
        let mut queues = self.queues.lock();
        queues.retain(|(queue, _)| queue.strong_count() != 0);
        queues.push((Arc::downgrade(&in_flight), ring));
        BurstLock::new(&self.quiesced, in_flight)
    }

    /// Waits until no ring of a queue that was dropped is looked at.
    fn forget_dropped(&self) {
        // `resume` holds the lock while it looks.
        let mut queues = self.queues.lock();
        queues.retain(|(queue, _)| queue.strong_count() != 0);
    }

    /// Forbids new bursts and waits until none is in flight.
    fn quiesce(&self) {
        loop {
            self.quiesced.store(true, Ordering::SeqCst);
            // A queue that is registered later begins no burst. Its port waits for no burst either.
            let queues: Vec<_> =
                self.queues.lock().iter().filter_map(|(queue, _)| queue.upgrade()).collect();
            let (mut polls, _) = QUIESCE_POLLS;
            let Some(stuck) = queues.iter().find(|queue| !queue.wait_briefly(&mut polls)) else {
                return;
            };
            // The rings are mapped while this thread waits, so other bursts may go on.
            stuck.set_ring_state(RingState::LinkDown);
            self.quiesced.store(false, Ordering::SeqCst);
            stuck.wait();
        }
    }

    /// Notes which queues have a ring now, and lets bursts begin again. In the interrupt thread.
    fn resume(&self) {
        let queues = self.queues.lock();
        // A port's first receive queue was registered first, and comes last: once its state is
        // known, the others' are, too.
        for (queue, ring) in queues.iter().rev() {
            if let Some(queue) = queue.upgrade() {
                queue.note_ring_state(ring.state());
            }
        }
        self.quiesced.store(false, Ordering::SeqCst);
    }
}

/// A port to close, and the channel on which completion is reported.
struct CloseRequest {
    port: u16,
    started: bool,
    /// Polls left while interrupt sources are ready.
    polls_left: u32,
    done: Sender<()>,
}

/// Stops and closes a port in DPDK's interrupt thread. The driver frees the rings both when the
/// peer disconnects and when the port is closed, without synchronization between the two. In one
/// thread they are serialized. It is done when no interrupt source is ready, so that no event of
/// the port is left to be handled.
///
/// False if the port was not closed within [`CLOSE_TIMEOUT`]. It may still be closed later, so the
/// port must not be used again.
pub(crate) fn close(port: u16, started: bool) -> bool {
    let (done, closed) = channel();
    let request = CloseRequest { port, started, polls_left: BUSY_POLLS.0, done };
    // Without memory for the alarm the port stays open, which only prevents its use by others.
    schedule_close(Box::new(request), ALARM_DELAY_US).is_ok()
        && closed.recv_timeout(CLOSE_TIMEOUT).is_ok()
}

/// Sets the alarm that closes a port. Returns the request if there is no memory for the alarm.
fn schedule_close(request: Box<CloseRequest>, delay_us: u64) -> Result<(), Box<CloseRequest>> {
    let request = Box::into_raw(request);
    // SAFETY: EAL runs, and the function takes what is made for it above, once.
    let status = unsafe { sys::rte_eal_alarm_set(delay_us, Some(on_close_alarm), request.cast()) };
    if status < 0 {
        // SAFETY: made above, and passed to no one.
        return Err(unsafe { Box::from_raw(request) });
    }
    Ok(())
}

extern "C" fn on_close_alarm(request: *mut c_void) {
    // SAFETY: `schedule_close` made it for this one call.
    let mut request = unsafe { Box::from_raw(request.cast::<CloseRequest>()) };
    if request.polls_left > 0 && intr_sources::any_ready() {
        request.polls_left -= 1;
        match schedule_close(request, BUSY_POLLS.1) {
            Ok(()) => return,
            Err(returned) => request = returned,
        }
    }
    // SAFETY: an attached port whose queues are dropped; the caller of `close` owns it, and waits
    // or no longer uses it.
    unsafe { stop_and_close(request.port, request.started) };
    // The receiver is gone if `close` timed out.
    let _ = request.done.send(());
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

/// Has the rings of queues noted that were registered after their port was started, in the
/// interrupt thread.
///
/// # Errors
/// [`Error::Log`].
pub(crate) fn note_rings() -> Result<(), Error> {
    check_log(schedule_resume()).map(drop)
}

/// Lets bursts begin again when the interrupt thread has finished its current work. Returns less
/// than 0 if there is no memory for the alarm.
fn schedule_resume() -> i32 {
    // SAFETY: EAL runs, and the function takes any argument.
    unsafe { sys::rte_eal_alarm_set(ALARM_DELAY_US, Some(on_resume_alarm), core::ptr::null_mut()) }
}

extern "C" fn on_resume_alarm(_: *mut c_void) {
    BURSTS.resume();
}

/// Clients whose server has disconnected them because of their rings.
static RING_REFUSALS: AtomicU64 = AtomicU64::new(0);

/// Returns how many memif clients of this process were disconnected by their server because it has
/// fewer queues. Such a client does not connect again; which one it was is not known.
#[must_use]
pub fn ring_refusal_count() -> u64 {
    RING_REFUSALS.load(Ordering::Relaxed)
}

/// True for the driver's line about a disconnection by a peer that names rings as the reason. The
/// reason is the peer's own text; of `net_memif` it is `Invalid ring index`.
fn is_ring_refusal(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line).to_lowercase();
    line.split_once("disconnect received:").is_some_and(|(_, reason)| reason.contains("ring"))
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
        // SAFETY: the caller's promise.
        let line = unsafe { core::slice::from_raw_parts(text.cast::<u8>(), len) };
        if is_ring_refusal(line) {
            RING_REFUSALS.fetch_add(1, Ordering::Relaxed);
        }
        // A burst in flight may be printing a line itself.
        // SAFETY: this thread prints the line, and so holds the lock.
        unsafe { sys::fw_log_unlock() };
        BURSTS.quiesce();
        // SAFETY: unlocked above.
        unsafe { sys::fw_log_lock() };
        if schedule_resume() < 0 {
            BURSTS.resume();
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
#[path = "memif_close_tests.rs"]
mod close_tests;
