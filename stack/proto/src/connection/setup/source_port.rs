//! Source ports of active opens.
//!
//! On a port with several queues the source port decides which queue gets the replies. If the
//! shards know the rule, we take the right port at once. Otherwise the SYN-ACK shows the queue. If
//! it arrives at another shard, which forwards it, we give up the attempt and repeat it from the
//! next port:
//!
//! | State, event | Action | Next |
//! |---|---|---|
//! | SYN-SENT, SYN-ACK at this shard | | ESTABLISHED |
//! | SYN-SENT, SYN-ACK at another, ports left | RST, SYN from the next four-tuple | SYN-SENT |
//! | SYN-SENT, SYN-ACK at another, none left | | ESTABLISHED, on the mesh |
//! | SYN-SENT, RST, SYN, ICMP error, timeout | as from any port | |
//!
//! From a port that we give up we send nothing but SYN and RST. The peer's application does not
//! notice, since it gets no MPA Request Frame. All attempts share one deadline and one queue pair.
//! We reserve the next four-tuple before we release this one: if there is none, the connection
//! stays. If RST is lost, the repeated SYN-ACK belongs to no connection, and we answer it with
//! another RST.

use core::net::SocketAddr;

use crate::connection::Connection;
use crate::connection::context::{Context, Env, Retained, Rx};
use crate::connection::phase::Phase;
use crate::connection::setup::connect::Ends;
use crate::steering::mesh::{PortSteering, source_ports_max};
use crate::steering::owners::ReserveError;
use crate::steering::toeplitz::PortSolver;
use crate::tcp::{State, Tcb};
use crate::time::Instant;
use crate::verbs::cm::CmError;
use crate::wire::tcp::{Flags, FourTuple, Segment};

impl<E: Env> Context<E> {
    /// Opens a TCP connection from a free port of the source address, preferably a port with
    /// replies that arrive at this shard. `is_taken`: true for four-tuples of other connections of
    /// this engine. The four-tuple is reserved among the shards.
    ///
    /// # Errors
    /// `NoResources` if no port is free; `TooManyConnections` over all shards.
    pub(crate) fn open_from_free_port(
        &mut self,
        now: Instant,
        ends: Ends,
        is_taken: impl Fn(&FourTuple) -> bool,
    ) -> Result<Tcb<Rx<E>, Retained<E>>, CmError> {
        let Ends { source, remote, .. } = ends;
        let Self { listeners, mesh, secrets, config, .. } = self;
        // Source ports with replies that arrive at this shard, if that can be computed.
        let solver = mesh.as_ref().and_then(|mesh| match mesh.steering() {
            PortSteering::Predicted(table) => {
                Some((mesh.id().0, PortSolver::new(table, source, remote)))
            }
            PortSteering::Mirrored | PortSteering::Unknown => None,
        });
        let mut select_port = |solver: Option<&(u16, PortSolver<'_>)>| {
            let try_take = |local: SocketAddr| {
                let tuple = FourTuple { local, remote };
                let is_ours = |(queue, solver): &(u16, PortSolver<'_>)| {
                    solver.queue_of_port(local.port()) == *queue
                };
                // Neither the port of a listener, nor a four-tuple in use, nor the remote end
                // itself: a connection has two ends.
                if !solver.is_none_or(is_ours)
                    || local == remote
                    || is_taken(&tuple)
                    || listeners.find(local).is_some()
                {
                    return Ok(false);
                }
                // The other shards may use the four-tuple: the reservation decides.
                match mesh.as_ref().map_or(Ok(()), |mesh| mesh.owners().reserve(&tuple, mesh.id()))
                {
                    Ok(()) => Ok(true),
                    Err(ReserveError::Owned(_)) => Ok(false),
                    Err(ReserveError::Full) => Err(CmError::TooManyConnections),
                }
            };
            secrets.select_ephemeral_port(&config.source_ports, source, remote, try_take)
        };
        // RFC 6056 section 3.3.3: the next free port from an offset that a keyed hash of the ends
        // gives.
        let local = match select_port(solver.as_ref()) {
            // No free port leads to the queue of this shard: the others forward what they receive.
            Err(CmError::NoResources) if solver.is_some() => select_port(None)?,
            selected => selected?,
        };
        Ok(self.tcb_of(now, local, ends))
    }

    /// Opens a TCP connection from this port.
    ///
    /// # Errors
    /// `PortInUse` by a listener, or as the remote end itself; `ConnectionExists`;
    /// `TooManyConnections` over all shards.
    pub(crate) fn open_from(
        &mut self,
        now: Instant,
        port: u16,
        ends: Ends,
        is_taken: impl Fn(&FourTuple) -> bool,
    ) -> Result<Tcb<Rx<E>, Retained<E>>, CmError> {
        let (local, remote) = (SocketAddr::new(ends.source, port), ends.remote);
        let tuple = FourTuple { local, remote };
        // A connection has two ends.
        if local == remote || self.listeners.find(local).is_some() {
            return Err(CmError::PortInUse(local.port()));
        }
        if is_taken(&tuple) {
            return Err(CmError::ConnectionExists(local.port()));
        }
        self.reserve(&tuple).map_err(|error| match error {
            ReserveError::Owned(_) => CmError::ConnectionExists(local.port()),
            ReserveError::Full => CmError::TooManyConnections,
        })?;
        Ok(self.tcb_of(now, local, ends))
    }

    /// Creates the TCB of an active open.
    fn tcb_of(&self, now: Instant, local: SocketAddr, ends: Ends) -> Tcb<Rx<E>, Retained<E>> {
        let Ends { remote, is_hairpin, .. } = ends;
        let tuple = FourTuple { local, remote };
        // Otherwise the address is to be resolved.
        let own = is_hairpin.then_some(self.capabilities.mac);
        let template = self.net.header_template(own.unwrap_or_default(), tuple);
        // RFC 6528 section 3: ISN by clock and keyed hash of the four-tuple.
        let iss_ts = self.secrets.iss_and_ts_offset(now, &tuple);
        Tcb::connect(now, self.tcp_config_to(remote.ip(), is_hairpin), template, iss_ts)
    }
}

impl<E: Env> Connection<E> {
    /// True if `segment` acknowledges the SYN of an active open, but the port has delivered it to
    /// another shard, and another source port is to be tried.
    pub(super) fn wants_other_port(&self, cx: &Context<E>, segment: &Segment) -> bool {
        let Some(mesh) = &cx.mesh else { return false };
        let Phase::AwaitReply(await_reply) = &self.phase else { return false };
        mesh.forwarding.is_forwarded
            && matches!(mesh.steering(), PortSteering::Unknown)
            && usize::from(await_reply.source_ports) < source_ports_max(mesh.shard_count())
            && self.tcb.state() == State::SynSent
            && segment.flags.has(Flags::SYN)
            && segment.flags.has(Flags::ACK)
            && !segment.flags.has(Flags::RST)
            && segment.ack == self.tcb.snd_una() + 1
    }

    /// Has the active open stay with its source port, wherever the replies arrive.
    pub(crate) fn keep_port(&mut self) {
        if let Phase::AwaitReply(await_reply) = &mut self.phase {
            await_reply.source_ports = u16::MAX;
        }
    }

    /// Makes this connection, which was removed from the table, one that opens from another port.
    pub(crate) fn reopened(self, mut tcb: Tcb<Rx<E>, Retained<E>>) -> Self {
        tcb.inherit_settings(&self.tcb);
        let Self { mut phase, startup_tx, deadline, half_close, .. } = self;
        if let Phase::AwaitReply(await_reply) = &mut phase {
            await_reply.source_ports += 1;
        }
        let mut conn = Self::new(tcb, phase, deadline);
        (conn.startup_tx, conn.half_close) = (startup_tx, half_close);
        conn
    }
}
