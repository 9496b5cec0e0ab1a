//! Active half of a bandwidth run: posts messages as far as depth and credits allow, until all of
//! them have been confirmed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use ferrowarp::{SendFlags, Wc};

use crate::endpoint::WrId;
use crate::pattern::Pattern;
use crate::perf::control::{Message, Run, Tally};
use crate::perf::kind::Transfer;
use crate::perf::peak::Peak;
use crate::perf::session::{KIND_CONFIRM, KIND_MESSAGE, Session, indices};
use crate::perf::slots;

/// Most messages posted on one connection before the next one is served.
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
    /// Returns the messages that may be posted now, if `depth` may be outstanding.
    fn postable(&self, depth: u64) -> u64 {
        let allowed = self.message_limit.min(self.credit_limit).saturating_sub(self.posted);
        allowed.min(depth.saturating_sub(self.posted - self.completed))
    }

    /// True if all messages are posted, but not the Read that confirms them.
    fn is_confirm_due(&self, transfer: Transfer) -> bool {
        transfer == Transfer::Write && self.posted == self.message_limit && !self.confirm_posted
    }
}

/// Active half of one side.
pub struct Active {
    run: Run,
    transfer: Transfer,
    depth: u64,
    signal_every: u64,
    flows: Vec<Flow>,
    /// Flows that may have something to post, in the order in which they are served. A step does
    /// not visit the others: there may be a thousand.
    due: VecDeque<u16>,
    started: Instant,
    deadline: Option<Instant>,
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
        let depth = u64::from(session.hello.tx_depth);
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
            depth,
            signal_every: (depth / 4).min(SIGNAL_LEN_MAX / run.size).clamp(1, 64),
            flows: indices(session.hello.qps).map(flow).collect(),
            due: indices(session.hello.qps).collect(),
            started: now,
            deadline: (!limited).then(|| now + Duration::from_millis(run.duration_ms)),
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
            for flow in &mut self.flows {
                flow.message_limit = flow.posted;
            }
            self.serve_all();
        }
        for _ in 0..self.due.len() {
            let Some(index) = self.due.pop_front() else { break };
            let flow = &mut self.flows[usize::from(index)];
            let burst = flow.postable(self.depth).min(POST_BURST);
            if session.verify() {
                for _ in 0..burst {
                    if !post_verified(session, &self.run, self.signal_every, index, flow)? {
                        break;
                    }
                }
            } else if burst > 0 {
                post(session, &self.run, self.signal_every, index, flow, burst)?;
            }
            if flow.is_confirm_due(self.transfer) {
                flow.confirm_posted = session.post_confirming_read(index)?;
            }
            if flow.drain_sends > 0 {
                flow.drain_sends = session.post_drain_sends(index, flow.drain_sends)?;
            }
            // The send queue may have had no room.
            flow.is_due = flow.postable(self.depth) > 0
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
        if self.transfer.is_fetch() {
            // Each Read or atomic operation is signaled, and they complete in order.
            let number = flow.completed;
            flow.completed += 1;
            self.completed += 1;
            ensure!(
                u64::from(wc.byte_len) == self.run.size,
                "an RDMA Read completed with too few bytes"
            );
            if session.verify() {
                self.verify_fetched(session, id.index, number)?;
            }
            return Ok(());
        }
        // The number is the count of messages up to this one, modulo 2^32.
        #[expect(clippy::cast_possible_truncation, reason = "compared modulo 2^32")]
        let step = u64::from(id.number.wrapping_sub(flow.completed as u32));
        flow.completed += step;
        self.completed += step;
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

/// Returns the flags of message `count` of a flow, counted from one: whether it is signaled.
fn flags(transfer: Transfer, signal_every: u64, flow: &Flow, count: u64) -> SendFlags {
    let is_signaled =
        count.is_multiple_of(signal_every) || count == flow.message_limit || transfer.is_fetch();
    SendFlags::SIGNALED.when(is_signaled)
}

/// Posts the next `burst` messages of a flow, or as many as fit into the send queue.
#[inline]
fn post(
    session: &Session,
    run: &Run,
    signal_every: u64,
    qp: u16,
    flow: &mut Flow,
    burst: u64,
) -> anyhow::Result<()> {
    let transfer = session.test().transfer();
    let mut post = session.post(qp);
    for number in flow.posted..flow.posted + burst {
        let flags = flags(transfer, signal_every, flow, number + 1);
        session.add_message(&mut post, run, qp, number, flags);
    }
    flow.posted += session.ring(qp, post)?.map_or(burst, |posted| posted as u64);
    Ok(())
}

/// Fills and posts the next message of a flow; `false` if the send queue is full.
fn post_verified(
    session: &Session,
    run: &Run,
    signal_every: u64,
    qp: u16,
    flow: &mut Flow,
) -> anyhow::Result<bool> {
    let number = flow.posted;
    let count = number + 1;
    let transfer = session.test().transfer();
    let flags = flags(transfer, signal_every, flow, count);
    let notify = session.sends_notification();
    if !transfer.is_fetch() {
        let offset = usize::try_from(session.offset(run, qp, number))?;
        let pattern = Pattern::new(session.stream(qp, true), number);
        slots::fill(&session.end, &session.tx, offset, usize::try_from(run.size)?, pattern);
    }
    let mut post = session.post(qp);
    let own_flags = if notify { SendFlags::default() } else { flags };
    session.add_message(&mut post, run, qp, number, own_flags);
    if notify {
        // The empty Send notifies the Data Sink that the preceding Write has been placed.
        post.send(&[]).wr_id(session.wr_id(KIND_MESSAGE, qp, count)).with(flags);
    }
    match session.ring(qp, post)? {
        None => flow.posted = count,
        Some(0) => return Ok(false),
        Some(_) => bail!("the send queue is smaller than negotiated"),
    }
    Ok(true)
}
