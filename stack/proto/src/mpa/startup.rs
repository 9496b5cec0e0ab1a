//! Negotiation by startup frames: offers, results, and the errors.

use crate::wire::ddp::Version;
use crate::wire::mpa::{Enhanced, FrameKind, NOT_NEGOTIATED, PrivateData, Startup};
use crate::wire::mpa::{READ_DEPTH_MAX, ReadDepths, Rtr, RtrKinds};

/// Offer of the local peer for the negotiation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer {
    /// IRD: RDMA Reads served at a time.
    pub ird: u16,
    /// Limit to which revision 2 raises `ird` to match the peer's ORD, unless `ird` is 0. A limit
    /// below `ird` counts as `ird`.
    pub ird_max: u16,
    /// ORD: RDMA Reads issued at a time.
    pub ord: u16,
    /// CRCs are requested.
    pub crc: bool,
    /// Markers are requested in received data.
    pub markers: bool,
    /// Peer-to-peer model, requested by an initiator of revision 2: either peer may send first.
    pub peer_to_peer: bool,
    /// Supported RTR messages, for the peer-to-peer model.
    pub rtr: RtrKinds,
    /// With DV 0, RDMAP is that of draft-ietf-rddp-rdmap-00: RV 1.
    pub rdmap_draft00: bool,
}

impl Offer {
    /// Returns the most RDMA Reads that the local peer serves. With an IRD of 0 none is accepted:
    /// neither for the peer's ORD, nor as RTR message.
    // req: RDMAP-287
    fn ird_limit(&self) -> u16 {
        if self.ird == 0 { 0 } else { self.ird.max(self.ird_max).min(READ_DEPTH_MAX) }
    }

    /// Returns the RTR messages that an initiator offers: a Read only if it grants Reads, or offers
    /// no other kind.
    const fn offered_rtr(&self) -> RtrKinds {
        let RtrKinds { send, write, read } = self.rtr;
        RtrKinds { read: read && (self.ord > 0 || !(send || write)), ..self.rtr }
    }

    /// Returns the RTR messages that a responder can accept.
    const fn accepted_rtr(&self) -> RtrKinds {
        RtrKinds { read: self.rtr.read && self.ird > 0, ..self.rtr }
    }
}

/// Result of the negotiation, from the point of view of the local peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// IRD: RDMA Reads that the local peer serves at a time.
    pub ird: u16,
    /// ORD: RDMA Reads that the local peer issues at a time.
    pub ord: u16,
    /// CRCs are generated and verified in both directions.
    pub crc: bool,
    /// Received data has markers.
    pub markers_in: bool,
    /// Sent data has markers.
    pub markers_out: bool,
    /// Either end may send first: the initiator sends an RTR message.
    pub peer_to_peer: bool,
    /// Versions of DDP and RDMAP.
    pub version: Version,
    /// RTR message that the local peer sends before anything else (initiator).
    pub rtr: Option<Rtr>,
    /// The first FPDU may be a zero-length Send as RTR message, without a buffer (responder).
    pub rtr_send_expected: bool,
}

impl Negotiated {
    /// Returns the parameters without a negotiation, as in the draft and for peers of the RDMA
    /// Consortium: always markers and CRCs, DV 0; each peer is configured with IRD, ORD and the RV,
    /// 0 or (draft-ietf-rddp-rdmap-00) 1.
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
            peer_to_peer: false,
            rtr: None,
            rtr_send_expected: false,
        }
    }
}

/// Progress of the startup at one end, as far as it decides who may send FPDUs (RFC 5044 section
/// 7.1.2, RFC 6581 section 9.2). The startup frames themselves are a matter of the connection's
/// phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartupState {
    /// Startup frames are exchanged, and no FPDUs yet.
    Frames,
    /// Responder: no FPDU may be sent before the initiator's first one has arrived.
    AwaitFirstFpdu,
    /// As `AwaitFirstFpdu`; the first FPDU may be a zero-length Send that is the RTR message.
    AwaitRtr,
    /// FPDUs may be sent.
    Complete,
}

/// Event that changes the [`StartupState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartupEvent {
    /// Initiator: the accepting reply was received. Also the start of FPDUs without startup frames.
    Reply,
    /// Responder: the request was accepted.
    Accept,
    /// Responder: the request was accepted, and a Send as RTR message with it.
    AcceptWithRtr,
    /// A valid FPDU was received.
    Fpdu,
}

impl StartupState {
    /// Returns the state after `event`, or `None` if the event does not apply.
    const fn after(self, event: StartupEvent) -> Option<Self> {
        use StartupState::*;
        Some(match (self, event) {
            (Frames, StartupEvent::Reply) => Complete,
            (Frames, StartupEvent::Accept) => AwaitFirstFpdu,
            (Frames, StartupEvent::AcceptWithRtr) => AwaitRtr,
            (AwaitFirstFpdu | AwaitRtr, StartupEvent::Fpdu) => Complete,
            _ => return None,
        })
    }

    /// Changes the state by the transition table. Returns false if the table has no entry for
    /// `event`.
    #[must_use]
    pub(crate) fn transition(&mut self, event: StartupEvent) -> bool {
        let Some(next) = self.after(event) else { return false };
        *self = next;
        true
    }

    /// True if FPDUs may be sent.
    #[inline(always)]
    pub(crate) const fn may_send(self) -> bool {
        matches!(self, Self::Complete)
    }

    /// Records that a valid FPDU was received. True if it may be the RTR message.
    #[inline(always)]
    pub(crate) fn on_fpdu(&mut self) -> bool {
        let may_be_rtr = matches!(self, Self::AwaitRtr);
        if !self.may_send() {
            let applies = self.transition(StartupEvent::Fpdu);
            debug_assert!(applies, "{self:?} has no FPDUs");
        }
        may_be_rtr
    }
}

/// Reason why the negotiation fails although the frame is well-formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NegotiationError {
    /// The revision is not supported. The connection is closed without a frame.
    UnsupportedRevision,
    /// The reply's revision or S flag does not match the request's.
    ReplyMismatch,
    /// The responder's ORD exceeds the local IRD limit: reported by a Terminate.
    InsufficientIrd,
    /// No common RTR message: reported by a Terminate.
    NoMatchingRtr,
}

/// Builds the request of an initiator. `revision` 2 carries IRD and ORD; revision 0 is for peers of
/// the RDMA Consortium, which always use markers and CRCs.
#[must_use]
pub fn build_request(offer: Offer, revision: u8, private_data: PrivateData) -> Startup {
    let enhanced = (revision >= 2).then(|| {
        let (ird, ord) = (offer.ird.min(READ_DEPTH_MAX), offer.ord.min(READ_DEPTH_MAX));
        let mut block = Enhanced { ird, ord, ..Enhanced::default() };
        if offer.peer_to_peer {
            let rtr = offer.offered_rtr();
            rtr.write_to(&mut block);
            // The RTR Read counts against the ORD, too (RFC 6581 section 9.1).
            if rtr.read {
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
        private_data,
    }
}

/// Checks a request as responder, before it is offered to the application.
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

/// Builds the reply that accepts `request`; returns it and the result for the responder.
///
/// The responder lowers its ORD to the initiator's IRD and raises its IRD to the initiator's ORD
/// (RFC 6581 section 9.1), but not above [`Offer::ird_max`] and [`READ_DEPTH_MAX`], nor from 0.
#[must_use]
pub fn accept(request: &Startup, offer: Offer, private_data: PrivateData) -> (Startup, Negotiated) {
    // RFC 5044 section 7.1.1: CRCs if either peer requests them, markers as the receiver does.
    let mut negotiated = Negotiated {
        crc: request.crc || offer.crc,
        markers_in: offer.markers,
        markers_out: request.markers,
        version: Version::Ietf,
        ..Negotiated::rdmac(offer)
    };
    // RFC 5044 appendix C: a peer of the RDMA Consortium negotiates nothing.
    if request.revision == 0 {
        negotiated = Negotiated::rdmac(offer);
    }
    let enhanced = request.enhanced.map(|requested| {
        // RFC 6581 section 9.1: ORD at most the peer's IRD, IRD at least the peer's ORD.
        let mut enhanced = Enhanced::default();
        if requested.ird == NOT_NEGOTIATED {
            enhanced.ord = NOT_NEGOTIATED;
        } else {
            negotiated.ord = negotiated.ord.min(requested.ird);
            enhanced.ord = negotiated.ord;
        }
        if requested.ord == NOT_NEGOTIATED {
            enhanced.ird = NOT_NEGOTIATED;
        } else {
            negotiated.ird = negotiated.ird.max(requested.ord).min(offer.ird_limit());
            enhanced.ird = negotiated.ird;
        }
        // RFC 6581 section 9.2: RTR messages that both peers support.
        if requested.peer_to_peer {
            let accepted = offer.accepted_rtr();
            let common = RtrKinds::from_enhanced(&requested).intersection(accepted);
            // Without a common type the reply has the supported ones (RFC 6581 section 9.2).
            let named = if common.choose().is_some() { common } else { accepted };
            named.write_to(&mut enhanced);
            negotiated.peer_to_peer = common.choose().is_some();
            negotiated.rtr_send_expected = common.send;
        }
        enhanced
    });
    // RFC 5044 section 7.1.1: the reply has the revision of the request.
    let reply = Startup {
        kind: FrameKind::Reply,
        markers: negotiated.markers_in,
        crc: negotiated.crc,
        reject: false,
        revision: request.revision,
        enhanced,
        private_data,
    };
    (reply, negotiated)
}

/// Builds the reply that rejects `request`. `reads` are the IRD and ORD that would be accepted, if
/// they are the reason (RFC 6581 section 9.1). Revision 1 informs a peer of the RDMA Consortium
/// that this one is not (RFC 5044 appendix C).
#[must_use]
pub fn reject(request: &Startup, reads: ReadDepths, private_data: PrivateData) -> Startup {
    let ReadDepths { ird, ord } = reads;
    let (ird, ord) = (ird.min(READ_DEPTH_MAX), ord.min(READ_DEPTH_MAX));
    Startup {
        kind: FrameKind::Reply,
        markers: false,
        crc: request.crc,
        reject: true,
        revision: request.revision.clamp(1, 2),
        enhanced: request.enhanced.map(|_| Enhanced { ird, ord, ..Enhanced::default() }),
        private_data,
    }
}

/// Returns the result for the initiator of an accepting reply to a request of `revision`.
///
/// # Errors
/// [`NegotiationError`].
pub fn process_reply(
    reply: &Startup,
    offer: Offer,
    revision: u8,
) -> Result<Negotiated, NegotiationError> {
    if reply.revision == 0 && revision <= 1 {
        // The peer is of the RDMA Consortium (RFC 5044 appendix C), which always has markers in
        // both directions: a reply without flag M is invalid.
        let is_rdmac = reply.markers;
        return if is_rdmac {
            Ok(Negotiated::rdmac(offer))
        } else {
            Err(NegotiationError::ReplyMismatch)
        };
    }
    // RFC 5044 section 7.1.1, RFC 6581 section 9: the reply has the revision of the request.
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
    if let Some(enhanced) = reply.enhanced {
        // RFC 6581 section 9.1: ORD at most the responder's IRD, and an IRD for its ORD.
        if enhanced.ird != NOT_NEGOTIATED {
            negotiated.ord = negotiated.ord.min(enhanced.ird);
        }
        if enhanced.ord != NOT_NEGOTIATED {
            if enhanced.ord > offer.ird_limit() {
                return Err(NegotiationError::InsufficientIrd);
            }
            negotiated.ird = negotiated.ird.max(enhanced.ord);
        }
        // RFC 6581 section 9.2: one RTR message of those that the responder accepts. A responder
        // that knows no peer-to-peer model answers without flag A, and sends nothing first.
        if offer.peer_to_peer && enhanced.peer_to_peer {
            let common = offer.offered_rtr().intersection(RtrKinds::from_enhanced(&enhanced));
            let rtr = common.choose().ok_or(NegotiationError::NoMatchingRtr)?;
            (negotiated.rtr, negotiated.peer_to_peer) = (Some(rtr), true);
        }
    }
    Ok(negotiated)
}

#[cfg(test)]
mod tests;
