//! The connection of a queue pair: its begin, and its ends.

use std::net::SocketAddr;

use ferrowarp_proto::verbs::cm::{Abort, CmError, ConnParam};

use super::Qp;

impl Qp {
    /// Connects to a listener, as the initiator. The outcome is an event: see
    /// [`Qp::wait_established`] and [`Qp::next_event`].
    ///
    /// With N shards over a port whose choice of queue is not known (`tap`, `af_packet`) it opens
    /// from up to 4N source ports, one after the other, until the replies arrive at the shard of
    /// the queue pair: N round trips on average instead of one. The peer's TCP sees the others
    /// reset; its application does not see them.
    ///
    /// From a port of your choice ([`ConnParam::local_port`]) it opens once. If the port chooses
    /// queues by RSS, a queue pair that belongs to no shard yet takes the one at which the replies
    /// arrive. To any other shard they are forwarded, frame by frame.
    ///
    /// An own address of the context is possible, too, and one of another context on the same port
    /// of a host program. A scope ID in the address has to be that of the device's interface
    /// ([`DeviceSpec::interface_index`]), or 0.
    ///
    /// The attempt lasts 10 s at most, or [`ConnParam::connect_timeout`]. It may fail with
    /// [`ConnectError`]: `Refused` by a reset, `Unreachable` if nobody answers ARP or neighbor
    /// discovery or by an ICMP error, `LinkDown`, `Rejected` by the peer's application, `TimedOut`.
    ///
    /// # Errors
    /// [`CmError`]; nothing was sent. `Unreachable` if no route leads to the address; `OtherZone`
    /// if the scope ID is another; `NotLocal`, `PortInUse` and `ConnectionExists` for the local
    /// address and port of `param`; `RemotePort` for port 0; `TooShort` and `OutOfRange`;
    /// `NoResources` if no local port is free for that peer; `TooManyConnections`; `WrongState` if
    /// it is connected; `CqOverrun` if one of its completion queues has overrun; `Ended`.
    ///
    /// [`ConnectError`]: crate::ConnectError
    /// [`DeviceSpec::interface_index`]: crate::device::DeviceSpec::interface_index
    #[doc(alias = "rdma_connect")]
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub fn connect(&self, remote: SocketAddr, param: ConnParam) -> Result<(), CmError> {
        if self.overrun_cq().is_some() {
            return Err(CmError::CqOverrun);
        }
        if let SocketAddr::V6(remote) = remote {
            self.context().check_zone(remote.scope_id())?;
        }
        self.bind_to_connect(remote, &param)?;
        let connected = self.control(|engine, now, qp| engine.connect(now, qp, remote, &param));
        connected.map_err(|error| self.name_overrun(error))
    }

    /// Closes the connection gracefully: requests posted before are executed and complete, sends
    /// posted after it complete as flushed, and FIN follows the last request. When both peers have
    /// closed, [`ConnEvent::Disconnected`] reports it with [`EndReason::Local`]. Does not wait:
    /// dropping the queue pair or the context before the event flushes incomplete requests.
    ///
    /// If the peer neither acknowledges nor sends anything for [`Config::linger`], the connection
    /// ends without it; the reason is then `TimedOut`, if it has not acknowledged everything.
    ///
    /// # Errors
    /// `Gone` if it has no connection; `Ended`.
    ///
    /// [`ConnEvent::Disconnected`]: crate::ConnEvent::Disconnected
    /// [`EndReason::Local`]: crate::EndReason::Local
    /// [`Config::linger`]: crate::Config::linger
    #[doc(alias = "rdma_disconnect")]
    pub fn close(&self) -> Result<(), CmError> {
        self.close_with(false)
    }

    /// Half-close: as [`Qp::close`] for the local direction only. Data from the peer is received
    /// until it closes as well, but its RDMA Reads get no response any more. A peer that is silent
    /// for two and a half minutes is given up.
    ///
    /// # Errors
    /// `WrongState` if it is not connected; `Gone`; `Ended`.
    pub fn half_close(&self) -> Result<(), CmError> {
        self.close_with(true)
    }

    fn close_with(&self, half: bool) -> Result<(), CmError> {
        let shard = self.shard_of_connection()?;
        // The shard goes on between the calls: the queue may be long. What was posted before is
        // taken after as many calls as it has requests, whatever other threads post meanwhile.
        let takes = || shard.control(|engine, _| engine.take_posted(self.id)) == Ok(true);
        let _ = (0..self.entries).find(|_| !takes());
        self.control(|engine, now, qp| engine.close(now, qp, half))
    }

    /// Disconnects immediately: what completed successfully still reaches the peer, outstanding
    /// requests complete as flushed.
    ///
    /// # Errors
    /// `Gone` if it has no connection; `Ended`.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), CmError> {
        self.control(|engine, now, qp| engine.disconnect(now, qp))
    }

    /// Moves the queue pair to the error state (`ibv_modify_qp` to `IBV_QPS_ERR`): disconnects, as
    /// [`Qp::disconnect`] does, if it has a connection. If it never had one, what was posted to it
    /// completes as flushed, and no event reports it.
    ///
    /// # Errors
    /// [`CmError::Ended`].
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_error(&self) -> Result<(), CmError> {
        match self.bind_to_any() {
            // It ends in the shard to which it is given.
            Ok(()) | Err(CmError::CqOverrun) => {}
            Err(error) => return Err(error),
        }
        self.control(|engine, now, qp| {
            engine.to_error(now, qp);
            Ok(())
        })
    }

    /// Aborts the connection: queued data is not sent any more, the peer receives a Terminate with
    /// the cause, and outstanding requests complete as flushed.
    ///
    /// # Errors
    /// `Gone` if it has no connection; `Ended`.
    pub fn terminate(&self, cause: Abort) -> Result<(), CmError> {
        self.control(|engine, now, qp| engine.terminate(now, qp, cause))
    }
}
