//! Listeners, and the limits of passive connections in setup.
//!
//! There is one limit for each stage of a passive open.
//!
//! | stage                          | limit                             | beyond it             |
//! |--------------------------------|-----------------------------------|-----------------------|
//! | SYN                            | `cookies_per_second`              | dropped               |
//! | half open                      | `half_open_max`, and per listener | SYN cookies           |
//! | request incomplete             | `awaiting_request_max`            | one of them is reset  |
//! | request complete, not decided  | `backlog` of the listener         | see below             |
//!
//! While the backlog is full, SYNs are dropped, and so are the ACKs that would complete a
//! handshake: the peer retransmits. A request that completes meanwhile waits for a free slot. Only
//! a complete request takes a slot in the backlog, which the application has to free: a peer that
//! is silent after the handshake, stops within its request or sends it byte by byte does not block
//! others, and has `startup_timeout_ns` in total. See [`awaiting_request`] for the choice of
//! the one reset.
//!
//! [`awaiting_request`]: crate::cm::awaiting_request

use std::collections::HashMap;

use crate::cm::awaiting_request::AwaitingRequest;
use crate::cm::cookie::{self, SynCookies};
use crate::net::jittered_rate_limit::JitteredRateLimit;
use crate::net::siphash_keys::{KeyPurpose, Secret, SipBuildHasher};
use crate::time::Instant;
use crate::verbs::cm::CmError;
use crate::wire::seq::Seq;
use crate::wire::tcp::FourTuple;

/// Listening port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    backlog: usize,
    /// Connections whose request the application has not accepted or rejected yet.
    pub(super) pending: usize,
    /// Connections whose handshake is not complete.
    pub(super) half_open: usize,
    /// Time until which an ACK of no connection may carry a valid SYN cookie.
    cookies_until: Instant,
    /// Connections start without startup frames.
    pub(super) unframed: bool,
}

impl Listener {
    /// True if the application has as many requests to decide on as the backlog allows.
    pub(super) const fn is_full(&self) -> bool {
        self.pending >= self.backlog
    }

    /// True if an ACK of no connection may carry a valid SYN cookie.
    pub(super) fn expects_cookies(&self, now: Instant) -> bool {
        now < self.cookies_until
    }

    /// Records that a SYN cookie was sent.
    pub(super) fn on_cookie_sent(&mut self, now: Instant) {
        self.cookies_until = now + cookie::LIFETIME_NS;
    }
}

/// All listeners, and what limits the passive connections in setup.
pub(crate) struct Listeners {
    by_port: HashMap<u16, Listener, SipBuildHasher>,
    /// Passive connections whose handshake is not complete.
    pub(crate) half_open: usize,
    /// Passive connections whose MPA Request Frame is incomplete or waits for the backlog.
    pub(crate) awaiting_request: AwaitingRequest,
    pub(super) cookies: SynCookies,
    pub(super) cookie_limit: JitteredRateLimit,
    /// Four-tuple of the connection just removed in favor of a new one between the same ends, and
    /// the lower bound of the new ISS.
    pub(super) recycled: Option<(FourTuple, Seq)>,
}

impl Listeners {
    pub(crate) fn new(seed: u64, cookies_per_second: u32) -> Self {
        let hash = SipBuildHasher::new(seed);
        let limits = Secret::new(seed, KeyPurpose::Limits);
        Self {
            by_port: HashMap::with_hasher(hash),
            half_open: 0,
            awaiting_request: AwaitingRequest::new(hash),
            cookies: SynCookies::new(seed),
            cookie_limit: JitteredRateLimit::new(limits, cookies_per_second),
            recycled: None,
        }
    }

    /// Adds a listener: at most `backlog` requests wait for a decision at a time.
    ///
    /// # Errors
    /// [`CmError::PortInUse`].
    pub(crate) fn add(&mut self, port: u16, backlog: usize, unframed: bool) -> Result<(), CmError> {
        if self.contains(port) {
            return Err(CmError::PortInUse(port));
        }
        let cookies_until = Instant::ZERO;
        let listener = Listener { backlog, pending: 0, half_open: 0, cookies_until, unframed };
        self.by_port.insert(port, listener);
        Ok(())
    }

    /// Removes a listener.
    pub(crate) fn remove(&mut self, port: u16) {
        self.by_port.remove(&port);
    }

    /// True if `port` has a listener.
    pub(crate) fn contains(&self, port: u16) -> bool {
        self.by_port.contains_key(&port)
    }

    pub(super) fn get(&self, port: u16) -> Option<&Listener> {
        self.by_port.get(&port)
    }

    pub(super) fn get_mut(&mut self, port: u16) -> Option<&mut Listener> {
        self.by_port.get_mut(&port)
    }

    /// Returns the connection to `port` whose complete request is to be offered next, if the
    /// backlog has a free slot.
    pub(crate) fn next_pending(&self, port: u16) -> Option<u32> {
        let has_free_slot = self.get(port).is_some_and(|listener| !listener.is_full());
        if has_free_slot { self.awaiting_request.next_complete(port) } else { None }
    }
}
