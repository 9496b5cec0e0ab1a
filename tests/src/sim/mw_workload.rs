//! Memory windows in the random workload: each end shows its targets to the peer through one,
//! which is bound, used, and taken back by either side again and again. The oracle: an STag is dead
//! from the moment that its invalidation completes, and good until then.

use ferrowarp_proto::ddp::memory::{Access, Memory, MemoryFault};
use ferrowarp_proto::ddp::regions::{AccessScope, Bind};
use ferrowarp_proto::verbs::wc::{QpId, Wc};
use ferrowarp_proto::verbs::wr::Operation;

use super::world::End;

/// Where the life of a window stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unbound,
    /// The request to bind it is on its way.
    Binding,
    /// The peer may use it.
    Bound,
    /// The peer has posted a Send that invalidates it.
    PeerInvalidating,
    /// The peer uses it no more, and all it wrote has arrived: the owner may invalidate it.
    Idle,
    /// The request to invalidate it is on its way.
    Invalidating,
}

/// A window of one end of one connection over a part of its memory, counted from 0.
pub(super) struct MemoryWindow {
    reach: AccessScope,
    region: u32,
    addr: u64,
    len: u64,
    stag: u32,
    state: State,
    /// The peer's latest Write through it.
    last_write: Option<usize>,
}

impl MemoryWindow {
    pub(super) fn new(end: &End, pd: u32, qp: QpId, region: u32, range: (u64, u64)) -> Self {
        let stag = end.arena.regions().allocate_window(pd).expect("few windows");
        let reach = end.engine.qp_access_scope(qp).expect("a queue pair of this end");
        let (addr, len) = range;
        Self { reach, region, addr, len, stag, state: State::Unbound, last_write: None }
    }

    /// What the owner is to post, if anything.
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

    /// The owner's request is done.
    pub(super) fn on_completion(&mut self, end: &End) {
        let (was, now) = match self.state {
            State::Binding => (None, State::Bound),
            State::Invalidating => (Some(MemoryFault::InvalidStag), State::Unbound),
            other => panic!("nothing was asked of a window that is {other:?}"),
        };
        self.check_resolve(end, was);
        self.state = now;
    }

    /// Lets a request of the peer use the window, if it may: a Write, at an offset of it, goes
    /// through it, a Send takes it back.
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

    /// The owner received the peer's message `number`.
    pub(super) fn on_receive(
        &mut self,
        end: &End,
        number: usize,
        wc: &Wc,
        invalidate: Option<u32>,
    ) {
        assert_eq!(wc.invalidated, invalidate, "message {number}");
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
        let found = end.arena.regions().resolve(self.stag, self.reach, write, 0, 1).err();
        assert_eq!(found, fault, "the window {:#x} that was {:?}", self.stag, self.state);
    }
}
