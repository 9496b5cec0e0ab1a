//! Port of a context in reports: what it does, and its counters.

use ferrowarp::Context;
use ferrowarp::device::DeviceCounters;
use serde::Serialize;

use crate::device::checksum_kind;

/// Port of a context at the end of its use; frames are those since it was opened.
#[derive(Clone, Debug, Serialize)]
pub struct PortFigures {
    /// MAC address.
    pub mac: String,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Computation of TCP and IP checksums.
    pub checksum: &'static str,
    /// The port cuts frames into TCP segments.
    pub tso: bool,
    /// Frames received.
    pub rx_frames: u64,
    /// Frames sent; one that the port cuts counts once.
    pub tx_frames: u64,
    /// Frames passed to the port to be cut into TCP segments.
    pub tx_tso_frames: u64,
    /// Frames not sent: too long, refused by the driver, or without a place in the queue.
    pub tx_dropped: u64,
    /// First segments received that were compared with the port's RSS key and table.
    pub rss_checked: u64,
    /// Segments among them with another hash or on another queue.
    pub rss_mismatches: u64,
    /// Frames that arrived at another shard than their connection's.
    pub frames_forwarded: u64,
}

impl PortFigures {
    /// Collects them.
    #[must_use]
    pub fn of(context: &Context) -> Self {
        let capabilities = context.capabilities();
        let counters = context.counters();
        let DeviceCounters { rx_frames, tx_frames, tx_tso_frames, rss_checked, .. } =
            counters.device;
        let dropped = [
            counters.device.tx_dropped,
            counters.device.tx_too_long,
            counters.device.tx_refused,
            counters.device.tx_no_wire,
        ];
        Self {
            mac: capabilities.mac.map(|byte| format!("{byte:02x}")).join(":"),
            mtu: capabilities.mtu,
            checksum: checksum_kind(context),
            tso: capabilities.tso_segments_max > 1,
            rx_frames,
            tx_frames,
            tx_tso_frames,
            tx_dropped: dropped.into_iter().sum(),
            rss_checked,
            rss_mismatches: counters.device.rss_mismatches,
            frames_forwarded: counters.engine.frames_forwarded,
        }
    }
}
