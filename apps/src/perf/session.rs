//! One end's side of a session: the control channel, the data connections, the two regions.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ferrowarp::{AtomicOp, Mr, Operation, Payload, PostError, Qp, RecvWr, SendWr, SgList, Wc};

use crate::endpoint::{Endpoint, MessageChannel, WrId, check_wc, end_reason, gather, sge_at};
use crate::perf::control::{
    ControlFrame, FLAG_BIDIRECTIONAL, FLAG_CMP_SWAP, FLAG_IMMEDIATE, FLAG_VERIFY, Hello, Message,
    RECEIVE_LEN, Region, Run, Welcome,
};
use crate::perf::options::{Test, Transfer};

/// Kind of a message's request on a data connection.
pub const KIND_MESSAGE: u8 = WrId::FIRST_APP_KIND;
/// Kind of a receive on a data connection.
pub const KIND_RECV: u8 = WrId::FIRST_APP_KIND + 1;
/// Kind of the Read that confirms the Writes before it.
pub const KIND_CONFIRM: u8 = WrId::FIRST_APP_KIND + 2;

/// Time between signs of life.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of that Read.
const CONFIRM_LEN: u32 = 8;

/// One end's side of a session.
pub struct Session {
    /// The end.
    pub end: Endpoint,
    /// The control channel.
    pub control: MessageChannel,
    /// The data connections, in order of their index.
    pub data: Vec<Qp>,
    /// Messages are built here; the other end's RDMA Reads fetch them here.
    pub tx: Mr,
    /// Messages arrive here.
    pub rx: Mr,
    /// The other end's regions.
    pub peer: Welcome,
    /// What was agreed.
    pub hello: Hello,
    /// This end connected; the other one listens.
    pub initiator: bool,
    /// The run that goes on, or the last one.
    pub run_number: u32,
    /// When this end last said that it is there.
    pub last_alive_sent: Instant,
}

/// Control messages that each end can take at a time.
#[must_use]
pub const fn control_depth(qps: u16) -> u32 {
    32 + 24 * qps as u32
}

/// Completions that a session's queue must hold.
#[must_use]
pub fn completions_max(qps: u16, tx_depth: u32, rx_depth: u32) -> usize {
    let depth = send_depth(tx_depth, rx_depth) + usize::try_from(rx_depth).unwrap_or(0);
    let control = usize::try_from(control_depth(qps)).unwrap_or(usize::MAX);
    usize::from(qps) * depth + 2 * control + 16
}

/// Requests of a data connection's send queue: a Write and an empty Send for each message, the
/// empty Sends that use up receives at the end of a run, the confirming Read.
fn send_depth(tx_depth: u32, rx_depth: u32) -> usize {
    usize::try_from(2 * tx_depth + rx_depth + 8).unwrap_or(usize::MAX)
}

/// Bytes of the two regions of an end, `tx` and `rx`. One that the test does not use is small.
///
/// # Errors
/// If they are more than this machine can count.
pub fn region_lens(hello: &Hello, initiator: bool) -> anyhow::Result<[usize; 2]> {
    let whole = usize::try_from(hello.span * u64::from(hello.qps))?;
    let both = hello.test.is_latency() || hello.has(FLAG_BIDIRECTIONAL);
    // A message is built at the active end, unless it is fetched.
    let uses_tx = both || initiator != hello.test.transfer().is_fetch();
    let uses_rx = both || !uses_tx;
    Ok([uses_tx, uses_rx].map(|used| if used { whole } else { 64 }))
}

/// A region as the other end is told of it.
#[must_use]
pub fn advertise(mr: &Mr) -> Region {
    Region { addr: mr.addr(), len: mr.len() as u64, rkey: mr.rkey() }
}

/// Bytes of a word in memory that are not those of `expected`.
fn mismatches(word: [u8; 8], expected: u64) -> u64 {
    word.iter().zip(expected.to_ne_bytes()).map(|(byte, right)| u64::from(*byte != right)).sum()
}

impl Session {
    /// A queue pair for a data connection of `hello`.
    ///
    /// # Errors
    /// If the stack has no room for one.
    pub fn create_data_qp(end: &Endpoint, hello: &Hello) -> anyhow::Result<Qp> {
        let receives = usize::try_from(hello.rx_depth)?.max(1);
        end.create_qp(send_depth(hello.tx_depth, hello.rx_depth), receives)
    }

    /// A control channel for a session of `qps` data connections.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn control_channel(end: &Endpoint, qps: u16) -> anyhow::Result<MessageChannel> {
        MessageChannel::new(end, control_depth(qps), u32::try_from(RECEIVE_LEN)?)
    }

    /// The test.
    #[must_use]
    pub const fn test(&self) -> Test {
        self.hello.test
    }

    /// Messages are verified.
    #[must_use]
    pub const fn verify(&self) -> bool {
        self.hello.has(FLAG_VERIFY)
    }

    /// RDMA Writes have immediate data.
    #[must_use]
    pub const fn uses_immediate(&self) -> bool {
        self.hello.has(FLAG_IMMEDIATE)
    }

    /// Each Write is followed by an empty Send, by which the sink learns of it.
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

    /// Says now and then that this end is still there.
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

    /// To be called now and then by whatever takes long, so that the connections stay alive and
    /// the other end knows.
    ///
    /// # Errors
    /// If the control connection is down.
    pub fn drive_and_send_alive(&mut self) -> anyhow::Result<()> {
        self.end.context.drive();
        self.send_alive_if_due(Instant::now())
    }

    /// Stream number of messages that one end builds for data connection `qp`.
    #[must_use]
    pub const fn stream(&self, qp: u16, built_here: bool) -> u32 {
        let qp = qp as u32;
        qp * 2 + (self.initiator != built_here) as u32
    }

    /// Where message `number` of data connection `qp` lies in a region, in bytes.
    #[must_use]
    pub fn offset(&self, run: &Run, qp: u16, number: u64) -> u64 {
        u64::from(qp) * self.hello.span + number % u64::from(run.slots) * run.stride
    }

    /// `wr_id` of a request of the present run.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the fields are modulo their width")]
    pub const fn wr_id(&self, kind: u8, qp: u16, number: u64) -> u64 {
        WrId { kind, run: self.run_number as u8, index: qp, number: number as u32 }.pack()
    }

    /// True if a completion belongs to the present run.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the field is modulo its width")]
    pub const fn is_current(&self, id: WrId) -> bool {
        id.run == self.run_number as u8
    }

    /// Refuses a completion that is no success.
    ///
    /// # Errors
    /// Says why the connection ended, or what failed.
    pub fn check(&self, id: WrId, wc: &Wc) -> anyhow::Result<()> {
        let qp = self.data.get(usize::from(id.index)).context("a completion of no connection")?;
        check_wc(wc, qp)
    }

    /// Posts to a data connection; `false` if the queue is full.
    ///
    /// # Errors
    /// If the connection is down or refuses the request.
    #[inline]
    pub fn post(
        &self,
        qp: u16,
        wr_id: u64,
        operation: Operation,
        signaled: bool,
    ) -> anyhow::Result<bool> {
        let queue = &self.data[usize::from(qp)];
        match queue.post_send(SendWr { wr_id, operation, signaled, fence: false }) {
            Ok(()) => Ok(true),
            Err(PostError::QueueFull) => Ok(false),
            Err(error) => match end_reason(queue) {
                Some(reason) => bail!("{reason}"),
                None => Err(error).context("a request was refused"),
            },
        }
    }

    /// Posts requests to a data connection with one bell for all of them; returns how many found
    /// room.
    ///
    /// # Errors
    /// If the connection is down or refuses a request.
    #[inline]
    pub fn post_batch(&self, qp: u16, wrs: impl Iterator<Item = SendWr>) -> anyhow::Result<u64> {
        let queue = &self.data[usize::from(qp)];
        let (count, error) = queue.post_sends(wrs);
        match error {
            None | Some(PostError::QueueFull) => Ok(count as u64),
            Some(error) => match end_reason(queue) {
                Some(reason) => bail!("{reason}"),
                None => Err(error).context("a request was refused"),
            },
        }
    }

    /// Posts a receive for message `number` of data connection `qp`: into its slot for Sends,
    /// without memory otherwise.
    ///
    /// # Errors
    /// If the connection is down.
    #[inline]
    pub fn post_recv(&self, run: &Run, qp: u16, number: u64) -> anyhow::Result<()> {
        let mut sg_list = SgList::new();
        if self.test().transfer() == Transfer::Send {
            let size = u32::try_from(run.size).context("messages are below 4 GiB")?;
            sg_list.push(sge_at(&self.rx, self.offset(run, qp, number), size));
        }
        let wr_id = self.wr_id(KIND_RECV, qp, number);
        let posted = self.data[usize::from(qp)].post_recv(RecvWr { wr_id, sg_list });
        posted.context("cannot post a receive")
    }

    /// The operation that moves message `number`: from this end's `tx` to the other end's `rx`,
    /// or by RDMA Read from the other end's `tx` to this end's `rx`.
    ///
    /// # Panics
    /// Never for sizes that were checked: messages are at most 1 GiB.
    #[inline]
    #[must_use]
    pub fn operation(&self, run: &Run, qp: u16, number: u64) -> Operation {
        let size = u32::try_from(run.size).expect("messages are at most 1 GiB");
        let offset = self.offset(run, qp, number);
        match self.test().transfer() {
            Transfer::Write => {
                let payload = gather(sge_at(&self.tx, offset, size));
                let (rkey, remote) = (self.peer.rx.rkey, self.peer.rx.addr + offset);
                if self.uses_immediate() {
                    let data = number.to_be_bytes();
                    let solicited = false;
                    return Operation::WriteImmediate { payload, rkey, remote, data, solicited };
                }
                Operation::Write { payload, rkey, remote }
            }
            Transfer::Atomic => Operation::Atomic {
                op: self.atomic_op(number),
                sink: sge_at(&self.rx, offset, size),
                rkey: self.peer.tx.rkey,
                // One word for all of the connection's operations.
                remote: self.peer.tx.addr + self.offset(run, qp, 0),
            },
            Transfer::Read => Operation::Read {
                sink: sge_at(&self.rx, offset, size),
                rkey: self.peer.tx.rkey,
                remote: self.peer.tx.addr + offset,
            },
            Transfer::Send => Operation::Send {
                payload: gather(sge_at(&self.tx, offset, size)),
                solicited: false,
                invalidate: None,
            },
        }
    }

    /// Operation `number` on a word, which is `number` before it and 1 more afterwards.
    const fn atomic_op(&self, number: u64) -> AtomicOp {
        if self.hello.has(FLAG_CMP_SWAP) {
            AtomicOp::cmp_swap(number, number + 1)
        } else {
            AtomicOp::fetch_add(1)
        }
    }

    /// Bytes that are wrong in what atomic operation `number` of data connection `qp` fetched.
    #[must_use]
    pub fn check_atomic_result(&self, run: &Run, qp: u16, number: u64) -> u64 {
        let mut word = [0; 8];
        self.rx
            .read(usize::try_from(self.offset(run, qp, number)).unwrap_or(usize::MAX), &mut word);
        mismatches(word, number)
    }

    /// Bytes that are wrong in the sum of all connections' words after `count` operations.
    #[must_use]
    pub fn check_atomic_sum(&self, run: &Run, count: u64) -> u64 {
        let word = |qp| {
            let at = usize::try_from(self.offset(run, qp, 0)).unwrap_or(usize::MAX);
            self.tx.load_word(at)
        };
        let sum = (0..self.hello.qps).map(word).fold(0, u64::wrapping_add);
        mismatches(sum.to_ne_bytes(), count)
    }

    /// A Send without bytes: says that the message before it is complete, or uses up a receive.
    #[must_use]
    pub const fn empty_send() -> Operation {
        Operation::Send { payload: Payload::empty(), solicited: false, invalidate: None }
    }

    /// A Read that says by its answer that the Writes of data connection `qp` before it have been
    /// placed. What it brings lands where these were built, which is of no use any more. It asks
    /// for some bytes, because siw answers one for none with bytes of its last request.
    #[must_use]
    pub fn confirming_read(&self, qp: u16) -> Operation {
        Operation::Read {
            sink: sge_at(&self.tx, u64::from(qp) * self.hello.span, CONFIRM_LEN),
            rkey: self.peer.rx.rkey,
            remote: self.peer.rx.addr,
        }
    }

    /// Why a connection of the session ended, if one did.
    #[must_use]
    pub fn end_reason(&self) -> Option<Cow<'static, str>> {
        core::iter::once(&self.control.qp).chain(&self.data).find_map(end_reason)
    }

    /// Ends all connections, after what was posted has been sent.
    pub fn disconnect(&self) {
        for qp in self.data.iter().chain(core::iter::once(&self.control.qp)) {
            // One that is down already is no error here.
            let _ = qp.disconnect();
        }
    }

    /// True when all connections are down.
    #[must_use]
    pub fn is_down(&self) -> bool {
        let down = |qp: &Qp| qp.state() == ferrowarp::QpState::Error;
        down(&self.control.qp) && self.data.iter().all(down)
    }
}
