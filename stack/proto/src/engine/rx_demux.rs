//! Demultiplexing of received frames: TCP segments directly, all other protocols off the fast path,
//! through the interface.

use std::vec::Drain;

use crate::cm::context::Context;
use crate::ddp::memory::Memory;
use crate::device::{Device, RxFrame};
use crate::engine::Engine;
use crate::engine::segment_frame::PortFrame;
use crate::net::interface::Received;
use crate::time::Instant;
use crate::verbs::wc::Completions;
use crate::wire::ethernet::{ETHERNET_LEN, VLAN_ETHERNET_LEN};
use crate::wire::tcp::Segment;

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
            let count = self.cx.device.receive(&mut self.burst, super::BURST_LEN);
            self.cx.verbs.counters.frames_in += count as u64;
        }
    }

    /// Processes one burst of frames to completion.
    pub(super) fn process_rx(&mut self, now: Instant) -> bool {
        if !self.rx_burst_done {
            self.rx_burst();
        }
        self.rx_burst_done = false;
        let mut burst = std::mem::take(&mut self.burst);
        let worked = !burst.is_empty();
        let mut frames = burst.drain(..);
        while let Some(frame) = frames.next() {
            self.on_frame(now, frame, &mut frames);
        }
        drop(frames);
        self.burst = burst;
        worked
    }

    /// Processes a frame, and the following ones that form a train with it. An untagged TCP segment
    /// to this port takes one comparison of its destination address and one parse; other frames are
    /// parsed again.
    fn on_frame(&mut self, now: Instant, frame: D::Rx, following: &mut Drain<'_, D::Rx>) {
        let mode = self.cx.capabilities.checksum;
        let is_ours = frame.head().first_chunk() == Some(&self.cx.net.link().mac);
        if is_ours
            && self.cx.net.link().vlan.is_none()
            && let Ok(segment) = Segment::parse(&frame, mode)
        {
            self.on_segments::<ETHERNET_LEN>(now, &segment, frame, following);
        } else {
            self.on_other_frame(now, frame, is_ours, following);
        }
    }

    /// Processes the segment of `frame`, whose IP header is at offset `L3`, and the train that
    /// begins with it, if there is one.
    #[inline(always)]
    fn on_segments<const L3: usize>(
        &mut self,
        now: Instant,
        segment: &Segment,
        frame: D::Rx,
        following: &mut Drain<'_, D::Rx>,
    ) {
        let frame = if following.as_slice().is_empty() {
            frame
        } else {
            match self.on_train::<L3>(now, segment, frame, following) {
                Ok(()) => return,
                Err(frame) => frame,
            }
        };
        self.on_segment(now, segment, PortFrame(frame));
    }

    /// Processes a frame that is no untagged TCP segment to this port: TCP with a VLAN tag, or ARP,
    /// NDP, ICMP and the like.
    #[inline(never)]
    fn on_other_frame(
        &mut self,
        now: Instant,
        frame: D::Rx,
        is_ours: bool,
        following: &mut Drain<'_, D::Rx>,
    ) {
        if is_ours
            && self
                .cx
                .net
                .link()
                .parse_header(frame.head())
                .is_some_and(|(_, l3)| l3 == VLAN_ETHERNET_LEN)
            && let Ok(segment) = Segment::parse_vlan(&frame, self.cx.capabilities.checksum)
        {
            self.on_segments::<VLAN_ETHERNET_LEN>(now, &segment, frame, following);
        } else {
            self.on_non_tcp_frame(now, &frame);
        }
    }

    /// Processes a frame that is no TCP segment to this port.
    #[cold]
    fn on_non_tcp_frame(&mut self, now: Instant, frame: &D::Rx) {
        let Context { net, device, verbs, .. } = &mut self.cx;
        match net.on_frame(now, frame, device, &mut verbs.counters) {
            Received::Handled => {}
            Received::Dropped => verbs.counters.frames_dropped += 1,
            Received::Segment(segment, whole) => self.on_segment(now, &segment, whole),
            Received::TcpError(error) => self.on_icmp_error(now, &error),
        }
    }
}
