//! Octets on their way up: in order at once, early ones as the upper layer answers, and what was
//! accepted early when its turn has come.

use core::ops::Range;

use super::growth::{Mark, Round};
use super::held::{Held, HoldPool};
use super::reassembly::InTurn;
use super::state::{Event, State};
use super::{Delivered, Notice, Plan, Tcb};
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, MICROSECOND};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Block, Flags, Segment};

/// An early segment that was handed up and not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early {
    /// Its new octets.
    block: Block,
    /// Where the peer's FIN is, if the segment said so. Believed when the octets are accepted.
    fin: Option<Seq>,
}

impl Early {
    const fn len(&self) -> usize {
        (self.block.1.0.wrapping_sub(self.block.0.0)) as usize
    }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// After [`Delivered::InOrder`]: what was accepted early and became contiguous, in order. To
    /// be called until `None`, then [`Tcb::settle_held`].
    #[inline]
    pub fn next_held(&mut self) -> Option<InTurn<R>> {
        if self.calm.receives() { None } else { self.next_in_turn() }
    }

    fn next_in_turn(&mut self) -> Option<InTurn<R>> {
        // Nothing follows the peer's FIN, whatever it sent.
        if self.reassembly.is_empty() || self.peer.finished {
            return None;
        }
        self.pop_held()
    }

    #[cold]
    fn pop_held(&mut self) -> Option<InTurn<R>> {
        let due = self.reassembly.pop_at(self.rcv.nxt)?;
        let len = match &due {
            InTurn::Held { octets, .. } => seq_len(octets),
            InTurn::Taken { len, .. } => *len,
        };
        // req: MPA-004, MPA-033, MPA-053
        self.rcv.nxt += len;
        self.rcv.due = true;
        self.take_fin();
        self.refresh();
        Some(due)
    }

    /// True if [`Tcb::next_held`] has something: the caller may go on with it later, if it does so
    /// without being asked.
    #[must_use]
    pub fn has_held(&self) -> bool {
        !self.peer.finished && self.reassembly.has_at(self.rcv.nxt)
    }

    /// Answers [`Delivered::Early`]: TCP is to keep the octets until their turn, in memory of
    /// `pool`; they are reported as received (SACK) from now on. False: there was no room, and
    /// the segment counts as lost.
    ///
    /// `frame` and `octets` are those handed up.
    pub fn hold_early(&mut self, pool: &mut HoldPool<R>, frame: R, octets: Range<usize>) -> bool {
        debug_assert!(self.early().is_none_or(|early| early.len() == octets.len()));
        let kept = pool.keep(frame, octets, self.reassembly.share());
        self.keep_early(pool, kept)
    }

    /// As [`Tcb::hold_early`] where there is no frame to keep: the octets are copied.
    pub fn copy_early(&mut self, pool: &mut HoldPool<R>, octets: &[u8]) -> bool {
        debug_assert!(self.early().is_none_or(|early| early.len() == octets.len()));
        let kept = pool.copy(octets, self.reassembly.share());
        self.keep_early(pool, kept.map(|held| (held, 0)))
    }

    /// [`Tcb::hold_early`] has room for `len` octets.
    #[must_use]
    pub fn can_hold(&self, pool: &HoldPool<R>, len: usize) -> bool {
        pool.admits(len, self.reassembly.share())
    }

    /// [`Tcb::copy_early`] has room for `len` octets.
    #[must_use]
    pub fn can_copy(&self, pool: &HoldPool<R>, len: usize) -> bool {
        pool.admits_copy(len, self.reassembly.share())
    }

    /// What was handed up early and waits for its answer.
    const fn early(&self) -> Option<Early> {
        if let Plan::Answer(early) = self.plan { Some(early) } else { None }
    }

    fn take_early(&mut self) -> Option<Early> {
        let early = self.early()?;
        self.plan = Plan::Nothing;
        Some(early)
    }

    fn keep_early(&mut self, pool: &mut HoldPool<R>, kept: Option<(Held<R>, usize)>) -> bool {
        let Some(early) = self.take_early() else {
            if let Some((held, _)) = kept {
                pool.give_back(held);
            }
            return false;
        };
        let Some((held, offset)) = kept else {
            self.stats.record().held_overflow += 1;
            self.refresh();
            return false;
        };
        self.stats.record().held += 1;
        // An offset into a frame is below 64 KiB.
        let offset = u32::try_from(offset).unwrap_or(0);
        // req: MPA-023
        self.reassembly.insert(pool, early.block, Some(held), offset);
        self.note_fin(early.fin);
        self.refresh();
        true
    }

    /// Answers [`Delivered::Early`]: the upper layer has what it needs of the octets. They are
    /// reported as received (SACK), and [`Tcb::next_held`] says when their turn has come.
    pub fn took_early(&mut self, pool: &mut HoldPool<R>) {
        let Some(early) = self.take_early() else { return };
        self.stats.record().taken_early += 1;
        self.reassembly.insert(pool, early.block, None, 0);
        self.note_fin(early.fin);
        self.refresh();
    }

    /// Answers [`Delivered::Early`]: the octets are not wanted. They count as not received, and
    /// the peer sends them again. So does a missing answer.
    pub fn reject_early(&mut self) {
        if self.take_early().is_some() {
            self.stats.record().rejected_early += 1;
            self.refresh();
        }
    }

    /// The upper layer has no memory for the last `len` octets of those just handed up in order,
    /// by [`Delivered::InOrder`] or [`Tcb::next_held`]: they count as not received, and the peer
    /// sends them again. Only where [`Tcb::may_decline`].
    #[cold]
    pub fn decline(&mut self, len: u32) {
        debug_assert!(self.may_decline(len));
        self.rcv.decline(len);
    }

    /// The last `len` octets received in order were neither acknowledged nor are they followed by
    /// the peer's FIN.
    #[must_use]
    pub fn may_decline(&self, len: u32) -> bool {
        !self.peer.finished && self.rcv.nxt >= self.rcv.last_ack + len
    }

    /// Gives memory back to the pool that holds for other connections, too: all of it if nothing
    /// more will be handed up. To be called after anything that may have ended the connection, and
    /// after [`Tcb::next_held`].
    #[inline]
    pub fn settle_held(&mut self, pool: &mut HoldPool<R>) {
        if self.calm.receives() || self.reassembly.is_idle() {
            return;
        }
        if self.reassembly.is_empty() || self.peer.finished || self.state == State::Closed {
            self.release_held(pool);
        }
    }

    /// Gives everything held back to the pool. To be called before the connection is dropped.
    #[cold]
    pub fn release_held(&mut self, pool: &mut HoldPool<R>) {
        self.reassembly.give_back(pool);
        self.refresh();
    }

    /// Payload and FIN of an acceptable segment.
    #[inline]
    pub(super) fn take_payload<F>(
        &mut self,
        now: Instant,
        seg: &Segment,
        frame: F,
    ) -> Delivered<F> {
        let fin = seg.flags.has(Flags::FIN);
        let len = seq_len(&seg.payload);
        if len == 0 && !fin {
            return Delivered::Nothing;
        }
        let end = seg.seq + len;
        let plain = !fin && !self.receive_shut && self.peer.fin.is_none();
        if plain
            && seg.seq == self.rcv.nxt
            && end <= self.rcv.edge
            && self.reassembly.is_empty()
            && self.state.receives()
        {
            self.rcv.nxt = end;
            self.rcv.moved();
            self.in_order(now, len);
            self.watch_round(now, seg);
            return Delivered::InOrder { frame, octets: seg.payload.clone() };
        }
        self.take_payload_slow(now, seg, frame)
    }

    #[cold]
    fn take_payload_slow<F>(&mut self, now: Instant, seg: &Segment, frame: F) -> Delivered<F> {
        let (mut start, mut end) = (seg.seq, seg.seq + seq_len(&seg.payload));
        if self.peer.fin.is_some_and(|fin| end > fin) && self.state != State::TimeWait {
            self.notify(Notice::BehindFin);
        }
        if !self.state.receives() {
            // Beyond the peer's FIN, or after the connection's end.
            return Delivered::Nothing;
        }
        let mut twice = None;
        if start < self.rcv.nxt {
            // The head was received before: the first copy wins.
            let known = end.min(self.rcv.nxt);
            twice = Some((start, known)).filter(|_| start < known);
            // req: MPA-026, MPA-029, MPA-031, DDP-033, DDP-113
            start = self.rcv.nxt;
            end = end.max(start);
        }
        let right = self.peer.fin.map_or(self.rcv.edge, |fin| self.rcv.edge.min(fin));
        let mut fin = None;
        if end > right {
            // req: MPA-025
            end = start.max(right);
        } else if seg.flags.has(Flags::FIN) {
            fin = Some(end);
        }
        if start == end {
            self.note_fin(fin);
            self.take_fin();
            self.out_of_order(twice);
            return Delivered::Nothing;
        }
        if self.receive_shut {
            self.abort();
            return Delivered::Nothing;
        }
        self.watch_round(now, seg);
        // Of several duplicate parts only the first is reported (RFC 2883 section 4).
        let news = self.reassembly.news(start, end);
        let twice = twice.or(news.known).filter(|_| self.sack);
        let Some((from, to)) = news.fresh else {
            self.stats.record().duplicates_in += 1;
            self.note_fin(fin);
            self.out_of_order(twice);
            return Delivered::Nothing;
        };
        // One frame is handed up once, so only the first new part of several. What lies beyond
        // counts as not received, and the peer sends it again.
        let skip = (from - seg.seq) as usize;
        let octets = seg.payload.start + skip..seg.payload.start + skip + (to - from) as usize;
        // req: MPA-034, DDP-013, DDP-024, DDP-114, DDP-116, RDMAP-212, RDMAP-221
        if from != self.rcv.nxt {
            self.out_of_order(twice);
            if !self.reassembly.admits((from, to), self.cfg.max_held_frames.into()) {
                self.stats.record().held_overflow += 1;
                return Delivered::Nothing;
            }
            self.plan = Plan::Answer(Early { block: (from, to), fin });
            // req: MPA-003, MPA-032, MPA-052
            return Delivered::Early { frame, seq: from, octets };
        }
        let gap_filled = !self.reassembly.is_empty();
        self.rcv.nxt = to;
        self.rcv.moved();
        self.in_order(now, seq_len(&octets));
        self.rcv.due |= gap_filled;
        if twice.is_some() {
            self.out_of_order(twice);
        }
        self.note_fin(fin);
        self.take_fin();
        Delivered::InOrder { frame, octets }
    }

    fn in_order(&mut self, now: Instant, len: u32) {
        self.rcv.in_order(now, &mut self.timers, len, self.cfg.delayed_ack_ns);
    }

    /// A segment arrived out of order, or brought octets twice.
    pub(super) fn out_of_order(&mut self, twice: Option<Block>) {
        self.rcv.out_of_order();
        if let Some(twice) = twice.filter(|_| self.sack) {
            self.reports.add(twice);
        }
    }

    /// The peer's FIN is here; the first one counts.
    fn note_fin(&mut self, fin: Option<Seq>) {
        self.peer.fin = self.peer.fin.or(fin);
    }

    /// Takes the peer's FIN once everything before it is here.
    #[inline]
    fn take_fin(&mut self) {
        if self.peer.finished || self.peer.fin != Some(self.rcv.nxt) {
            return;
        }
        if !self.reassembly.is_empty() {
            self.notify(Notice::BehindFin);
        }
        self.peer.finished = true;
        self.rcv.nxt += 1;
        self.rcv.edge = self.rcv.edge.max(self.rcv.nxt);
        self.rcv.due = true;
        self.step(Event::Fin);
        // req: MPA-012
        self.notify(Notice::PeerClosed);
        if self.state == State::TimeWait {
            self.linger(self.heard_at);
        }
    }

    /// Looks whether `seg`, with payload, ends the round by which the window grows.
    #[inline]
    fn watch_round(&mut self, now: Instant, seg: &Segment) {
        let clock = match seg.options.ts {
            Some((_, echo)) if self.ts_on => echo,
            _ => self.ts.value(now),
        };
        if self.round_mark.is_over(clock) {
            self.end_round(now);
        }
    }

    #[cold]
    pub(super) fn end_round(&mut self, now: Instant) {
        self.count_octets();
        let end = self.reassembly.end().unwrap_or(self.rcv.nxt);
        let (limit, limit_max) = (self.limits.limit(), self.limits.limit_max());
        // Not before the connection was accepted.
        let is_open = limit >= self.cfg.recv_window.min(limit_max);
        self.window_wanted = self.round.need(now, end, limit_max);
        if self.window_wanted > limit && is_open {
            // req: DDP-242
            self.notify(Notice::Window);
        }
        self.begin_round(now);
    }

    /// Begins a round: it ends with the echo of what leaves from `now` on.
    pub(super) fn begin_round(&mut self, now: Instant) {
        let wait = if self.ts_on { 0 } else { 2 * (self.rtt.srtt() / MICROSECOND) + 1 };
        let wait = u32::try_from(wait).unwrap_or(Round::WAIT_MAX).min(Round::WAIT_MAX);
        let end = self.reassembly.end().unwrap_or(self.rcv.nxt);
        self.round.begin(now, end);
        self.round_mark = Mark(self.ts.value(now).wrapping_add(wait));
    }

    /// After [`Notice::Window`]: what the receive window should span, so that it does not hold the
    /// peer up; octets.
    #[must_use]
    pub fn window_wanted(&self) -> u32 {
        self.window_wanted
    }

    /// What the receive window may span at present, octets.
    #[must_use]
    pub fn window_limit(&self) -> u32 {
        self.limits.limit()
    }

    /// Lets the receive window span `limit` octets from now on, at most the configured maximum;
    /// less than at present changes nothing.
    pub fn grow_window(&mut self, limit: u32) {
        let reopens = self.limits.open(&mut self.rcv, limit, &self.cfg);
        self.announce_window(reopens);
    }

    /// The receive window spans what it did before it grew. What was offered stays offered: the
    /// right edge moves on once less than that is left.
    pub fn reset_window(&mut self) {
        self.limits.narrow(&mut self.rcv, self.cfg.recv_window, &self.cfg);
    }
}

/// Octets of sequence space that a range in a frame takes.
#[expect(clippy::cast_possible_truncation, reason = "a payload is below 64 KiB")]
#[inline]
fn seq_len(octets: &Range<usize>) -> u32 {
    octets.len() as u32
}
