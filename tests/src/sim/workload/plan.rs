//! Plan of a run: the requests of its connections, and their end.

use rand::RngExt;
use rand::rngs::SmallRng;

/// End of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndPlan {
    /// They complete all requests.
    Completes,
    /// They may end at any time, because segments are forged or an end restarts.
    MayFail,
    /// This many in each slot are ended with work in flight, then one completes.
    EndedFirst(usize),
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Connections at a time.
    pub conns: usize,
    /// Requests of each end of a connection.
    pub per_side: usize,
    /// Draws the kind of the next request. `true`: the connection allows requests of RFC 7306.
    pub draw: fn(&mut SmallRng, bool) -> Kind,
    /// Some Writes go through memory windows, bound and invalidated repeatedly.
    pub windows: bool,
    /// End of the connections.
    pub ends: EndPlan,
}

impl Plan {
    /// Requests of all kinds; all complete.
    #[must_use]
    pub const fn new(conns: usize, per_side: usize) -> Self {
        Self { conns, per_side, draw: any_kind, windows: false, ends: EndPlan::Completes }
    }

    /// Requests of all kinds on one connection that may end at any time.
    #[must_use]
    pub const fn may_fail(per_side: usize) -> Self {
        Self { ends: EndPlan::MayFail, ..Self::new(1, per_side) }
    }
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Send.
    Send,
    /// A Read.
    Read,
    /// A Write.
    Write,
    /// A Write that is never inline.
    SgWrite,
    /// An atomic operation, Read or Write of the connection's own word.
    OwnWord,
    /// An atomic operation or Read of a word that all connections share.
    SharedWord,
    /// Immediate Data.
    Immediate,
    /// A Write with Immediate Data.
    WriteImmediate,
}

/// Draws any kind of request.
pub fn any_kind(rng: &mut SmallRng, has_rfc7306: bool) -> Kind {
    match rng.random_range(0..if has_rfc7306 { 11 } else { 8 }) {
        0 | 1 => Kind::Send,
        2 | 3 => Kind::Read,
        4 | 5 => Kind::Write,
        6 | 7 => Kind::SgWrite,
        8 => Kind::OwnWord,
        9 => Kind::SharedWord,
        _ if rng.random_bool(0.5) => Kind::Immediate,
        _ => Kind::WriteImmediate,
    }
}

/// Draws a request for a shared word half of the time, Immediate Data often, no plain Write.
pub fn mostly_shared_words(rng: &mut SmallRng, _: bool) -> Kind {
    match rng.random_range(0..10) {
        0..5 => Kind::SharedWord,
        5 => Kind::Read,
        6 => Kind::Send,
        7 => Kind::WriteImmediate,
        _ => Kind::Immediate,
    }
}

impl Kind {
    pub(super) const fn consumes_recv(self) -> bool {
        matches!(self, Self::Send | Self::Immediate | Self::WriteImmediate)
    }

    pub(super) const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::SgWrite | Self::WriteImmediate)
    }
}
