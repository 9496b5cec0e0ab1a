//! Values that an off-path attacker must not guess: ISS (RFC 6528), timestamp offset (RFC 7323) and
//! ephemeral ports (RFC 6056).

use core::hash::{Hash, Hasher};
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;

use crate::net::siphash_keys::{KeyPurpose, Secret};
use crate::tcp::IssAndTsOffset;
use crate::time::Instant;
use crate::verbs::cm::CmError;
use crate::wire::seq::Seq;
use crate::wire::tcp::FourTuple;

/// Keys of these values, and the number of ephemeral ports drawn.
pub(crate) struct Secrets {
    sequence_numbers: Secret,
    timestamps: Secret,
    ports: Secret,
    next_ephemeral: u32,
}

impl Secrets {
    /// `first`: number of ephemeral ports after which this engine starts. Shards have the same
    /// keys, and would otherwise all try the same ports.
    pub(crate) fn new(seed: u64, first: u32) -> Self {
        Self {
            sequence_numbers: Secret::new(seed, KeyPurpose::SequenceNumbers),
            timestamps: Secret::new(seed, KeyPurpose::Timestamps),
            ports: Secret::new(seed, KeyPurpose::Ports),
            next_ephemeral: first,
        }
    }

    /// Returns `source` with a free port of `range` towards `remote`; `try_take`: false for those
    /// that cannot be used. Ports towards one peer increase from a secret offset (RFC 6056 section
    /// 3.3.3).
    ///
    /// # Errors
    /// The error of `try_take`; [`CmError::NoResources`] if no port is free.
    pub(crate) fn select_ephemeral_port(
        &mut self,
        range: &RangeInclusive<u16>,
        source: IpAddr,
        remote: SocketAddr,
        mut try_take: impl FnMut(SocketAddr) -> Result<bool, CmError>,
    ) -> Result<SocketAddr, CmError> {
        let mut hasher = self.ports.hasher();
        (source, remote).hash(&mut hasher);
        let count = u32::from(range.end().saturating_sub(*range.start())) + 1;
        let offset = u32::try_from(hasher.finish() % u64::from(count)).unwrap_or(0);
        for _ in range.clone() {
            self.next_ephemeral = (self.next_ephemeral + 1) % count;
            let step = u16::try_from((offset + self.next_ephemeral) % count).unwrap_or(0);
            let local = SocketAddr::new(source, range.start() + step);
            if try_take(local)? {
                return Ok(local);
            }
        }
        Err(CmError::NoResources)
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
