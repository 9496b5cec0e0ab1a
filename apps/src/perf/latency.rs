//! A latency run: a ping-pong in which each side acts on what was placed, or one Read at a time.
//!
//! The last octet of message `n` of a Write is `n / slots + 1` modulo 256, in place of the
//! pattern's: it differs from what the slot held before, so that the sink can spin on it.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use ferrowarp::Wc;

use crate::link::Id;
use crate::pattern::Pattern;
use crate::perf::active::uses_receives;
use crate::perf::control::{Message, Run, Tally};
use crate::perf::latency_stats::Latencies;
use crate::perf::options::Transfer;
use crate::perf::passive::Passive;
use crate::perf::session::{CONFIRM, MESSAGE, Session};
use crate::perf::slots;

/// Requests between signalled ones: their completions are only looked at for errors.
const SIGNAL_EVERY: u64 = 32;

/// What both sides of a ping-pong have in common: messages go out and come in by turns.
struct Table {
    run: Run,
    transfer: Transfer,
    /// Messages sent and taken.
    sent: u64,
    taken: u64,
    verified: u64,
    errors: u64,
}

/// The side that begins and measures.
pub struct Pinger {
    table: Table,
    started: Instant,
    deadline: Option<Instant>,
    /// When the ping was posted, while the answer is awaited.
    posted: Option<Instant>,
    /// Receives posted for answers.
    receives: u64,
    /// Reads that may be issued before the source rewrites slots.
    allowed: u64,
    confirmed: Option<Instant>,
    said_done: bool,
    counted: bool,
    drain: u32,
    latencies: Latencies,
}

/// The side that answers.
pub struct Ponger {
    table: Table,
    /// Receives, Read slots and the count are those of a bandwidth run.
    intake: Passive,
    /// The answer to this message waits for room in the queue.
    owed: bool,
}

/// Clears the octets that the run spins on. Each end does so before the other may send.
fn clear(session: &Session, run: &Run) -> anyhow::Result<()> {
    if session.test().transfer() == Transfer::Write {
        for number in 0..u64::from(run.slots) {
            let last = session.offset(run, 0, number) + run.size - 1;
            session.rx.store_release(usize::try_from(last)?, 0);
        }
    }
    Ok(())
}

impl Table {
    const fn new(session: &Session, run: Run) -> Self {
        let transfer = session.test().transfer();
        Self { run, transfer, sent: 0, taken: 0, verified: 0, errors: 0 }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the mark is modulo 256")]
    const fn mark(&self, number: u64) -> u8 {
        let slots = self.run.slots as u64;
        (number / slots + 1) as u8
    }

    /// Offset of the octet that message `number` is spun on.
    fn last(&self, session: &Session, number: u64) -> anyhow::Result<usize> {
        Ok(usize::try_from(session.offset(&self.run, 0, number) + self.run.size - 1)?)
    }

    /// Writes the next message where it is sent from.
    fn build(&self, session: &Session) -> anyhow::Result<()> {
        let number = self.sent;
        if session.verify() {
            let offset = usize::try_from(session.offset(&self.run, 0, number))?;
            let pattern = Pattern::new(session.stream(0, true), number);
            let size = usize::try_from(self.run.size)?;
            slots::fill(&session.end, &session.tx, offset, size, pattern);
        }
        if self.transfer == Transfer::Write {
            session.tx.store_release(self.last(session, number)?, self.mark(number));
        }
        Ok(())
    }

    /// Posts the next message; `false` if the queue is full.
    #[inline]
    fn post(&mut self, session: &Session) -> anyhow::Result<bool> {
        let number = self.sent;
        let signaled = self.transfer.is_fetch() || number.is_multiple_of(SIGNAL_EVERY);
        let operation = session.operation(&self.run, 0, number);
        let posted = session.post(0, session.wr_id(MESSAGE, 0, number), operation, signaled)?;
        self.sent += u64::from(posted);
        Ok(posted)
    }

    /// True if the next Write has been placed.
    #[inline]
    fn has_landed(&self, session: &Session) -> anyhow::Result<bool> {
        let last = self.last(session, self.taken)?;
        Ok(session.rx.load_last(last) == self.mark(self.taken))
    }

    /// Takes the next message, and checks it.
    fn take(&mut self, session: &Session) -> anyhow::Result<()> {
        let number = self.taken;
        self.taken += 1;
        if session.verify() && self.transfer == Transfer::Atomic {
            self.verified += self.run.size;
            self.errors += session.check_fetched(&self.run, 0, number);
        } else if session.verify() {
            let offset = usize::try_from(session.offset(&self.run, 0, number))?;
            let pattern = Pattern::new(session.stream(0, false), number);
            let mut size = usize::try_from(self.run.size)?;
            self.verified += self.run.size;
            if self.transfer == Transfer::Write {
                // The last octet is the mark; it was compared when the message was seen.
                size -= 1;
            }
            self.errors += slots::check(&session.end, &session.rx, offset, size, pattern);
        }
        Ok(())
    }
}

impl Pinger {
    /// Prepares the side that begins.
    ///
    /// # Errors
    /// If the connection is down.
    pub fn prepare(session: &mut Session, run: Run, now: Instant) -> anyhow::Result<Self> {
        clear(session, &run)?;
        Ok(Self {
            table: Table::new(session, run),
            started: now,
            deadline: None,
            posted: None,
            receives: 0,
            allowed: if run.credits == 0 || uses_receives(session) {
                u64::MAX
            } else {
                run.credits.into()
            },
            confirmed: None,
            said_done: false,
            counted: false,
            drain: 0,
            latencies: Latencies::new(),
        })
    }

    /// Begins: the clock runs from here.
    pub fn start(&mut self, now: Instant) {
        self.started = now;
        if self.table.run.iterations == 0 {
            self.deadline = Some(now + Duration::from_millis(self.table.run.duration_ms));
        }
    }

    /// Looks for the answer, or sends the next ping.
    ///
    /// # Errors
    /// If the connection is down.
    #[inline]
    pub fn pump(&mut self, session: &mut Session, now: Instant) -> anyhow::Result<()> {
        if self.posted.is_some()
            && self.table.transfer == Transfer::Write
            && self.table.has_landed(session)?
        {
            self.answered(session)?;
        }
        if self.posted.is_none() && !self.said_done {
            self.ping(session, now)?;
        }
        while self.drain > 0 {
            let wr_id = session.wr_id(CONFIRM, 0, 1);
            if !session.post(0, wr_id, Session::empty_send(), false)? {
                break;
            }
            self.drain -= 1;
        }
        Ok(())
    }

    fn ping(&mut self, session: &mut Session, now: Instant) -> anyhow::Result<()> {
        let is_over = match self.table.run.iterations {
            0 => self.deadline.is_some_and(|deadline| now >= deadline),
            iterations => self.table.sent == iterations,
        };
        if is_over {
            self.said_done = true;
            self.confirmed = Some(now);
            return session.say(Message::Done(self.tally()));
        }
        if self.table.sent >= self.allowed {
            return Ok(());
        }
        if !self.table.transfer.is_fetch() {
            self.table.build(session)?;
        }
        if self.table.transfer == Transfer::Send && self.receives == 0 {
            session.post_receive(&self.table.run, 0, self.table.taken)?;
            self.receives += 1;
        }
        let posted = Instant::now();
        if self.table.post(session)? {
            self.posted = Some(posted);
        }
        Ok(())
    }

    fn answered(&mut self, session: &Session) -> anyhow::Result<()> {
        let Some(posted) = self.posted.take() else {
            bail!("an answer came that nothing was asked for");
        };
        let elapsed = u64::try_from(posted.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // What fetches is a round trip in itself and counts in full, as in perftest.
        let halves = if self.table.transfer.is_fetch() { 1 } else { 2 };
        self.latencies.record(elapsed / halves);
        self.table.take(session)
    }

    /// Takes note of a completion.
    ///
    /// # Errors
    /// If the connection is down.
    #[inline]
    pub fn complete(&mut self, session: &mut Session, id: Id, wc: &Wc) -> anyhow::Result<()> {
        if id.kind == MESSAGE && self.table.transfer.is_fetch() {
            ensure!(u64::from(wc.byte_len) == self.table.run.size, "a Read came back short");
            self.answered(session)?;
            let count = self.table.taken;
            let batch = crate::perf::active::credit_batch(&self.table.run);
            let by_reads = self.table.transfer == Transfer::Read;
            if by_reads && session.verify() && count.is_multiple_of(batch) {
                session.say(Message::Consumed { qp: 0, count })?;
            }
        }
        Ok(())
    }

    /// An answer has arrived by Send.
    ///
    /// # Errors
    /// If it is not of the right length.
    #[inline]
    pub fn arrived(&mut self, session: &Session, wc: &Wc) -> anyhow::Result<()> {
        self.receives -= 1;
        ensure!(u64::from(wc.byte_len) == self.table.run.size, "an answer has another length");
        self.answered(session)
    }

    /// The source has rewritten the slots of `count` messages.
    ///
    /// # Errors
    /// If that are more than were read.
    pub fn credit(&mut self, count: u64) -> anyhow::Result<()> {
        ensure!(count <= self.table.taken, "slots were rewritten that had not been read");
        self.allowed = self.allowed.max(count + u64::from(self.table.run.credits));
        Ok(())
    }

    /// The other end has answered everything.
    ///
    /// # Errors
    /// If it says so out of turn.
    pub fn counted(&mut self, session: &Session) -> anyhow::Result<()> {
        ensure!(self.said_done && !self.counted, "the other end counted out of turn");
        self.counted = true;
        self.drain = if uses_receives(session) { self.table.run.credits } else { 0 };
        Ok(())
    }

    /// True when the run is over for this side.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        self.counted && self.drain == 0
    }

    /// Answers so far.
    #[must_use]
    pub const fn progress(&self) -> u64 {
        self.table.taken
    }

    /// What this side did; final once it is finished.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let elapsed = self.confirmed.unwrap_or_else(Instant::now) - self.started;
        Tally {
            messages: self.table.taken,
            octets: self.table.taken * self.table.run.size,
            verified: self.table.verified,
            errors: self.table.errors,
            duration_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// The latencies.
    #[must_use]
    pub const fn latencies(&self) -> &Latencies {
        &self.latencies
    }
}

impl Ponger {
    /// Prepares the side that answers.
    ///
    /// # Errors
    /// If the connection is down.
    pub fn prepare(session: &mut Session, run: Run) -> anyhow::Result<Self> {
        clear(session, &run)?;
        let table = Table::new(session, run);
        Ok(Self { table, intake: Passive::prepare(session, run)?, owed: false })
    }

    /// Looks for a ping and answers it.
    ///
    /// # Errors
    /// If the connection is down.
    #[inline]
    pub fn pump(&mut self, session: &mut Session) -> anyhow::Result<()> {
        if self.table.transfer == Transfer::Write && !self.owed && self.table.has_landed(session)? {
            self.table.take(session)?;
            self.intake.count();
            self.answer(session)?;
        }
        if self.owed {
            self.owed = !self.table.post(session)?;
        }
        if self.intake.announced().is_some() && self.is_level() {
            self.intake.pump(session)?;
        }
        Ok(())
    }

    /// True when every ping that was announced has been answered.
    fn is_level(&self) -> bool {
        let announced = self.intake.announced().unwrap_or(u64::MAX);
        self.table.transfer.is_fetch() || self.table.sent >= announced
    }

    #[inline]
    fn answer(&mut self, session: &Session) -> anyhow::Result<()> {
        self.table.build(session)?;
        self.owed = !self.table.post(session)?;
        Ok(())
    }

    /// A ping has arrived by Send.
    ///
    /// # Errors
    /// If the connection is down.
    #[inline]
    pub fn arrived(&mut self, session: &mut Session, wc: &Wc) -> anyhow::Result<()> {
        if let Some(number) = self.intake.arrived(session, 0, wc)? {
            ensure!(u64::from(wc.byte_len) == self.table.run.size, "a ping has another length");
            self.table.taken += 1;
            self.answer(session)?;
            self.intake.repost(session, 0, number)?;
        }
        Ok(())
    }

    /// The bookkeeping shared with bandwidth runs.
    pub const fn intake(&mut self) -> &mut Passive {
        &mut self.intake
    }

    /// True when the run is over for this side.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        !self.owed && self.intake.is_finished()
    }

    /// What this side counted and checked.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        let mut tally = self.intake.tally();
        tally.verified += self.table.verified;
        tally.errors += self.table.errors;
        tally
    }
}
