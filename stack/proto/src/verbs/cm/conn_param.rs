//! Local parameters of the connection setup.

use core::net::IpAddr;
use core::ops::RangeInclusive;
use core::time::Duration;

use crate::bounded_vec::LengthError;
use crate::setters;
use crate::tcp::Keepalive;
use crate::verbs::cm::CmError;
use crate::wire::ip::DSCP_MAX;
use crate::wire::mpa::{PrivateData, READ_DEPTH_MAX, ReadDepths, RtrKinds};

/// Transition of a connection to full operation (FPDUs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// By MPA startup frames: a Request Frame of the initiator and a Reply Frame of the responder.
    #[default]
    Frames,
    /// Without startup frames: FPDUs from the first byte in both directions, as in
    /// draft-culley-iwarp-mpa-02. Markers and CRCs are always used, DV is 0, and RV is as
    /// [`ConnParam::rdmap_draft00`] sets it. Both applications have to be configured for it.
    Immediate,
    /// As [`Start::Immediate`], but after the applications have exchanged data of their own on the
    /// connection (streaming mode): see `Engine::start_fpdus`.
    Streaming,
}

/// Latest MPA revision.
const REVISION_MAX: u16 = 2;
/// Shortest interval and timeout of connections: a poll may take as long.
pub const TIME_MIN: Duration = Duration::from_millis(1);

/// Local parameters of the connection setup (compare `rdma_conn_param` of librdmacm). Start from
/// [`ConnParam::new`] and set what differs.
///
/// ```
/// # use ferrowarp_proto::verbs::cm::ConnParam;
/// let param = ConnParam::new().ird(4).ord(4).private_data(b"hello")?;
/// assert_eq!((param.ird, param.private_data.as_slice()), (4, &b"hello"[..]));
/// # Ok::<(), ferrowarp_proto::bounded_vec::LengthError>(())
/// ```
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnParam {
    /// IRD: RDMA Reads and atomic operations of the peer that are served at a time, at most 128. 0:
    /// none, whatever the peer's ORD.
    #[doc(alias = "responder_resources")]
    pub ird: u16,
    /// Limit up to which `ird` is raised to the peer's ORD (revision 2, RFC 6581 section 9.1), at
    /// most 128. A value up to `ird` never raises it.
    pub ird_max: u16,
    /// ORD: local RDMA Reads and atomic operations outstanding at a time, at most 128.
    #[doc(alias = "initiator_depth")]
    pub ord: u16,
    /// Requests CRCs. A request by either end enables them in both directions.
    pub crc: bool,
    /// Requests markers in received data: with them FPDUs are found in out-of-order segments.
    /// Markers that the peer requests are always sent.
    pub markers: bool,
    /// Out-of-order placement: RDMA Writes are placed when they arrive, as far as markers locate
    /// their FPDUs. The last byte of a message may then be in memory before its first, and of
    /// overlapping Writes that are outstanding at the same time the older may win (RFC 5040 section
    /// 5.5).
    pub ooo_placement: bool,
    /// Half-close: the connection outlives the peer's FIN. [`ConnEvent::PeerFinished`] reports the
    /// FIN, and requests can be posted until the application closes the connection. Without it the
    /// connection closes after the FIN, once the posted requests have been sent. An RDMA Read
    /// without a response at the FIN never gets one: it closes the connection either way.
    /// So a program written for verbs goes on when the peer's queue pair is destroyed, which it
    /// does not notice there before it sends.
    ///
    /// [`ConnEvent::PeerFinished`]: crate::verbs::cm::ConnEvent::PeerFinished
    pub half_close: bool,
    /// MPA revision to offer: 1 (RFC 5044), 2 (RFC 6581, negotiates IRD and ORD), or 0 for a peer
    /// of the RDMA Consortium that understands startup frames (RFC 5044 appendix C). Revision 0
    /// implies markers, CRCs, and the versions 0 of DDP and RDMAP (see
    /// [`ConnParam::rdmap_draft00`]).
    pub revision: u8,
    /// RDMAP of draft-ietf-rddp-rdmap-00, with RV 1, over DDP with DV 0. It applies only if the
    /// versions are not the IETF's (revision 0, [`Start::Immediate`], [`Start::Streaming`]). If
    /// false, both versions are 0, as in the RDMA Consortium's specifications. This is not
    /// negotiated: configure both applications alike.
    pub rdmap_draft00: bool,
    /// Requests the peer-to-peer model (revision 2), in which either end may send first: the
    /// initiator's stack then sends a ready-to-receive (RTR) message, which the applications do not
    /// see. On by default. Otherwise, with other revisions, and if the responder does not know the
    /// model, the responder waits for the first message of the initiator (client-server model).
    pub peer_to_peer: bool,
    /// RTR messages to offer, or to accept.
    pub rtr: RtrKinds,
    /// Transition to full operation; for a responder the setting of its listener.
    pub start: Start,
    /// Private data for the peer's application: at most 512 bytes, 508 with revision 2, none
    /// without startup frames.
    pub private_data: PrivateData,
    /// Local address to connect from; `None`, or an unspecified address: selected by the route.
    pub local_address: Option<IpAddr>,
    /// Keepalive of this connection, from connect or accept on; [`Keepalive::OFF`]: none. `None`:
    /// as the context's settings say, which have none by default. Set it at a server: with nothing
    /// outstanding TCP alone never notices that a peer is gone.
    #[doc(alias = "SO_KEEPALIVE")]
    pub keepalive: Option<Keepalive>,
    /// User timeout of this connection, at least 1 ms: time without an acknowledgment of
    /// outstanding data before it ends. `None`: as the context's settings say.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub user_timeout: Option<Duration>,
    /// DSCP (RFC 2474) of every segment of this connection, 0 to 63; `None`: the context's. A
    /// SYN-ACK is sent before the application accepts, with that of the context.
    pub dscp: Option<u8>,
    /// Time to live, over IPv6 hop limit, of every segment of this connection, at least 1; `None`:
    /// the context's. A SYN-ACK is sent before the application accepts, with that of the context.
    pub ttl: Option<u8>,
    /// Local port to connect from; 0: one of the context's `source_ports`. It must not be the
    /// port of a listener that covers the local address, since peers may connect to that from any
    /// port. A port serves any number of connections if their peers differ in address or port. The
    /// connection to one peer blocks it until its end, and for a second more if this end closed
    /// first (TIME-WAIT).
    #[doc(alias = "rdma_bind_addr")]
    pub local_port: u16,
    /// Time from `connect` to [`ConnEvent::Established`], 1 ms at least; `None`: 10 s. It covers
    /// the resolution of the neighbor's address, the TCP handshake and the MPA exchange, and so the
    /// time that the peer's application takes to accept. Then the attempt fails with
    /// [`ConnectError::TimedOut`]. It fails earlier for another reason: an absent host on the link
    /// is reported after some 5 s, and at once in the 3 s after that. TCP gives up some minutes
    /// after its first SYN. A responder ignores it.
    ///
    /// [`ConnEvent::Established`]: crate::verbs::cm::ConnEvent::Established
    /// [`ConnectError::TimedOut`]: crate::verbs::cm::ConnectError::TimedOut
    pub connect_timeout: Option<Duration>,
    /// Time from the first SYN for which the attempt goes on although the peer refuses it: the SYN
    /// is sent again every 5 ms. For programs whose listener is ready a moment later; `None`:
    /// [`ConnectError::Refused`] at once. A responder ignores it.
    ///
    /// [`ConnectError::Refused`]: crate::verbs::cm::ConnectError::Refused
    pub refusal_retry: Option<Duration>,
}

impl ConnParam {
    /// Parameters of a connection by MPA revision 2, with CRCs and without markers.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ird: 16,
            ird_max: READ_DEPTH_MAX,
            ord: 16,
            crc: true,
            markers: false,
            ooo_placement: false,
            half_close: false,
            revision: 2,
            rdmap_draft00: false,
            peer_to_peer: true,
            rtr: RtrKinds::ALL,
            start: Start::Frames,
            private_data: PrivateData::new(),
            local_address: None,
            keepalive: None,
            user_timeout: None,
            dscp: None,
            ttl: None,
            local_port: 0,
            connect_timeout: None,
            refusal_retry: None,
        }
    }

    /// Sets [`private_data`](field@Self::private_data) to a copy of these bytes.
    ///
    /// # Errors
    /// [`LengthError`]: they are more than 512.
    pub fn private_data(mut self, bytes: impl AsRef<[u8]>) -> Result<Self, LengthError> {
        self.private_data = PrivateData::named(bytes.as_ref(), "bytes of private data")?;
        Ok(self)
    }

    /// Sets [`dscp`](field@Self::dscp) by the whole byte that has it in the IP header, as
    /// `rdma_set_option` does.
    ///
    /// # Errors
    /// [`CmError::EcnBits`]: the two low bits, which are the stack's, are not 0.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    #[doc(alias = "IP_TOS")]
    pub fn tos(mut self, tos: u8) -> Result<Self, CmError> {
        self.dscp = Some(dscp_of_tos(tos)?);
        Ok(self)
    }

    setters! {
        ird: u16,
        ird_max: u16,
        ord: u16,
        crc: bool,
        markers: bool,
        ooo_placement: bool,
        half_close: bool,
        revision: u8,
        rdmap_draft00: bool,
        peer_to_peer: bool,
        rtr: RtrKinds,
        start: Start,
        local_address: Option<IpAddr>,
        keepalive: Option<Keepalive>,
        user_timeout: Option<Duration>,
        dscp: Option<u8>,
        ttl: Option<u8>,
        local_port: u16,
        connect_timeout: Option<Duration>,
        refusal_retry: Option<Duration>,
    }

    /// Fails if a number is outside its range, or a time too short.
    pub(crate) fn check(&self) -> Result<(), CmError> {
        let Self { keepalive, user_timeout, connect_timeout, .. } = *self;
        let times = [
            ("keepalive.idle", keepalive.map(|keepalive| keepalive.idle)),
            ("keepalive.interval", keepalive.map(|keepalive| keepalive.interval)),
            ("user_timeout", user_timeout),
            ("connect_timeout", connect_timeout),
        ];
        for (setting, time) in times {
            if let Some(value) = time.filter(|&time| time < TIME_MIN) {
                return Err(CmError::TooShort { setting, value, min: TIME_MIN });
            }
        }
        let probes = keepalive.map_or(u8::MAX, |keepalive| keepalive.probes);
        check_ranges([
            ("ird", self.ird, 0..=READ_DEPTH_MAX),
            ("ird_max", self.ird_max, 0..=READ_DEPTH_MAX),
            ("ord", self.ord, 0..=READ_DEPTH_MAX),
            ("revision", self.revision.into(), 0..=REVISION_MAX),
            ("keepalive.probes", probes.into(), 1..=u8::MAX.into()),
            ("dscp", self.dscp.unwrap_or(0).into(), 0..=DSCP_MAX.into()),
            ("ttl", self.ttl.unwrap_or(u8::MAX).into(), 1..=u8::MAX.into()),
        ])
    }
}

impl Default for ConnParam {
    fn default() -> Self {
        Self::new()
    }
}

impl ReadDepths {
    /// Fails if one of them is outside its range.
    pub(crate) fn check(self) -> Result<(), CmError> {
        check_ranges([("ird", self.ird, 0..=READ_DEPTH_MAX), ("ord", self.ord, 0..=READ_DEPTH_MAX)])
    }
}

/// Returns the DSCP in a type of service (IPv4) or traffic class (IPv6).
///
/// # Errors
/// [`CmError::EcnBits`] if the two low bits are not 0.
pub const fn dscp_of_tos(tos: u8) -> Result<u8, CmError> {
    if tos & 3 == 0 { Ok(tos >> 2) } else { Err(CmError::EcnBits { tos }) }
}

/// Fails if one of these numbers, each with its name, is outside its range.
fn check_ranges(
    numbers: impl IntoIterator<Item = (&'static str, u16, RangeInclusive<u16>)>,
) -> Result<(), CmError> {
    let mut outside = numbers.into_iter().filter(|(_, value, range)| !range.contains(value));
    outside.next().map_or(Ok(()), |(setting, value, range)| {
        let (min, max) = range.into_inner();
        Err(CmError::OutOfRange { setting, value, min, max })
    })
}
