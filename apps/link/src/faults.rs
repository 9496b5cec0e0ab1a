//! What a wire does to frames.

/// Runs of loss: the wire is good or bad, frame by frame, and loses only while it is bad (the
/// model of Gilbert and Elliott, with no loss in the good state).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// Frames that a bad time lasts in the mean, 1 or more.
    pub mean_len: f64,
    /// The share of frames lost in a bad time, from 0 to 1.
    pub loss: f64,
}

/// What a wire does to frames. Shares go from 0 to 1, times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// The share of frames that is lost, in the mean.
    pub loss: f64,
    /// They are lost in runs; `None`: each for itself.
    pub bursts: Option<GilbertElliott>,
    /// The share of frames that arrives twice.
    pub duplicate: f64,
    /// The share of frames that is held back, so that others overtake.
    pub reorder: f64,
    /// How long at most; `None`: as long as the delay, and 100 us more.
    pub hold_ns: Option<u64>,
    /// The share of IP packets in which a bit flips, anywhere behind the Ethernet header. Frames
    /// of other protocols stay as they are: ARP has no checksum, and would be believed.
    pub corrupt: f64,
    /// Bits flip in the payload of TCP alone, as if a router had made the checksums right again.
    pub payload_only: bool,
    /// Time on the wire.
    pub delay_ns: u64,
    /// Added to the delay at random, up to this. Frames do not overtake for it.
    pub jitter_ns: u64,
    /// Bytes per second, those around a frame included ([`crate::wire_bytes`]);
    /// `None`: frames take no time.
    pub rate: Option<u64>,
    /// Bytes that may wait for the wire, and on it; a frame beyond is dropped. Only with a rate.
    pub queue: Option<u64>,
    /// Waiting bytes above which a packet that allows it is marked (RFC 3168: CE).
    pub mark: Option<u64>,
    /// Bytes of the longest IP packet that passes.
    pub mtu: Option<u16>,
}

impl Faults {
    /// A wire without fault, delay or bound.
    pub const NONE: Self = Self {
        loss: 0.0,
        bursts: None,
        duplicate: 0.0,
        reorder: 0.0,
        hold_ns: None,
        corrupt: 0.0,
        payload_only: false,
        delay_ns: 0,
        jitter_ns: 0,
        rate: None,
        queue: None,
        mark: None,
        mtu: None,
    };

    /// The wire repaired: all that is sent arrives, as late and as often as before.
    #[must_use]
    pub const fn without_losses(self) -> Self {
        Self { loss: 0.0, bursts: None, corrupt: 0.0, queue: None, mtu: None, ..self }
    }

    /// The longest hold of a frame that others overtake.
    #[must_use]
    pub(crate) fn hold_max_ns(&self) -> u64 {
        self.hold_ns.unwrap_or_else(|| self.delay_ns.saturating_add(100_000))
    }

    /// Probabilities of the step from good to bad, and from bad to good; and the loss while bad.
    pub(crate) fn burst_transitions(&self) -> Option<(f64, f64, f64)> {
        let GilbertElliott { mean_len: len, loss } = self.bursts?;
        // The share of frames that fall into bad times makes up for the good ones.
        let bad = (self.loss / loss).min(1.0);
        let to_good = if bad >= 1.0 { 0.0 } else { 1.0 / len.max(1.0) };
        let to_bad = if bad >= 1.0 { 1.0 } else { (to_good * bad / (1.0 - bad)).min(1.0) };
        Some((to_bad, to_good, loss))
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::NONE
    }
}
