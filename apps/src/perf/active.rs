//! Active half of a bandwidth run: posts messages as far as depth and credits allow, until all of
//! them have been confirmed.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use ferrowarp::{SendFlags, Wc};

use crate::endpoint::WrId;
use crate::pattern::Pattern;
use crate::perf::control::{ENDLESS_MS, Message, Run, Tally};
use crate::perf::kind::Transfer;
use crate::perf::peak::Peak;
use crate::perf::session::{KIND_CONFIRM, KIND_MESSAGE, Session, indices};
use crate::perf::slots;

/// Messages posted on one connection before the next one is served; most that are posted together
/// unless the run demands a length.
const POST_BURST: u64 = 64;

/// At least one signaled request per so many bytes, so that peaks show the connection's rate.
const SIGNAL_LEN_MAX: u64 = 1 << 20;

/// State of one data connection.
struct Flow {
    /// Messages posted.
    posted: u64,
    /// Messages completed, by their own completion or implied by a later one.
    completed: u64,
    /// Messages that may be posted: credits of the peer.
    credit_limit: u64,
    /// Messages of the run; `u64::MAX` until its duration is over.
    message_limit: u64,
    /// The confirming Read has been posted, and has completed.
    confirm_posted: bool,
    confirmed: bool,
    /// Empty Sends still to post at the end of the run, to consume receives.
    drain_sends: u32,
    /// In [`Active::due`].
    is_due: bool,
}

impl Flow {
    /// Returns the count of messages at which posting has to pause, if `depth` may be outstanding.
    fn posted_max(&self, depth: u64) -> u64 {
        self.message_limit.min(self.credit_limit).min(self.completed.saturating_add(depth))
    }

    /// Returns the messages to post together now; 0: none.
    fn next_burst(&self, posting: &Posting) -> u64 {
        let postable = self.posted_max(posting.depth).saturating_sub(self.posted);
        let burst = postable.min(posting.burst_max);
        let is_enough = burst >= posting.burst_min || self.posted + burst == self.message_limit;
        if is_enough { burst } else { 0 }
    }

    /// True if all messages are posted, but not the Read that confirms them.
    fn is_confirm_due(&self, transfer: Transfer) -> bool {
        transfer == Transfer::Write && self.posted == self.message_limit && !self.confirm_posted
    }
}

/// Rules for posting messages.
struct Posting {
    /// Messages that may be outstanding on a connection.
    depth: u64,
    /// Messages per signaled one.
    signal_every: u64,
    /// Messages that are posted together: at least, except for the last ones, and at most.
    burst_min: u64,
    burst_max: u64,
}

impl Posting {
    fn new(session: &Session, run: &Run) -> Self {
        let depth = u64::from(session.hello.tx_depth);
        let signal_every = match run.cq_mod {
            0 if session.test().transfer().is_fetch() => 1,
            0 => (depth / 4).min(SIGNAL_LEN_MAX / run.size).clamp(1, 64),
            count => count.into(),
        };
        let (burst_min, burst_max) = match run.post_list {
            // Each message is posted when it is built.
            0 if session.verify() => (1, 1),
            0 => (1, POST_BURST),
            count => (count.into(), count.into()),
        };
        Self { depth, signal_every, burst_min, burst_max }
    }
}

/// Active half of one side.
pub struct Active {
    run: Run,
    transfer: Transfer,
    posting: Posting,
    flows: Box<[Flow]>,
    /// Flows that may have something to post, in the order in which they are served. A step does
    /// not visit the others: there may be a thousand.
    due: VecDeque<u16>,
    started: Instant,
    deadline: Option<Instant>,
    /// The run ends by [`Active::end`].
    is_endless: bool,
    /// Time at which the last byte was confirmed.
    confirmed_at: Option<Instant>,
    /// The peer's counts.
    counted: Option<Tally>,
    done_sent: bool,
    /// Messages completed, over all flows.
    completed: u64,
    verified: u64,
    errors: u64,
    peak: Peak,
}

impl Active {
    /// Starts the run and its clock.
    #[must_use]
    pub fn start(session: &Session, run: Run, now: Instant) -> Self {
        let limited = run.iterations > 0;
        let flow = |_| Flow {
            posted: 0,
            completed: 0,
            credit_limit: if run.credits == 0 { u64::MAX } else { run.credits.into() },
            message_limit: if limited { run.iterations } else { u64::MAX },
            confirm_posted: false,
            confirmed: false,
            drain_sends: 0,
            is_due: true,
        };
        Self {
            run,
            transfer: session.test().transfer(),
            posting: Posting::new(session, &run),
            flows: indices(session.hello.qps).map(flow).collect(),
            due: indices(session.hello.qps).collect(),
            started: now,
            deadline: (!limited && run.duration_ms < ENDLESS_MS)
                .then(|| now + Duration::from_millis(run.duration_ms)),
            is_endless: !limited && run.duration_ms == ENDLESS_MS,
            confirmed_at: None,
            counted: None,
            done_sent: false,
            completed: 0,
            verified: 0,
            errors: 0,
            peak: Peak::new(now),
        }
    }

    /// Posts the messages that may be posted, and sends Done when all are complete.
    ///
    /// # Errors
    /// If a connection is down.
    pub fn poll(&mut self, session: &mut Session, now: Instant) -> anyhow::Result<()> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.deadline = None;
            self.end_posting();
        }
        for _ in 0..self.due.len() {
            let Some(index) = self.due.pop_front() else { break };
            let flow = &mut self.flows[usize::from(index)];
            let mut left = POST_BURST;
            while left > 0 {
                let burst = flow.next_burst(&self.posting);
                let posted = match burst {
                    0 => break,
                    _ => post(session, &self.run, &self.posting, index, flow, burst)?,
                };
                // The send queue may have had no room for all of them.
                left = if posted < burst { 0 } else { left.saturating_sub(burst) };
            }
            if flow.is_confirm_due(self.transfer) {
                flow.confirm_posted = session.post_confirming_read(index)?;
            }
            if flow.drain_sends > 0 {
                flow.drain_sends = session.post_drain_sends(index, flow.drain_sends)?;
            }
            // The send queue may have had no room.
            flow.is_due = flow.next_burst(&self.posting) > 0
                || flow.is_confirm_due(self.transfer)
                || flow.drain_sends > 0;
            if flow.is_due {
                self.due.push_back(index);
            }
        }
        self.peak.record(now, self.completed * self.run.size);
        if !self.done_sent && self.can_send_done() {
            self.done_sent = true;
            if self.transfer != Transfer::Send {
                self.confirmed_at = Some(Instant::now());
            }
            session.send_control(Message::Done(self.tally()))?;
        }
        Ok(())
    }

    /// Ends an endless run: no more messages are posted. Without effect on others.
    pub fn end(&mut self, now: Instant) {
        if core::mem::take(&mut self.is_endless) {
            self.deadline = Some(now);
        }
    }

    /// Ends the posting of a run without a number of messages.
    fn end_posting(&mut self) {
        for flow in &mut self.flows {
            // The last message is signaled: unless it was, there is one more. A Write is confirmed
            // and a Send counted all the same.
            let is_open = self.transfer.is_fetch()
                && flow.completed < flow.posted
                && !flow.posted.is_multiple_of(self.posting.signal_every);
            flow.message_limit = flow.posted + u64::from(is_open);
        }
        self.serve_all();
    }

    /// True if the next step has nothing to post unless something completes or arrives, or the time
    /// is over.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.due.is_empty()
    }

    /// Has the next step serve each flow.
    fn serve_all(&mut self) {
        for index in 0..self.flows.len() {
            self.serve(index);
        }
    }

    /// Has the next step serve a flow.
    #[inline]
    fn serve(&mut self, index: usize) {
        let flow = &mut self.flows[index];
        if !flow.is_due {
            flow.is_due = true;
            #[expect(clippy::cast_possible_truncation, reason = "at most 65,536 connections")]
            self.due.push_back(index as u16);
        }
    }

    /// True if nothing is left to post and, except for Sends, all is confirmed.
    fn can_send_done(&self) -> bool {
        self.flows.iter().all(|flow| {
            flow.posted == flow.message_limit
                && match self.transfer {
                    Transfer::Write => flow.confirmed,
                    Transfer::Read | Transfer::Atomic => flow.completed == flow.posted,
                    Transfer::Send => true,
                }
        })
    }

    /// Handles a completion of this half.
    ///
    /// # Errors
    /// If a connection is down.
    pub fn on_completion(
        &mut self,
        session: &mut Session,
        id: WrId,
        wc: &Wc,
    ) -> anyhow::Result<()> {
        self.serve(id.index.into());
        let flow = &mut self.flows[usize::from(id.index)];
        if id.kind == KIND_CONFIRM {
            flow.confirmed |= id.number == 0;
            return Ok(());
        }
        // The number is the count of messages up to this one, modulo 2^32.
        #[expect(clippy::cast_possible_truncation, reason = "compared modulo 2^32")]
        let step = u64::from(id.number.wrapping_sub(flow.completed as u32));
        let first = flow.completed;
        flow.completed += step;
        self.completed += step;
        if self.transfer.is_fetch() {
            ensure!(
                u64::from(wc.byte_len) == self.run.size,
                "an RDMA Read completed with too few bytes"
            );
            if session.verify() {
                for number in first..first + step {
                    self.verify_fetched(session, id.index, number)?;
                }
            }
        }
        Ok(())
    }

    /// Verifies fetched data and returns credits, so that the Data Source may refill the slots.
    fn verify_fetched(
        &mut self,
        session: &mut Session,
        qp: u16,
        number: u64,
    ) -> anyhow::Result<()> {
        if self.transfer == Transfer::Atomic {
            self.errors += session.check_atomic_result(&self.run, qp, number);
            self.verified += self.run.size;
            return Ok(());
        }
        let offset = usize::try_from(session.offset(&self.run, qp, number))?;
        let len = usize::try_from(self.run.size)?;
        let pattern = Pattern::new(session.stream(qp, false), number);
        self.errors += slots::check(&session.end, &session.rx, offset, len, pattern);
        self.verified += self.run.size;
        let consumed = number + 1;
        if consumed.is_multiple_of(credit_batch(&self.run)) {
            session.send_control(Message::Consumed { qp: qp.into(), count: consumed })?;
        }
        Ok(())
    }

    /// Handles a credit: the peer accepts messages up to `count` plus the initial credits.
    ///
    /// # Errors
    /// If the connection does not exist, or `count` exceeds the messages sent.
    pub fn on_credit(&mut self, qp: u32, count: u64) -> anyhow::Result<()> {
        let index = usize::try_from(qp).unwrap_or(usize::MAX);
        match self.flows.get_mut(index) {
            Some(flow) if count <= flow.posted && self.run.credits > 0 => {
                flow.credit_limit = flow.credit_limit.max(count + u64::from(self.run.credits));
                self.serve(index);
                Ok(())
            }
            _ => bail!("the peer granted credit for messages that were not sent"),
        }
    }

    /// Handles Counted: the peer has received all messages and reports its counts.
    ///
    /// # Errors
    /// If the counts differ from what was sent, or the message is unexpected.
    pub fn on_counted(
        &mut self,
        session: &Session,
        now: Instant,
        tally: &Tally,
    ) -> anyhow::Result<()> {
        ensure!(self.done_sent && self.counted.is_none(), "unexpected Counted from the peer");
        self.counted = Some(*tally);
        if self.transfer == Transfer::Send {
            ensure!(
                tally.messages == self.posted() && tally.bytes == self.posted() * self.run.size,
                "the peer counted {} messages and {} bytes, {} and {} were sent",
                tally.messages,
                tally.bytes,
                self.posted(),
                self.posted() * self.run.size
            );
            self.confirmed_at = Some(now);
        }
        if uses_receives(session) {
            for flow in &mut self.flows {
                flow.drain_sends = self.run.credits;
            }
            self.serve_all();
        }
        Ok(())
    }

    fn posted(&self) -> u64 {
        self.flows.iter().map(|flow| flow.posted).sum()
    }

    /// Returns the messages completed on the slowest connection, for a progress bar.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.flows.iter().map(|flow| flow.completed).min().unwrap_or(0)
    }

    /// True if all is confirmed, counted and drained.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.counted.is_some() && self.flows.iter().all(|flow| flow.drain_sends == 0)
    }

    /// Returns the counts of this half; final once it is finished.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let messages = self.posted();
        let elapsed = self.confirmed_at.unwrap_or_else(Instant::now) - self.started;
        Tally {
            messages,
            bytes: messages * self.run.size,
            verified: self.verified,
            errors: self.errors,
            duration_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Returns the messages that have completed, and their bytes.
    #[must_use]
    pub const fn completed(&self) -> (u64, u64) {
        (self.completed, self.completed * self.run.size)
    }

    /// Returns the peak rate of the run, in gigabits per second.
    #[must_use]
    pub const fn peak_gbit_s(&self) -> f64 {
        self.peak.gbit_s()
    }
}

/// Returns the messages per credit message: a quarter of the credits.
#[must_use]
pub fn credit_batch(run: &Run) -> u64 {
    u64::from(run.credits / 4).max(1)
}

/// True if each message of the session's test consumes a receive at the Data Sink.
#[must_use]
pub fn uses_receives(session: &Session) -> bool {
    match session.test().transfer() {
        Transfer::Send => true,
        Transfer::Write => {
            session.uses_immediate() || (session.verify() && !session.test().is_latency())
        }
        Transfer::Read | Transfer::Atomic => false,
    }
}

/// Posts the next `burst` messages of a flow together; returns how many fit into the send queue.
#[inline]
fn post(
    session: &Session,
    run: &Run,
    posting: &Posting,
    qp: u16,
    flow: &mut Flow,
    burst: u64,
) -> anyhow::Result<u64> {
    let signal_every = posting.signal_every;
    let last = match run.cq_mod {
        0 => flow.message_limit,
        // Posting may have to pause before that many, and none outstanding might be signaled.
        _ => flow.posted_max(posting.depth),
    };
    // One division for all of them: it costs more than the rest of posting a request.
    let mut signaled = (flow.posted / signal_every + 1) * signal_every;
    let mut flags = |number: u64| {
        let count = number + 1;
        let is_due = count == signaled;
        signaled += if is_due { signal_every } else { 0 };
        SendFlags::SIGNALED.when(is_due || count == last)
    };
    let numbers = flow.posted..flow.posted + burst;
    if session.verify() {
        build(session, run, qp, numbers.clone())?;
    }
    let notifies = session.sends_notification();
    let is_inline = session.sends_inline(run);
    let mut post = session.post(qp);
    if notifies {
        for number in numbers {
            if is_inline {
                session.add_inline_message(&mut post, run, qp, number, SendFlags::NONE);
            } else {
                session.add_message(&mut post, run, qp, number, SendFlags::NONE);
            }
            // The empty Send notifies the Data Sink that the preceding Write has been placed.
            let wr_id = session.wr_id(KIND_MESSAGE, qp, number + 1);
            post.send(&[]).wr_id(wr_id).with(flags(number));
        }
    } else if is_inline {
        for number in numbers {
            session.add_inline_message(&mut post, run, qp, number, flags(number));
        }
    } else {
        for number in numbers {
            session.add_message(&mut post, run, qp, number, flags(number));
        }
    }
    let requests = if notifies { 2 } else { 1 };
    let posted = session.ring(qp, post)?.map_or(burst * requests, |posted| posted as u64);
    ensure!(posted.is_multiple_of(requests), "the send queue is smaller than negotiated");
    flow.posted += posted / requests;
    Ok(posted / requests)
}

/// Writes messages that are to be verified to their slots, unless they are fetched.
fn build(session: &Session, run: &Run, qp: u16, numbers: Range<u64>) -> anyhow::Result<()> {
    if session.test().transfer().is_fetch() {
        return Ok(());
    }
    for number in numbers {
        let offset = usize::try_from(session.offset(run, qp, number))?;
        let pattern = Pattern::new(session.stream(qp, true), number);
        slots::fill(&session.end, &session.tx, offset, usize::try_from(run.size)?, pattern);
    }
    Ok(())
}
