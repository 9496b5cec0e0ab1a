//! Values that an off-path attacker must not guess: ISS (RFC 6528), timestamp offset (RFC 7323) and
//! ephemeral ports (RFC 6056).

use core::hash::{Hash, Hasher};
use core::net::{IpAddr, SocketAddr};

use crate::net::siphash_keys::{KeyPurpose, Secret};
use crate::tcp::IssAndTsOffset;
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::FourTuple;

/// Ephemeral ports (RFC 6335 section 6).
const EPHEMERAL_PORTS: core::ops::Range<u16> = 49_152..65_535;

/// Keys of these values, and the number of ephemeral ports drawn.
pub(crate) struct Secrets {
    sequence_numbers: Secret,
    timestamps: Secret,
    ports: Secret,
    next_ephemeral: u16,
}

impl Secrets {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            sequence_numbers: Secret::new(seed, KeyPurpose::SequenceNumbers),
            timestamps: Secret::new(seed, KeyPurpose::Timestamps),
            ports: Secret::new(seed, KeyPurpose::Ports),
            next_ephemeral: 0,
        }
    }

    /// Returns `source` with a free ephemeral port towards `remote`; `is_taken`: true for
    /// those in use. Ports towards one peer increase from a secret offset (RFC 6056 section 3.3.3).
    pub(crate) fn select_ephemeral_port(
        &mut self,
        source: IpAddr,
        remote: SocketAddr,
        is_taken: impl Fn(SocketAddr) -> bool,
    ) -> Option<SocketAddr> {
        let mut hasher = self.ports.hasher();
        (source, remote).hash(&mut hasher);
        let count = EPHEMERAL_PORTS.end - EPHEMERAL_PORTS.start;
        let offset = u16::try_from(hasher.finish() % u64::from(count)).unwrap_or(0);
        for _ in EPHEMERAL_PORTS {
            self.next_ephemeral = (self.next_ephemeral + 1) % count;
            let port = EPHEMERAL_PORTS.start + (offset + self.next_ephemeral) % count;
            let local = SocketAddr::new(source, port);
            if !is_taken(local) {
                return Some(local);
            }
        }
        None
    }

    /// Returns the ISS, a clock of 4 us plus a keyed hash of the four-tuple (RFC 6528 section 3),
    /// and the timestamp offset, a hash of the four-tuple under another key.
    #[expect(clippy::cast_possible_truncation, reason = "half of a hash, and a clock that wraps")]
    pub(crate) fn iss_and_ts_offset(&self, now: Instant, tuple: &FourTuple) -> IssAndTsOffset {
        let clock = (now.as_micros() / 4) as u32;
        let hash = |secret: Secret| {
            let mut hasher = secret.hasher();
            tuple.hash(&mut hasher);
            hasher.finish() as u32
        };
        IssAndTsOffset {
            iss: Seq(hash(self.sequence_numbers).wrapping_add(clock)),
            ts_offset: hash(self.timestamps),
        }
    }
}
