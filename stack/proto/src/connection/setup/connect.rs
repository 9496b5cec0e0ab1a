//! Initiator's side of connection setup: active open and the MPA Reply Frame.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use crate::connection::context::{Context, Env};
use crate::connection::phase::{AwaitReply, Phase};
use crate::connection::setup::mpa_start::{StartParams, check_private_data, mpa_offer};
use crate::connection::{Connection, StartupTx};
use crate::device::Device;
use crate::mpa::startup::{self, NegotiationError, StartupEvent};
use crate::rdmap::fault::Fault;
use crate::steering::mesh::PortSteering;
use crate::steering::owners::ShardId;
use crate::time::Instant;
use crate::verbs::cm::{CmError, ConnParam, ConnectError, Start};
use crate::verbs::qp::QpEvent;
use crate::wire::mpa::{FrameKind, Startup};
use crate::wire::tcp::FourTuple;

/// Ends of an active open.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    /// Address of this host.
    pub(crate) source: IpAddr,
    /// Remote end as it is in received segments: without scope ID, and an IPv4-mapped address as
    /// IPv4.
    pub(crate) remote: SocketAddr,
    /// The port returns what is sent to the remote end. Another user of the port may come or go
    /// meanwhile: decided once.
    pub(crate) is_hairpin: bool,
}

impl<E: Env> Context<E> {
    /// Creates a connection that opens actively to `remote`, to be inserted into the table.
    /// `is_taken`: true for four-tuples of other connections of this engine. The four-tuple is
    /// reserved among the shards.
    ///
    /// # Errors
    /// [`CmError`]; nothing was started. `TooManyConnections`: over all shards.
    pub(crate) fn open_active(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        param: &ConnParam,
        is_taken: impl Fn(&FourTuple) -> bool,
    ) -> Result<Connection<E>, CmError> {
        param.check()?;
        let revision = if param.start == Start::Frames { param.revision } else { 0 };
        check_private_data(&param.private_data, param.start == Start::Frames, revision >= 2)?;
        let mut ends = self.ends_of(remote, param)?;
        ends.is_hairpin = ends.is_hairpin && self.device.enable_hairpin();
        if !ends.is_hairpin && self.net.routing().is_local(ends.remote.ip()) {
            return Err(CmError::Unreachable);
        }
        let mut tcb = match param.local_port {
            0 => self.open_from_free_port(now, ends, is_taken)?,
            port => self.open_from(now, port, ends, is_taken)?,
        };
        self.apply_settings(&mut tcb, param);
        let offer = mpa_offer(param);
        let phase = Phase::AwaitReply(Box::new(AwaitReply {
            start: param.start,
            ooo_placement: param.ooo_placement,
            offer,
            revision,
            // From a port that the application chose no other is tried.
            source_ports: if param.local_port == 0 { 1 } else { u16::MAX },
            startup_rx: Vec::new(),
        }));
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let timeout = param.connect_timeout.map_or(self.config.startup_timeout_ns, nanos);
        let mut conn = Connection::new(tcb, phase, now + timeout);
        if param.start == Start::Frames {
            let request = startup::build_request(offer, revision, param.private_data.clone());
            conn.startup_tx = Some(StartupTx::new(&request));
        }
        conn.half_close = param.half_close;
        Ok(conn)
    }

    /// Returns the ends of an active open.
    fn ends_of(&self, remote: SocketAddr, param: &ConnParam) -> Result<Ends, CmError> {
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        if remote.port() == 0 {
            return Err(CmError::RemotePort);
        }
        let routing = self.net.routing();
        // No route is needed within this host.
        let is_hairpin = self.hairpins_to(remote.ip());
        let hop = if is_hairpin { Some(remote.ip()) } else { routing.next_hop(remote.ip()) };
        let hop = hop.ok_or(CmError::Unreachable)?;
        let named = param.local_address.map(|ip| ip.to_canonical());
        let source = match named.filter(|ip| !ip.is_unspecified()) {
            Some(ip) if !routing.is_local(ip) => return Err(CmError::NotLocal),
            Some(ip) if ip.is_ipv4() != remote.is_ipv4() => return Err(CmError::Unreachable),
            Some(ip) => ip,
            None => routing.select_source(remote.ip(), hop).ok_or(CmError::Unreachable)?,
        };
        Ok(Ends { source, remote, is_hairpin })
    }

    /// Returns the shard at which the replies to an active open from a port of the application's
    /// choice arrive, if the shards know. At any other they would be forwarded, frame by frame.
    pub(crate) fn shard_of_replies(
        &self,
        remote: SocketAddr,
        param: &ConnParam,
    ) -> Option<ShardId> {
        let Ends { source, remote, is_hairpin } = self.ends_of(remote, param).ok()?;
        let PortSteering::Predicted(table) = self.mesh.as_ref()?.steering() else { return None };
        let local = SocketAddr::new(source, param.local_port);
        // Within this host nothing passes the port.
        let is_chosen = !is_hairpin && param.local_port != 0;
        is_chosen.then(|| ShardId(table.queue_of(&FourTuple { local, remote })))
    }
}

impl<E: Env> Connection<E> {
    /// Starts the active open of a connection that is now in the table: it waits for the hardware
    /// address of its next hop.
    pub(crate) fn start_open(&mut self, cx: &mut Context<E>, qp: u32) {
        self.qp = Some(qp);
        if let Some(qp) = cx.qps.get_mut(qp) {
            let is_idle = qp.transition(QpEvent::Setup);
            debug_assert!(is_idle, "{:?}", qp.state());
            qp.conn = Some(self.id.index);
        }
        cx.schedule.unresolved.push_front(self.id);
        cx.schedule.unresolved_due += 1;
        self.arm_timer(&mut cx.schedule);
    }

    /// Parses the MPA Reply Frame in the received bytes, and acts on it.
    #[doc(alias = "MPA reply")]
    pub(in crate::connection) fn process_mpa_reply(&mut self, cx: &mut Context<E>, now: Instant) {
        let Phase::AwaitReply(await_reply) = &mut self.phase else { return };
        let AwaitReply { offer, revision, ooo_placement, .. } = **await_reply;
        let (reply, used) = match Startup::parse(&await_reply.startup_rx, FrameKind::Reply) {
            Ok(None) => return,
            Ok(Some(found)) => found,
            Err(_) => return self.abort_startup(cx),
        };
        // What follows the frame belongs to full operation.
        let buffered = await_reply.startup_rx.split_off(used);
        if reply.reject {
            self.fail_connect(cx, ConnectError::Rejected, Some(&reply));
            self.begin_close(cx, now);
            return;
        }
        match startup::process_reply(&reply, offer, revision) {
            Ok(negotiated) => {
                let params = StartParams {
                    negotiated,
                    revision: reply.revision,
                    private_data: reply.private_data.clone(),
                    ooo_placement,
                    startup: StartupEvent::Reply,
                };
                self.enter_full_operation(cx, now, params, &buffered);
                self.arm_wakeup(cx, now);
            }
            Err(NegotiationError::InsufficientIrd) => {
                self.terminate_startup(cx, now, &reply, Fault::InsufficientIrd);
            }
            Err(NegotiationError::NoMatchingRtr) => {
                self.terminate_startup(cx, now, &reply, Fault::NoMatchingRtr);
            }
            Err(NegotiationError::UnsupportedRevision | NegotiationError::ReplyMismatch) => {
                self.abort_startup(cx);
            }
        }
    }
}
