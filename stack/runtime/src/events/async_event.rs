//! Events that are not completions.

use ferrowarp_proto::verbs::cm::ListenAddr;
use ferrowarp_proto::verbs::srq::SrqId;
use ferrowarp_proto::verbs::wc::{CqId, QpId};

/// Event notification: names the source. The details are taken from the source itself.
#[doc(alias = "ibv_async_event")]
#[doc(alias = "ibv_event_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair has events: take them with [`Qp::next_event`] until there are none.
    ///
    /// [`Qp::next_event`]: crate::Qp::next_event
    Connection {
        /// The queue pair ([`Qp::id`](crate::Qp::id)).
        qp: QpId,
    },
    /// A listener has connection requests: take them with [`Listener::poll`] until there are none.
    ///
    /// [`Listener::poll`]: crate::Listener::poll
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    ConnectRequest {
        /// The listener ([`Listener::local_addr`](crate::Listener::local_addr)).
        listener: ListenAddr,
    },
    /// A shared receive queue fell below its limit: see [`Srq::next_limit`].
    ///
    /// [`Srq::next_limit`]: crate::Srq::next_limit
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    SrqLimit {
        /// The queue ([`Srq::id`](crate::Srq::id)).
        srq: SrqId,
    },
    /// A completion queue overran: its queue pairs are in error.
    #[doc(alias = "IBV_EVENT_CQ_ERR")]
    CqOverrun {
        /// The queue ([`Cq::id`](crate::Cq::id)).
        cq: CqId,
    },
    /// The link of the port is down (`IBV_EVENT_PORT_ERR`). If it was a connection to another
    /// process, that is gone, and connections end ([`Config::link_down_grace`]). Any other link may
    /// come up again: TCP retransmits, and gives up when its timeouts say so
    /// ([`TcpSettings`](crate::TcpSettings)).
    ///
    /// Noticed within 0.1 s, but not if the link comes up again before. The latest of the two
    /// events of the link is its present state, [`Context::link_is_up`], if both were not taken;
    /// several of the same count as one, the latest.
    ///
    /// [`Config::link_down_grace`]: crate::Config::link_down_grace
    /// [`Context::link_is_up`]: crate::Context::link_is_up
    #[doc(alias = "IBV_EVENT_PORT_ERR")]
    PortError,
    /// The link of the port is up, after it was down (`IBV_EVENT_PORT_ACTIVE`): a NIC needs some
    /// seconds from its start, `memif` and `vhost` have no link without a peer.
    #[doc(alias = "IBV_EVENT_PORT_ACTIVE")]
    PortActive,
    /// One of several shards has failed: its queue pairs are in error, the others go on.
    ShardFailed {
        /// The shard.
        shard: usize,
    },
    /// The context has failed ([`Context::has_failed`](crate::Context::has_failed)). No further
    /// event occurs.
    #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
    Failed,
}
