//! Connection setup: active open, accept, and the MPA startup exchange up to its result.

use core::hash::{BuildHasher, Hash, Hasher};
use core::net::{IpAddr, SocketAddr};

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::connection::{AwaitDecision, AwaitReply, Connection, NEVER, Phase, StartupTx};
use crate::engine::mpa_start::StartParams;
use crate::engine::next_hop::NextHop;
use crate::engine::wheel::ArmedTimers;
use crate::mpa::framing::Framing;
use crate::mpa::startup::{self, Negotiated, NegotiationError, Offer};
use crate::net::siphash_keys::Secret;
use crate::rdmap::terminate::Fault;
use crate::tcp::{IssAndTsOffset, Tcb};
use crate::time::Instant;
use crate::verbs::cm::{
    CmError, ConnInfo, ConnParam, ConnectError, EndReason, Event, PRIVATE_DATA_LEN_MAX, RequestId,
    Start,
};
use crate::verbs::qp::QpState;
use crate::verbs::wc::{Completions, QpId};
use crate::wire::mpa::{ENHANCED_LEN, FrameKind, Startup};
use crate::wire::seq::Seq;
use crate::wire::tcp::{FourTuple, HeaderTemplate};

/// Ephemeral ports (RFC 6335 section 6).
const EPHEMERAL_PORTS: core::ops::Range<u16> = 49_152..65_535;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Connects a queue pair; [`Event::Established`] or [`Event::ConnectFailed`] follows.
    ///
    /// # Errors
    /// [`CmError`]; nothing was started.
    pub fn connect(
        &mut self,
        now: Instant,
        qp: QpId,
        remote: SocketAddr,
        param: &ConnParam,
    ) -> Result<(), CmError> {
        let qp_index = self.idle_qp(qp)?;
        let revision = if param.start == Start::Frames { param.revision.min(2) } else { 0 };
        check_private_data(&param.private_data, param.start == Start::Frames, revision >= 2)?;
        // As in received segments: without scope ID, and IPv4-mapped addresses as IPv4.
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let hop = self.routing.next_hop(remote.ip()).ok_or(CmError::Unreachable)?;
        let source = match param.local_address {
            Some(ip) if !self.routing.is_local(ip) => return Err(CmError::NotLocal),
            Some(ip) if ip.is_ipv4() != remote.is_ipv4() => return Err(CmError::Unreachable),
            Some(ip) => ip,
            None => self.routing.select_source(remote.ip(), hop).ok_or(CmError::Unreachable)?,
        };
        let local = self.select_ephemeral_port(source, remote).ok_or(CmError::NoResources)?;
        let tuple = FourTuple { local, remote };
        let template = self.header_template([0; 6], tuple);
        let origin = self.iss_and_ts_offset(now, &tuple);
        let tcb = Tcb::connect(now, self.tcp_config(&tuple), template, origin);
        let offer = mpa_offer(param);
        let (start, place_early) = (param.start, param.place_early);
        let awaits = AwaitReply {
            start,
            ooo_placement: place_early,
            offer,
            revision,
            startup_rx: Vec::new(),
        };
        let phase = Phase::AwaitReply(Box::new(awaits));
        let mut conn = new_connection(tcb, phase, now + self.config.startup_timeout_ns);
        if start == Start::Frames {
            let request = startup::build_request(offer, revision, &param.private_data);
            conn.startup_tx = Some(StartupTx::new(&request));
        }
        conn.qp = Some(qp_index);
        let index = self.insert_connection(tuple, conn).ok_or(CmError::TooManyConnections)?;
        if let Some(qp) = self.verbs.get_mut(qp_index) {
            qp.state = QpState::Connecting;
            qp.half_close = param.half_close;
            qp.conn = Some(index);
        }
        self.unresolved.push_front(index);
        self.unresolved_due += 1;
        self.arm_timer(index);
        Ok(())
    }

    /// Accepts a connection request on a queue pair; [`Event::Established`] follows.
    ///
    /// # Errors
    /// [`CmError`]; the request can still be accepted or rejected.
    pub fn accept(
        &mut self,
        now: Instant,
        request: RequestId,
        qp: QpId,
        param: &ConnParam,
    ) -> Result<(), CmError> {
        let qp_index = self.idle_qp(qp)?;
        let index =
            self.connections.live_index(request.index, request.generation).ok_or(CmError::Gone)?;
        let conn = self.connections.get_mut(index).ok_or(CmError::Gone)?;
        let Phase::AwaitDecision(awaits) = &mut conn.phase else {
            return Err(CmError::Gone);
        };
        let AwaitDecision { request, buffered: early } = &mut **awaits;
        let is_enhanced = request.as_ref().is_some_and(|request| request.enhanced.is_some());
        check_private_data(&param.private_data, request.is_some(), is_enhanced)?;
        let offer = mpa_offer(param);
        let outcome = match request {
            Some(request) => {
                let (reply, terms) = startup::accept(request, offer, &param.private_data);
                conn.startup_tx = Some(StartupTx::new(&reply));
                StartParams {
                    negotiated: terms,
                    revision: request.revision,
                    private_data: request.private_data.iter().copied().collect(),
                    ooo_placement: param.place_early,
                    tx_allowed: false,
                }
            }
            None => StartParams::unframed(Negotiated::rdmac(offer), param.place_early),
        };
        let (unframed, early) = (request.is_none(), std::mem::take(early));
        conn.qp = Some(qp_index);
        if let Some(qp) = self.verbs.get_mut(qp_index) {
            qp.half_close = param.half_close;
        }
        self.leave_backlog(index);
        if unframed && param.start == Start::Streaming {
            self.enter_streaming(index, early);
        } else {
            self.enter_full_operation(index, outcome, early.len());
            self.process_buffered(now, index, &early);
        }
        self.make_ready(index);
        Ok(())
    }

    /// Ends a queue pair's connection now: data of completed requests is still delivered,
    /// outstanding requests are flushed, and FIN follows. [`Engine::close`] completes them first.
    ///
    /// # Errors
    /// [`CmError::Gone`] if there is no such queue pair or it has no connection.
    pub fn disconnect(&mut self, now: Instant, qp: QpId) -> Result<(), CmError> {
        let qp_index = self.verbs.index(qp).ok_or(CmError::Gone)?;
        let qp = self.verbs.get_mut(qp_index).ok_or(CmError::Gone)?;
        let index = qp.conn.ok_or(CmError::Gone)?;
        match qp.state {
            QpState::Connecting => {
                self.fail_connect(index, ConnectError::NoResources, None);
                self.verbs.enter_error(qp_index, EndReason::Local);
                self.abort(index);
                // A connection without a resolved next hop does not transmit, and so is not removed
                // there.
                self.handle_tcp_events_and_arm(now, index);
            }
            QpState::Rts | QpState::Closing => {
                qp.stream.stop();
                // req: DDP-142
                self.verbs.enter_error(qp_index, EndReason::Local);
                self.begin_close(now, index);
            }
            QpState::Idle | QpState::Error => {}
        }
        Ok(())
    }

    /// Parses the startup frame in the received bytes, and acts on it.
    pub(super) fn process_startup(&mut self, now: Instant, index: u32) {
        let is_unframed = self.is_unframed(index);
        let Some(conn) = self.connections.get_mut(index) else { return };
        match &mut conn.phase {
            // Connections without startup frames are handled once TCP is established.
            Phase::AwaitRequest { .. } if is_unframed => {}
            Phase::AwaitReply(awaits) if awaits.start != Start::Frames => {}
            Phase::AwaitRequest { .. } => self.process_mpa_request(index),
            Phase::AwaitReply(awaits) => match Startup::parse(&awaits.startup_rx, FrameKind::Reply)
            {
                Ok(None) => {}
                Ok(Some((reply, used))) => {
                    let early = awaits.startup_rx.split_off(used);
                    self.on_mpa_reply(now, index, &reply, &early);
                }
                Err(_) => self.abort_startup(index),
            },
            Phase::AwaitDecision(_)
            | Phase::Streaming { .. }
            | Phase::Rdma { .. }
            | Phase::DrainTerminate { .. }
            | Phase::Rejected { .. }
            | Phase::Closed => {}
        }
    }

    /// Parses the MPA Request Frame of a passive connection, and offers the request to the
    /// application if the backlog has a free slot.
    pub(super) fn process_mpa_request(&mut self, index: u32) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        let Phase::AwaitRequest { startup_rx } = &mut conn.phase else { return };
        let (request, used) = match Startup::parse(startup_rx, FrameKind::Request) {
            Ok(None) => return,
            Ok(Some(parsed)) => parsed,
            Err(_) => return self.abort_startup(index),
        };
        if startup::check_request(&request).is_err() {
            return self.abort_startup(index);
        }
        if !self.enter_backlog(index) {
            return;
        }
        let Some(conn) = self.connections.get_mut(index) else { return };
        let Phase::AwaitRequest { startup_rx } = &mut conn.phase else { return };
        let early = startup_rx.split_off(used);
        self.offer_request(index, request, early);
    }

    fn offer_request(&mut self, index: u32, request: Startup, buffered: Vec<u8>) {
        let generation = self.connections.generation(index);
        let Some(conn) = self.connections.get_mut(index) else { return };
        let tuple = conn.tcb.tuple();
        let offer = ConnInfo {
            peer: tuple.remote,
            local: tuple.local,
            ird: request.enhanced.map_or(0, |asked| asked.ord),
            ord: request.enhanced.map_or(0, |asked| asked.ird),
            crc: request.crc,
            markers_in: false,
            markers_out: request.markers,
            revision: request.revision,
            extensions: self.config.extensions && request.revision > 0,
            private_data: request.private_data.iter().copied().collect(),
        };
        conn.deadline = NEVER;
        conn.phase =
            Phase::AwaitDecision(Box::new(AwaitDecision { request: Some(request), buffered }));
        self.sweep_events();
        self.verbs.events.push_back(Event::ConnectRequest {
            port: tuple.local.port(),
            request: RequestId { index, generation },
            offer: Box::new(offer),
        });
    }

    fn on_mpa_reply(&mut self, now: Instant, index: u32, reply: &Startup, buffered: &[u8]) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        let Phase::AwaitReply(awaits) = &conn.phase else { return };
        let (offer, revision, place_early) = (awaits.offer, awaits.revision, awaits.ooo_placement);
        if reply.reject {
            self.fail_connect(index, ConnectError::Rejected, Some(reply));
            self.begin_close(now, index);
            return;
        }
        match startup::process_reply(reply, offer, revision) {
            Ok(terms) => {
                let outcome = StartParams {
                    negotiated: terms,
                    revision: reply.revision,
                    private_data: reply.private_data.iter().copied().collect(),
                    ooo_placement: place_early,
                    tx_allowed: true,
                };
                self.enter_full_operation(index, outcome, buffered.len());
                self.arm_siw_wakeup(now, index);
                self.process_buffered(now, index, buffered);
            }
            Err(NegotiationError::InsufficientIrd) => {
                self.terminate_startup(now, index, reply, Fault::InsufficientIrd)
            }
            Err(NegotiationError::NoMatchingRtr) => {
                self.terminate_startup(now, index, reply, Fault::NoMatchingRtr)
            }
            Err(NegotiationError::UnsupportedRevision | NegotiationError::ReplyMismatch) => {
                self.abort_startup(index)
            }
        }
    }

    /// Aborts a connection over an invalid or unacceptable startup frame (RFC 5044 section 7.1,
    /// error 4).
    fn abort_startup(&mut self, index: u32) {
        self.verbs.counters.startup_errors += 1;
        self.fail_connect(index, ConnectError::Protocol, None);
        self.abort(index);
    }

    fn idle_qp(&self, qp: QpId) -> Result<u32, CmError> {
        let index = self.verbs.index(qp).ok_or(CmError::Gone)?;
        let qp = self.verbs.get(index).ok_or(CmError::Gone)?;
        if qp.state == QpState::Idle { Ok(index) } else { Err(CmError::WrongState) }
    }

    /// Returns `source` with a free ephemeral port towards `remote`. Ports towards one peer
    /// increase from a secret offset (RFC 6056 section 3.3.3).
    fn select_ephemeral_port(&mut self, source: IpAddr, remote: SocketAddr) -> Option<SocketAddr> {
        let mut hasher = self.secrets.ports.hasher();
        (source, remote).hash(&mut hasher);
        let count = EPHEMERAL_PORTS.end - EPHEMERAL_PORTS.start;
        let place = u16::try_from(hasher.finish() % u64::from(count)).unwrap_or(0);
        for _ in EPHEMERAL_PORTS {
            self.next_ephemeral = (self.next_ephemeral + 1) % count;
            let port = EPHEMERAL_PORTS.start + (place + self.next_ephemeral) % count;
            let local = SocketAddr::new(source, port);
            let is_taken = self.lookup(&FourTuple { local, remote }).is_some()
                || self.listeners.contains_key(&port);
            if !is_taken {
                return Some(local);
            }
        }
        None
    }

    /// Builds the header template for segments between the ends of `tuple`. Over IPv6 all of them,
    /// of a connection or not, have the same flow label: a keyed hash of the four-tuple, which
    /// cannot be predicted (RFC 6437 section 3).
    #[expect(clippy::cast_possible_truncation, reason = "part of a hash")]
    pub(super) fn header_template(&self, remote_mac: [u8; 6], tuple: FourTuple) -> HeaderTemplate {
        let mut template = HeaderTemplate::with_link(self.link, remote_mac, tuple);
        if tuple.remote.is_ipv6() {
            let mut hasher = self.secrets.flow_labels.hasher();
            tuple.hash(&mut hasher);
            template.set_flow_label((hasher.finish() as u32 & 0xf_ffff).max(1));
        }
        template
    }

    /// Returns the ISS, a clock of 4 us plus a keyed hash of the four-tuple (RFC 6528 section 3),
    /// and the timestamp offset, a hash of the four-tuple under another key.
    #[expect(clippy::cast_possible_truncation, reason = "half of a hash, and a clock that wraps")]
    pub(super) fn iss_and_ts_offset(&self, now: Instant, tuple: &FourTuple) -> IssAndTsOffset {
        let clock = (now.as_micros() / 4) as u32;
        let hash = |secret: Secret| {
            let mut hasher = secret.hasher();
            tuple.hash(&mut hasher);
            hasher.finish() as u32
        };
        IssAndTsOffset {
            iss: Seq(hash(self.secrets.sequence_numbers).wrapping_add(clock)),
            ts_offset: hash(self.secrets.timestamps),
        }
    }

    pub(super) fn insert_connection(
        &mut self,
        tuple: FourTuple,
        conn: Connection<D::Rx, D::Retained>,
    ) -> Option<u32> {
        while self.connections.len() >= self.config.connections_max
            && !self.time_waits.is_empty()
            && !self.recycle_oldest_time_wait()
        {}
        let (index, _) = self.connections.insert(conn)?;
        let (connections, hash) = (&self.connections, self.hash);
        self.by_tuple.insert_unique(hash.hash_one(tuple), index, |&index| {
            connections.get(index).map_or(0, |conn| hash.hash_one(conn.tcb.tuple()))
        });
        Some(index)
    }
}

pub(super) fn new_connection<R: crate::device::RxFrame, T: crate::device::Retained>(
    tcb: Tcb<R, T>,
    phase: Phase,
    deadline: Instant,
) -> Connection<R, T> {
    Connection {
        tcb,
        phase,
        qp: None,
        listener: None,
        arrival_order: None,
        next_hop: NextHop::unresolved(),
        in_time_wait: false,
        tx_allowed: false,
        framing: Framing::without_markers(true),
        unreachable: false,
        tcp_established: false,
        closing: false,
        buffered_len: 0,
        window_growth: 0,
        startup_tx: None,
        deadline,
        in_ready_list: false,
        armed_timers: ArmedTimers::default(),
    }
}

/// Checks that private data fits the startup frame; without startup frames it must be empty.
pub(super) fn check_private_data(data: &[u8], framed: bool, enhanced: bool) -> Result<(), CmError> {
    let room = match (framed, enhanced) {
        (false, _) => 0,
        (true, false) => PRIVATE_DATA_LEN_MAX,
        (true, true) => PRIVATE_DATA_LEN_MAX - ENHANCED_LEN,
    };
    if data.len() > room { Err(CmError::PrivateDataTooLong) } else { Ok(()) }
}

/// What MPA negotiates of a connection's parameters.
pub(super) const fn mpa_offer(param: &ConnParam) -> Offer {
    Offer {
        ird: param.ird,
        ird_max: param.ird_max,
        ord: param.ord,
        crc: param.crc,
        markers: param.markers,
        peer_to_peer: param.peer_to_peer,
        rtr: param.rtr,
        rdmap_draft00: param.rdmap_draft00,
    }
}
