//! Demultiplexing of received frames: TCP segments directly, all other protocols off the fast path,
//! through the interface.

use crate::cm::context::Context;
use crate::ddp::memory::Memory;
use crate::device::{Device, RxFrame};
use crate::engine::Engine;
use crate::engine::rx_burst::{group_by_flow, is_of_several, may_alternate};
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
        if worked {
            self.process_burst(now);
        }
        if self.cx.mesh.is_some() {
            worked |= self.serve_mesh(now);
        }
        worked
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
            if !is_grouped && may_alternate(&frame, &self.burst) {
                is_grouped = true;
                self.burst.push(frame);
                group_by_flow(&mut self.burst);
                let Some(first) = self.burst.pop() else { break };
                frame = first;
            }
            if let Err(frame) = self.on_plain_frame(now, frame) {
                self.on_other_frame(now, frame);
            }
        }
    }

    /// Processes a frame that is no plain segment, or that the fast path does not take: any TCP
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
}
