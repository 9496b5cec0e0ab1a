//! Fault model of a link.

/// Loss in bursts: Gilbert-Elliott model with a state transition per frame and no loss in the good
/// state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// Mean length of the bad state in frames, 1 or more.
    pub mean_len: f64,
    /// Loss rate in the bad state, from 0 to 1.
    pub loss: f64,
}

/// Faults of one direction of a link. Rates are fractions from 0 to 1, times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Mean loss rate of frames.
    pub loss: f64,
    /// Loss in bursts; `None`: independent losses.
    pub bursts: Option<GilbertElliott>,
    /// Fraction of frames duplicated.
    pub duplicate: f64,
    /// Fraction of frames delayed further, so that later frames overtake them.
    pub reorder: f64,
    /// Limit of that additional delay; `None`: `delay_ns` plus 100 us.
    pub hold_ns: Option<u64>,
    /// Fraction of IP packets with one flipped bit, anywhere after the Ethernet header. Frames of
    /// other protocols are not corrupted: ARP has no checksum that would detect it.
    pub corrupt: f64,
    /// Bits flip in the TCP payload only. The emulator does not repair checksums.
    pub payload_only: bool,
    /// One-way delay.
    pub delay_ns: u64,
    /// Maximum random addition to the delay. It does not reorder frames.
    pub jitter_ns: u64,
    /// Link rate in bytes per second, Ethernet overhead included ([`crate::wire_bytes`]);
    /// `None`: no serialization delay.
    pub rate: Option<u64>,
    /// Queue limit in bytes, the frame in transmission included (tail drop). Only with a rate.
    pub queue: Option<u64>,
    /// Queue length in bytes above which ECN-capable packets are marked CE (RFC 3168).
    pub mark: Option<u64>,
    /// Path MTU: largest IP packet that is forwarded, in bytes.
    pub mtu: Option<u16>,
}

impl Faults {
    /// A link without faults, delay or limits.
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

    /// Returns the same faults without loss, corruption, queue limit and path MTU: every frame
    /// arrives. Delay, reordering and duplication stay.
    #[must_use]
    pub const fn without_losses(self) -> Self {
        Self { loss: 0.0, bursts: None, corrupt: 0.0, queue: None, mtu: None, ..self }
    }

    /// Returns the limit of the additional delay of a reordered frame.
    #[must_use]
    pub(crate) fn hold_max_ns(&self) -> u64 {
        self.hold_ns.unwrap_or_else(|| self.delay_ns.saturating_add(100_000))
    }

    /// Returns the transition probabilities good to bad and bad to good, and the loss rate in the
    /// bad state.
    pub(crate) fn burst_transitions(&self) -> Option<(f64, f64, f64)> {
        let GilbertElliott { mean_len: len, loss } = self.bursts?;
        // Fraction of frames in the bad state, such that the mean loss rate is `self.loss`.
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
