//! Steps of an exchange, the same at both ends.

use ferrowarp_apps::pattern::Pattern;

use crate::InteropEndOptions;

/// Messages start at unaligned offsets up to this.
pub(crate) const OFFSET_MAX: usize = 64;
/// Bytes per RDMA Read of a burst.
pub(crate) const BURST_READ_LEN: usize = 64;
/// Maximum number of RDMA Reads of a burst.
pub(crate) const BURST_MAX: usize = 256;
const REGION_LEN_MIN: usize = 64 << 10;

/// Operation of the active end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A Send; with Solicited Event, with Invalidate, with both.
    Send { solicited: bool, invalidates: bool },
    /// An RDMA Write, and an empty Send.
    Write,
    /// An RDMA Read, and an empty Send.
    Read,
    /// Twice ORD small RDMA Reads posted at once, and an empty Send.
    Burst,
}

const KINDS: [Kind; 7] = [
    Kind::Send { solicited: false, invalidates: false },
    Kind::Send { solicited: true, invalidates: false },
    Kind::Send { solicited: false, invalidates: true },
    Kind::Send { solicited: true, invalidates: true },
    Kind::Write,
    Kind::Read,
    Kind::Burst,
];
/// Number of kinds without RDMA Reads, which come first.
const KINDS_WITHOUT_READS: usize = 5;

/// A step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Operation.
    pub(crate) kind: Kind,
    /// Number of the step, from zero for each active end.
    pub(crate) number: u32,
    /// Message size in bytes.
    pub(crate) size: usize,
    /// Offset in `tx` of the Data Source.
    pub(crate) source: usize,
    /// Offset in `rx` of the Data Sink.
    pub(crate) sink: usize,
}

/// Returns all steps of an active end.
pub(crate) fn steps(options: &InteropEndOptions) -> Vec<Step> {
    let kinds = &KINDS[..if options.no_reads { KINDS_WITHOUT_READS } else { KINDS.len() }];
    let all = options.sizes.iter().flat_map(|&size| kinds.iter().map(move |&kind| (kind, size)));
    let step = |(number, (kind, size)): (u32, _)| {
        let offset = |factor| 1 + number as usize * factor % (OFFSET_MAX - 1);
        Step { kind, number, size, source: offset(5), sink: offset(7) }
    };
    (0..).zip(all).map(step).collect()
}

/// Returns the length of each region.
pub(crate) fn region_len(options: &InteropEndOptions) -> usize {
    options.sizes.iter().copied().fold(REGION_LEN_MIN, usize::max) + OFFSET_MAX
}

impl Step {
    /// Returns the pattern of one of the ends: stream 0 for the initiator.
    pub(crate) const fn pattern(&self, by_initiator: bool) -> Pattern {
        Pattern::new(!by_initiator as u32, self.number as u64)
    }

    /// Returns the number of bytes that the step transfers.
    pub(crate) fn len(&self, ord: u16) -> usize {
        match self.kind {
            Kind::Burst => (2 * usize::from(ord)).min(BURST_MAX) * BURST_READ_LEN,
            _ => self.size,
        }
    }
}
