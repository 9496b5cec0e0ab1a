//! Binding of queue pairs to shards, and those whose completion queues have overrun.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::verbs::cm::{CmError, ConnParam};

use super::Qp;
use crate::handle::cq::Cq;
use crate::shard::{Shard, ShardControl, ShardQp, UnboundQueues};

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

    /// Returns the shard of the queue pair, for a call that needs a connection.
    ///
    /// # Errors
    /// `Gone` if it belongs to none; `Ended`.
    pub(super) fn shard_of_connection(&self) -> Result<&Arc<Shard>, CmError> {
        self.bound_shard().ok_or_else(|| self.why_unbound())
    }

    /// Why the queue pair belongs to no shard: the end of the context, or that of the shard it was
    /// given to; otherwise it has not been connected.
    #[cold]
    pub(super) fn why_unbound(&self) -> CmError {
        let ended = self.context().ended().or_else(|| self.shared.ended());
        ended.map_or(CmError::Gone, CmError::Ended)
    }

    /// Returns the end that kept the queue pair from being given to a shard. Everything else that
    /// may is a defect of the stack.
    pub(super) const fn cause_of(error: CmError) -> Ended {
        match error {
            CmError::Ended(cause) => cause,
            _ => Ended::Failed,
        }
    }

    /// Gives the queue pair to some shard, unless it belongs to one already.
    ///
    /// # Errors
    /// As [`Qp::bind`], but for `WrongShard`.
    pub(super) fn bind_to_any(&self) -> Result<(), CmError> {
        if self.shared.binding().get().is_some() {
            return Ok(());
        }
        let shard = self.context().shards.select();
        let shard = shard.ok_or_else(|| self.context().why_no_shard())?;
        match self.bind(shard) {
            // Another thread was faster.
            Ok(()) | Err(CmError::WrongShard) => Ok(()),
            error => error,
        }
    }

    /// As [`Qp::bind_to_any`], before it connects: to the shard at which the replies arrive, if a
    /// chosen local port tells that.
    pub(super) fn bind_to_connect(
        &self,
        remote: SocketAddr,
        param: &ConnParam,
    ) -> Result<(), CmError> {
        let shards = &self.context().shards;
        if param.local_port != 0 && shards.len() > 1 && self.shared.binding().get().is_none() {
            let known = shards.iter().find_map(|shard| {
                shard.control(|engine, _| engine.shard_of_replies(remote, param)).ok()
            });
            // If that one has ended any other will do.
            if known.flatten().is_some_and(|shard| self.bind(shard).is_ok()) {
                return Ok(());
            }
        }
        self.bind_to_any()
    }

    /// Gives the queue pair to a shard, unless it belongs to that one already. If one of its
    /// completion queues has overrun it ends there.
    ///
    /// # Errors
    /// `CqOverrun`; `WrongShard` if it belongs to another shard; `Ended` if the shard has.
    pub(crate) fn bind(&self, shard: usize) -> Result<(), CmError> {
        self.bind_for(shard, |_| true, |_, _| Ok(()))
    }

    /// Gives the queue pair to a shard as [`Qp::bind`] does, if `is_due` returns true for that
    /// shard, and then calls `act`, all under the lock of the shard.
    ///
    /// # Errors
    /// As [`Qp::bind`]; `Gone` if the binding is not due: the queue pair belongs to no shard then,
    /// as before. Those of `act`.
    pub(crate) fn bind_for(
        &self,
        shard: usize,
        is_due: impl FnOnce(&dyn ShardControl) -> bool,
        act: impl FnOnce(&mut dyn ShardControl, Instant) -> Result<(), CmError>,
    ) -> Result<(), CmError> {
        let bind_lock = self.context().unbound.bind_lock(self.id);
        let _binding = bind_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let is_bound = match self.shared.binding().get() {
            Some(_) if self.overrun_cq().is_some() => return Err(CmError::CqOverrun),
            Some(bound) if bound != shard => return Err(CmError::WrongShard),
            bound => bound.is_some(),
        };
        let (id, mut is_removed) = (self.id, false);
        let done = self.context().shards.get(shard).control(|engine, now| {
            if is_bound {
                return Ok(act(engine, now));
            }
            if !is_due(&*engine) {
                return Err(CmError::Gone);
            }
            let queues = self.context().unbound.remove(id).ok_or_else(|| {
                // A shard in which one of its queues overran has just taken it, or the context
                // ended.
                if self.overrun_cq().is_some() { CmError::CqOverrun } else { self.why_unbound() }
            })?;
            is_removed = true;
            let UnboundQueues { init, stream, requester, recv_queue, tails } = queues;
            engine.create_qp(id, stream, init, requester, recv_queue)?;
            if let Some(srq) = &self.srq {
                let attached = srq.in_engine(shard).map(|srq| engine.attach_srq(id, srq));
                if !matches!(attached, Some(Ok(()))) {
                    engine.destroy_qp(now, id);
                    return Err(CmError::NoResources);
                }
            }
            let cqs = [init.send_cq, init.recv_cq];
            engine.attach(ShardQp::new(id, Arc::clone(&self.shared), cqs, tails));
            self.shared.binding().bind(shard);
            // If one overruns from here on, this shard finds the queue pair, or is notified.
            if let Some(cq) = self.overrun_cq() {
                engine.end_idle_qp(id, cq.id());
                return Err(CmError::CqOverrun);
            }
            Ok(act(engine, now))
        });
        let done = done.unwrap_or_else(|cause| Err(cause.into()));
        if is_removed && matches!(done, Ok(_) | Err(CmError::CqOverrun)) {
            // Receives may have been posted.
            self.context().shards.get(shard).ring_doorbell(id);
        } else if let (true, Err(error)) = (is_removed, done) {
            // No shard has its queues, and nobody else will end it.
            self.shared.close(Self::cause_of(error));
            self.context().events.end_source(self.event(), self.shared.source());
        }
        done.flatten()
    }
}
