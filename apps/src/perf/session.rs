//! One side of a session: the control channel, the data connections, the two regions.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ferrowarp::{AtomicOp, Cq, INLINE_LEN_MAX, Mr, Post, Qp, QpOptions, SendFlags, Wc, WqePayload};

use crate::endpoint::{self, Endpoint, WrId, check_wc, end_reason, sge_at};
use crate::message_channel::MessageChannel;
use crate::perf::control::{
    ControlFrame, FLAG_BIDIRECTIONAL, FLAG_CMP_SWAP, FLAG_EVENTS, FLAG_IMMEDIATE, FLAG_VERIFY,
    Hello, Message, RECEIVE_LEN, Region, Run, Welcome,
};
use crate::perf::kind::{Test, Transfer};
use crate::perf::receives::Receives;

/// Kind of a message's request on a data connection.
pub const KIND_MESSAGE: u8 = WrId::FIRST_APP_KIND;
/// Kind of a receive on a data connection.
pub const KIND_RECV: u8 = WrId::FIRST_APP_KIND + 1;
/// Kind of a receive that any data connection may consume; its index and number are those of its
/// memory.
pub const KIND_SHARED_RECV: u8 = WrId::FIRST_APP_KIND + 3;
/// Kind of the RDMA Read that confirms the preceding Writes.
pub const KIND_CONFIRM: u8 = WrId::FIRST_APP_KIND + 2;

/// Interval of Alive messages.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Data connections that [`Session::next_end_reason`] looks at: a thousand would take as long as
/// posting as many messages.
const CHECKED_PER_CALL: usize = 16;
/// Bytes of the confirming Read.
const CONFIRM_LEN: u32 = 8;

/// One side of a session.
pub struct Session {
    /// The local endpoint.
    pub end: Endpoint,
    /// The control channel.
    pub control: MessageChannel,
    /// The data connections, in order of their index.
    pub data: Vec<Qp>,
    /// Their receives.
    pub receives: Receives,
    /// The data connection that [`Session::next_end_reason`] looks at next.
    pub next_checked: usize,
    /// Number of data connections, from the first on, that are known to be down.
    pub down_count: usize,
    /// All connections were disconnected.
    pub is_disconnected: bool,
    /// Region in which messages are built, and from which the peer's RDMA Reads fetch them.
    pub tx: Mr,
    /// Region in which messages arrive.
    pub rx: Mr,
    /// The peer's regions.
    pub peer: Welcome,
    /// Parameters of the session.
    pub hello: Hello,
    /// True at the initiator, false at the responder.
    pub initiator: bool,
    /// Number of the current or last run.
    pub run_number: u32,
    /// Time of the last Alive message sent.
    pub last_alive_sent: Instant,
}

/// Returns the indices of `qps` data connections.
pub fn indices(qps: u32) -> impl Iterator<Item = u16> {
    (0..=u16::MAX).take(usize::try_from(qps).unwrap_or(usize::MAX))
}

/// Returns the depth of the control channel's queues on each side.
#[must_use]
pub const fn control_depth(qps: u32) -> u32 {
    32 + 24 * qps
}

/// Returns the capacity of a session's completion queue.
#[must_use]
pub fn completions_max(qps: u32, tx_depth: u32, rx_depth: u32) -> usize {
    let depth = send_depth(tx_depth, rx_depth) + usize::try_from(rx_depth).unwrap_or(0);
    let control = usize::try_from(control_depth(qps)).unwrap_or(usize::MAX);
    let qps = usize::try_from(qps).unwrap_or(usize::MAX);
    qps.saturating_mul(depth) + 2 * control + 16
}

/// Returns the depth of a data connection's send queue: a Write and an empty Send per message, the
/// empty Sends that consume receives at the end of a run, the confirming Read.
fn send_depth(tx_depth: u32, rx_depth: u32) -> usize {
    usize::try_from(2 * tx_depth + rx_depth + 8).unwrap_or(usize::MAX)
}

/// Returns the options of a data connection's queue pair.
fn data_options<'a>(cq: &'a Cq, hello: &Hello, receives: &'a Receives) -> QpOptions<'a> {
    let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let options = QpOptions::new(cq)
        .max_send_wr(send_depth(hello.tx_depth, hello.rx_depth))
        .max_recv_wr(count(hello.rx_depth).max(1));
    let inline_data = options.max_inline_data.max(count(hello.inline_size));
    let options = options.max_inline_data(inline_data);
    receives.shared().map_or(options, |srq| options.srq(srq))
}

/// Returns the lengths of the local regions `tx` and `rx`. One that the test does not use is small.
///
/// # Errors
/// If a length exceeds `usize`.
pub fn region_lens(hello: &Hello, initiator: bool) -> anyhow::Result<[usize; 2]> {
    let span_total = usize::try_from(hello.span * u64::from(hello.buffers()))?;
    let both = hello.test.is_latency() || hello.has(FLAG_BIDIRECTIONAL);
    // A message is built at the active end, unless it is fetched.
    let uses_tx = both || initiator != hello.test.transfer().is_fetch();
    let uses_rx = both || !uses_tx;
    Ok([uses_tx, uses_rx].map(|used| if used { span_total } else { 64 }))
}

/// Returns the advertisement of a region.
#[must_use]
pub fn advertise(mr: &Mr) -> Region {
    Region { addr: mr.addr(), len: mr.len() as u64, rkey: mr.rkey() }
}

/// Returns how many bytes of a word in memory differ from `expected`.
fn mismatches(word: [u8; 8], expected: u64) -> u64 {
    word.iter().zip(expected.to_ne_bytes()).map(|(byte, right)| u64::from(*byte != right)).sum()
}

impl Session {
    /// Creates a queue pair for a data connection of `hello`.
    ///
    /// # Errors
    /// If the limit of queue pairs is reached.
    pub fn create_data_qp(
        end: &Endpoint,
        hello: &Hello,
        receives: &Receives,
    ) -> anyhow::Result<Qp> {
        end.create_qp_with(|cq| data_options(cq, hello, receives))
    }

    /// Returns the data connection to accept a request with that arrived at `shard`.
    ///
    /// # Errors
    /// If there is no such connection, or a limit is reached.
    pub fn data_qp_on(&mut self, index: usize, shard: usize) -> anyhow::Result<&Qp> {
        let qp = self.data.get_mut(index).context("the session has no such data connection")?;
        if qp.shard().is_some_and(|other| other != shard) {
            let (hello, receives) = (&self.hello, &self.receives);
            *qp = self.end.create_qp_on(shard, |cq| data_options(cq, hello, receives))?;
        }
        Ok(qp)
    }

    /// Creates the control channel of a session with `qps` data connections.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn control_channel(end: &Endpoint, qps: u32) -> anyhow::Result<MessageChannel> {
        MessageChannel::new(end, control_depth(qps), u32::try_from(RECEIVE_LEN)?)
    }

    /// Returns the test.
    #[must_use]
    pub const fn test(&self) -> Test {
        self.hello.test
    }

    /// True if messages are verified.
    #[must_use]
    pub const fn verify(&self) -> bool {
        self.hello.has(FLAG_VERIFY)
    }

    /// True if RDMA Writes carry immediate data.
    #[must_use]
    pub const fn uses_immediate(&self) -> bool {
        self.hello.has(FLAG_IMMEDIATE)
    }

    /// True if the session sleeps while nothing completes.
    #[must_use]
    pub const fn uses_events(&self) -> bool {
        self.hello.has(FLAG_EVENTS)
    }

    /// True if each Write is followed by an empty Send that notifies the Data Sink.
    #[must_use]
    pub fn sends_notification(&self) -> bool {
        self.test().transfer() == Transfer::Write && self.verify() && !self.uses_immediate()
    }

    /// Sends a control message.
    ///
    /// # Errors
    /// If the connection is down.
    pub fn send_control(&mut self, message: Message) -> anyhow::Result<()> {
        self.control.send(&ControlFrame { run: self.run_number, message }.emit())
    }

    /// Sends an Alive message once per interval.
    ///
    /// # Errors
    /// If the control connection is down.
    pub fn send_alive_if_due(&mut self, now: Instant) -> anyhow::Result<()> {
        if now - self.last_alive_sent >= ALIVE_INTERVAL {
            self.last_alive_sent = now;
            self.send_control(Message::Alive)?;
        }
        Ok(())
    }

    /// Polls the shard and sends Alive messages. To be called repeatedly during long operations, so
    /// that the connections stay alive and the peer does not time out.
    ///
    /// # Errors
    /// If the control connection is down.
    pub fn drive_and_send_alive(&mut self) -> anyhow::Result<()> {
        self.end.drive();
        self.send_alive_if_due(Instant::now())
    }

    /// Returns the stream number of messages that one side builds for data connection `qp`.
    #[must_use]
    pub const fn stream(&self, qp: u16, built_here: bool) -> u32 {
        let qp = qp as u32;
        qp * 2 + (self.initiator != built_here) as u32
    }

    /// Returns the offset of message `number` of data connection `qp` in a region, in bytes.
    #[inline]
    #[must_use]
    pub fn offset(&self, run: &Run, qp: u16, number: u64) -> u64 {
        let slots = u64::from(run.slots);
        // A division costs more than the rest of posting a request.
        let slot = if slots.is_power_of_two() { number & (slots - 1) } else { number % slots };
        self.hello.start(qp) + slot * run.stride
    }

    /// Returns the `wr_id` of a request of the current run.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the fields are modulo their width")]
    pub const fn wr_id(&self, kind: u8, qp: u16, number: u64) -> u64 {
        WrId { kind, run: self.run_number as u8, index: qp, number: number as u32 }.pack()
    }

    /// True if a completion belongs to the current run.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the field is modulo its width")]
    pub const fn is_current(&self, id: WrId) -> bool {
        id.run == self.run_number as u8
    }

    /// Checks the status of a completion on a data connection.
    ///
    /// # Errors
    /// The reason why the connection ended, or the failure.
    pub fn check(&self, id: WrId, wc: &Wc) -> anyhow::Result<()> {
        let qp = self
            .data
            .get(usize::from(id.index))
            .context("a completion of an unknown connection")?;
        check_wc(wc, qp)
    }

    /// Begins to post requests to a data connection.
    #[inline]
    pub fn post(&self, qp: u16) -> Post<'_> {
        self.data[usize::from(qp)].post()
    }

    /// Passes requests to a data connection, with one doorbell for all of them. If they do not fit
    /// into the send queue, returns how many did.
    ///
    /// # Errors
    /// If the connection is down or rejects a request.
    #[inline]
    pub fn ring(&self, qp: u16, post: Post<'_>) -> anyhow::Result<Option<usize>> {
        endpoint::ring(&self.data[usize::from(qp)], post)
    }

    /// Posts a receive for message `number` of data connection `qp`: into its slot for Sends,
    /// without memory otherwise. In a shared queue any message may consume it.
    ///
    /// # Errors
    /// If the connection is down.
    ///
    /// # Panics
    /// Never for sizes that were checked: messages are at most 1 GiB.
    #[inline]
    pub fn post_recv(&self, run: &Run, qp: u16, number: u64) -> anyhow::Result<()> {
        let wr_id = |kind| self.wr_id(kind, qp, number);
        let sink = || {
            let size = u32::try_from(run.size).expect("messages are at most 1 GiB");
            sge_at(&self.rx, self.offset(run, qp, number), size)
        };
        let queue = &self.data[usize::from(qp)];
        let posted = match &self.receives {
            Receives::Empty => queue.post_recv(wr_id(KIND_RECV), []),
            Receives::Own => queue.post_recv(wr_id(KIND_RECV), sink()),
            Receives::Shared(srq) => srq.post_recv(wr_id(KIND_SHARED_RECV), sink()),
        };
        posted.context("cannot post a receive")
    }

    /// True if the messages of a run are copied into their requests.
    #[must_use]
    pub fn sends_inline(&self, run: &Run) -> bool {
        !self.test().transfer().is_fetch() && run.size <= self.hello.inline_size.into()
    }

    /// Adds the request that transfers message `number`: from the local `tx` to the peer's `rx`,
    /// or by RDMA Read from the peer's `tx` to the local `rx`. Its `wr_id` has the count of
    /// messages up to it.
    ///
    /// # Panics
    /// Never for sizes that were checked: messages are at most 1 GiB.
    #[inline(always)]
    pub fn add_message(
        &self,
        post: &mut Post<'_>,
        run: &Run,
        qp: u16,
        number: u64,
        flags: SendFlags,
    ) {
        let size = u32::try_from(run.size).expect("messages are at most 1 GiB");
        let built = sge_at(&self.tx, self.offset(run, qp, number), size);
        self.add_built(post, run, qp, number, flags, built);
    }

    /// As [`Session::add_message`], for a run whose messages are copied into their requests
    /// ([`Session::sends_inline`]).
    pub fn add_inline_message(
        &self,
        post: &mut Post<'_>,
        run: &Run,
        qp: u16,
        number: u64,
        flags: SendFlags,
    ) {
        let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let mut message = [0; INLINE_LEN_MAX];
        let message = &mut message[..index(run.size)];
        self.tx.read(index(self.offset(run, qp, number)), message);
        self.add_built(post, run, qp, number, flags, WqePayload::Inline(message));
    }

    /// Adds the request that transfers message `number`, which is in `built` unless it is fetched.
    // Each arm encodes its own request: one that is chosen first would be built in memory.
    #[inline(always)]
    fn add_built<'a>(
        &self,
        post: &mut Post<'_>,
        run: &Run,
        qp: u16,
        number: u64,
        flags: SendFlags,
        built: impl Into<WqePayload<'a>>,
    ) {
        let offset = self.offset(run, qp, number);
        let wr_id = self.wr_id(KIND_MESSAGE, qp, number + 1);
        let sink = || {
            let size = u32::try_from(run.size).expect("messages are at most 1 GiB");
            sge_at(&self.rx, offset, size)
        };
        match self.test().transfer() {
            Transfer::Write if self.uses_immediate() => {
                let data = number.to_be_bytes();
                let target = self.peer.rx.at(offset);
                post.write_immediate(built, target, data).wr_id(wr_id).with(flags);
            }
            Transfer::Write => {
                post.write(built, self.peer.rx.at(offset)).wr_id(wr_id).with(flags);
            }
            Transfer::Atomic => {
                // One word for all operations of the connection.
                let word = self.peer.tx.at(self.offset(run, qp, 0));
                post.atomic(self.atomic_op(number), sink(), word).wr_id(wr_id).with(flags);
            }
            Transfer::Read => {
                post.read(sink(), self.peer.tx.at(offset)).wr_id(wr_id).with(flags);
            }
            Transfer::Send => {
                post.send(built).wr_id(wr_id).with(flags);
            }
        }
    }

    /// Returns atomic operation `number` on a word, which is `number` before it and `number + 1`
    /// afterwards.
    const fn atomic_op(&self, number: u64) -> AtomicOp {
        if self.hello.has(FLAG_CMP_SWAP) {
            AtomicOp::cmp_swap(number, number + 1)
        } else {
            AtomicOp::fetch_add(1)
        }
    }

    /// Returns how many bytes fetched by atomic operation `number` of data connection `qp` are
    /// wrong.
    #[must_use]
    pub fn check_atomic_result(&self, run: &Run, qp: u16, number: u64) -> u64 {
        let mut word = [0; 8];
        self.rx
            .read(usize::try_from(self.offset(run, qp, number)).unwrap_or(usize::MAX), &mut word);
        mismatches(word, number)
    }

    /// Returns how many bytes of the sum of all connections' words are wrong after `count`
    /// operations.
    #[must_use]
    pub fn check_atomic_sum(&self, run: &Run, count: u64) -> u64 {
        let word = |qp| {
            let at = usize::try_from(self.offset(run, qp, 0)).unwrap_or(usize::MAX);
            self.tx.load_word(at)
        };
        let sum = indices(self.hello.qps).map(word).fold(0, u64::wrapping_add);
        mismatches(sum.to_ne_bytes(), count)
    }

    /// Posts `count` empty Sends that consume receives at the end of a run. Returns how many are
    /// still to be posted, because the send queue is full.
    ///
    /// # Errors
    /// As [`Session::ring`].
    pub fn post_drain_sends(&self, qp: u16, count: u32) -> anyhow::Result<u32> {
        let wr_id = self.wr_id(KIND_CONFIRM, qp, 1);
        let mut post = self.post(qp);
        for _ in 0..count {
            post.send(&[]).wr_id(wr_id);
        }
        let posted = self.ring(qp, post)?.map_or(Ok(count), u32::try_from)?;
        Ok(count - posted)
    }

    /// Posts an RDMA Read whose completion confirms that the preceding Writes of data connection
    /// `qp` have been placed; `false` if the send queue is full. Its sink is the memory in which
    /// these were built, which is no longer used. It is not zero-length, because siw responds to a
    /// zero-length Read with bytes of its last request.
    ///
    /// # Errors
    /// As [`Session::ring`].
    pub fn post_confirming_read(&self, qp: u16) -> anyhow::Result<bool> {
        let sink = sge_at(&self.tx, self.hello.start(qp), CONFIRM_LEN);
        let wr_id = self.wr_id(KIND_CONFIRM, qp, 0);
        let mut post = self.post(qp);
        post.read(sink, self.peer.rx.at(0)).wr_id(wr_id).signaled();
        Ok(self.ring(qp, post)?.is_none())
    }

    /// Returns the reason why a connection of the session ended, if one of those looked at did: the
    /// control connection and the next 16 of the others, so that all are soon looked at.
    pub fn next_end_reason(&mut self) -> Option<Cow<'static, str>> {
        let count = self.data.len().min(CHECKED_PER_CALL);
        let (checked, unchecked) = self.data.split_at(self.next_checked);
        let next = unchecked.iter().chain(checked).take(count);
        let reason = core::iter::once(&self.control.qp).chain(next).find_map(end_reason);
        self.next_checked = (self.next_checked + count) % self.data.len().max(1);
        reason
    }

    /// Ends a session that failed: tells the peer why, and disconnects.
    #[cold]
    pub fn fail(&mut self, reason: &str) {
        let message = Message::Failure(reason.to_owned());
        let frame = ControlFrame { run: self.run_number, message };
        self.control.close_with(&self.end, &frame.emit());
        self.disconnect();
    }

    /// Ends all connections: requests that have not completed are flushed. Further calls have no
    /// effect.
    pub fn disconnect(&mut self) {
        if core::mem::replace(&mut self.is_disconnected, true) {
            return;
        }
        for qp in self.data.iter().chain(core::iter::once(&self.control.qp)) {
            // A connection that is down already is no error here.
            let _ = qp.disconnect();
        }
    }

    /// True if all connections are down. Over all calls, each that is down is looked at once.
    pub fn is_down(&mut self) -> bool {
        let is_down = |qp: &Qp| qp.state() == ferrowarp::QpState::Error;
        let more = self.data[self.down_count..].iter().take_while(|qp| is_down(qp));
        self.down_count += more.count();
        self.down_count == self.data.len() && is_down(&self.control.qp)
    }
}
