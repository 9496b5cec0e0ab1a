//! Spinning that leaves its core to others: threads that poll without sleeping, on a core that is
//! shared with others, would take turns with them by time slices of the scheduler.

use std::time::{Duration, Instant};

use crate::shard::InterruptSleep;
use crate::threads::timer_slack;

/// Consecutive polls without work before the clock is read.
const IDLE_POLLS: u32 = 64;

/// The same next to other threads that poll: nothing arrives from them before they run.
const IDLE_POLLS_SHARED: u32 = 4;

/// A shorter yield found no other thread that wants to run on this core.
const SWITCH_MIN: Duration = Duration::from_micros(1);

/// Interval of yields while the core seems to be this thread's own.
const PROBE_INTERVAL: Duration = Duration::from_micros(200);

/// A longer yield went to a thread that computes. Next to such a thread each yield would cost a
/// time slice, while a wake-up from a sleep costs next to nothing.
const YIELD_MAX: Duration = Duration::from_micros(500);

/// Time for which the thread sleeps instead of yielding after that: at first, and at most. It
/// doubles while each yield that follows is long, too.
const SLEEP_PERIOD_MIN: Duration = Duration::from_millis(20);
const SLEEP_PERIOD_MAX: Duration = Duration::from_millis(320);

/// Length of these sleeps.
const SLEEP: Duration = Duration::from_micros(50);

/// Adaptive wait between two polls of a thread that would otherwise spin; see
/// [`Cq::poll_spinning`].
///
/// [`Cq::poll_spinning`]: crate::Cq::poll_spinning
///
/// On a core of its own the thread spins. Next to other threads that poll with a `Spinner`, or that
/// sleep often, it yields between polls without work. Next to a thread that computes it sleeps.
///
/// ```
/// use ferrowarp::Spinner;
///
/// let mut spinner = Spinner::new();
/// for found in [true, false, false] {
///     // `found`: a poll returned completions.
///     spinner.on_poll(found);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Spinner {
    idle_polls: u32,
    /// Value of `idle_polls` at which the thread may leave its core.
    idle_polls_max: u32,
    yield_at: Option<Instant>,
    sleep_until: Option<Instant>,
    /// Length of the next period of sleeps.
    sleep_period: Duration,
}

/// Way to leave the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    Yield,
    Sleep,
}

impl Spinner {
    /// A spinner that takes the core for its thread's own.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            idle_polls: 0,
            idle_polls_max: IDLE_POLLS,
            yield_at: None,
            sleep_until: None,
            sleep_period: SLEEP_PERIOD_MIN,
        }
    }

    /// To be called after each poll; `busy`: it found work. Returns at once, unless 64 polls in
    /// succession found none, or 4 next to other threads that poll.
    #[inline]
    pub fn on_poll(&mut self, busy: bool) {
        if busy {
            self.idle_polls = 0;
            return;
        }
        self.idle_polls += 1;
        if self.idle_polls >= self.idle_polls_max {
            self.leave_if_due();
        }
    }

    #[cold]
    fn leave_if_due(&mut self) {
        self.idle_polls = 0;
        let start = Instant::now();
        match self.due(start) {
            Some(Leave::Yield) => {
                std::thread::yield_now();
                self.on_yield(start, Instant::now());
            }
            Some(Leave::Sleep) => timer_slack::sleep(SLEEP),
            None => {}
        }
    }

    fn due(&self, now: Instant) -> Option<Leave> {
        if self.sleep_until.is_some_and(|until| now < until) {
            return Some(Leave::Sleep);
        }
        self.yield_at.is_none_or(|at| now >= at).then_some(Leave::Yield)
    }

    /// Decides how to go on after a yield.
    fn on_yield(&mut self, start: Instant, end: Instant) {
        let took = end.saturating_duration_since(start);
        let sleep_period = self.sleep_period;
        *self = Self::new();
        if took < SWITCH_MIN {
            self.yield_at = Some(end + PROBE_INTERVAL);
        } else if took <= YIELD_MAX {
            self.idle_polls_max = IDLE_POLLS_SHARED;
        } else {
            self.sleep_until = Some(end + sleep_period);
            self.sleep_period = (sleep_period * 2).min(SLEEP_PERIOD_MAX);
        }
    }
}

impl Default for Spinner {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits of a thread that may also sleep: it spins, then yields, then sleeps, on the port if that
/// has a receive interrupt, or for longer after a while.
#[derive(Debug)]
pub(crate) struct PollBackoff {
    spinner: Spinner,
    idle_since: Option<Instant>,
    /// The last sleep on the port was ended by the interrupt or another thread, and no poll has
    /// found anything since.
    is_woken: bool,
    /// Length of the sleep that follows then.
    nap: Duration,
}

/// Time without work after which a waiting thread sleeps, and after which it sleeps for longer.
const SLEEP_AFTER: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(20)];

/// Length of the longer sleeps.
const LONG_SLEEP: Duration = Duration::from_millis(1);

/// Longest sleep on the port. It bounds the delay of the few events that no poll finds, such as a
/// change of the link.
const PORT_SLEEP_MAX: Duration = Duration::from_millis(250);

impl PollBackoff {
    pub(crate) const fn new() -> Self {
        Self { spinner: Spinner::new(), idle_since: None, is_woken: false, nap: SLEEP }
    }

    /// To be called after a poll that found work.
    pub(crate) const fn on_busy(&mut self) {
        (self.idle_since, self.is_woken, self.nap) = (None, false, SLEEP);
    }

    /// To be called after a poll without work instead of [`PollBackoff::on_idle`] by a thread that
    /// must not sleep.
    pub(crate) fn on_idle_awake(&mut self) {
        self.spinner.on_poll(false);
    }

    /// To be called at `now` after a poll without work. Does not wait beyond `deadline`.
    /// `sleep_on_port` sleeps for at most the time that it is passed.
    pub(crate) fn on_idle(
        &mut self,
        now: Instant,
        deadline: Option<Instant>,
        sleep_on_port: impl FnOnce(Duration) -> InterruptSleep,
    ) {
        let idle = now.saturating_duration_since(*self.idle_since.get_or_insert(now));
        let Some(sleep) = sleep_after(idle) else { return self.spinner.on_poll(false) };
        let left = deadline
            .map_or(PORT_SLEEP_MAX, |deadline| deadline.saturating_duration_since(now))
            .min(PORT_SLEEP_MAX);
        // A descriptor that is readable for another reason than frames takes no whole core, nor do
        // the polls of another thread. One of these may be about to find something.
        if std::mem::take(&mut self.is_woken) {
            timer_slack::sleep(self.nap.min(left));
            self.nap = (2 * self.nap).min(LONG_SLEEP);
            return;
        }
        match sleep_on_port(left) {
            InterruptSleep::Interrupted | InterruptSleep::Woken => self.is_woken = true,
            InterruptSleep::Slept => self.nap = SLEEP,
            InterruptSleep::Busy => self.on_busy(),
            InterruptSleep::NotIdle | InterruptSleep::Unsupported => {
                timer_slack::sleep(sleep.min(left));
            }
        }
    }
}

fn sleep_after(idle: Duration) -> Option<Duration> {
    let [short, long] = SLEEP_AFTER;
    match idle {
        idle if idle < short => None,
        idle if idle < long => Some(SLEEP),
        _ => Some(LONG_SLEEP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A spinner after a yield that took so long, and the time of its end.
    fn after_yield(took: Duration) -> (Spinner, Instant) {
        let start = Instant::now();
        let mut spinner = Spinner::new();
        assert_eq!(spinner.due(start), Some(Leave::Yield));
        spinner.on_yield(start, start + took);
        (spinner, start + took)
    }

    #[test]
    fn thread_on_a_core_of_its_own_spins() {
        let (spinner, now) = after_yield(Duration::from_nanos(300));
        assert_eq!(spinner.due(now), None);
        assert_eq!(spinner.due(now + PROBE_INTERVAL), Some(Leave::Yield));
    }

    #[test]
    fn thread_beside_others_that_poll_yields() {
        let (spinner, now) = after_yield(Duration::from_micros(30));
        assert_eq!(spinner.due(now), Some(Leave::Yield));
        assert_eq!(spinner.idle_polls_max, IDLE_POLLS_SHARED);
    }

    #[test]
    fn thread_beside_one_that_computes_sleeps_for_a_while() {
        let (mut spinner, mut now) = after_yield(Duration::from_millis(3));
        assert_eq!(spinner.due(now), Some(Leave::Sleep));
        for period_ms in [20, 40, 80, 160, 320, 320] {
            let end = now + Duration::from_millis(period_ms);
            assert_eq!(spinner.due(end - Duration::from_micros(1)), Some(Leave::Sleep));
            assert_eq!(spinner.due(end), Some(Leave::Yield));
            now = end + Duration::from_millis(3);
            spinner.on_yield(end, now);
        }
        // It has ended.
        spinner.on_yield(now, now);
        assert_eq!(spinner.due(now), None);
        assert_eq!(spinner.sleep_period, SLEEP_PERIOD_MIN);
    }

    #[test]
    fn waiting_thread_sleeps_for_longer_and_longer() {
        let after = |ms| sleep_after(Duration::from_millis(ms));
        assert_eq!([after(1), after(2), after(19)], [None, Some(SLEEP), Some(SLEEP)]);
        assert_eq!([after(20), after(60_000)], [Some(LONG_SLEEP); 2]);
    }

    #[test]
    fn waiting_thread_sleeps_on_the_port_until_its_deadline() {
        let mut backoff = PollBackoff::new();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut slept = Vec::new();
        let mut idle = |ms, deadline_ms: Option<u64>, outcome| {
            backoff.on_idle(at(ms), deadline_ms.map(at), |limit| {
                slept.push((ms, limit.as_millis()));
                outcome
            });
        };
        idle(0, None, InterruptSleep::Slept);
        idle(2, None, InterruptSleep::Slept);
        idle(12, Some(15), InterruptSleep::Interrupted);
        // There was no frame: a short sleep, whatever the descriptor.
        idle(15, None, InterruptSleep::Slept);
        idle(16, None, InterruptSleep::Slept);
        assert_eq!(slept, [(2, 250), (12, 3), (16, 250)]);
    }

    #[test]
    fn busy_polls_never_leave_the_core() {
        let mut spinner = Spinner::new();
        for poll in 0..10_000 {
            spinner.on_poll(poll % IDLE_POLLS == IDLE_POLLS - 1);
        }
        assert!(spinner.yield_at.is_none() && spinner.sleep_until.is_none());
    }
}
