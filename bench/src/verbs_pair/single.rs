//! One message at a time between the two contexts: RDMA Reads, or a ping-pong of Sends.
//!
//! A program of its own runs it: with a second place that posts or polls, the compiler would not
//! inline these in the other one.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Result, ensure};

use super::{Endpoint, IDLE_PASS_COUNT_MAX, VerbsPair};
use crate::workload::{SINK, SOURCE, Transfer, Workload, payload};

/// Two connected contexts with at most one message under way.
pub struct SinglePair {
    ends: [Endpoint; 2],
    size: u32,
    slot_count: u64,
    transfer: Transfer,
    posted: u64,
    completed: u64,
}

impl SinglePair {
    /// Connects two contexts as [`VerbsPair::connect`] does. The initiator, which is the source,
    /// has sent a message: it has to be the first (RFC 5044 section 7.1.2).
    ///
    /// # Errors
    /// If that fails.
    pub fn connect(workload: Workload) -> Result<Self> {
        ensure!(workload.qps == 1 && workload.depth > 0, "one queue pair, with a request");
        let VerbsPair { source, sink, slot_count, .. } = VerbsPair::connect(workload, false)?;
        let (size, transfer) = (workload.size, Transfer::PingPong);
        let ends = [source, sink];
        let mut pair = Self { ends, size, slot_count, transfer, posted: 0, completed: 0 };
        pair.post_recv(SINK, 0);
        pair.run(1);
        Ok(pair)
    }

    /// Transfers `count` messages: Reads of the sink, or Sends of both ends in turn. Returns the
    /// frames that the source has sent.
    ///
    /// # Errors
    /// If the messages are others.
    pub fn transfer(&mut self, transfer: Transfer, count: u64) -> Result<u64> {
        let is_single = matches!(transfer, Transfer::Read | Transfer::PingPong);
        ensure!(is_single, "verbs-cost has the Writes, core-cost the Sends in one direction");
        self.transfer = transfer;
        let before = self.ends[SOURCE].frames.sent.load(Relaxed);
        self.run(count);
        Ok(self.ends[SOURCE].frames.sent.load(Relaxed) - before)
    }

    fn run(&mut self, count: u64) {
        let target = self.posted + count;
        let mut idle_passes = 0;
        while self.completed < target {
            let completed = self.completed;
            self.poll_source(target);
            self.poll_sink(target);
            idle_passes = if self.completed > completed { 0 } else { idle_passes + 1 };
            assert!(idle_passes < IDLE_PASS_COUNT_MAX, "no more progress");
        }
    }

    /// One step of the source. Not inlined, so that a profile separates the two ends.
    #[inline(never)]
    fn poll_source(&mut self, target: u64) {
        self.poll_and_post(SOURCE, target);
    }

    /// One step of the sink.
    #[inline(never)]
    fn poll_sink(&mut self, target: u64) {
        self.poll_and_post(SINK, target);
    }

    /// Polls completions, which drives the shard, and posts the next message if it is this end's.
    #[inline]
    fn poll_and_post(&mut self, end: usize, target: u64) {
        let Self { ends, transfer, completed, .. } = self;
        ends[end].poll(|wc| *completed += u64::from(transfer.is_ended_by(wc.opcode)));
        let is_free = self.completed == self.posted && self.posted < target;
        if is_free && self.transfer.poster(self.posted) == end {
            self.post(end);
        }
    }

    fn post(&mut self, end: usize) {
        let is_ping_pong = self.transfer == Transfer::PingPong;
        if is_ping_pong {
            // For the answer.
            self.post_recv(end, self.posted + 1);
        }
        let [local, remote] = [end, 1 - end].map(|at| &self.ends[at]);
        let offset = self.offset(self.posted);
        let slot = local.mr.sge(offset, self.size);
        let mut post = local.qps[0].post();
        let request = if is_ping_pong {
            post.send(slot)
        } else {
            post.read(slot, remote.mr.remote().at(offset as u64))
        };
        request.wr_id(self.posted).signaled();
        post.ring().expect("one outstanding request");
        self.posted += 1;
    }

    /// Posts a receive of the message of this number.
    fn post_recv(&self, end: usize, number: u64) {
        let Endpoint { qps, mr, .. } = &self.ends[end];
        let slot = mr.sge(self.offset(number), self.size);
        qps[0].post_recv(number, slot).expect("one outstanding receive");
    }

    /// Returns the offset of the slot of a message, at either end.
    fn offset(&self, number: u64) -> usize {
        let slot = self.transfer.slot(number) % self.slot_count;
        usize::try_from(slot).expect("below the arena's length") * self.size as usize
    }

    /// True if the slots that were transferred so far have the source's first bytes at both ends.
    pub fn is_verified(&self) -> bool {
        let slots = self.transfer.slot(self.completed).min(self.slot_count);
        let len = u32::try_from(slots * u64::from(self.size)).expect("in memory");
        let expected = payload(len);
        let mut found = vec![0; expected.len()];
        self.ends.iter().all(|end| {
            end.mr.read(0, &mut found);
            found == expected
        })
    }
}
