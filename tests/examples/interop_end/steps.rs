//! The steps of an exchange, which both ends know.

use ferrowarp_apps::pattern::Pattern;

use crate::Options;

/// Messages start at odd places up to this.
pub(crate) const OFFSET_MAX: usize = 64;
/// Bytes of an RDMA Read in a burst.
pub(crate) const BURST_PIECE: usize = 64;
/// Most of them in a burst.
pub(crate) const BURST_MAX: usize = 256;
const REGION_LEN_MIN: usize = 64 << 10;

/// What the end that acts does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A Send; with Solicited Event, with Invalidate, with both.
    Send { solicited: bool, invalidates: bool },
    /// An RDMA Write, and an empty Send.
    Write,
    /// An RDMA Read, and an empty Send.
    Read,
    /// Twice as many small RDMA Reads at a time as may be outstanding, and an empty Send.
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
/// Those without RDMA Reads.
const KINDS_WITHOUT_READS: usize = 5;

/// A step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// What is done.
    pub(crate) kind: Kind,
    /// From zero, for each end that acts.
    pub(crate) number: u32,
    /// Bytes of the message.
    pub(crate) size: usize,
    /// Where they lie in `tx` of the end that has them.
    pub(crate) source: usize,
    /// Where they go to in `rx` of the other one.
    pub(crate) sink: usize,
}

/// All steps of an end that acts.
pub(crate) fn steps(options: &Options) -> Vec<Step> {
    let kinds = &KINDS[..if options.no_reads { KINDS_WITHOUT_READS } else { KINDS.len() }];
    let all = options.sizes.iter().flat_map(|&size| kinds.iter().map(move |&kind| (kind, size)));
    let step = |(number, (kind, size)): (u32, _)| {
        let place = |factor| 1 + number as usize * factor % (OFFSET_MAX - 1);
        Step { kind, number, size, source: place(5), sink: place(7) }
    };
    (0..).zip(all).map(step).collect()
}

/// Bytes of each region.
pub(crate) fn region_len(options: &Options) -> usize {
    options.sizes.iter().copied().fold(REGION_LEN_MIN, usize::max) + OFFSET_MAX
}

impl Step {
    /// The bytes that one of the ends has built: the initiator for stream 0.
    pub(crate) const fn pattern(&self, by_initiator: bool) -> Pattern {
        Pattern::new(!by_initiator as u32, self.number as u64)
    }

    /// Bytes that the step moves.
    pub(crate) fn len(&self, ord: u16) -> usize {
        match self.kind {
            Kind::Burst => (2 * usize::from(ord)).min(BURST_MAX) * BURST_PIECE,
            _ => self.size,
        }
    }
}
