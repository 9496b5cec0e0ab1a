//! Attributes of a queue pair (`ibv_query_qp`), and the word of its application.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::verbs::qp_attrs::QpAttrs;

use super::Qp;
use crate::fork::check_process;
use crate::shard::Shard;

impl Qp {
    /// Returns the attributes of the queue pair and of its connection, or of the connection that
    /// has ended. `None` once its context is closed or its shard has failed. The shard is locked
    /// meanwhile: for reports, not for a loop.
    #[doc(alias = "ibv_query_qp")]
    #[must_use]
    pub fn attrs(&self) -> Option<QpAttrs> {
        self.query().ok()
    }

    /// As [`Qp::attrs`].
    ///
    /// # Errors
    /// Why there are none.
    pub(super) fn query(&self) -> Result<QpAttrs, Ended> {
        // In a child of `fork` another thread may have held a lock.
        check_process()?;
        if self.bound_shard().is_none() {
            // Another thread may be giving it to a shard.
            let bind_lock = self.context().unbound.bind_lock(self.id);
            let _binding = bind_lock.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(attrs) = self.context().unbound.attrs(self.id) {
                let has_srq = self.srq.is_some();
                return Ok(if has_srq { attrs.with_shared_receives() } else { attrs });
            }
        }
        let of_shard = |shard: &Arc<Shard>| shard.control(|engine, _| engine.qp_attrs(self.id));
        let attrs = self.bound_shard().map(of_shard).transpose()?.flatten();
        attrs.ok_or_else(|| Self::cause_of(self.why_unbound()))
    }

    /// Address of the peer of its connection, or of the last one. Costs as much as [`Qp::attrs`].
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_dst_port")]
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.attrs()?.peer
    }

    /// Local address of its connection, or of the last one. Costs as much as [`Qp::attrs`].
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        self.attrs()?.local
    }

    /// Word of the application, from [`QpOptions::user_data`](crate::QpOptions) or set since.
    #[doc(alias = "qp_context")]
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.user_data.load(Ordering::Relaxed)
    }

    /// Sets the word of the application.
    pub fn set_user_data(&self, word: u64) {
        self.user_data.store(word, Ordering::Relaxed);
    }
}
