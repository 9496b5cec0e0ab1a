//! Listeners and their connection requests.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use ferrowarp_proto::verbs::cm::{CmError, ConnInfo, ConnParam, ListenAddr, ReadDepths, RequestId};

use crate::context::open_listeners::OpenListeners;
use crate::context::{Context, ContextInner};
use crate::fork::{ForkArc, check_process, is_child};
use crate::handle::event_channel::EventChannel;
use crate::handle::qp::Qp;
use crate::shard::{Backlog, PendingRequest, Shard, ShardControl};

/// Listener for connection requests on a port of one address, of a family or of all, until it is
/// dropped. Requests that were taken from it can be accepted or rejected after that; those that
/// nobody has taken are rejected.
#[doc(alias = "rdma_cm_id")]
pub struct Listener {
    context: ForkArc<ContextInner>,
    backlog: Arc<Backlog>,
}

impl Context {
    /// Listens on a port; at most `backlog` requests are pending at a time (0 counts as 1).
    ///
    /// `addr` is a port, for all addresses of the context, or an address with a port
    /// ([`ListenAddr`]). Of several listeners on a port the most specific gets a request: that on
    /// the very address, else that on all of its family, else that on all.
    ///
    /// ```
    /// # use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    /// # use ferrowarp::{Config, Context, device::DeviceSpec};
    /// # let address = |host| IpAddr::V4(Ipv4Addr::new(198, 18, 0, host));
    /// # let config = |host| Config::new(DeviceSpec::Ring, address(host), 24);
    /// # let (context, _peer) = Context::ring_pair(config(1), config(2))?;
    /// let all = context.listen(4791, 8)?;
    /// let ipv4 = context.listen("0.0.0.0:4791".parse::<SocketAddr>()?, 8)?;
    /// let one = context.listen((address(1), 4791), 8)?;
    /// assert_eq!(one.local_addr().ip(), Some(address(1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Port 0 stands for one of [`Config::source_ports`] on which no other listener shares an
    /// address: [`Listener::port`] returns it. A scope ID in the address has to be that of the
    /// device's interface ([`DeviceSpec::interface_index`]), or 0.
    ///
    /// [`Config::source_ports`]: crate::Config::source_ports
    /// [`DeviceSpec::interface_index`]: crate::device::DeviceSpec::interface_index
    ///
    /// # Errors
    /// `PortInUse` if there is a listener on the same port and the same addresses; `NotLocal` if
    /// the address is none of the context's, and `NoAddressOfFamily` if it has none of the family;
    /// `OtherZone` if the scope ID is another; `NoResources` if no port is free, and beyond 65,536
    /// listeners; `Ended`.
    #[doc(alias = "rdma_listen")]
    #[doc(alias = "rdma_bind_addr")]
    pub fn listen(&self, addr: impl Into<ListenAddr>, backlog: usize) -> Result<Listener, CmError> {
        Listener::open(self.inner(), addr.into(), backlog, false)
    }

    /// As [`Context::listen`], for connections without MPA startup frames: each is reported as
    /// soon as its TCP handshake is complete, and accepted with [`Start::Immediate`] or
    /// [`Start::Streaming`].
    ///
    /// # Errors
    /// As [`Context::listen`].
    ///
    /// [`Start::Immediate`]: crate::cm::Start::Immediate
    /// [`Start::Streaming`]: crate::cm::Start::Streaming
    pub fn listen_unframed(
        &self,
        addr: impl Into<ListenAddr>,
        backlog: usize,
    ) -> Result<Listener, CmError> {
        Listener::open(self.inner(), addr.into(), backlog, true)
    }
}

impl Listener {
    fn open(
        context: &ForkArc<ContextInner>,
        addr: ListenAddr,
        backlog: usize,
        unframed: bool,
    ) -> Result<Self, CmError> {
        context.check_open()?;
        context.check_zone(addr.scope_id())?;
        let addr = addr.without_scope_id();
        // All shards listen on the same addresses, so that all of them agree.
        let mut listeners = context.lock_listeners();
        let addr = match addr.port() {
            0 => {
                let ports = context.config().source_ports.clone();
                listeners.choose_port(addr, ports).ok_or(CmError::NoResources)?
            }
            _ => addr,
        };
        let backlog = Arc::new(Backlog::new(addr, backlog));
        let mut listening = Vec::new();
        for shard in context.shards.iter() {
            match shard.control(|engine, _| engine.listen(Arc::clone(&backlog), unframed)) {
                Ok(Ok(())) => listening.push(shard),
                Ok(Err(error)) => {
                    if !listening.is_empty() {
                        end(context, &backlog, listening, listeners);
                    }
                    return Err(error);
                }
                // Closed or failed meanwhile.
                Err(_) => {}
            }
        }
        if listening.is_empty() {
            return Err(context.why_no_shard().into());
        }
        listeners.insert(addr);
        Ok(Self { context: context.clone(), backlog })
    }

    /// TCP port, also where the stack has chosen it.
    #[doc(alias = "rdma_get_src_port")]
    #[must_use]
    pub fn port(&self) -> u16 {
        self.local_addr().port()
    }

    /// Port and local addresses. A request has the address that its peer connected to
    /// ([`ConnInfo::local`]).
    #[doc(alias = "rdma_get_local_addr")]
    #[must_use]
    pub fn local_addr(&self) -> ListenAddr {
        self.backlog.addr()
    }

    /// Has the listener report requests to this channel from now on. If it has requests that
    /// nobody has taken, this channel reports them, even if another one has: between
    /// [`Context::listen`] and this call none is lost.
    ///
    /// # Errors
    /// `OtherChannel`: the channel is of another context; `Ended` in a child made by `fork`.
    #[doc(alias = "rdma_migrate_id")]
    pub fn set_event_channel(&self, channel: &EventChannel) -> Result<(), CmError> {
        check_process()?;
        if !channel.belongs_to(&self.context) {
            return Err(CmError::OtherChannel);
        }
        let has_requests = || self.backlog.has_requests();
        self.context.events.migrate(self.backlog.event(), channel.id(), has_requests);
        Ok(())
    }

    /// Removes and returns the oldest request. Does not poll: for applications whose threads drive
    /// the shards. Costs a lock shared with the shards, some 20 ns.
    #[doc(alias = "rdma_get_request")]
    #[must_use]
    pub fn next_request(&self) -> Option<ConnRequest> {
        self.pop()
    }

    /// Removes and returns the oldest request. If there is none and the application polls the
    /// shards ([`DriveMode`]), polls each of them once first, unless another thread is polling it:
    /// a request may arrive at any of them. Where a thread drives each of several shards,
    /// [`Listener::next_request`] leaves them to it.
    ///
    /// [`DriveMode`]: crate::DriveMode
    #[doc(alias = "rdma_get_request")]
    #[must_use]
    pub fn poll(&self) -> Option<ConnRequest> {
        self.pop().or_else(|| {
            self.context.shards.drive();
            self.pop()
        })
    }

    /// Waits for a request. Sleeps, unless only the application polls the shard
    /// ([`DriveMode::Inline`]): then it polls all shards while it waits, those that another thread
    /// is polling excepted, and the other context of a pair made by [`Context::ring_pair`] as well.
    /// `None` after `timeout`, or once the context is closed.
    ///
    /// [`DriveMode::Inline`]: crate::DriveMode::Inline
    /// [`Context::ring_pair`]: crate::Context::ring_pair
    #[doc(alias = "rdma_get_request")]
    #[must_use]
    pub fn accept_timeout(&self, timeout: Duration) -> Option<ConnRequest> {
        let Self { context, backlog, .. } = self;
        context.wait_for(backlog.event(), backlog.source(), timeout, || self.pop())
    }

    fn pop(&self) -> Option<ConnRequest> {
        // In a child of `fork` another thread may have held the lock.
        if is_child() { None } else { pop(&self.context, &self.backlog) }
    }
}

fn pop(context: &ForkArc<ContextInner>, backlog: &Backlog) -> Option<ConnRequest> {
    let PendingRequest { shard, id, offer } = backlog.pop()?;
    Some(ConnRequest { context: context.clone(), shard, id, offer, answered: false })
}

/// Ends a listener at the shards that have it.
fn end<'a>(
    context: &ForkArc<ContextInner>,
    backlog: &Backlog,
    shards: impl IntoIterator<Item = &'a Arc<Shard>>,
    mut listeners: MutexGuard<'_, OpenListeners>,
) {
    let addr = backlog.addr();
    for shard in shards {
        // One that has ended has no listener.
        let _ = shard.control(|engine, _| engine.unlisten(addr));
    }
    // Before another listener can have the addresses, whose event would be the same.
    context.events.remove(backlog.event());
    listeners.remove(addr);
    drop(listeners);
    // Each rejects its request when it is dropped.
    while pop(context, backlog).is_some() {}
}

impl Drop for Listener {
    fn drop(&mut self) {
        if is_child() {
            // The connections are the parent's.
            return;
        }
        let Self { context, backlog } = self;
        end(context, backlog, context.shards.iter(), context.lock_listeners());
    }
}

/// Connection request of an initiator. Dropping it unanswered rejects it.
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
pub struct ConnRequest {
    context: ForkArc<ContextInner>,
    shard: usize,
    id: RequestId,
    offer: Box<ConnInfo>,
    answered: bool,
}

impl ConnRequest {
    /// Offer of the initiator; IRD and ORD are given from the responder's point of view.
    #[must_use]
    pub const fn offer(&self) -> &ConnInfo {
        &self.offer
    }

    /// Shard of the connection: the queue pair that accepts it belongs to it from then on.
    #[must_use]
    pub const fn shard(&self) -> usize {
        self.shard
    }

    /// Accepts with an idle queue pair of the listener's context. The outcome is an event of the
    /// queue pair: see [`Qp::wait_established`].
    ///
    /// # Errors
    /// [`CmError`]: `Gone` if the initiator has given up in the meantime; `OtherContext` if the
    /// queue pair is of another context; `WrongShard` if it belongs to another shard than the
    /// request; `CqOverrun` if one of its completion queues has overrun; `Ended`.
    /// On error the request is rejected.
    #[doc(alias = "rdma_accept")]
    pub fn accept(mut self, qp: &Qp, param: ConnParam) -> Result<(), CmError> {
        if !qp.belongs_to(&self.context) {
            return Err(CmError::OtherContext);
        }
        let request = self.id;
        // A request that is gone must not bind the queue pair.
        let is_pending = |engine: &dyn ShardControl| engine.is_request_pending(request);
        let accept =
            |engine: &mut dyn ShardControl, now| engine.accept(now, request, qp.id(), &param);
        let result = qp.bind_for(self.shard, is_pending, accept);
        self.context.shards.get(self.shard).drive();
        let result = result.map_err(|error| qp.name_overrun(error));
        // On failure the drop rejects it.
        self.answered = result.is_ok();
        result
    }

    /// Rejects the request; the initiator's application receives `private_data`.
    ///
    /// # Errors
    /// `PrivateDataTooLong`; `Gone` if the initiator has given up in the meantime; `Ended`.
    #[doc(alias = "rdma_reject")]
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), CmError> {
        self.send_reject(ReadDepths::default(), private_data)
    }

    /// Rejects because of the RDMA Read depths: the reply to a request of MPA revision 2 carries
    /// `reads`, the IRD and ORD of this responder, so that the initiator can try again with others
    /// (RFC 6581 section 9.1).
    ///
    /// # Errors
    /// As [`ConnRequest::reject`].
    pub fn reject_for_reads(
        mut self,
        reads: ReadDepths,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        self.send_reject(reads, private_data)
    }

    fn send_reject(&mut self, reads: ReadDepths, private_data: &[u8]) -> Result<(), CmError> {
        self.answered = true;
        let request = self.id;
        let shard = self.context.shards.get(self.shard);
        let done = shard.control(|engine, now| engine.reject(now, request, reads, private_data));
        shard.drive();
        done?
    }
}

impl Drop for ConnRequest {
    fn drop(&mut self) {
        if !self.answered {
            // Fails if the connection has ended in the meantime.
            let _ = self.send_reject(ReadDepths::default(), &[]);
        }
    }
}
