//! State shared by all queue pairs of an engine: memory, completion queues, shared receive queues,
//! events and counters.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::counters::Counters;
use crate::slab::Slab;
use crate::verbs::cm::Event;
use crate::verbs::flush_lists::FlushLists;
use crate::verbs::qp::{SrqError, SrqId};
use crate::verbs::srq::{LimitEvent, Srq, SrqBuffers};
use crate::verbs::wc::{Completions, CqId};

/// See the [module's documentation](self). Separate from the queue pairs, so that a queue pair
/// changes it while it is borrowed itself.
pub(crate) struct Verbs<M, C> {
    /// Registered memory.
    pub(crate) memory: M,
    /// Completion queues.
    pub(crate) completions: C,
    /// Events for the application, oldest first.
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: Counters,
    pub(super) srqs: Slab<Srq>,
    /// Queue pairs with work to flush.
    pub(super) flushes: FlushLists,
    /// Completion queues that overran in this pass, each once.
    overrun_cqs: Vec<CqId>,
    /// Shared receive queues of which buffers were taken in this pass, each once.
    used_srqs: Vec<u32>,
}

impl<M, C: Completions> Verbs<M, C> {
    /// Takes a completion queue that overran, and reports it to the application.
    pub(crate) fn take_overrun_cq(&mut self) -> Option<CqId> {
        let cq = self.overrun_cqs.pop()?;
        if self.completions.claim_overrun(cq) {
            self.counters.cq_overruns += 1;
        }
        let event = Event::CqOverrun { cq };
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
        Some(cq)
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
            overrun_cqs: Vec::new(),
            used_srqs: Vec::new(),
        }
    }

    /// Records that a completion queue overran: its queue pairs end later in the pass.
    #[cold]
    pub(crate) fn on_cq_overrun(&mut self, cq: CqId) {
        if !self.overrun_cqs.contains(&cq) {
            self.overrun_cqs.push(cq);
        }
    }

    /// Forgets the overruns of a completion queue that is destroyed: the next one may have its ID.
    pub(crate) fn forget_cq(&mut self, cq: CqId) {
        self.overrun_cqs.retain(|&overrun| overrun != cq);
        self.events.retain(|event| *event != Event::CqOverrun { cq });
    }

    /// True if a completion queue overran whose queue pairs were not ended yet.
    pub(crate) const fn has_overrun_cqs(&self) -> bool {
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
            self.events.push_back(Event::SrqLimit { srq, left, most });
        }
    }

    /// Returns the number of free slots in a shared receive queue; 0 if there is none.
    pub(crate) fn free_srq_slots(&self, srq: SrqId) -> usize {
        let index = self.srqs.live_index(srq.index, srq.generation);
        index.and_then(|index| self.srqs.get(index)).map_or(0, Srq::free_slots)
    }
}
