//! State shared by the connections of an engine.

use core::net::IpAddr;
use std::sync::Arc;

use crate::config::EngineConfig;
use crate::connection::schedule::Schedule;
use crate::connection::setup::listeners::{ListenerRef, Listeners};
use crate::connection::setup::secrets::Secrets;
use crate::connection::tcp_configs::TcpConfigs;
use crate::connection::tx::TxPort;
use crate::connection::tx_reclaim::TxReclaim;
use crate::ddp::memory::Memory;
use crate::device::{Capabilities, Device, TxClass, TxFrame};
use crate::mpa::fpdu_pool::FpduPool;
use crate::net::interface::Interface;
use crate::steering::mesh::MeshPort;
use crate::steering::owners::ReserveError;
use crate::tcp::{self, OooPool, Tcb};
use crate::time;
use crate::verbs::cm::ConnParam;
use crate::verbs::qp_table::QueuePairs;
use crate::verbs::resources::Verbs;
use crate::verbs::wc::Completions;
use crate::wire::ip::IpFields;
use crate::wire::tcp::{Fields, FourTuple};

/// The types that an application chooses for an engine.
pub(crate) trait Env {
    /// Port queue.
    type Device: Device;
    /// Registered memory.
    type Memory: Memory;
    /// Completion queues.
    type Completions: Completions;
}

/// Received frame of the device.
pub(crate) type Rx<E> = <<E as Env>::Device as Device>::Rx;
/// Sent frame kept for retransmission.
pub(crate) type Retained<E> = <<E as Env>::Device as Device>::Retained;

/// Everything of an engine except the table of its connections: a connection changes it while it is
/// borrowed itself, and so reaches no other connection. Its effects on others are
/// [`Deferred`].
pub(crate) struct Context<E: Env> {
    pub(crate) config: EngineConfig,
    pub(crate) tcp_configs: TcpConfigs,
    pub(crate) capabilities: Capabilities,
    pub(crate) device: E::Device,
    pub(crate) net: Interface,
    pub(crate) listeners: Listeners,
    pub(crate) secrets: Secrets,
    pub(crate) qps: QueuePairs,
    pub(crate) verbs: Verbs<E::Memory, E::Completions>,
    pub(crate) pools: Pools<Rx<E>>,
    pub(crate) schedule: Schedule,
    pub(crate) deferred: Vec<Deferred>,
    /// The other shards of the port, if there are any.
    pub(crate) mesh: Option<Box<MeshPort<Rx<E>>>>,
}

impl<E: Env> Context<E> {
    /// True for an address of this host, or of another user of the port, to which the port returns
    /// frames.
    pub(crate) fn hairpins_to(&self, remote: IpAddr) -> bool {
        self.capabilities.hairpin_mtu > 0
            && (self.net.routing().is_local(remote) || self.device.hairpins_to(remote))
    }

    /// Returns the TCP settings of a connection: the MSS depends on the address family and on the
    /// route.
    pub(crate) fn tcp_config(&self, tuple: &FourTuple) -> &Arc<tcp::Config> {
        let remote = tuple.remote.ip();
        self.tcp_config_to(remote, self.hairpins_to(remote))
    }

    /// As [`Context::tcp_config`]. `is_hairpin`: the port returns frames to `remote`.
    pub(crate) fn tcp_config_to(&self, remote: IpAddr, is_hairpin: bool) -> &Arc<tcp::Config> {
        if is_hairpin {
            return self.tcp_configs.of_hairpin(remote);
        }
        self.tcp_configs.of_route(remote, || self.net.routing().route_mtu(remote))
    }

    /// Gives a connection the settings of TCP and IP that its parameters name.
    pub(crate) fn apply_settings(&mut self, tcb: &mut Tcb<Rx<E>, Retained<E>>, param: &ConnParam) {
        let ConnParam { keepalive, user_timeout, refusal_retry, dscp, ttl, .. } = *param;
        let default = self.net.ip_fields();
        let (dscp, ttl) = (dscp.unwrap_or(default.dscp), ttl.unwrap_or(default.ttl));
        tcb.set_ip_fields(IpFields { dscp, ttl });
        if keepalive.is_none() && user_timeout.is_none() && refusal_retry.is_none() {
            return;
        }
        let mut cfg = tcp::Config::clone(self.tcp_config(&tcb.tuple()));
        if let Some(keepalive) = keepalive {
            cfg.set_keepalive(keepalive);
        }
        if let Some(timeout) = user_timeout {
            cfg.user_timeout_ns = time::nanos(timeout);
        }
        if let Some(time) = refusal_retry {
            cfg.refusal_retry_ns = time::nanos(time);
        }
        tcb.set_config(self.tcp_configs.share(cfg));
    }

    /// Returns a count that grows by one with each segment with stream bytes, and with few other
    /// frames.
    #[inline]
    pub(crate) const fn stream_segments_out(&self) -> u64 {
        self.verbs.counters.frames_out.wrapping_sub(self.schedule.control_frames_out)
    }

    /// Reserves a four-tuple among the shards of the port.
    ///
    /// # Errors
    /// [`ReserveError`].
    pub(crate) fn reserve(&self, tuple: &FourTuple) -> Result<(), ReserveError> {
        self.mesh.as_ref().map_or(Ok(()), |mesh| mesh.owners().reserve(tuple, mesh.id()))
    }

    /// Releases a four-tuple of this shard.
    pub(crate) fn release(&self, tuple: &FourTuple) {
        if let Some(mesh) = &self.mesh {
            mesh.owners().release(tuple, mesh.id());
        }
    }

    /// Sends a segment without payload between the ends of `tuple`, with checksum offload if the
    /// port has it. False if no frame could be allocated.
    pub(crate) fn send_stateless(
        &mut self,
        remote_mac: [u8; 6],
        tuple: FourTuple,
        fields: &Fields,
    ) -> bool {
        let has_descriptor = self.device.tx_free_count() > 0;
        let frame = if has_descriptor { self.device.allocate(TxClass::Control) } else { None };
        let Some(mut frame) = frame else {
            self.verbs.counters.frame_shortages += 1;
            return false;
        };
        let template = self.net.header_template(remote_mac, tuple);
        let mode = self.capabilities.checksum;
        let len = template.emit(frame.buf_mut(), fields, 0, mode);
        let counters = &mut self.verbs.counters;
        let mut port = TxPort::new(&mut self.device, counters, &self.capabilities);
        port.complete(&mut frame, len, || template.checksum_request(len, mode));
        port.hand_over(frame, 1);
        true
    }
}

/// Effect of one connection on others: deferred until after the call that caused it, and run by the
/// engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deferred {
    /// Too many connections await a request: this one is reset.
    Evict(u32),
    /// The backlog of this listener has a free slot: the next complete request is offered.
    OfferPendingRequests(ListenerRef),
    /// There was no memory for a partial FPDU: old ones are evicted.
    EvictPartialFpdus,
    /// There are too many connections in TIME-WAIT: the oldest is removed.
    RecycleTimeWait,
}

/// Memory that the connections share.
pub(crate) struct Pools<R> {
    /// Partial FPDUs.
    pub(crate) fpdu: FpduPool,
    /// Out-of-order segments.
    pub(crate) ooo: OooPool<R>,
    /// Retained frames of sent segments: the share of each connection, and reclaim.
    pub(crate) tx_reclaim: TxReclaim,
    /// Bytes by which receive windows have grown beyond their initial size.
    pub(crate) window_growth: u64,
}
