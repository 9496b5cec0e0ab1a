//! Transmit quantum of a connection: retransmissions before new FPDUs. An FPDU is built only when
//! the window admits it.

use crate::connection::Connection;
use crate::connection::context::{Context, Env};
use crate::connection::tx_reclaim::{LOW_WATER_FRAMES, exceeds_share};
use crate::counters::Counters;
use crate::device::{
    Capabilities, ChecksumRequest, Device, RxFrame, SegmentationRequest, TxClass, TxFrame,
};
use crate::net::neighbor::Lookup;
use crate::net::next_hop::Traffic;
use crate::tcp::{NewDataPlan, Tcb, Transmit, TxDemand};
use crate::time::Instant;
use crate::verbs::queue_pair::Qp;

/// Segments that a connection sends per pass, at most.
pub(crate) const TX_QUANTUM_SEGMENTS: usize = 16;

/// Result of [`Connection::send_new_data`].
#[derive(Clone, Copy)]
enum NewDataResult {
    /// No record was built.
    Nothing,
    /// A record was built, and sent unless TCP keeps it for later. `next_demand` is the demand
    /// after it, if it is known.
    Sent { next_demand: Option<TxDemand> },
}

/// Result of a connection's transmit quantum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxResult {
    /// Nothing more to send now.
    Done { sent: bool },
    /// The quantum was used up, or no frame for a retransmission or an ACK could be allocated:
    /// `starved` if no segment with stream bytes was sent for lack of it.
    Again { sent: bool, starved: bool },
    /// There is new data to send, and no frame for it.
    AwaitFrame { sent: bool },
}

impl TxResult {
    /// True if a frame was sent.
    pub(crate) const fn has_sent(self) -> bool {
        let (Self::Done { sent } | Self::Again { sent, .. } | Self::AwaitFrame { sent }) = self;
        sent
    }

    /// The result if a segment was sent before.
    const fn after_sending(self) -> Self {
        match self {
            Self::Done { .. } => Self::Done { sent: true },
            Self::Again { .. } => Self::Again { sent: true, starved: false },
            Self::AwaitFrame { .. } => Self::AwaitFrame { sent: true },
        }
    }
}

impl<E: Env> Connection<E> {
    /// Sends at most [`TX_QUANTUM_SEGMENTS`] segments. `has_turn`: no other connection is to get a
    /// frame for new data before.
    #[inline(always)]
    pub(crate) fn transmit(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        has_turn: bool,
    ) -> TxResult {
        let mut demand = self.tx_demand(self.qp_of(cx));
        if demand == TxDemand::Nothing && self.closing.is_none() {
            if self.tcb.has_nothing_to_send() {
                return TxResult::Done { sent: false };
            }
            if self.tcb.is_plain_ack_due() && self.send_plain_ack(cx, now) {
                return TxResult::Done { sent: true };
            }
        }
        if let TxDemand::Record(len) = demand
            && len as usize <= self.tcb.emss()
        {
            if let Some(next_demand) = self.send_single(cx, now, len) {
                if next_demand == TxDemand::Nothing && self.is_quiet() {
                    return TxResult::Done { sent: true };
                }
                let rest = TX_QUANTUM_SEGMENTS - 1;
                let first = (next_demand, has_turn);
                return self.transmit_quantum(cx, now, first, rest).after_sending();
            }
            // The attempt may have ended the stream.
            demand = self.tx_demand(self.qp_of(cx));
        }
        self.transmit_quantum(cx, now, (demand, has_turn), TX_QUANTUM_SEGMENTS)
    }

    /// Updates the next hop from the neighbor cache, before frames are sent.
    #[cold]
    pub(crate) fn refresh_next_hop(&mut self, cx: &mut Context<E>, now: Instant) {
        let traffic = Traffic {
            remote: self.tcb.tuple().remote.ip(),
            remote_mac: self.tcb.remote_mac(),
            is_established: self.tcp_established,
            // Advances with every byte acknowledged or received in order.
            progress: self.tcb.snd_una().0.wrapping_add(self.tcb.rcv_nxt().0),
            all_acked: self.tcb.all_acked(),
        };
        match cx.net.refresh_next_hop(now, &mut self.next_hop, &traffic) {
            Lookup::Found(mac) => self.tcb.set_remote_mac(mac),
            Lookup::Unreachable => {
                cx.verbs.counters.neighbors_unreachable += 1;
                cx.schedule.unresolved.push_back(self.id);
            }
            Lookup::Pending => {}
        }
    }

    /// Sends one segment that begins with a whole record of `len` bytes. Returns the demand after
    /// it, or `None` if nothing was sent: the fast path does not admit the segment, frames are
    /// scarce, nothing could be built, or the connection closes.
    #[inline(never)]
    fn send_single(&mut self, cx: &mut Context<E>, now: Instant, len: u32) -> Option<TxDemand> {
        if self.closing.is_some()
            || cx.device.data_avail_count() < LOW_WATER_FRAMES + TX_QUANTUM_SEGMENTS
            || cx.device.tx_free_count() == 0
        {
            return None;
        }
        let plan = self.tcb.plan_whole_record(now, len)?;
        let capacity = plan.capacity();
        let frame = cx.device.allocate(TxClass::Data)?;
        match self.send_new_data(cx, now, (frame, plan), capacity) {
            NewDataResult::Sent { next_demand: Some(demand) } => Some(demand),
            NewDataResult::Sent { next_demand: None } => Some(self.tx_demand(self.qp_of(cx))),
            NewDataResult::Nothing => None,
        }
    }

    /// Sends an ACK that has nothing else to report; false if no frame is free.
    #[inline(never)]
    fn send_plain_ack(&mut self, cx: &mut Context<E>, now: Instant) -> bool {
        let Context { verbs, device, capabilities, schedule, .. } = cx;
        if device.tx_free_count() == 0 {
            return false;
        }
        let Some(mut frame) = device.allocate(TxClass::Control) else { return false };
        let len = self.tcb.write_plain_ack(now, frame.buf_mut());
        let mut port = TxPort::new(device, &mut verbs.counters, capabilities);
        port.send(&mut self.tcb, frame, len, len, |_, _| true);
        schedule.control_frames_out += 1;
        true
    }

    /// Sends at most `quantum` segments. `demand` is the demand of the connection; for `has_turn`
    /// see [`Connection::transmit`].
    #[inline(never)]
    fn transmit_quantum(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        (demand, has_turn): (TxDemand, bool),
        mut quantum: usize,
    ) -> TxResult {
        let (mut sent, mut starved) = (false, true);
        // With the data pool empty no ACK can be piggybacked on data, and the peer's progress may
        // depend on it: a pure ACK is sent.
        let mut drained = false;
        // Demand computed after the record just built, reused by the next iteration.
        let mut next_demand = Some(demand);
        // The connection holds its share of frames: it continues when one of them is acknowledged.
        let mut held_back = false;
        // Frames may become scarce within one quantum. Checked once, if there are bytes to send.
        let mut is_scarce = None;
        while quantum > 0 {
            let mut demand = next_demand.take().unwrap_or_else(|| self.tx_demand(self.qp_of(cx)));
            debug_assert!(demand == self.tx_demand(self.qp_of(cx)), "{demand:?}");
            // RFC 5041 section 6.2.1: FIN follows the last byte.
            if self.closing.is_some() && demand == TxDemand::Nothing {
                self.finish_close(cx);
            }
            // Fair share: with few frames left a connection with many waits for its own.
            let device = &cx.device;
            if demand != TxDemand::Nothing
                && *is_scarce.get_or_insert_with(|| {
                    device.data_avail_count() < LOW_WATER_FRAMES + TX_QUANTUM_SEGMENTS
                })
            {
                held_back |= exceeds_share(device.data_avail_count(), self.tcb.records());
            }
            if drained || held_back {
                demand = TxDemand::Nothing;
            }
            // RFC 9293 section 3.8: TCP decides, from windows, timers and owed ACKs.
            let transmit = self.tcb.next_transmit(now, demand);
            let (class, capacity) = match &transmit {
                Transmit::Idle if drained => return TxResult::AwaitFrame { sent },
                Transmit::Idle => return TxResult::Done { sent },
                Transmit::Control(_) => (TxClass::Control, 0),
                Transmit::Retransmit(_) => (TxClass::Retransmit, 0),
                // The windows admit it, but others wait for frames, and come first.
                Transmit::NewData(_) if !has_turn && is_scarce == Some(true) => {
                    drained = true;
                    continue;
                }
                // RFC 5044 section 4.5: the capacity bounds the FPDU. A minimal one is built whole
                // even if TCP has to cut it; no FPDU packed behind another is.
                Transmit::NewData(plan) => match demand {
                    TxDemand::Record(len) if len as usize <= plan.capacity() => {
                        (TxClass::Data, plan.capacity())
                    }
                    _ => {
                        let capacity = plan.capacity();
                        // Where frames are scarce the share is checked before each segment.
                        if capacity == self.tcb.emss() && is_scarce == Some(false) {
                            let count = self.send_train(cx, now, quantum);
                            if count > 0 {
                                quantum -= count;
                                (sent, starved) = (true, false);
                                continue;
                            }
                        }
                        // req: MPA-102, MPA-109, MPA-121
                        let capacity = capacity.max(self.framing.capacity_min());
                        (TxClass::Data, capacity)
                    }
                },
            };
            // A frame of the pool of its class: data never takes the last ones from ACKs.
            quantum -= 1;
            let Context { verbs, device, capabilities, pools, schedule, .. } = &mut *cx;
            let frame = if device.tx_free_count() > 0 { device.allocate(class) } else { None };
            let Some(mut frame) = frame else {
                verbs.counters.frame_shortages += 1;
                // The pool is empty, and not the transmit queue full: frames have to be reclaimed.
                if device.tx_free_count() > 0 && class != TxClass::Control {
                    pools.tx_reclaim.on_alloc_failed(self.tcb.records());
                }
                if class == TxClass::Data && device.tx_free_count() > 0 {
                    drained = true;
                    continue;
                }
                return TxResult::Again { sent, starved };
            };
            // RFC 9293 section 3.10.2: new data, with FPDUs built into the frame. The demand after
            // them is known by then, and often there is none.
            let len = match transmit {
                Transmit::NewData(plan) => {
                    match self.send_new_data(cx, now, (frame, plan), capacity) {
                        NewDataResult::Nothing => {}
                        NewDataResult::Sent { next_demand: next } => {
                            (sent, starved, next_demand) = (true, false, next);
                            if is_scarce == Some(true) {
                                let Context { verbs, pools, .. } = &mut *cx;
                                pools.tx_reclaim.on_sent(&mut self.tcb, &mut verbs.counters);
                            }
                            if next == Some(TxDemand::Nothing) && self.is_quiet() {
                                return TxResult::Done { sent };
                            }
                        }
                    }
                    continue;
                }
                Transmit::Control(plan) => {
                    schedule.control_frames_out += 1;
                    self.tcb.write_control(now, plan, frame.buf_mut())
                }
                Transmit::Retransmit(plan) => self.tcb.write_retransmit(now, plan, frame.buf_mut()),
                Transmit::Idle => return TxResult::Done { sent },
            };
            // Control frames are headers alone; a retransmission carries a copy of its payload.
            let header_len = if class == TxClass::Control { len } else { self.tcb.header_len() };
            let mut port = TxPort::new(device, &mut verbs.counters, capabilities);
            port.send(&mut self.tcb, frame, len, header_len, |_, _| true);
            sent = true;
            starved &= class == TxClass::Control;
            // After the last ACK or retransmission TCP need not be asked again.
            if demand == TxDemand::Nothing && !drained && self.is_quiet() {
                return TxResult::Done { sent };
            }
        }
        TxResult::Again { sent, starved: false }
    }

    /// Sends a new segment of at most `capacity` bytes in `frame`.
    #[inline(never)]
    fn send_new_data(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        (mut frame, plan): (<E::Device as Device>::Tx, NewDataPlan),
        capacity: usize,
    ) -> NewDataResult {
        let Context { qps, verbs, device, capabilities, .. } = &mut *cx;
        let mut qp = self.qp.and_then(|qp| qps.get_mut(qp));
        let buf = frame.buf_mut();
        let at = self.tcb.header_len();
        let packed = self.pack_payload(qp.as_deref_mut(), verbs, &mut buf[at..at + capacity]);
        if packed.len == 0 {
            if packed.stream_failed {
                self.begin_close(cx, now);
            }
            return NewDataResult::Nothing;
        }
        let next = packed.next.unwrap_or_else(|| self.tx_demand(qp.as_deref()));
        debug_assert!(next == self.tx_demand(qp.as_deref()), "{next:?}");
        let push = next == TxDemand::Nothing;
        let mut port = TxPort::new(device, &mut verbs.counters, capabilities);
        // If the plan does not admit the record, TCP keeps it and sends it later
        // (`Transmit::Retransmit`).
        port.send(&mut self.tcb, frame, at + packed.len, at, |tcb, frame| {
            tcb.send_new_data(now, plan, frame, packed.len, push)
        });
        if packed.stream_failed {
            self.begin_close(cx, now);
            return NewDataResult::Sent { next_demand: None };
        }
        // With markers the length depends on the position in the stream.
        let is_known = next == TxDemand::Nothing || !self.framing.has_markers();
        NewDataResult::Sent { next_demand: is_known.then_some(next) }
    }

    /// True if nothing is to be sent as long as there is no new data.
    #[inline]
    fn is_quiet(&self) -> bool {
        self.tcb.has_nothing_to_send() && self.closing.is_none()
    }

    fn qp_of<'a>(&self, cx: &'a Context<E>) -> Option<&'a Qp> {
        self.qp.and_then(|qp| cx.qps.get(qp))
    }
}

/// Port side of a connection: the last step of every TCP segment sent.
pub(super) struct TxPort<'a, D> {
    device: &'a mut D,
    counters: &'a mut Counters,
    /// The port computes TCP checksums.
    is_offloaded: bool,
}

impl<'a, D: Device> TxPort<'a, D> {
    #[inline(always)]
    pub(super) fn new(
        device: &'a mut D,
        counters: &'a mut Counters,
        capabilities: &Capabilities,
    ) -> Self {
        Self { device, counters, is_offloaded: capabilities.checksum.is_offloaded() }
    }

    /// Sends a frame of `len` bytes, of which `header_len` are headers. Once it is complete, `keep`
    /// retains its stream bytes, if it has any; it returns false if TCP sends them later.
    #[inline(always)]
    pub(super) fn send<R: RxFrame>(
        &mut self,
        tcb: &mut Tcb<R, D::Retained>,
        mut frame: D::Tx,
        len: usize,
        header_len: usize,
        keep: impl FnOnce(&mut Tcb<R, D::Retained>, &mut D::Tx) -> bool,
    ) {
        self.complete(&mut frame, len, || tcb.checksum_request(header_len));
        if keep(tcb, &mut frame) {
            self.hand_over(frame, 1);
        }
    }

    /// Completes a frame of `len` bytes: requests its checksum if the port computes it.
    #[inline(always)]
    pub(super) fn complete(
        &self,
        frame: &mut D::Tx,
        len: usize,
        request: impl FnOnce() -> ChecksumRequest,
    ) {
        frame.set_len(len);
        if self.is_offloaded {
            frame.request_checksum(&request());
        }
    }

    /// Hands a complete frame to the port, which makes `segments` of it.
    #[inline(always)]
    pub(super) fn hand_over(&mut self, frame: D::Tx, segments: u64) {
        self.device.transmit(frame);
        self.counters.frames_out += segments;
    }

    /// Returns a frame for new data, unless the data pool is empty.
    #[inline(always)]
    pub(super) fn allocate_data(&mut self) -> Option<D::Tx> {
        self.device.allocate(TxClass::Data)
    }

    /// Requests that the port cuts a frame into segments; false if its driver refuses.
    pub(super) fn request_segmentation(
        &mut self,
        frame: &mut D::Tx,
        request: &SegmentationRequest,
    ) -> bool {
        self.device.request_segmentation(frame, request)
    }
}
