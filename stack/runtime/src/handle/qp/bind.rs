//! Binding of queue pairs to shards, and those whose completion queues have overrun.

use std::sync::{Arc, PoisonError};

use ferrowarp_proto::verbs::cm::CmError;

use super::Qp;
use crate::handle::cq::Cq;
use crate::shard::{ShardControl, ShardQp, UnboundQueues};

impl Qp {
    /// Returns a completion queue that it uses and that has overrun.
    pub(super) fn overrun_cq(&self) -> Option<&Cq> {
        [&self.send_cq, &self.recv_cq].into_iter().find(|cq| cq.overrun())
    }

    /// Returns the error of a call for a connection: that of an overrun, if the state was wrong
    /// because one has ended the queue pair meanwhile.
    pub(crate) fn name_overrun(&self, error: CmError) -> CmError {
        match error {
            CmError::WrongState if self.overrun_cq().is_some() => CmError::CqOverrun,
            error => error,
        }
    }

    /// Gives the queue pair to a shard, unless it belongs to that one already, or `is_due` returns
    /// false for that shard. If one of its completion queues has overrun it ends there.
    ///
    /// # Errors
    /// `CqOverrun`; `WrongShard` if it belongs to another shard; `Gone` if the shard has ended, or
    /// the binding is not due: the queue pair belongs to no shard then, as before.
    pub(crate) fn bind(
        &self,
        shard: usize,
        is_due: impl FnOnce(&dyn ShardControl) -> bool,
    ) -> Result<(), CmError> {
        let bind_lock = self.context().unbound.bind_lock(self.id);
        let _binding = bind_lock.lock().unwrap_or_else(PoisonError::into_inner);
        match self.shared.binding().get() {
            Some(_) if self.overrun_cq().is_some() => return Err(CmError::CqOverrun),
            Some(bound) if bound == shard => return Ok(()),
            Some(_) => return Err(CmError::WrongShard),
            None => {}
        }
        let (id, mut is_removed) = (self.id, false);
        let bound = self.context().shards.get(shard).control(|engine, now| {
            if !is_due(&*engine) {
                return Err(CmError::Gone);
            }
            let queues = self.context().unbound.remove(id).ok_or_else(|| {
                // A shard in which one of its queues overran has just taken it, or the context
                // ended.
                if self.overrun_cq().is_some() { CmError::CqOverrun } else { CmError::Gone }
            })?;
            is_removed = true;
            let UnboundQueues { init, stream, requester, recv_queue, tails } = queues;
            engine.create_qp(id, stream, init, requester, recv_queue)?;
            if let Some(srq) = &self.srq {
                let attached = srq.in_engine(shard).map(|srq| engine.attach_srq(id, srq));
                if !matches!(attached, Some(Ok(()))) {
                    engine.destroy_qp(now, id);
                    return Err(CmError::Gone);
                }
            }
            let cqs = [init.send_cq, init.recv_cq];
            engine.attach(ShardQp::new(id, Arc::clone(&self.shared), cqs, tails));
            self.shared.binding().bind(shard);
            // If one overruns from here on, this shard finds the queue pair, or is notified.
            match self.overrun_cq() {
                Some(cq) => {
                    engine.end_idle_qp(id, cq.id());
                    Err(CmError::CqOverrun)
                }
                None => Ok(()),
            }
        });
        let bound = bound.unwrap_or(Err(CmError::Gone));
        if !is_removed {
            return bound;
        }
        if matches!(bound, Ok(()) | Err(CmError::CqOverrun)) {
            // Receives may have been posted.
            self.context().shards.get(shard).ring_doorbell(id);
        } else {
            // No shard has its queues, and nobody else will end it.
            self.shared.close();
            self.context().events.end_source(self.event(), self.shared.source());
        }
        bound
    }
}
