//! Latency run: a ping-pong in which each side reacts to the data placed, or one RDMA Read or
//! atomic operation at a time.
//!
//! As in perftest's write_lat, the sink of RDMA Writes polls the last byte of the message. In
//! message `n` it is `n / slots + 1` modulo 256, instead of the pattern's: it differs from the
//! previous contents of the slot.

use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure};
use ferrowarp::{SendFlags, Wc};

use crate::endpoint::WrId;
use crate::pattern::Pattern;
use crate::perf::active::uses_receives;
use crate::perf::control::{Message, Run, Tally};
use crate::perf::kind::Transfer;
use crate::perf::latency_stats::Latencies;
use crate::perf::passive::Passive;
use crate::perf::session::{KIND_MESSAGE, Session};
use crate::perf::slots;

/// Requests per signaled one: their completions are only checked for errors.
const SIGNAL_EVERY: u64 = 32;

/// State common to both sides of a ping-pong, which send and receive alternately.
struct PingPong {
    run: Run,
    transfer: Transfer,
    /// Messages are copied into their requests.
    is_inline: bool,
    /// Messages sent and received.
    sent: u64,
    received: u64,
    verified: u64,
    errors: u64,
}

/// The initiator of the ping-pong, which measures.
pub struct Pinger {
    ping_pong: PingPong,
    started: Instant,
    deadline: Option<Instant>,
    /// Time at which the ping was posted, while the answer is awaited.
    ping_posted: Option<Instant>,
    /// Receives posted for answers.
    recvs_posted: u64,
    /// RDMA Reads that may be posted before the Data Source refills slots.
    credit_limit: u64,
    finished_at: Option<Instant>,
    done_sent: bool,
    counted: bool,
    drain_sends: u32,
    latencies: Latencies,
}

/// The responder of the ping-pong.
pub struct Ponger {
    ping_pong: PingPong,
    /// Receives, slots for RDMA Reads and counts, as in a bandwidth run.
    passive: Passive,
    /// An answer is still to be posted, because the send queue was full.
    answer_pending: bool,
}

/// Clears the bytes that are polled. Each side does so before the other may send.
fn clear_polled_bytes(session: &Session, run: &Run) -> anyhow::Result<()> {
    if session.test().transfer() == Transfer::Write {
        for number in 0..u64::from(run.slots) {
            let last = session.offset(run, 0, number) + run.size - 1;
            session.rx.store_release(usize::try_from(last)?, 0);
        }
    }
    Ok(())
}

impl PingPong {
    fn new(session: &Session, run: Run) -> Self {
        let (transfer, is_inline) = (session.test().transfer(), session.sends_inline(&run));
        Self { run, transfer, is_inline, sent: 0, received: 0, verified: 0, errors: 0 }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the mark is modulo 256")]
    const fn sequence_byte(&self, number: u64) -> u8 {
        let slots = self.run.slots as u64;
        (number / slots + 1) as u8
    }

    /// Returns the offset of the polled byte of message `number`.
    fn last_byte_offset(&self, session: &Session, number: u64) -> anyhow::Result<usize> {
        Ok(usize::try_from(session.offset(&self.run, 0, number) + self.run.size - 1)?)
    }

    /// Writes the next message to its send slot.
    fn build(&self, session: &Session) -> anyhow::Result<()> {
        let number = self.sent;
        if session.verify() {
            let offset = usize::try_from(session.offset(&self.run, 0, number))?;
            let pattern = Pattern::new(session.stream(0, true), number);
            let size = usize::try_from(self.run.size)?;
            slots::fill(&session.end, &session.tx, offset, size, pattern);
        }
        if self.transfer == Transfer::Write {
            session
                .tx
                .store_release(self.last_byte_offset(session, number)?, self.sequence_byte(number));
        }
        Ok(())
    }

    /// Posts the next message; `false` if the send queue is full.
    #[inline]
    fn post(&mut self, session: &Session) -> anyhow::Result<bool> {
        let number = self.sent;
        let signaled = self.transfer.is_fetch() || number.is_multiple_of(SIGNAL_EVERY);
        let flags = SendFlags::SIGNALED.when(signaled);
        let mut post = session.post(0);
        if self.is_inline {
            session.add_inline_message(&mut post, &self.run, 0, number, flags);
        } else {
            session.add_message(&mut post, &self.run, 0, number, flags);
        }
        let is_posted = session.ring(0, post)?.is_none();
        self.sent += u64::from(is_posted);
        Ok(is_posted)
    }

    /// True if the next Write has been placed.
    #[inline]
    fn is_placed(&self, session: &Session) -> anyhow::Result<bool> {
        let last = self.last_byte_offset(session, self.received)?;
        Ok(session.rx.load_last(last) == self.sequence_byte(self.received))
    }

    /// Consumes the next message and verifies it.
    fn consume(&mut self, session: &Session) -> anyhow::Result<()> {
        let number = self.received;
        self.received += 1;
        if session.verify() && self.transfer == Transfer::Atomic {
            self.verified += self.run.size;
            self.errors += session.check_atomic_result(&self.run, 0, number);
        } else if session.verify() {
            let offset = usize::try_from(session.offset(&self.run, 0, number))?;
            let pattern = Pattern::new(session.stream(0, false), number);
            let mut size = usize::try_from(self.run.size)?;
            self.verified += self.run.size;
            if self.transfer == Transfer::Write {
                // The last byte is the sequence byte, which was compared when it was polled.
                size -= 1;
            }
            self.errors += slots::check(&session.end, &session.rx, offset, size, pattern);
        }
        Ok(())
    }
}

impl Pinger {
    /// Prepares the initiator.
    ///
    /// # Errors
    /// If the connection is down.
    pub fn prepare(session: &mut Session, run: Run, now: Instant) -> anyhow::Result<Self> {
        clear_polled_bytes(session, &run)?;
        Ok(Self {
            ping_pong: PingPong::new(session, run),
            started: now,
            deadline: None,
            ping_posted: None,
            recvs_posted: 0,
            credit_limit: if run.credits == 0 || uses_receives(session) {
                u64::MAX
            } else {
                run.credits.into()
            },
            finished_at: None,
            done_sent: false,
            counted: false,
            drain_sends: 0,
            latencies: Latencies::new(),
        })
    }

    /// Starts the run and its clock.
    pub fn start(&mut self, now: Instant) {
        self.started = now;
        if self.ping_pong.run.iterations == 0 {
            self.deadline = Some(now + Duration::from_millis(self.ping_pong.run.duration_ms));
        }
    }

    /// Polls for the answer, or posts the next ping.
    ///
    /// # Errors
    /// If the connection is down.
    #[inline]
    pub fn poll(&mut self, session: &mut Session, now: Instant) -> anyhow::Result<()> {
        if self.ping_posted.is_some()
            && self.ping_pong.transfer == Transfer::Write
            && self.ping_pong.is_placed(session)?
        {
            self.on_answer(session)?;
        }
        if self.ping_posted.is_none() && !self.done_sent {
            self.post_ping(session, now)?;
        }
        if self.drain_sends > 0 {
            self.drain_sends = session.post_drain_sends(0, self.drain_sends)?;
        }
        Ok(())
    }

    fn post_ping(&mut self, session: &mut Session, now: Instant) -> anyhow::Result<()> {
        let is_over = match self.ping_pong.run.iterations {
            0 => self.deadline.is_some_and(|deadline| now >= deadline),
            iterations => self.ping_pong.sent == iterations,
        };
        if is_over {
            self.done_sent = true;
            self.finished_at = Some(now);
            return session.send_control(Message::Done(self.tally()));
        }
        if self.ping_pong.sent >= self.credit_limit {
            return Ok(());
        }
        if !self.ping_pong.transfer.is_fetch() {
            self.ping_pong.build(session)?;
        }
        if self.ping_pong.transfer == Transfer::Send && self.recvs_posted == 0 {
            session.post_recv(&self.ping_pong.run, 0, self.ping_pong.received)?;
            self.recvs_posted += 1;
        }
        let posted = Instant::now();
        if self.ping_pong.post(session)? {
            self.ping_posted = Some(posted);
        }
        Ok(())
    }

    fn on_answer(&mut self, session: &Session) -> anyhow::Result<()> {
        let Some(posted) = self.ping_posted.take() else {
            bail!("a response without a request");
        };
        let elapsed = u64::try_from(posted.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // A fetch is a whole round trip and counts in full, as in perftest.
        let halves = if self.ping_pong.transfer.is_fetch() { 1 } else { 2 };
        self.latencies.record(elapsed / halves);
        self.ping_pong.consume(session)
    }

    /// Handles a completion.
    ///
    /// # Errors
    /// If the connection is down.
    #[inline]
    pub fn on_completion(
        &mut self,
        session: &mut Session,
        id: WrId,
        wc: &Wc,
    ) -> anyhow::Result<()> {
        if id.kind == KIND_MESSAGE && self.ping_pong.transfer.is_fetch() {
            ensure!(
                u64::from(wc.byte_len) == self.ping_pong.run.size,
                "an RDMA Read completed with too few bytes"
            );
            self.on_answer(session)?;
            let count = self.ping_pong.received;
            let batch = crate::perf::active::credit_batch(&self.ping_pong.run);
            let by_reads = self.ping_pong.transfer == Transfer::Read;
            if by_reads && session.verify() && count.is_multiple_of(batch) {
                session.send_control(Message::Consumed { qp: 0, count })?;
            }
        }
        Ok(())
    }

    /// Handles an answer received by Send.
    ///
    /// # Errors
    /// If it has the wrong length.
    #[inline]
    pub fn on_recv(&mut self, session: &Session, wc: &Wc) -> anyhow::Result<()> {
        let posted = self.recvs_posted.checked_sub(1);
        self.recvs_posted = posted.ok_or_else(|| anyhow!("more responses than receives"))?;
        ensure!(
            u64::from(wc.byte_len) == self.ping_pong.run.size,
            "a response has the wrong length"
        );
        self.on_answer(session)
    }

    /// Handles Refilled: the Data Source has refilled the slots of `count` messages.
    ///
    /// # Errors
    /// If `count` exceeds the messages read.
    pub fn on_credit(&mut self, count: u64) -> anyhow::Result<()> {
        ensure!(count <= self.ping_pong.received, "Refilled for slots that were not read");
        self.credit_limit = self.credit_limit.max(count + u64::from(self.ping_pong.run.credits));
        Ok(())
    }

    /// True if the next step has nothing to do unless something completes.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let is_polled = self.ping_pong.transfer == Transfer::Write;
        (self.ping_posted.is_some() && !is_polled) || (self.done_sent && self.drain_sends == 0)
    }

    /// Handles Counted: the peer has answered all pings.
    ///
    /// # Errors
    /// If the message is unexpected.
    pub fn on_counted(&mut self, session: &Session) -> anyhow::Result<()> {
        ensure!(self.done_sent && !self.counted, "unexpected Counted from the peer");
        self.counted = true;
        self.drain_sends = if uses_receives(session) { self.ping_pong.run.credits } else { 0 };
        Ok(())
    }

    /// True if the run is finished on this side.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        self.counted && self.drain_sends == 0
    }

    /// Returns the number of answers so far.
    #[must_use]
    pub const fn progress(&self) -> u64 {
        self.ping_pong.received
    }

    /// Returns the counts of this side; final once it is finished.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let elapsed = self.finished_at.unwrap_or_else(Instant::now) - self.started;
        Tally {
            messages: self.ping_pong.received,
            bytes: self.ping_pong.received * self.ping_pong.run.size,
            verified: self.ping_pong.verified,
            errors: self.ping_pong.errors,
            duration_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Returns the latencies.
    #[must_use]
    pub const fn latencies(&self) -> &Latencies {
        &self.latencies
    }
}

impl Ponger {
    /// Prepares the responder.
    ///
    /// # Errors
    /// If the connection is down.
    pub fn prepare(session: &mut Session, run: Run) -> anyhow::Result<Self> {
        clear_polled_bytes(session, &run)?;
        let table = PingPong::new(session, run);
        Ok(Self {
            ping_pong: table,
            passive: Passive::prepare(session, run)?,
            answer_pending: false,
        })
    }

    /// Polls for a ping and answers it.
    ///
    /// # Errors
    /// If the connection is down.
    #[inline]
    pub fn poll(&mut self, session: &mut Session) -> anyhow::Result<()> {
        if self.ping_pong.transfer == Transfer::Write
            && !self.answer_pending
            && self.ping_pong.is_placed(session)?
        {
            self.ping_pong.consume(session)?;
            self.passive.count_message();
            self.post_answer(session)?;
        }
        if self.answer_pending {
            self.answer_pending = !self.ping_pong.post(session)?;
        }
        if self.passive.announced_messages().is_some() && self.is_all_answered() {
            self.passive.poll(session)?;
        }
        Ok(())
    }

    /// As [`Pinger::is_waiting`].
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.ping_pong.transfer != Transfer::Write && !self.answer_pending
    }

    /// True if every ping that Done announced has been answered.
    fn is_all_answered(&self) -> bool {
        let announced = self.passive.announced_messages().unwrap_or(u64::MAX);
        self.ping_pong.transfer.is_fetch() || self.ping_pong.sent >= announced
    }

    #[inline]
    fn post_answer(&mut self, session: &Session) -> anyhow::Result<()> {
        self.ping_pong.build(session)?;
        self.answer_pending = !self.ping_pong.post(session)?;
        Ok(())
    }

    /// Handles a ping received by Send.
    ///
    /// # Errors
    /// If the connection is down.
    #[inline]
    pub fn on_recv(&mut self, session: &mut Session, wc: &Wc) -> anyhow::Result<()> {
        if let Some(number) = self.passive.on_recv(session, 0, wc)? {
            ensure!(
                u64::from(wc.byte_len) == self.ping_pong.run.size,
                "a ping has the wrong length"
            );
            self.ping_pong.received += 1;
            self.post_answer(session)?;
            self.passive.repost_recv(session, 0, number)?;
        }
        Ok(())
    }

    /// Returns the passive half. Bandwidth runs use the same bookkeeping.
    pub const fn passive_mut(&mut self) -> &mut Passive {
        &mut self.passive
    }

    /// True if the run is finished on this side.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        !self.answer_pending && self.passive.is_finished()
    }

    /// Returns the counts of this side.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        let mut tally = self.passive.tally();
        tally.verified += self.ping_pong.verified;
        tally.errors += self.ping_pong.errors;
        tally
    }
}
