//! What the two ends agree on in the start-up exchange, and what makes them fail to.

use crate::wire::ddp::Version;
use crate::wire::mpa::{Enhanced, FrameKind, NOT_NEGOTIATED, Startup};

/// Reads that one connection serves or issues at a time, at most.
pub const READ_DEPTH_MAX: u16 = 128;

/// How many RDMA Reads and atomic operations an end has under way at a time, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadDepths {
    /// Those it serves.
    pub ird: u16,
    /// Those it issues.
    pub ord: u16,
}

/// A message that tells a responder that it may send (RFC 6581 section 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// A Send of no bytes.
    Send,
    /// An RDMA Write of no bytes.
    Write,
    /// An RDMA Read of no bytes.
    Read,
}

/// Kinds of ready-to-receive message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrKinds {
    /// [`Rtr::Send`].
    pub send: bool,
    /// [`Rtr::Write`].
    pub write: bool,
    /// [`Rtr::Read`].
    pub read: bool,
}

impl RtrKinds {
    /// Each of them.
    pub const ALL: Self = Self { send: true, write: true, read: true };

    const fn from_enhanced(frame: &Enhanced) -> Self {
        Self { send: frame.rtr_send, write: frame.rtr_write, read: frame.rtr_read }
    }

    const fn intersection(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// Which of several is sent: a Write needs nothing of either end.
    const fn choose(self) -> Option<Rtr> {
        match self {
            Self { write: true, .. } => Some(Rtr::Write),
            Self { read: true, .. } => Some(Rtr::Read),
            Self { send: true, .. } => Some(Rtr::Send),
            _ => None,
        }
    }

    const fn write_to(self, frame: &mut Enhanced) {
        frame.peer_to_peer = true;
        frame.rtr_send = self.send;
        frame.rtr_write = self.write;
        frame.rtr_read = self.read;
    }
}

impl Default for RtrKinds {
    fn default() -> Self {
        Self::ALL
    }
}

/// What an end is ready to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer {
    /// Reads it serves.
    pub ird: u16,
    /// Reads it serves if the peer issues as many: what `ird` is raised to in revision 2, unless
    /// that is 0. Less than `ird` is as much as that.
    pub ird_max: u16,
    /// Reads it issues.
    pub ord: u16,
    /// It asks for CRCs.
    pub crc: bool,
    /// It asks for markers in what it receives.
    pub markers: bool,
    /// An initiator of revision 2 asks that either end may speak first.
    pub peer_to_peer: bool,
    /// The ready-to-receive messages that it knows, if that is asked for.
    pub rtr: RtrKinds,
    /// Where the versions are the older ones, RDMAP is that of draft-ietf-rddp-rdmap-00: RV 1.
    pub rdmap_draft00: bool,
}

impl Offer {
    /// The most Reads that this end serves. An end that said none is asked for none: neither by
    /// what the peer would issue, nor by a ready-to-receive Read.
    // req: RDMAP-287
    fn ird_limit(&self) -> u16 {
        if self.ird == 0 { 0 } else { self.ird.max(self.ird_max).min(READ_DEPTH_MAX) }
    }

    /// The ready-to-receive messages that a responder can take.
    const fn accepted_rtr(&self) -> RtrKinds {
        RtrKinds { read: self.rtr.read && self.ird > 0, ..self.rtr }
    }
}

/// What was agreed, from one end's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Reads this end serves at a time.
    pub ird: u16,
    /// Reads this end issues at a time.
    pub ord: u16,
    /// CRCs are made and checked in both directions.
    pub crc: bool,
    /// There are markers in what this end receives.
    pub markers_in: bool,
    /// There are markers in what this end sends.
    pub markers_out: bool,
    /// Versions of DDP and RDMAP.
    pub version: Version,
    /// What this end sends before anything else (initiator).
    pub rtr: Option<Rtr>,
    /// A Send of no bytes may be the first thing to come, and is for no buffer (responder).
    pub rtr_send_expected: bool,
}

impl Negotiated {
    /// What holds without any exchange, as in the draft and for peers of the RDMA Consortium:
    /// markers and CRCs always, DV 0, and each end knows by itself how many Reads are served and
    /// whether RV is 0 or, as in draft-ietf-rddp-rdmap-00, 1.
    // req: MPA-145
    #[must_use]
    pub fn rdmac(offer: Offer) -> Self {
        Self {
            ird: offer.ird.min(READ_DEPTH_MAX),
            ord: offer.ord.min(READ_DEPTH_MAX),
            // req: MPA-085
            crc: true,
            markers_in: true,
            // req: MPA-142
            markers_out: true,
            // req: RDMAP-055
            version: if offer.rdmap_draft00 { Version::Draft00 } else { Version::Rdmac },
            rtr: None,
            rtr_send_expected: false,
        }
    }
}

/// Why a well-formed frame leads to no agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NegotiationError {
    /// A revision that is not served. The connection is closed without a frame.
    UnsupportedRevision,
    /// The reply's revision or S flag does not answer the request's.
    ReplyMismatch,
    /// The responder issues more Reads than this end can serve: told by a Terminate.
    InsufficientIrd,
    /// No ready-to-receive message that both ends know: told by a Terminate.
    NoMatchingRtr,
}

/// The request of an initiator. `revision` 2 carries IRD and ORD; revision 0 is for peers of the
/// RDMA Consortium, which have no choice of markers and CRCs.
#[must_use]
pub fn build_request(offer: Offer, revision: u8, private_data: &[u8]) -> Startup {
    let enhanced = (revision >= 2).then(|| {
        let (ird, ord) = (offer.ird.min(READ_DEPTH_MAX), offer.ord.min(READ_DEPTH_MAX));
        let mut block = Enhanced { ird, ord, ..Enhanced::default() };
        if offer.peer_to_peer {
            offer.rtr.write_to(&mut block);
            // The ready-to-receive Read takes a place, too (RFC 6581 section 9.1).
            if offer.rtr.read {
                block.ord = block.ord.max(1);
            }
        }
        block
    });
    Startup {
        kind: FrameKind::Request,
        markers: offer.markers || revision == 0,
        crc: offer.crc || revision == 0,
        reject: false,
        revision,
        enhanced,
        private_data: private_data.iter().copied().collect(),
    }
}

/// A responder's look at a request, before its application is asked.
///
/// # Errors
/// [`NegotiationError::UnsupportedRevision`] for anything but 1 and 2, or 0 with markers and CRCs
/// (RFC 5044 appendix C: a peer of the RDMA Consortium).
pub const fn check_request(request: &Startup) -> Result<(), NegotiationError> {
    match request.revision {
        1 | 2 => Ok(()),
        0 if request.markers && request.crc => Ok(()),
        _ => Err(NegotiationError::UnsupportedRevision),
    }
}

/// The reply that accepts `request`, and the terms for the responder.
///
/// The responder lowers its ORD to what the initiator serves and raises its IRD to what the
/// initiator issues (RFC 6581 section 9.1), unless its application serves none, and not above
/// [`Offer::ird_max`] and [`READ_DEPTH_MAX`].
#[must_use]
pub fn accept(request: &Startup, offer: Offer, private_data: &[u8]) -> (Startup, Negotiated) {
    let mut negotiated = Negotiated {
        crc: request.crc || offer.crc,
        markers_in: offer.markers,
        markers_out: request.markers,
        version: Version::Ietf,
        ..Negotiated::rdmac(offer)
    };
    if request.revision == 0 {
        negotiated = Negotiated::rdmac(offer);
    }
    let enhanced = request.enhanced.map(|asked| {
        let mut answer = Enhanced::default();
        if asked.ird == NOT_NEGOTIATED {
            answer.ord = NOT_NEGOTIATED;
        } else {
            negotiated.ord = negotiated.ord.min(asked.ird);
            answer.ord = negotiated.ord;
        }
        if asked.ord == NOT_NEGOTIATED {
            answer.ird = NOT_NEGOTIATED;
        } else {
            negotiated.ird = negotiated.ird.max(asked.ord).min(offer.ird_limit());
            answer.ird = negotiated.ird;
        }
        if asked.peer_to_peer {
            let accepted = offer.accepted_rtr();
            let common = RtrKinds::from_enhanced(&asked).intersection(accepted);
            // With no overlap the reply still names what this end knows (RFC 6581 section 9.2).
            let named = if common.choose().is_some() { common } else { accepted };
            named.write_to(&mut answer);
            negotiated.rtr_send_expected = common.send;
        }
        answer
    });
    let reply = Startup {
        kind: FrameKind::Reply,
        markers: negotiated.markers_in,
        crc: negotiated.crc,
        reject: false,
        revision: request.revision,
        enhanced,
        private_data: private_data.iter().copied().collect(),
    };
    (reply, negotiated)
}

/// The reply that rejects `request`, with what this end would serve and issue, if that is why (RFC
/// 6581 section 9.1). A peer of the RDMA Consortium learns by revision 1 whom it has met (RFC 5044
/// appendix C).
#[must_use]
pub fn reject(request: &Startup, reads: ReadDepths, private_data: &[u8]) -> Startup {
    let ReadDepths { ird, ord } = reads;
    let (ird, ord) = (ird.min(READ_DEPTH_MAX), ord.min(READ_DEPTH_MAX));
    Startup {
        kind: FrameKind::Reply,
        markers: false,
        crc: request.crc,
        reject: true,
        revision: request.revision.clamp(1, 2),
        enhanced: request.enhanced.map(|_| Enhanced { ird, ord, ..Enhanced::default() }),
        private_data: private_data.iter().copied().collect(),
    }
}

/// The terms for the initiator, from an accepting reply to a request of `revision`.
///
/// # Errors
/// [`NegotiationError`].
pub fn process_reply(
    reply: &Startup,
    offer: Offer,
    revision: u8,
) -> Result<Negotiated, NegotiationError> {
    if reply.revision == 0 && revision <= 1 {
        // The peer is one of the RDMA Consortium's (RFC 5044 appendix C), for whom there are
        // markers in both directions: a reply without them is none of its.
        let is_rdmac = reply.markers;
        return if is_rdmac {
            Ok(Negotiated::rdmac(offer))
        } else {
            Err(NegotiationError::ReplyMismatch)
        };
    }
    if reply.revision != revision || reply.enhanced.is_some() != (revision >= 2) {
        return Err(NegotiationError::ReplyMismatch);
    }
    let mut negotiated = Negotiated {
        crc: reply.crc || offer.crc,
        markers_in: offer.markers,
        markers_out: reply.markers,
        version: Version::Ietf,
        ..Negotiated::rdmac(offer)
    };
    if let Some(answer) = reply.enhanced {
        if answer.ird != NOT_NEGOTIATED {
            negotiated.ord = negotiated.ord.min(answer.ird);
        }
        if answer.ord != NOT_NEGOTIATED {
            if answer.ord > offer.ird_limit() {
                return Err(NegotiationError::InsufficientIrd);
            }
            negotiated.ird = negotiated.ird.max(answer.ord);
        }
        if offer.peer_to_peer {
            let common = offer.rtr.intersection(RtrKinds::from_enhanced(&answer));
            negotiated.rtr = common.choose().filter(|_| answer.peer_to_peer);
            if negotiated.rtr.is_none() {
                return Err(NegotiationError::NoMatchingRtr);
            }
        }
    }
    Ok(negotiated)
}

#[cfg(test)]
mod tests;
