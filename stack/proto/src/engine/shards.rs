//! Shards of one port: forwarding to the other engines, and the messages received from them.
//!
//! A frame is forwarded once: a frame from another shard is processed here, or dropped.
//!
//! | Frame | Goes to |
//! |---|---|
//! | TCP segment of no connection here | the owner of its four-tuple, if another shard |
//! | SYN of this host to itself | the shard to which the port would deliver it from another host |
//! | ICMP error | the owner of the four-tuple that it quotes |
//! | fragment | the shard that a hash of the packet selects; the whole segment to its owner |
//! | ARP, neighbor discovery, MLD | the lead, which answers, and shares what it learns |

use crate::connection::context::Context;
use crate::connection::schedule::BURST_LEN;
use crate::connection::segment_frame::SegmentFrame;
use crate::connection::setup::connect::Ends;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::net::icmp_error::IcmpError;
use crate::net::interface::FrameClass;
use crate::steering::mesh::PortSteering;
use crate::steering::message::Message;
use crate::steering::owners::ShardId;
use crate::time::Instant;
use crate::verbs::wc::Completions;
use crate::wire::tcp::{FourTuple, Segment, rst_reply};

/// Requests offered in a pass for slots that other shards freed, at most.
const OFFERED_MAX: usize = 64;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// True if this engine is the one that announces the addresses of the port, and answers and
    /// asks neighbors.
    #[inline]
    pub(super) fn is_lead(&self) -> bool {
        self.cx.mesh.as_ref().is_none_or(|mesh| mesh.is_lead())
    }

    /// True if messages of other shards may have arrived, or more slots that they freed are left.
    #[inline]
    pub(super) fn has_messages(&self) -> bool {
        let Context { mesh, listeners, .. } = &self.cx;
        mesh.as_ref().is_some_and(|mesh| mesh.has_messages() || listeners.has_more_to_offer)
    }

    /// Receives messages of other shards, to be processed after the burst.
    #[cold]
    pub(super) fn receive_messages(&mut self) {
        if let Some(mesh) = &mut self.cx.mesh {
            mesh.receive(BURST_LEN);
        }
    }

    /// Processes the messages received, and offers the requests that waited for a backlog in which
    /// another shard has freed a slot. True if there were messages.
    #[cold]
    pub(super) fn serve_mesh(&mut self, now: Instant) -> bool {
        let Some(mesh) = &mut self.cx.mesh else { return false };
        let messages = std::mem::take(&mut mesh.forwarding.messages);
        let has_messages = !messages.is_empty();
        if has_messages {
            self.process_messages(now, messages);
        }
        if let Some(mesh) = &mut self.cx.mesh {
            mesh.forwarding.misdelivered = None;
        }
        if self.cx.listeners.has_waiting_requests() {
            let mut left = OFFERED_MAX;
            for listener in self.cx.listeners.waiting_listeners() {
                left -= self.offer_pending_requests(listener, left);
            }
            self.cx.listeners.has_more_to_offer = left == 0;
        }
        has_messages
    }

    fn process_messages(&mut self, now: Instant, mut messages: Vec<Message<D::Rx>>) {
        self.set_forwarded(true);
        for message in messages.drain(..) {
            match message {
                // Those in a row may be a train.
                Message::Frame(frame) => {
                    self.cx.verbs.counters.frames_from_shards += 1;
                    self.burst.push(frame);
                    continue;
                }
                other => {
                    self.process_burst(now);
                    self.process_message(now, other);
                }
            }
        }
        self.process_burst(now);
        self.set_forwarded(false);
        if let Some(mesh) = &mut self.cx.mesh {
            mesh.forwarding.messages = messages;
        }
    }

    /// True if the frame in process came from another shard.
    fn is_forwarded(&self) -> bool {
        self.cx.mesh.as_ref().is_some_and(|mesh| mesh.forwarding.is_forwarded)
    }

    /// Records whether the frames in process came from another shard; returns what was recorded.
    pub(super) fn set_forwarded(&mut self, is_forwarded: bool) -> bool {
        self.cx
            .mesh
            .as_mut()
            .is_some_and(|mesh| std::mem::replace(&mut mesh.forwarding.is_forwarded, is_forwarded))
    }

    fn process_message(&mut self, now: Instant, message: Message<D::Rx>) {
        let Context { net, device, verbs, .. } = &mut self.cx;
        match message {
            Message::Frame(_) => debug_assert!(false, "a frame belongs to a burst"),
            Message::Segment(whole) => {
                let (segment, frame) = *whole;
                verbs.counters.frames_from_shards += 1;
                self.on_segment(now, &segment, frame);
            }
            Message::IcmpError(error) => self.on_icmp_error(now, &error),
            Message::RecycleTimeWait => {
                // Another shard may have been faster.
                if self.cx.mesh.as_ref().is_some_and(|mesh| mesh.owners().is_full()) {
                    self.recycle_time_wait();
                }
            }
            Message::Advert(advert) => net.learn(now, &advert, &mut verbs.counters),
            Message::Solicit(solicit) => {
                net.send_solicit_once(now, *solicit, device, &mut verbs.counters);
            }
        }
    }

    /// Forwards a segment of no connection here if another shard owns its four-tuple; otherwise
    /// gives the frame back.
    #[inline]
    pub(super) fn forward_segment<F: SegmentFrame<D>>(
        &mut self,
        segment: &Segment,
        frame: F,
    ) -> Option<F> {
        if self.cx.mesh.is_none() {
            return Some(frame);
        }
        let owner = self.other_owner(&segment.tuple);
        let Some(owner) = owner.or_else(|| self.hairpin_shard(&segment.tuple)) else {
            return Some(frame);
        };
        if self.is_forwarded() {
            // The connection has moved while the frame was on its way. The peer retransmits.
            self.cx.verbs.counters.shard_messages_dropped += 1;
        } else {
            self.cx.verbs.counters.frames_forwarded += 1;
            self.send_message(owner, frame.into_message(segment));
        }
        None
    }

    /// Returns the owner of a four-tuple if that is another shard.
    #[cold]
    fn other_owner(&mut self, tuple: &FourTuple) -> Option<ShardId> {
        let mesh = self.cx.mesh.as_mut()?;
        // Segments come in trains. For the duration of a pass the owner is as it was: the other
        // shard answers for a four-tuple that it has released meanwhile.
        if let Some((last, owner)) = &mesh.forwarding.misdelivered
            && last == tuple
        {
            return Some(*owner);
        }
        let owner = mesh.owners().owner(tuple).filter(|&owner| owner != mesh.id())?;
        mesh.forwarding.misdelivered = Some((*tuple, owner));
        Some(owner)
    }

    /// Returns the shard that is to own the passive end of a connection within this host, if that
    /// is another shard: the one to which the port's RSS leads. Without RSS it is this one, as over
    /// a link that connects queue `i` to the peer's queue `i`.
    #[cold]
    fn hairpin_shard(&self, tuple: &FourTuple) -> Option<ShardId> {
        let mesh = self.cx.mesh.as_ref()?;
        let PortSteering::Predicted(table) = mesh.steering() else { return None };
        if self.is_forwarded()
            || !self.cx.hairpins_to(tuple.remote.ip())
            || mesh.owners().owner(tuple).is_some()
        {
            return None;
        }
        let shard = ShardId(table.queue_of(tuple));
        mesh.others().find(|&other| other == shard)
    }

    /// Gives up the source port of an active open after its SYN-ACK `segment` arrived at another
    /// shard, and opens the connection from another port. False if there is none: it keeps this
    /// one.
    #[cold]
    pub(super) fn try_other_port(&mut self, now: Instant, index: u32, segment: &Segment) -> bool {
        let FourTuple { local, remote } = segment.tuple;
        let Self { connections, cx, .. } = self;
        let is_taken = |tuple: &_| connections.find_by_hash(tuple).is_some();
        let Some(conn) = connections.get(index) else { return false };
        let is_hairpin = cx.hairpins_to(remote.ip());
        let ends = Ends { source: local.ip(), remote, is_hairpin };
        let opened = match (conn.qp, rst_reply(segment)) {
            // Reserves the four-tuple: nothing may fail after it.
            (Some(qp), Some(rst)) => {
                cx.open_from_free_port(now, ends, is_taken).ok().map(|tcb| (tcb, qp, rst))
            }
            _ => None,
        };
        let Some((tcb, qp, rst)) = opened else {
            connections.get_mut(index).expect("found above").keep_port();
            return false;
        };
        let conn = connections.remove(index).expect("found above");
        let remote_mac = conn.tcb.remote_mac();
        // If there is no frame for it, it answers the next SYN-ACK.
        cx.send_stateless(remote_mac, segment.tuple, &rst);
        cx.release(&segment.tuple);
        cx.verbs.counters.source_ports_abandoned += 1;
        let (conn, downs) = (conn.reopened(tcb), cx.device.link_down_count());
        let conn = connections.insert(conn, downs).expect("a slot was freed");
        conn.start_open(cx, qp);
        true
    }

    /// Forwards a frame that is no TCP segment to this port, if another shard is to process it;
    /// otherwise gives it back.
    pub(super) fn forward_frame(&mut self, frame: D::Rx) -> Option<D::Rx> {
        let Some(mesh) = self.cx.mesh.as_ref().filter(|mesh| !mesh.forwarding.is_forwarded) else {
            return Some(frame);
        };
        let to = match self.cx.net.classify(&frame) {
            FrameClass::Neighbor => mesh.lead(),
            FrameClass::Fragment(hash) => mesh.select(hash),
            FrameClass::Other => return Some(frame),
        };
        if to == mesh.id() {
            return Some(frame);
        }
        self.send_message(to, Message::Frame(frame));
        None
    }

    /// Forwards an ICMP error if another shard owns the connection that it is about. True if so.
    pub(super) fn forward_icmp_error(&mut self, error: &IcmpError) -> bool {
        if self.is_forwarded() || self.connections.find_by_hash(&error.tuple).is_some() {
            return false;
        }
        let Some(owner) = self.other_owner(&error.tuple) else { return false };
        self.send_message(owner, Message::IcmpError(Box::new(*error)));
        true
    }

    /// Removes a connection in TIME-WAIT, because there are too many over all shards. If this shard
    /// has none the others are asked to, and the attempt after this one succeeds.
    #[cold]
    pub(super) fn recycle_any_time_wait(&mut self) -> bool {
        if self.recycle_time_wait() {
            return true;
        }
        let others = self.cx.mesh.as_ref().map(|mesh| mesh.others());
        for shard in others.into_iter().flatten() {
            self.send_message(shard, Message::RecycleTimeWait);
        }
        false
    }

    /// Sends the hardware address that a neighbor has just advertised to the other shards.
    pub(super) fn share_advert(&mut self) {
        let Some(advert) = self.cx.net.take_advert() else { return };
        let Some(mesh) = &self.cx.mesh else { return };
        for shard in mesh.others() {
            self.send_message(shard, Message::Advert(Box::new(advert)));
        }
    }

    /// Sends the solicitations that are due, or has the lead send them.
    pub(super) fn send_solicits(&mut self, now: Instant) {
        let lead = self.cx.mesh.as_ref().filter(|mesh| !mesh.is_lead()).map(|mesh| mesh.lead());
        let Some(lead) = lead else {
            let Context { net, device, verbs, .. } = &mut self.cx;
            net.send_solicits(now, device, &mut verbs.counters);
            return;
        };
        while let Some(solicit) = self.cx.net.next_solicit(now) {
            self.send_message(lead, Message::Solicit(Box::new(solicit)));
        }
    }

    fn send_message(&mut self, to: ShardId, message: Message<D::Rx>) {
        let is_sent = self.cx.mesh.as_ref().is_some_and(|mesh| mesh.send(to, message));
        self.cx.verbs.counters.shard_messages_dropped += u64::from(!is_sent);
    }
}
