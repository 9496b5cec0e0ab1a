//! Port of a context: a device, and how a context watches it.

use std::ops::AddAssign;
use std::os::fd::AsFd;

use ferrowarp_proto::device::Device;
use ferrowarp_proto::steering::mesh::PortSteering;
use ferrowarp_proto::steering::toeplitz::RssTable;

use crate::device::link::DpdkLink;
use crate::device::port::{DeviceCounters, DpdkDevice};
use crate::device::steering::Steering;

/// Device as a context uses it.
pub trait Port: Device {
    /// Counters of the device; zeros if it does not count.
    fn port_counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }

    /// True if the queue has a link: a peer's queue gets what it sends.
    fn has_wire(&self) -> bool {
        true
    }

    /// Link of its port, if the state of that may change. Called once, of the first queue, when a
    /// context is opened; a thread of the context reads it from then on.
    fn link(&self) -> Option<Box<dyn PortLink>> {
        None
    }

    /// Rule by which its port chooses the queue of a segment. The default is for ports that connect
    /// queue `i` with queue `i` of the peer.
    fn port_steering(&self) -> PortSteering {
        PortSteering::Mirrored
    }

    /// Has `observer` called, once, when the device is to be removed. It does not wait. The default
    /// is for devices that stay.
    fn observe_removal(&self, observer: Box<dyn FnOnce() + Send>) {
        drop(observer);
    }

    /// Has `wake` called when frames wait that other users of the port have sent to the queue
    /// ([`Device::hairpins_to`]): its thread may sleep, and if it is just falling asleep it
    /// finds them up to 1 ms later. The default is for ports without others.
    fn wake_by(&self, wake: Box<dyn Fn() + Send + Sync>) {
        drop(wake);
    }

    /// Has other users of the port send nothing more to the queue: nobody polls it any more. The
    /// default is for ports without others.
    fn leave(&self) {}

    /// Receive interrupt of the queue, by which a thread sleeps until frames arrive. `None`, the
    /// default, if it has none: arrivals are then found by polling. It is dropped before the queue.
    fn rx_interrupt(&self) -> Option<Box<dyn RxInterrupt>> {
        None
    }

    /// Frames that wait for the port to accept them, with a later flush.
    fn transmit_backlog(&self) -> usize {
        0
    }

    /// Free frames of its transmit pools, or `None` if the device cannot count them. For reports:
    /// it may take microseconds.
    fn frames_free(&self) -> Option<FramesFree> {
        None
    }
}

/// Receive interrupt of a queue: a descriptor that is readable when frames have arrived.
///
/// To sleep, a thread enables it, polls the queue once more, waits for the descriptor (or for
/// others) and disables it again.
pub trait RxInterrupt: AsFd + Send + Sync {
    /// Has the next frame make the descriptor readable; frames that are there may not. False if
    /// that is not possible any more.
    fn enable(&self) -> bool;

    /// Undoes [`RxInterrupt::enable`]: the descriptor is not readable any more, once the frames are
    /// received.
    fn disable(&self);
}

impl RxInterrupt for dpdk_sys::RxInterrupt {
    fn enable(&self) -> bool {
        Self::enable(self)
    }

    fn disable(&self) {
        Self::disable(self);
    }
}

/// Link of a port, whose state a thread of the context watches: one that polls no shard. It is
/// dropped before the port.
pub trait PortLink: Send {
    /// Reads the state, ten times per second. It may block, for as long as a change may stay
    /// unknown.
    fn is_up(&mut self) -> bool;

    /// True if the link is a connection to one other process, and down once that has ended.
    fn is_to_process(&self) -> bool {
        false
    }

    /// Number of times that a connection to a process has ended, also where the next one began
    /// before the state was read. The default is for links that are not, or do not count.
    fn down_count(&self) -> u64 {
        0
    }

    /// True if the last reading found that nothing will ever cross the link again.
    fn is_gone(&self) -> bool {
        false
    }

    /// Called once if the link is gone: the device is to be removed.
    fn on_gone(&mut self) {}

    /// True if the process at the other end was there before this one: a link that stays down is
    /// one that it does not serve.
    fn joins_process(&self) -> bool {
        false
    }

    /// Called with the first state, for logs.
    fn on_start(&mut self, _is_up: bool) {}

    /// Called when the state has changed, for logs.
    fn on_change(&mut self, _is_up: bool) {}
}

/// Free frames of a device's transmit pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FramesFree {
    /// For segments with FPDUs; each keeps its frame until it is acknowledged.
    pub data: u32,
    /// For segments without payload, ARP, NDP and ICMP.
    pub control: u32,
    /// For retransmissions when `data` is exhausted.
    pub reserve: u32,
}

impl AddAssign for FramesFree {
    fn add_assign(&mut self, other: Self) {
        self.data += other.data;
        self.control += other.control;
        self.reserve += other.reserve;
    }
}

impl Port for DpdkDevice {
    fn port_counters(&self) -> DeviceCounters {
        self.counters()
    }

    fn has_wire(&self) -> bool {
        Self::has_wire(self)
    }

    fn link(&self) -> Option<Box<dyn PortLink>> {
        Some(Box::new(Self::link(self)?))
    }

    fn port_steering(&self) -> PortSteering {
        match self.steering() {
            // Without a hash over ports, connections are not spread as in the table.
            Steering::Predicted(rss) if rss.tcp_ipv4 && rss.tcp_ipv6 => {
                let table = RssTable::new(&rss.key, &rss.table);
                table.map_or(PortSteering::Unknown, PortSteering::Predicted)
            }
            Steering::Mirrored => PortSteering::Mirrored,
            Steering::Predicted(_) | Steering::Learned | Steering::Unknown => PortSteering::Unknown,
        }
    }

    fn observe_removal(&self, observer: Box<dyn FnOnce() + Send>) {
        Self::observe_removal(self, observer);
    }

    fn wake_by(&self, wake: Box<dyn Fn() + Send + Sync>) {
        Self::wake_by(self, wake);
    }

    fn leave(&self) {
        Self::leave(self);
    }

    fn rx_interrupt(&self) -> Option<Box<dyn RxInterrupt>> {
        Some(Box::new(Self::rx_interrupt(self)?))
    }

    fn transmit_backlog(&self) -> usize {
        Self::transmit_backlog(self)
    }

    fn frames_free(&self) -> Option<FramesFree> {
        let [data, control, reserve] = self.available();
        Some(FramesFree { data, control, reserve })
    }
}

impl PortLink for DpdkLink {
    fn is_up(&mut self) -> bool {
        Self::is_up(self)
    }

    fn is_to_process(&self) -> bool {
        Self::is_to_process(self)
    }

    fn down_count(&self) -> u64 {
        Self::down_count(self)
    }

    fn is_gone(&self) -> bool {
        Self::is_gone(self)
    }

    fn on_gone(&mut self) {
        self.report_removal();
    }

    fn joins_process(&self) -> bool {
        Self::joins_process(self)
    }

    fn on_start(&mut self, is_up: bool) {
        self.log_start(is_up);
    }

    fn on_change(&mut self, is_up: bool) {
        self.log_change(is_up);
    }
}
