//! Watches the link of a context's port, reports when it goes down or comes up, and ends the
//! connections to a process that is gone.
//!
//! Few drivers can be relied on to announce a change: some never do, others only with one kind of
//! interrupt, and an announcement would come in a thread of DPDK's. So the state is read at an
//! interval, which every driver supports. That may take a millisecond, and waits for control calls
//! of the process, so a thread of its own does it: polling a shard costs nothing for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::device::{LinkState, PortLink};
use crate::events::{AsyncEvent, AsyncEventQueue};
use crate::threads::ContextThread;

/// Interval between two readings: the usual one of link monitors in bonds of interfaces (`miimon`).
/// Ten wake-ups per second are few compared with a helper, which sleeps for 1 ms at most.
const INTERVAL: Duration = Duration::from_millis(100);

/// Readings for which the process at the other end may take to serve this one. It takes a few
/// milliseconds; a second client of a `memif` server is never served.
const UNSERVED_MAX: u32 = 10;

/// End of the connections over a link to another process.
pub(crate) struct PeerLoss {
    /// Time for which the link may be down before; `None`: for ever.
    pub(crate) grace: Option<Duration>,
    pub(crate) end_connections: Box<dyn Fn() + Send>,
}

/// Decides when the process at the other end of a link is lost.
struct PeerWatch {
    loss: PeerLoss,
    /// Time since which the link has been down, unless the loss was noted.
    down_since: Option<Instant>,
    is_up: bool,
    /// [`PortLink::down_count`] at the last reading.
    down_count: u64,
}

impl PeerWatch {
    /// Notes a reading of the link.
    fn on_reading(&mut self, down_count: u64, is_up: bool) {
        let Some(grace) = self.loss.grace else { return };
        let was_up = std::mem::replace(&mut self.is_up, is_up);
        let has_flapped = std::mem::replace(&mut self.down_count, down_count) != down_count;
        match (was_up, is_up) {
            // Another process has connected since, or the same one again.
            (true, true) if has_flapped && grace.is_zero() => (self.loss.end_connections)(),
            (_, true) => self.down_since = None,
            (true, false) => self.down_since = Some(Instant::now()),
            // One has come and gone since.
            (false, false) if has_flapped => self.down_since = Some(Instant::now()),
            (false, false) => {}
        }
        if self.down_since.is_some_and(|since| since.elapsed() >= grace) {
            self.down_since = None;
            (self.loss.end_connections)();
        }
    }
}

/// Reads the state of the link, and starts the thread that watches it, which drops it at its end. A
/// context without a link to watch has no such thread, and its link is up. `wake` ends the sleeps
/// of threads on the port, which find an event of the link then.
pub(crate) fn start(
    link: Option<Box<dyn PortLink>>,
    state: &LinkState,
    events: &Arc<AsyncEventQueue>,
    wake: impl Fn() + Send + 'static,
    loss: PeerLoss,
) -> std::io::Result<Option<ContextThread>> {
    let Some(mut link) = link else { return Ok(None) };
    let down_count = link.down_count();
    let is_up = link.is_up();
    link.on_start(is_up);
    state.set(&*link, is_up);
    let peer = PeerWatch { loss, down_since: None, is_up, down_count };
    let mut peer = link.is_to_process().then_some(peer);
    let (events, state) = (Arc::clone(events), state.clone());
    let thread = ContextThread::start("ferrowarp-link".into(), move |stop| {
        let publish = |event| {
            let has_room = events.publish_state(event);
            wake();
            has_room
        };
        watch(&mut *link, &state, publish, peer.as_mut(), stop);
    })?;
    Ok(Some(thread))
}

fn watch(
    link: &mut dyn PortLink,
    state: &LinkState,
    publish: impl Fn(AsyncEvent) -> bool,
    mut peer: Option<&mut PeerWatch>,
    stop: &AtomicBool,
) {
    let mut unserved: u32 = 0;
    loop {
        std::thread::park_timeout(INTERVAL);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        // Before the state: a connection that ends in between is noticed now or the next time.
        let down_count = link.down_count();
        let is_up = link.is_up();
        unserved = if is_up { 0 } else { unserved.saturating_add(1) };
        if unserved == UNSERVED_MAX && link.joins_process() {
            state.note_process();
        }
        if is_up != state.is_up() {
            link.on_change(is_up);
            // Before the event: who takes that finds the state.
            state.set(link, is_up);
            let event = if is_up { AsyncEvent::PortActive } else { AsyncEvent::PortError };
            if !publish(event) {
                return;
            }
        }
        if let Some(peer) = &mut peer {
            peer.on_reading(down_count, is_up);
        }
        if link.is_gone() {
            // The last events: of the connections that end, and of the failure.
            return link.on_gone();
        }
    }
}
