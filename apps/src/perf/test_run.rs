//! One run at one end, whatever the test: completions and control messages go in, requests and
//! control messages come out.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context as _, anyhow, bail, ensure};
use ferrowarp::Wc;

use crate::endpoint::WrId;
use crate::perf::active::Active;
use crate::perf::control::{ControlFrame, FLAG_BIDIRECTIONAL, Message, Run, Tally};
use crate::perf::latency::{Pinger, Ponger};
use crate::perf::latency_stats::Latencies;
use crate::perf::passive::Passive;
use crate::perf::session::{KIND_RECV, Session};

/// Steps between readings of the clock.
const STEPS_PER_CLOCK_READ: u32 = 16;

/// A run.
pub enum TestRun {
    /// Bandwidth: what this end posts, and what it takes.
    Bandwidth {
        /// The active half; there once the run has begun.
        active: Option<Active>,
        /// The passive half.
        passive: Option<Passive>,
        /// This end has an active half.
        is_active: bool,
    },
    /// Latency, the end that begins.
    Ping(Pinger),
    /// Latency, the end that answers.
    Pong(Ponger),
}

impl TestRun {
    /// Prepares this end for a run.
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

    /// The run begins.
    pub fn start(&mut self, session: &Session, run: Run, now: Instant) {
        match self {
            Self::Bandwidth { active, is_active: true, .. } => {
                *active = Some(Active::start(session, run, now));
            }
            Self::Ping(pinger) => pinger.start(now),
            Self::Bandwidth { .. } | Self::Pong(_) => {}
        }
    }

    /// Takes note of a completion on a data connection.
    ///
    /// # Errors
    /// If a connection is down, or a message is none of those agreed on.
    #[inline]
    pub fn on_completion(
        &mut self,
        session: &mut Session,
        id: WrId,
        wc: &Wc,
    ) -> anyhow::Result<()> {
        let unexpected = "a completion came for nothing that was posted";
        match (self, id.kind) {
            (Self::Bandwidth { passive, .. }, KIND_RECV) => {
                let passive = passive.as_mut().context(unexpected)?;
                if let Some(number) = passive.on_recv(session, id.index, wc)? {
                    passive.repost_and_credit(session, id.index, number)?;
                }
                Ok(())
            }
            (Self::Bandwidth { active, .. }, _) => {
                active.as_mut().context(unexpected)?.on_completion(session, id, wc)
            }
            (Self::Ping(pinger), KIND_RECV) => pinger.on_recv(session, wc),
            (Self::Ping(pinger), _) => pinger.on_completion(session, id, wc),
            (Self::Pong(ponger), KIND_RECV) => ponger.on_recv(session, wc),
            (Self::Pong(_), _) => Ok(()),
        }
    }

    /// Takes note of a control message of a run.
    ///
    /// # Errors
    /// If it comes out of turn.
    pub fn on_message(&mut self, session: &mut Session, message: &Message) -> anyhow::Result<()> {
        match message {
            Message::Consumed { qp, count } | Message::Refilled { qp, count } => {
                let refilled = matches!(message, Message::Refilled { .. });
                self.on_credit(session, *qp, *count, refilled)
            }
            Message::Done(tally) => match self {
                Self::Bandwidth { passive: Some(passive), .. } => passive.on_done(tally),
                Self::Pong(ponger) => ponger.passive_mut().on_done(tally),
                _ => bail!("the other end was done with nothing"),
            },
            Message::Counted(tally) => match self {
                Self::Bandwidth { active: Some(active), .. } => {
                    active.on_counted(session, Instant::now(), tally)
                }
                Self::Ping(pinger) => pinger.on_counted(session),
                _ => bail!("the other end counted nothing"),
            },
            Message::Alive => Ok(()),
            other => bail!("the other end said {other:?} in the middle of a run"),
        }
    }

    /// `Consumed` from a reading end asks for new messages; all other credits let this end go on.
    fn on_credit(
        &mut self,
        session: &mut Session,
        qp: u32,
        count: u64,
        refilled: bool,
    ) -> anyhow::Result<()> {
        let by_reads = session.test().transfer() == crate::perf::options::Transfer::Read;
        ensure!(by_reads || !refilled, "the other end rewrote slots that nobody reads");
        match self {
            Self::Bandwidth { passive: Some(passive), .. } if by_reads && !refilled => {
                passive.on_consumed(session, qp, count)
            }
            Self::Pong(ponger) if by_reads && !refilled => {
                ponger.passive_mut().on_consumed(session, qp, count)
            }
            Self::Bandwidth { active: Some(active), .. } => active.on_credit(qp, count),
            Self::Ping(pinger) if refilled => pinger.on_credit(count),
            _ => bail!("the other end gave a credit for nothing"),
        }
    }

    /// Posts and says what is due.
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

    /// True when this end's part of the run is over.
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

    /// What this end did as the active one, with the checks of both halves.
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

    /// Messages of the connection that is furthest behind.
    #[must_use]
    pub fn progress(&self) -> u64 {
        match self {
            Self::Bandwidth { active, .. } => active.as_ref().map_or(0, Active::progress),
            Self::Ping(pinger) => pinger.progress(),
            Self::Pong(_) => 0,
        }
    }

    /// Highest rate of a stretch.
    #[must_use]
    pub fn peak_gbit_s(&self) -> f64 {
        match self {
            Self::Bandwidth { active, .. } => active.as_ref().map_or(0.0, Active::peak_gbit_s),
            Self::Ping(_) | Self::Pong(_) => 0.0,
        }
    }

    /// The latencies, at the end that measures them.
    #[must_use]
    pub const fn latencies(&self) -> Option<&Latencies> {
        match self {
            Self::Ping(pinger) => Some(pinger.latencies()),
            Self::Bandwidth { .. } | Self::Pong(_) => None,
        }
    }
}

/// What the ends of a session do at each step.
pub struct SessionPoller {
    batch: Vec<Wc>,
    rx_frames: VecDeque<ControlFrame>,
    now: Instant,
    steps_until_clock: u32,
    /// Something arrived or completed since this was last reset.
    pub had_activity: bool,
}

impl SessionPoller {
    /// For a session that begins.
    #[must_use]
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            batch: Vec::with_capacity(256),
            rx_frames: VecDeque::new(),
            now,
            steps_until_clock: 0,
            had_activity: false,
        }
    }

    /// The clock, at most some steps old.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// True at the steps at which the clock is read: for what need not be done at each.
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

    /// Handles the completions that are there. Control messages wait for
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
        let Err(error) = self.poll_completions(session, work) else { return Ok(()) };
        // Why the other end has gone, if it said so before it went.
        let failure = self.rx_frames.drain(..).find_map(|frame| match frame.message {
            Message::Failure(text) => Some(text),
            _ => None,
        });
        Err(failure.map_or(error, |text| anyhow!("the other end failed: {text}")))
    }

    #[inline]
    fn poll_completions(
        &mut self,
        session: &mut Session,
        work: Option<&mut TestRun>,
    ) -> anyhow::Result<()> {
        self.batch.clear();
        session.end.poll(&mut self.batch);
        if self.batch.is_empty() {
            return Ok(());
        }
        self.had_activity = true;
        let mut work = work;
        for wc in &self.batch {
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

    /// The next control message. A failure of the other end becomes one of this end.
    ///
    /// # Errors
    /// If the other end said that it failed.
    #[inline]
    pub fn next_frame(&mut self) -> anyhow::Result<Option<ControlFrame>> {
        match self.rx_frames.pop_front() {
            Some(ControlFrame { message: Message::Failure(text), .. }) => {
                bail!("the other end failed: {text}")
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
