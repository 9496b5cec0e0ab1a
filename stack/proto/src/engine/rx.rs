//! Demultiplexing of received frames: TCP segments to their connections or to listeners, all other
//! protocols off the fast path, through the interface.

use crate::connection::Connection;
use crate::connection::context::Context;
use crate::connection::schedule::BURST_LEN;
use crate::connection::segment_frame::{PortFrame, SegmentFrame};
use crate::connection::setup::listen::{ListenerAction, Replaced, SetupAction};
use crate::ddp::memory::Memory;
use crate::device::{Device, RxFrame};
use crate::engine::Engine;
use crate::engine::flow_groups::{group_by_flow, is_of_several, may_alternate};
use crate::net::interface::Received;
use crate::tcp;
use crate::time::Instant;
use crate::verbs::wc::Completions;
use crate::wire::ethernet::{self, ETHERNET_LEN, VLAN_ETHERNET_LEN};
use crate::wire::tcp::{Flags, FourTuple, Segment, plain_ports, rst_reply};

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Receives a burst of frames from the port, for the next [`Engine::drive`] to process.
    ///
    /// A caller that collects work posted by other threads calls this first. Work that a thread
    /// posts before it lets the peer send is then in the engine when the peer's frames are
    /// processed. Frames that arrive after this call wait for the next one, even if this burst is
    /// empty.
    #[inline]
    pub fn rx_burst(&mut self) {
        self.rx_burst_done = true;
        if self.burst.is_empty() {
            let count = self.cx.device.receive(&mut self.burst, BURST_LEN);
            self.cx.verbs.counters.frames_in += count as u64;
        }
        if self.has_messages() {
            self.receive_messages();
        }
    }

    /// Processes one burst of frames to completion; false if it is empty.
    #[inline(always)]
    pub(super) fn process_rx(&mut self, now: Instant) -> bool {
        if !self.rx_burst_done {
            self.rx_burst();
        }
        self.rx_burst_done = false;
        let mut worked = !self.burst.is_empty();
        if worked && !self.process_only_frame(now) {
            self.process_burst(now);
        }
        if self.cx.mesh.is_some() {
            worked |= self.serve_mesh(now);
        }
        worked
    }

    /// Processes the burst if it is one frame that takes the short way, with an ACK or one whole
    /// FPDU; otherwise does nothing and returns false.
    #[inline(always)]
    fn process_only_frame(&mut self, now: Instant) -> bool {
        let Self { connections, cx, burst, .. } = self;
        let [frame] = &burst[..] else { return false };
        if !cx.config.short_way {
            return false;
        }
        let Some(ports) = plain_ports(frame.head()) else { return false };
        let index = connections.recent(ports);
        let Some(conn) = connections.get_mut(index) else { return false };
        if !conn.receive_short(cx, now, frame) {
            return false;
        }
        cx.schedule.short_way_counts[0] += 1;
        burst.clear();
        self.after_plain(now, index);
        true
    }

    #[inline(never)]
    pub(super) fn process_burst(&mut self, now: Instant) {
        if self.prefetches() && is_of_several(&self.burst) {
            self.prefetch_burst();
        }
        // The first frame is taken from the end.
        self.burst.reverse();
        let mut is_grouped = false;
        while let Some(mut frame) = self.burst.pop() {
            let ports = plain_ports(frame.head());
            if !is_grouped && may_alternate(ports, &self.burst) {
                is_grouped = true;
                self.burst.push(frame);
                group_by_flow(&mut self.burst);
                // Grouping keeps the first frame, and so its ports.
                let Some(first) = self.burst.pop() else { break };
                frame = first;
            }
            if let Err(frame) = self.on_plain_frame(now, frame, ports) {
                self.on_other_frame(now, frame);
            }
        }
    }

    /// Processes a frame that is no plain segment of a connection that has received lately: any TCP
    /// segment, ARP, NDP, ICMP and the like.
    #[inline(never)]
    fn on_other_frame(&mut self, now: Instant, frame: D::Rx) {
        let mode = self.cx.capabilities.checksum;
        let link = self.cx.net.link();
        let is_ours = frame.head().first_chunk() == Some(&link.mac);
        let l3 = link.parse_header(frame.head()).map(|(_, l3)| l3);
        let segment = match l3.filter(|_| is_ours) {
            Some(ETHERNET_LEN) => Segment::parse(&frame, mode).ok(),
            Some(VLAN_ETHERNET_LEN) => Segment::parse_vlan(&frame, mode).ok(),
            _ => None,
        };
        match segment {
            Some(segment) => self.on_segment(now, &segment, PortFrame(frame)),
            None => self.on_non_tcp_frame(now, frame),
        }
    }

    /// Processes a frame that is no TCP segment to this port.
    #[cold]
    fn on_non_tcp_frame(&mut self, now: Instant, frame: D::Rx) {
        let Some(frame) = self.forward_frame(frame) else { return };
        let Context { net, device, verbs, .. } = &mut self.cx;
        let received = net.on_frame(now, &frame, device, &mut verbs.counters);
        self.share_advert();
        match received {
            Received::Handled => {}
            Received::Dropped => self.cx.verbs.counters.frames_dropped += 1,
            Received::Segment(segment, whole) => {
                // Its fragments may have been forwarded, to be reassembled here. The segment was
                // not yet.
                let is_forwarded = self.set_forwarded(false);
                self.on_segment(now, &segment, whole);
                self.set_forwarded(is_forwarded);
            }
            Received::TcpError(error) => self.on_icmp_error(now, &error),
        }
    }

    /// Processes a frame with these ports, and the train that begins with it, of which the burst
    /// has the rest. Gives the frame back if it is no plain segment of a connection that has
    /// received lately, or if it has to be admitted.
    #[inline(always)]
    fn on_plain_frame(
        &mut self,
        now: Instant,
        frame: D::Rx,
        ports: Option<u32>,
    ) -> Result<(), D::Rx> {
        let Some(ports) = ports else { return Err(frame) };
        let index = self.connections.recent(ports);
        let Self { connections, cx, burst, .. } = self;
        let Some(conn) = connections.get_mut(index) else { return Err(frame) };
        conn.process_plain(cx, now, frame, burst)?;
        self.after_plain(now, index);
        Ok(())
    }

    /// Handles the events of plain segments, and has the connection served if they gave it anything
    /// to send.
    #[inline(always)]
    fn after_plain(&mut self, now: Instant, index: u32) {
        let Some((conn, cx)) = self.at(index) else { return };
        if conn.tcb.has_events() || !cx.deferred.is_empty() {
            // An event may give it something to send, such as a larger window.
            conn.make_ready(&mut cx.schedule);
            self.handle_tcp_events(now, index);
        } else {
            conn.schedule_service(cx);
        }
    }

    /// Processes a TCP segment received in `frame`. The connection is looked up here, once.
    #[inline]
    pub(super) fn on_segment<F: SegmentFrame<D>>(
        &mut self,
        now: Instant,
        segment: &Segment,
        frame: F,
    ) {
        let Some(index) = self.connections.find(&segment.tuple) else {
            self.on_unmatched_segment(now, segment, frame, None);
            return;
        };
        let Some((conn, cx)) = self.at(index) else { return };
        if !conn.tcp_established || segment.flags.has(Flags::SYN) {
            match conn.admit_segment(cx, now, segment) {
                SetupAction::Process => {}
                SetupAction::Drop => return,
                SetupAction::TryOtherPort => {
                    if !self.try_other_port(now, index, segment) {
                        self.pass_segment(now, index, segment, frame);
                    }
                    return;
                }
                SetupAction::Replace(replaced) => {
                    self.remove_connection(index);
                    self.on_unmatched_segment(now, segment, frame, Some(replaced));
                    return;
                }
            }
        }
        conn.process_segment(cx, now, segment, frame);
        if conn.tcb.has_events() || !cx.deferred.is_empty() {
            self.handle_tcp_events(now, index);
        }
    }

    /// Passes a segment to the connection that it is known to be of, without another decision on
    /// its admission.
    #[cold]
    fn pass_segment<F: SegmentFrame<D>>(
        &mut self,
        now: Instant,
        index: u32,
        segment: &Segment,
        frame: F,
    ) {
        let Some((conn, cx)) = self.at(index) else { return };
        conn.process_segment(cx, now, segment, frame);
        self.handle_tcp_events(now, index);
    }

    /// Passes a returned frame to another user of the port that may have the connection or a
    /// listener. False if there is none.
    #[cold]
    fn pass_hairpinned<F: SegmentFrame<D>>(&mut self, frame: F) -> bool {
        let frame = frame.into_port_frame().ok();
        frame.is_some_and(|frame| self.cx.device.pass_hairpinned(frame).is_none())
    }

    /// Processes a segment of no connection: a listener accepts it, or it is answered with RST.
    /// `replaced`: the connection that was removed in favor of it.
    fn on_unmatched_segment<F: SegmentFrame<D>>(
        &mut self,
        now: Instant,
        segment: &Segment,
        frame: F,
        replaced: Option<Replaced>,
    ) {
        let FourTuple { local, remote } = segment.tuple;
        let is_hairpinned = frame.is_hairpinned();
        let may_answer = if is_hairpinned {
            local != remote
        } else {
            // RFC 1122 section 3.2.1.3: nothing is answered to a source that cannot be one host.
            // Another user of the port does not send over the link.
            self.cx.net.may_answer(&segment.tuple) && !self.cx.device.hairpins_to(remote.ip())
        };
        let Some(remote_mac) = ethernet::source_mac(frame.head()).filter(|_| may_answer) else {
            self.cx.verbs.counters.frames_dropped += 1;
            return;
        };
        // The connection may be another shard's.
        let Some(frame) = self.forward_segment(segment, frame) else { return };
        // RFC 9293 section 3.10.7.2: LISTEN; otherwise section 3.10.7.1: CLOSED.
        let is_listening = replaced.is_some() || self.cx.is_listening(local);
        let action = if is_listening {
            if is_hairpinned {
                // The answer goes to this host as well.
                self.cx.device.enable_hairpin();
            }
            self.cx.on_listener_segment(now, segment, remote_mac, replaced)
        } else {
            ListenerAction::Reset
        };
        match action {
            ListenerAction::Done => {}
            ListenerAction::Ignore => {
                let _ = is_hairpinned && self.pass_hairpinned(frame);
            }
            // Third, a SYN: SYN-RECEIVED, and the next pass sends the SYN-ACK.
            ListenerAction::Open(conn) => {
                if !self.make_room() {
                    // A SYN alone may have a forged source: we remove none for it.
                    if self.find_lingering().is_some()
                        && let Some(listener) = conn.listener
                    {
                        self.cx.send_syn_cookie(now, segment, remote_mac, listener);
                    }
                    return;
                }
                let Some((conn, cx)) = self.insert_half_open(conn) else { return };
                conn.make_ready(&mut cx.schedule);
                conn.arm_timer(&mut cx.schedule);
            }
            // RFC 4987 section 3.6: the ACK proves that the source is there, so it may replace a
            // connection that only lingers. SYN-RECEIVED as if the SYN had just been processed.
            ListenerAction::OpenByCookie(conn) => {
                self.make_room_by_force();
                let Some((conn, _)) = self.insert_half_open(conn) else { return };
                let index = conn.id.index;
                self.pass_segment(now, index, segment, frame);
                // The segment completed the handshake, or the connection is removed again.
                let is_half_open = |conn: &Connection<_>| {
                    conn.tcb.tuple() == segment.tuple && conn.tcb.state() == tcp::State::SynReceived
                };
                if self.connections.get(index).is_some_and(is_half_open) {
                    self.remove_connection(index);
                } else {
                    self.cx.verbs.counters.cookies_accepted += 1;
                }
            }
            // Section 3.10.7.1, or an ACK in LISTEN.
            ListenerAction::Reset => {
                if is_hairpinned {
                    if self.pass_hairpinned(frame) {
                        return;
                    }
                    self.cx.device.enable_hairpin();
                }
                self.cx.verbs.counters.segments_unmatched += 1;
                // An RST gets no reply, and does not consume the rate limit.
                if let Some(fields) = rst_reply(segment)
                    && self.limits.resets.admits(now)
                {
                    self.cx.send_stateless(remote_mac, segment.tuple, &fields);
                }
            }
        }
    }
}
