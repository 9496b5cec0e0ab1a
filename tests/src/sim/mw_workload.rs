//! Memory windows in the random workload. Each end exposes its targets to the peer through one
//! window, which is bound, used, and invalidated by either side again and again. The oracle: an
//! STag is valid until its invalidation completes, and invalid from then on.

use ferrowarp_proto::ddp::memory::{Access, Memory, MemoryFault};
use ferrowarp_proto::ddp::regions::{AccessScope, Bind};
use ferrowarp_proto::verbs::wc::{QpId, Wc};
use ferrowarp_proto::verbs::wr::Operation;

use super::world::{End, SimEngine};

/// State of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unbound,
    /// The bind request is posted.
    Binding,
    /// Bound: the peer may use it.
    Bound,
    /// The peer has posted a Send with Invalidate for it.
    PeerInvalidating,
    /// The peer no longer uses it, and all its Writes have arrived: the owner may invalidate it.
    Idle,
    /// The Invalidate request is posted.
    Invalidating,
}

/// A memory window of one end of one connection: zero-based, over a range of its memory.
pub(super) struct MemoryWindow {
    scope: AccessScope,
    region: u32,
    addr: u64,
    len: u64,
    stag: u32,
    state: State,
    /// Number of the peer's latest Write through it.
    last_write: Option<usize>,
}

impl MemoryWindow {
    pub(super) fn new(
        engine: &SimEngine,
        pd: u32,
        qp: QpId,
        region: u32,
        range: (u64, u64),
    ) -> Self {
        let stag = engine.memory().regions().allocate_window(pd).expect("few windows");
        let scope = engine.qp_access_scope(qp).expect("a queue pair of this engine");
        let (addr, len) = range;
        Self { scope, region, addr, len, stag, state: State::Unbound, last_write: None }
    }

    /// Uses this queue pair from now on.
    pub(super) fn set_qp(&mut self, engine: &SimEngine, qp: QpId) {
        assert_eq!(self.state, State::Unbound);
        self.scope = engine.qp_access_scope(qp).expect("a queue pair of this engine");
    }

    /// Returns the request that the owner has to post next, if any.
    pub(super) fn next_request(&mut self) -> Option<Operation> {
        match self.state {
            State::Unbound => {
                self.state = State::Binding;
                self.stag = self.stag & !0xff | self.stag.wrapping_add(1) & 0xff;
                let bind = Bind {
                    rkey: self.stag,
                    lkey: self.region,
                    addr: self.addr,
                    len: self.len,
                    access: Access::REMOTE_WRITE,
                    zero_based: true,
                };
                Some(Operation::Bind(bind))
            }
            State::Idle => {
                self.state = State::Invalidating;
                Some(Operation::Invalidate { stag: self.stag })
            }
            _ => None,
        }
    }

    /// Handles completion of the owner's request.
    pub(super) fn on_completion(&mut self, end: &End) {
        let (was, now) = match self.state {
            State::Binding => (None, State::Bound),
            State::Invalidating => (Some(MemoryFault::InvalidStag), State::Unbound),
            other => panic!("nothing was asked of a window that is {other:?}"),
        };
        self.check_resolve(end, was);
        self.state = now;
    }

    /// Lets a request of the peer use the window, if it is bound: a Write goes through it, to
    /// `offset` in it; a Send invalidates it.
    pub(super) fn use_for(&mut self, operation: &mut Operation, number: usize, offset: usize) {
        if self.state != State::Bound {
            return;
        }
        match operation {
            Operation::Write { rkey, remote, .. }
            | Operation::WriteImmediate { rkey, remote, .. } => {
                (*rkey, *remote) = (self.stag, offset as u64);
                self.last_write = Some(number);
            }
            Operation::Send { invalidate, .. } => {
                *invalidate = Some(self.stag);
                self.state = State::PeerInvalidating;
            }
            _ => {}
        }
    }

    /// Handles the peer's message `number`, received by the owner.
    pub(super) fn on_receive(
        &mut self,
        end: &End,
        number: usize,
        wc: &Wc,
        invalidate: Option<u32>,
    ) {
        assert_eq!(wc.invalidated(), invalidate, "message {number}");
        if invalidate.is_some() {
            self.check_resolve(end, Some(MemoryFault::InvalidStag));
            self.state = State::Unbound;
        } else if self.state == State::Bound && self.last_write.is_some_and(|last| last < number) {
            self.check_resolve(end, None);
            self.state = State::Idle;
        }
    }

    fn check_resolve(&self, end: &End, fault: Option<MemoryFault>) {
        let write = Access::REMOTE_WRITE;
        let found = end.arena.regions().resolve(self.stag, self.scope, write, 0, 1).err();
        assert_eq!(found, fault, "the window {:#x} that was {:?}", self.stag, self.state);
    }
}
