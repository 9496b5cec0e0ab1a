//! State shared by all queue pairs of an engine: memory, completion queues, shared receive queues,
//! events and counters.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::counters::Counters;
use crate::slab::Slab;
use crate::verbs::cm::ConnEvent;
use crate::verbs::flush_lists::FlushLists;
use crate::verbs::srq::{LimitEvent, Srq, SrqBuffers};
use crate::verbs::srq::{SrqError, SrqId};
use crate::verbs::wc::{Completions, CqId};

/// Completion queue that overran, whose queue pairs are being ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverrunCq {
    pub(crate) cq: CqId,
    /// Slot of the queue pair at which the next pass goes on.
    pub(crate) next: u32,
}

/// See the [module's documentation](self). Separate from the queue pairs, so that a queue pair
/// changes it while it is borrowed itself.
pub(crate) struct Verbs<M, C> {
    /// Registered memory.
    pub(crate) memory: M,
    /// Completion queues.
    pub(crate) completions: C,
    /// Events for the application, oldest first.
    pub(crate) events: VecDeque<ConnEvent>,
    pub(crate) counters: Counters,
    pub(super) srqs: Slab<Srq>,
    /// Queue pairs with work to flush.
    pub(super) flushes: FlushLists,
    /// Completion queues that overran, each once: the queue pairs of the first are being ended. Of
    /// the last `unreported_overruns` the application does not know.
    overrun_cqs: VecDeque<OverrunCq>,
    unreported_overruns: usize,
    /// The same in order of their IDs, each with whether the application knows of it.
    overruns: BTreeMap<CqId, bool>,
    /// Shared receive queues of which buffers were taken in this pass, each once.
    used_srqs: Vec<u32>,
}

impl<M, C: Completions> Verbs<M, C> {
    /// Reports the completion queues that overran in this pass to the application. From now on they
    /// accept nothing until their queue pairs are ended.
    pub(crate) fn report_overruns(&mut self) {
        let Self { overrun_cqs, overruns, completions, counters, events, .. } = self;
        let count = std::mem::take(&mut self.unreported_overruns);
        for &OverrunCq { cq, .. } in overrun_cqs.range(overrun_cqs.len() - count..) {
            overruns.insert(cq, true);
            if completions.claim_overrun(cq) {
                counters.cq_overruns += 1;
            }
            events.push_back(ConnEvent::CqOverrun { cq });
        }
    }

    /// Returns the completion queue whose queue pairs are being ended; it was reported before.
    pub(crate) fn overrun_cq(&mut self) -> Option<&mut OverrunCq> {
        let is_reported = self.overrun_cqs.len() > self.unreported_overruns;
        self.overrun_cqs.front_mut().filter(|_| is_reported)
    }

    /// The queue pairs of that completion queue are ended.
    pub(crate) fn end_overrun(&mut self) {
        if let Some(OverrunCq { cq, .. }) = self.overrun_cqs.pop_front() {
            self.overruns.remove(&cq);
            self.completions.on_qps_ended(cq);
        }
    }
}

impl<M, C> Verbs<M, C> {
    pub(crate) fn new(memory: M, completions: C, srqs_max: usize) -> Self {
        Self {
            memory,
            completions,
            events: VecDeque::new(),
            counters: Counters::default(),
            srqs: Slab::new(srqs_max),
            flushes: FlushLists::new(),
            overrun_cqs: VecDeque::new(),
            unreported_overruns: 0,
            overruns: BTreeMap::new(),
            used_srqs: Vec::new(),
        }
    }

    /// Records that a completion queue overran: its queue pairs end from this pass on, a bounded
    /// number in each. True if an earlier pass has found that: what completes now is not reported
    /// with success any more.
    #[cold]
    pub(crate) fn on_cq_overrun(&mut self, cq: CqId) -> bool {
        let Entry::Vacant(new) = self.overruns.entry(cq) else { return self.overruns[&cq] };
        new.insert(false);
        self.overrun_cqs.push_back(OverrunCq { cq, next: 0 });
        self.unreported_overruns += 1;
        false
    }

    /// Forgets a completion queue that is destroyed, its overruns as well: the next one may have
    /// its place in the table, and its ID.
    pub(crate) fn forget_cq(&mut self, cq: CqId) {
        self.flushes.forget_cq(cq);
        if let Some(is_reported) = self.overruns.remove(&cq) {
            self.unreported_overruns -= usize::from(!is_reported);
            self.overrun_cqs.retain(|overrun| overrun.cq != cq);
        }
        self.events.retain(|event| *event != ConnEvent::CqOverrun { cq });
    }

    /// True if a completion queue overran whose queue pairs were not ended yet.
    pub(crate) fn has_overrun_cqs(&self) -> bool {
        !self.overrun_cqs.is_empty()
    }

    /// True if a pass has left requests to flush that wait for no free slot.
    pub(crate) fn has_due_flushes(&self) -> bool {
        self.flushes.is_due()
    }

    pub(super) fn srq(&mut self, srq: SrqId) -> Result<&mut Srq, SrqError> {
        let index = self.srqs.live_index(srq.index, srq.generation);
        index.and_then(|index| self.srqs.get_mut(index)).ok_or(SrqError::NoSuchSrq)
    }

    /// Creates a shared receive queue in the protection domain `pd`. `shard`: number of this engine
    /// among those that share the buffers.
    ///
    /// # Errors
    /// [`SrqError::TooMany`].
    pub(crate) fn create_srq(
        &mut self,
        pd: u32,
        buffers: Arc<SrqBuffers>,
        shard: usize,
    ) -> Result<SrqId, SrqError> {
        let srq = Srq::new(pd, buffers, shard);
        let (index, generation) = self.srqs.insert(srq).ok_or(SrqError::TooMany)?;
        Ok(SrqId { index, generation })
    }

    /// Destroys a shared receive queue and drops the buffers in it.
    ///
    /// # Errors
    /// `InUse` while queue pairs are attached; `NoSuchSrq`.
    pub(crate) fn destroy_srq(&mut self, srq: SrqId) -> Result<(), SrqError> {
        if self.srq(srq)?.qp_count > 0 {
            return Err(SrqError::InUse);
        }
        self.srqs.remove(srq.index);
        Ok(())
    }

    /// Limits each queue pair to `cap` buffers of a shared receive queue at a time; 0: no cap.
    ///
    /// # Errors
    /// `NoSuchSrq`.
    pub(crate) fn cap_srq(&mut self, srq: SrqId, cap: usize) -> Result<(), SrqError> {
        self.srq(srq)?.set_cap(cap);
        Ok(())
    }

    /// Arms the limit of a shared receive queue; raises the event at once if fewer buffers are
    /// left now.
    ///
    /// # Errors
    /// `NoSuchSrq`.
    pub(crate) fn arm_srq(&mut self, srq: SrqId, limit: usize) -> Result<(), SrqError> {
        debug_assert!(!self.has_used_srqs(), "what a pass has used is accounted for at its end");
        let due = self.srq(srq)?.arm(limit);
        self.raise_limit_event(srq, due);
        Ok(())
    }

    /// True if buffers of shared receive queues were taken since the last end of a pass.
    #[inline(always)]
    pub(crate) const fn has_used_srqs(&self) -> bool {
        !self.used_srqs.is_empty()
    }

    /// Index of the shared receive queue for which the pass is ended next.
    pub(super) fn last_used_srq(&self) -> Option<u32> {
        self.used_srqs.last().copied()
    }

    /// Ends the pass for one of the shared receive queues of which buffers were taken, and returns
    /// it; `None` once that is done for all.
    pub(super) fn end_pass_of_srq(&mut self) -> Option<&Srq> {
        let index = self.used_srqs.pop()?;
        let due = self.srqs.get_mut(index).and_then(Srq::end_pass);
        self.raise_limit_event(SrqId { index, generation: self.srqs.generation(index) }, due);
        self.srqs.get(index)
    }

    /// As [`Verbs::end_pass_of_srq`] for all, for an engine that ended in the middle of a pass and
    /// will not be driven again.
    pub(crate) fn abandon_srqs(&mut self) {
        self.used_srqs.clear();
        let indices: Vec<u32> = self.srqs.indices().collect();
        for index in indices {
            let due = self.srqs.get_mut(index).and_then(Srq::abandon);
            self.raise_limit_event(SrqId { index, generation: self.srqs.generation(index) }, due);
        }
    }

    /// Records that a buffer of a shared receive queue was taken in this pass.
    pub(super) fn on_srq_used(&mut self, index: u32) {
        if !self.used_srqs.contains(&index) {
            self.used_srqs.push(index);
        }
    }

    fn raise_limit_event(&mut self, srq: SrqId, due: Option<LimitEvent>) {
        if let Some((left, most)) = due {
            self.events.push_back(ConnEvent::SrqLimit { srq, left, most });
        }
    }

    /// Returns the number of free slots in a shared receive queue; 0 if there is none.
    pub(crate) fn free_srq_slots(&self, srq: SrqId) -> usize {
        let index = self.srqs.live_index(srq.index, srq.generation);
        index.and_then(|index| self.srqs.get(index)).map_or(0, Srq::free_slots)
    }
}
