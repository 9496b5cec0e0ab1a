//! Passive half of a bandwidth run: receives messages, verifies and counts them, returns credits.

use anyhow::{Context as _, bail, ensure};
use ferrowarp::{Qp, QpId, Wc};

use crate::endpoint::WrId;
use crate::pattern::Pattern;
use crate::perf::active::{credit_batch, uses_receives};
use crate::perf::control::{Message, Run, Tally};
use crate::perf::kind::Transfer;
use crate::perf::session::Session;
use crate::perf::slots;

/// State of one data connection.
#[derive(Clone, Copy, Default)]
struct RecvFlow {
    /// Messages consumed; for RDMA Reads: slots refilled.
    consumed: u64,
    /// Receives posted and not yet consumed.
    recvs_posted: u64,
}

/// A message from a shared receive queue.
pub struct SharedArrival {
    /// Data connection on which it arrived.
    qp: u16,
    /// Its number there.
    number: u64,
    /// Index and number of its memory.
    place: (u16, u64),
}

/// Passive half of one side.
pub struct Passive {
    run: Run,
    flows: Box<[RecvFlow]>,
    /// Queue pairs in order, with their data connections, if they share a receive queue.
    by_qp: Box<[(QpId, u16)]>,
    /// Counts of the active side, once Done was received.
    announced: Option<Tally>,
    counted_sent: bool,
    tally: Tally,
}

impl Passive {
    /// Prepares a run: posts receives, or writes the messages or words that will be fetched.
    ///
    /// # Errors
    /// If a connection is down.
    pub fn prepare(session: &mut Session, run: Run) -> anyhow::Result<Self> {
        let qps = usize::try_from(session.hello.qps)?;
        let mut flows: Box<[_]> = vec![RecvFlow::default(); qps].into();
        for (qp, flow) in (0..=u16::MAX).zip(&mut flows) {
            if uses_receives(session) {
                for number in 0..u64::from(run.credits) {
                    session.post_recv(&run, qp, number)?;
                }
                flow.recvs_posted = run.credits.into();
                session.drive_and_send_alive()?;
            } else if session.verify() && session.test().transfer() == Transfer::Read {
                for number in 0..u64::from(run.slots) {
                    refill(session, &run, qp, number)?;
                    session.drive_and_send_alive()?;
                }
            } else if session.test().transfer() == Transfer::Atomic {
                let word = usize::try_from(session.offset(&run, qp, 0))?;
                session.tx.write(word, &[0; 8]);
            }
        }
        let mut by_qp: Box<[_]> = match session.receives.shared() {
            Some(_) => session.data.iter().map(Qp::id).zip(0..).collect(),
            None => Box::default(),
        };
        by_qp.sort_unstable();
        let (announced, tally) = (None, Tally::default());
        Ok(Self { run, flows, by_qp, announced, counted_sent: false, tally })
    }

    /// Handles a message received on data connection `qp`. Returns its number, or `None` if it only
    /// consumes a receive at the end of the run.
    ///
    /// # Errors
    /// If the message is unexpected.
    pub fn on_recv(&mut self, session: &Session, qp: u16, wc: &Wc) -> anyhow::Result<Option<u64>> {
        self.receive(session, qp, wc, |number| (qp, number))
    }

    /// As [`on_recv`](Self::on_recv), for a receive from a shared queue.
    ///
    /// # Errors
    /// As [`on_recv`](Self::on_recv).
    pub fn on_shared_recv(
        &mut self,
        session: &Session,
        id: WrId,
        wc: &Wc,
    ) -> anyhow::Result<Option<SharedArrival>> {
        let found = self.by_qp.binary_search_by_key(&wc.qp, |&(id, _)| id);
        let (_, qp) = self.by_qp[found.ok().context("a message for an unknown connection")?];
        let place = (id.index, id.number.into());
        let number = self.receive(session, qp, wc, |_| place)?;
        Ok(number.map(|number| SharedArrival { qp, number, place }))
    }

    /// Handles a message, which lies at the place that `place_of` returns for its number.
    #[inline]
    fn receive(
        &mut self,
        session: &Session,
        qp: u16,
        wc: &Wc,
        place_of: impl FnOnce(u64) -> (u16, u64),
    ) -> anyhow::Result<Option<u64>> {
        let Some(flow) = self.flows.get_mut(usize::from(qp)) else {
            bail!("a message for an unknown connection");
        };
        let posted = flow.recvs_posted.checked_sub(1);
        flow.recvs_posted = posted.context("more messages than the connection has credits")?;
        if self.counted_sent {
            ensure!(wc.byte_len == 0, "a message after the last one of the run");
            return Ok(None);
        }
        let number = flow.consumed;
        flow.consumed += 1;
        self.tally.messages += 1;
        self.tally.bytes += match session.test().transfer() {
            Transfer::Send => u64::from(wc.byte_len),
            Transfer::Write | Transfer::Read | Transfer::Atomic => self.run.size,
        };
        if session.uses_immediate() {
            let immediate = wc.immediate().map(u64::from_be_bytes);
            ensure!(immediate == Some(number), "Write {number} has immediate data {immediate:?}");
        }
        if session.verify() {
            self.verify_message(session, qp, number, place_of(number))?;
        }
        Ok(Some(number))
    }

    /// Verifies every byte of a message.
    ///
    /// # Errors
    /// Never for sizes that were checked.
    fn verify_message(
        &mut self,
        session: &Session,
        qp: u16,
        number: u64,
        place: (u16, u64),
    ) -> anyhow::Result<()> {
        let offset = usize::try_from(session.offset(&self.run, place.0, place.1))?;
        let len = usize::try_from(self.run.size)?;
        let pattern = Pattern::new(session.stream(qp, false), number);
        self.tally.errors += slots::check(&session.end, &session.rx, offset, len, pattern);
        self.tally.verified += self.run.size;
        Ok(())
    }

    /// Reposts the receive that message `number` consumed, for the next message in the same slot.
    ///
    /// # Errors
    /// If a connection is down.
    pub fn repost_recv(&mut self, session: &Session, qp: u16, number: u64) -> anyhow::Result<()> {
        session.post_recv(&self.run, qp, number + u64::from(self.run.credits))?;
        self.flows[usize::from(qp)].recvs_posted += 1;
        Ok(())
    }

    /// As [`repost_recv`](Self::repost_recv), and returns credits in batches.
    ///
    /// # Errors
    /// If a connection is down.
    pub fn repost_and_credit(
        &mut self,
        session: &mut Session,
        qp: u16,
        number: u64,
    ) -> anyhow::Result<()> {
        self.repost_recv(session, qp, number)?;
        self.credit(session, qp, number)
    }

    /// As [`repost_and_credit`](Self::repost_and_credit), for a message from a shared queue.
    ///
    /// # Errors
    /// If a connection is down.
    pub fn repost_shared_and_credit(
        &mut self,
        session: &mut Session,
        arrival: &SharedArrival,
    ) -> anyhow::Result<()> {
        let &SharedArrival { qp, number, place } = arrival;
        session.post_recv(&self.run, place.0, place.1)?;
        self.flows[usize::from(qp)].recvs_posted += 1;
        self.credit(session, qp, number)
    }

    /// Returns credits in batches, after message `number`.
    #[inline]
    fn credit(&self, session: &mut Session, qp: u16, number: u64) -> anyhow::Result<()> {
        let count = number + 1;
        if count.is_multiple_of(credit_batch(&self.run)) {
            session.send_control(Message::Consumed { qp: qp.into(), count })?;
        }
        Ok(())
    }

    /// Handles Consumed of an RDMA Read test: the peer has verified the messages before `count`,
    /// and their slots are refilled.
    ///
    /// # Errors
    /// If the peer cannot have read them yet.
    pub fn on_consumed(
        &mut self,
        session: &mut Session,
        qp: u32,
        count: u64,
    ) -> anyhow::Result<()> {
        let slots = u64::from(self.run.slots);
        let index = u16::try_from(qp)?;
        let Some(flow) = self.flows.get_mut(usize::from(index)) else {
            bail!("the peer read on an unknown connection");
        };
        ensure!(
            count >= flow.consumed && count - flow.consumed <= slots,
            "the peer reports more RDMA Reads than slots were filled"
        );
        for number in flow.consumed..count {
            refill(session, &self.run, index, number + slots)?;
        }
        flow.consumed = count;
        session.send_control(Message::Refilled { qp, count })
    }

    /// Handles Done: the active side reports how much it sent.
    ///
    /// # Errors
    /// If Done was received before.
    pub fn on_done(&mut self, tally: &Tally) -> anyhow::Result<()> {
        ensure!(self.announced.is_none(), "the peer sent Done twice");
        self.announced = Some(*tally);
        Ok(())
    }

    /// Sends Counted to the active side once all messages have arrived.
    ///
    /// # Errors
    /// If the control connection is down, or more messages arrived than were sent.
    pub fn poll(&mut self, session: &mut Session) -> anyhow::Result<()> {
        let Some(done) = self.announced else { return Ok(()) };
        if self.counted_sent || (uses_receives(session) && self.tally.messages < done.messages) {
            return Ok(());
        }
        ensure!(self.tally.messages <= done.messages, "more messages were received than were sent");
        if session.verify() && session.test().transfer() == Transfer::Atomic {
            self.tally.errors += session.check_atomic_sum(&self.run, done.messages);
            self.tally.verified += self.run.size * u64::from(session.hello.qps);
        }
        self.counted_sent = true;
        session.send_control(Message::Counted(self.tally))
    }

    /// Counts a message that consumed no receive.
    pub const fn count_message(&mut self) {
        self.tally.messages += 1;
        self.tally.bytes += self.run.size;
    }

    /// Returns the number of messages counted.
    #[must_use]
    pub const fn messages(&self) -> u64 {
        self.tally.messages
    }

    /// Returns the number of messages that the active side reported as sent.
    #[must_use]
    pub const fn announced_messages(&self) -> Option<u64> {
        match &self.announced {
            Some(tally) => Some(tally.messages),
            None => None,
        }
    }

    /// True if all messages have arrived and every receive has been consumed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.counted_sent && self.flows.iter().all(|flow| flow.recvs_posted == 0)
    }

    /// Returns the counts of this half.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }
}

/// Writes the message that will be read next from its slot.
fn refill(session: &Session, run: &Run, qp: u16, number: u64) -> anyhow::Result<()> {
    let offset = usize::try_from(session.offset(run, qp, number))?;
    let pattern = Pattern::new(session.stream(qp, true), number);
    slots::fill(&session.end, &session.tx, offset, usize::try_from(run.size)?, pattern);
    Ok(())
}
