//! One run on one side, for every test: input are completions and control messages, output are
//! requests and control messages.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, anyhow, bail, ensure};
use ferrowarp::{QpState, Wc};

use crate::endpoint::WrId;
use crate::message_channel::LAST_MESSAGE_TIMEOUT;
use crate::perf::active::Active;
use crate::perf::control::{ControlFrame, FLAG_BIDIRECTIONAL, Message, Run, Tally};
use crate::perf::latency::{Pinger, Ponger};
use crate::perf::latency_stats::Latencies;
use crate::perf::passive::Passive;
use crate::perf::session::{KIND_RECV, KIND_SHARED_RECV, Session};
use crate::watchdog::Watchdog;

/// Steps between two clock reads.
const STEPS_PER_CLOCK_READ: u32 = 16;
/// Longest sleep: timers, signals and other connections are looked at in between.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// A run.
pub enum TestRun {
    /// Bandwidth.
    Bandwidth {
        /// Active half, which posts messages; present once the run has begun.
        active: Option<Active>,
        /// Passive half, which receives messages.
        passive: Option<Passive>,
        /// This side has an active half.
        is_active: bool,
    },
    /// Latency, initiator of the ping-pong.
    Ping(Pinger),
    /// Latency, responder of the ping-pong.
    Pong(Ponger),
}

impl TestRun {
    /// Prepares this side for a run.
    ///
    /// # Errors
    /// If a connection is down.
    pub fn prepare(session: &mut Session, run: Run, now: Instant) -> anyhow::Result<Self> {
        if session.test().is_latency() {
            return Ok(if session.initiator {
                Self::Ping(Pinger::prepare(session, run, now)?)
            } else {
                Self::Pong(Ponger::prepare(session, run)?)
            });
        }
        let both = session.hello.has(FLAG_BIDIRECTIONAL);
        let is_passive = both || !session.initiator;
        Ok(Self::Bandwidth {
            active: None,
            passive: is_passive.then(|| Passive::prepare(session, run)).transpose()?,
            is_active: both || session.initiator,
        })
    }

    /// Starts the run.
    pub fn start(&mut self, session: &Session, run: Run, now: Instant) {
        match self {
            Self::Bandwidth { active, is_active: true, .. } => {
                *active = Some(Active::start(session, run, now));
            }
            Self::Ping(pinger) => pinger.start(now),
            Self::Bandwidth { .. } | Self::Pong(_) => {}
        }
    }

    /// Ends an endless run: this side posts no more messages.
    pub fn end(&mut self, now: Instant) {
        if let Self::Bandwidth { active: Some(active), .. } = self {
            active.end(now);
        }
    }

    /// Handles a completion on a data connection.
    ///
    /// # Errors
    /// If a connection is down, or a message is unexpected.
    #[inline]
    pub fn on_completion(
        &mut self,
        session: &mut Session,
        id: WrId,
        wc: &Wc,
    ) -> anyhow::Result<()> {
        let unexpected = "a completion without a posted request";
        match (self, id.kind) {
            (Self::Bandwidth { passive, .. }, KIND_RECV) => {
                let passive = passive.as_mut().context(unexpected)?;
                if let Some(number) = passive.on_recv(session, id.index, wc)? {
                    passive.repost_and_credit(session, id.index, number)?;
                }
                Ok(())
            }
            (Self::Bandwidth { passive, .. }, KIND_SHARED_RECV) => {
                let passive = passive.as_mut().context(unexpected)?;
                if let Some(arrival) = passive.on_shared_recv(session, id, wc)? {
                    passive.repost_shared_and_credit(session, &arrival)?;
                }
                Ok(())
            }
            (Self::Bandwidth { active, .. }, _) => {
                active.as_mut().context(unexpected)?.on_completion(session, id, wc)
            }
            (Self::Ping(pinger), KIND_RECV | KIND_SHARED_RECV) => pinger.on_recv(session, wc),
            (Self::Ping(pinger), _) => pinger.on_completion(session, id, wc),
            (Self::Pong(ponger), KIND_RECV | KIND_SHARED_RECV) => ponger.on_recv(session, wc),
            (Self::Pong(_), _) => Ok(()),
        }
    }

    /// Handles a control message of a run.
    ///
    /// # Errors
    /// If it is unexpected.
    pub fn on_message(&mut self, session: &mut Session, message: &Message) -> anyhow::Result<()> {
        match message {
            Message::Consumed { qp, count } | Message::Refilled { qp, count } => {
                let refilled = matches!(message, Message::Refilled { .. });
                self.on_credit(session, *qp, *count, refilled)
            }
            Message::Done(tally) => match self {
                Self::Bandwidth { active, passive: Some(passive), .. } => {
                    // The initiator decides when an endless run ends.
                    if let Some(active) = active {
                        active.end(Instant::now());
                    }
                    passive.on_done(tally)
                }
                Self::Pong(ponger) => ponger.passive_mut().on_done(tally),
                _ => bail!("unexpected Done from the peer"),
            },
            Message::Counted(tally) => match self {
                Self::Bandwidth { active: Some(active), .. } => {
                    active.on_counted(session, Instant::now(), tally)
                }
                Self::Ping(pinger) => pinger.on_counted(session),
                _ => bail!("unexpected Counted from the peer"),
            },
            Message::Alive => Ok(()),
            other => bail!("unexpected message {other:?} from the peer during a run"),
        }
    }

    /// Handles a credit. `Consumed` of an RDMA Read test makes this side refill slots; all other
    /// credits allow this side to post more messages.
    fn on_credit(
        &mut self,
        session: &mut Session,
        qp: u32,
        count: u64,
        refilled: bool,
    ) -> anyhow::Result<()> {
        let by_reads = session.test().transfer() == crate::perf::kind::Transfer::Read;
        ensure!(by_reads || !refilled, "Refilled from the peer in a test without RDMA Reads");
        match self {
            Self::Bandwidth { passive: Some(passive), .. } if by_reads && !refilled => {
                passive.on_consumed(session, qp, count)
            }
            Self::Pong(ponger) if by_reads && !refilled => {
                ponger.passive_mut().on_consumed(session, qp, count)
            }
            Self::Bandwidth { active: Some(active), .. } => active.on_credit(qp, count),
            Self::Ping(pinger) if refilled => pinger.on_credit(count),
            _ => bail!("unexpected credit from the peer"),
        }
    }

    /// Posts the requests and sends the control messages that are due.
    ///
    /// # Errors
    /// If a connection is down.
    #[inline]
    pub fn poll(&mut self, session: &mut Session, now: Instant) -> anyhow::Result<()> {
        match self {
            Self::Bandwidth { active, passive, .. } => {
                if let Some(active) = active {
                    active.poll(session, now)?;
                }
                if let Some(passive) = passive {
                    passive.poll(session)?;
                }
                Ok(())
            }
            Self::Ping(pinger) => pinger.poll(session, now),
            Self::Pong(ponger) => ponger.poll(session),
        }
    }

    /// True if this side's part of the run is finished.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match self {
            Self::Bandwidth { active, passive, is_active } => {
                active.as_ref().map_or(!is_active, Active::is_finished)
                    && passive.as_ref().is_none_or(Passive::is_finished)
            }
            Self::Ping(pinger) => pinger.is_finished(),
            Self::Pong(ponger) => ponger.is_finished(),
        }
    }

    /// True if the next step has nothing to do unless something completes or arrives, or the time
    /// is over.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        match self {
            Self::Bandwidth { active, is_active, .. } => {
                active.as_ref().map_or(!is_active, Active::is_waiting)
            }
            Self::Ping(pinger) => pinger.is_waiting(),
            Self::Pong(ponger) => ponger.is_waiting(),
        }
    }

    /// Returns the counts of the active half, with the verification counts of both halves.
    #[must_use]
    pub fn tally(&self) -> Tally {
        match self {
            Self::Bandwidth { active, passive, .. } => {
                let mut tally = active.as_ref().map(Active::tally).unwrap_or_default();
                if let Some(received) = passive.as_ref().map(Passive::tally) {
                    tally.verified += received.verified;
                    tally.errors += received.errors;
                }
                tally
            }
            Self::Ping(pinger) => pinger.tally(),
            Self::Pong(ponger) => {
                let Tally { verified, errors, .. } = ponger.tally();
                Tally { verified, errors, ..Tally::default() }
            }
        }
    }

    /// As [`TestRun::tally`], of the messages that have completed so far in an unfinished
    /// run.
    #[must_use]
    pub fn completed(&self) -> Tally {
        let tally = self.tally();
        match self {
            Self::Bandwidth { active: Some(_), .. } => {
                let (messages, bytes) = self.transferred();
                Tally { messages, bytes, ..tally }
            }
            _ => tally,
        }
    }

    /// Returns the messages completed on the slowest connection.
    #[must_use]
    pub fn progress(&self) -> u64 {
        match self {
            Self::Bandwidth { active, .. } => active.as_ref().map_or(0, Active::progress),
            Self::Ping(pinger) => pinger.progress(),
            Self::Pong(_) => 0,
        }
    }

    /// Returns the messages and bytes of a bandwidth run that have completed, over all connections.
    #[must_use]
    pub fn transferred(&self) -> (u64, u64) {
        match self {
            Self::Bandwidth { active: Some(active), .. } => active.completed(),
            _ => (0, 0),
        }
    }

    /// Returns the peak rate of a bandwidth run, in gigabits per second.
    #[must_use]
    pub fn peak_gbit_s(&self) -> f64 {
        match self {
            Self::Bandwidth { active, .. } => active.as_ref().map_or(0.0, Active::peak_gbit_s),
            Self::Ping(_) | Self::Pong(_) => 0.0,
        }
    }

    /// Returns the latencies, on the side that measures them.
    #[must_use]
    pub const fn latencies(&self) -> Option<&Latencies> {
        match self {
            Self::Ping(pinger) => Some(pinger.latencies()),
            Self::Bandwidth { .. } | Self::Pong(_) => None,
        }
    }
}

/// Polling common to both sides of a session: completions, control messages, clock.
pub struct SessionPoller {
    batch: Box<[Wc]>,
    /// Completions of the last poll, at the beginning of `batch`.
    polled: usize,
    rx_frames: VecDeque<ControlFrame>,
    now: Instant,
    steps_until_clock: u32,
    /// Something arrived or completed since this was last reset.
    pub had_activity: bool,
    /// The thread has nothing else to do: it may sleep if the session does.
    pub may_sleep: bool,
}

impl SessionPoller {
    /// Creates the poller of a new session.
    #[must_use]
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            batch: vec![Wc::default(); 256].into(),
            polled: 0,
            rx_frames: VecDeque::new(),
            now,
            steps_until_clock: 0,
            had_activity: false,
            may_sleep: true,
        }
    }

    /// Returns the time of the last clock read, at most 16 steps ago.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Counts a step. True if the clock was read: then work that need not be done at each step is
    /// due.
    #[inline]
    pub fn tick(&mut self) -> bool {
        if self.steps_until_clock == 0 {
            self.steps_until_clock = STEPS_PER_CLOCK_READ;
            self.now = Instant::now();
            true
        } else {
            self.steps_until_clock -= 1;
            false
        }
    }

    /// Polls for completions and handles them. Control messages are queued for
    /// [`next_frame`](Self::next_frame).
    ///
    /// # Errors
    /// If a connection is down.
    #[inline]
    pub fn poll(
        &mut self,
        session: &mut Session,
        work: Option<&mut TestRun>,
    ) -> anyhow::Result<()> {
        let sleeps = session.uses_events()
            && self.may_sleep
            && work.as_ref().is_some_and(|work| work.is_waiting());
        let batch = match sleeps {
            false => session.end.poll(&mut self.batch),
            true => session.end.poll_or_sleep(&mut self.batch, SLEEP_MAX),
        };
        self.polled = batch.len();
        if batch.is_empty() {
            if sleeps {
                // As long as many steps.
                self.steps_until_clock = 0;
            }
            return Ok(());
        }
        self.had_activity = true;
        let mut work = work;
        for wc in batch {
            let id = WrId::unpack(wc.wr_id);
            if id.kind < WrId::FIRST_APP_KIND {
                if let Some(bytes) = session.control.on_completion(id, wc)? {
                    self.rx_frames.push_back(ControlFrame::parse(&bytes)?);
                }
                continue;
            }
            session.check(id, wc)?;
            if let Some(work) = &mut work
                && session.is_current(id)
            {
                work.on_completion(session, id, wc)?;
            }
        }
        Ok(())
    }

    /// Returns the peer's reason for a failure of the session, if it sent one before it closed;
    /// otherwise `error`.
    #[cold]
    pub fn explain(&mut self, session: &mut Session, error: Error) -> Error {
        // An error of a data connection may be noticed before the message on the control one.
        let polled = &self.batch[..self.polled];
        let polled: Vec<_> = polled.iter().filter_map(|wc| session.control.message(wc)).collect();
        let frames = polled.iter().filter_map(|bytes| ControlFrame::parse(bytes).ok());
        self.rx_frames.extend(frames);
        let mut watchdog = Watchdog::new(LAST_MESSAGE_TIMEOUT);
        loop {
            let failure = self.rx_frames.drain(..).find_map(|frame| match frame.message {
                Message::Failure(text) => Some(text),
                _ => None,
            });
            if let Some(text) = failure {
                return anyhow!("the peer failed: {text}");
            }
            let is_up = session.control.qp.state() == QpState::Rts;
            session.end.drive();
            let unread = session.control.take_messages(&session.end);
            let frames = unread.iter().filter_map(|bytes| ControlFrame::parse(bytes).ok());
            self.rx_frames.extend(frames);
            let is_over = !is_up || watchdog.has_expired(Instant::now());
            if self.rx_frames.is_empty() && is_over {
                return error;
            }
        }
    }

    /// Returns the next control message.
    ///
    /// # Errors
    /// If it is the peer's Failure.
    #[inline]
    pub fn next_frame(&mut self) -> anyhow::Result<Option<ControlFrame>> {
        match self.rx_frames.pop_front() {
            Some(ControlFrame { message: Message::Failure(text), .. }) => {
                bail!("the peer failed: {text}")
            }
            frame => Ok(frame),
        }
    }
}

impl Default for SessionPoller {
    fn default() -> Self {
        Self::new()
    }
}
