//! One end of a program on top of the verbs: its completion queue, and a channel of small
//! messages, which all three programs use for what they have to say to each other.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ferrowarp::{
    Access, Buffer, ConnInfo, ConnParam, ConnectError, Context, Cq, EndReason, Event,
    INLINE_LEN_MAX, Mr, Operation, Payload, Pd, PostError, Qp, QpOptions, QpState, RecvWr, SendWr,
    SgList, Sge, Wc, WcStatus,
};

/// How long the other end may take to close.
pub const CLOSE_MAX: Duration = Duration::from_secs(2);
/// Messages that may wait for room in a send queue; more means that the other end is stuck.
const PENDING_MAX: usize = 4096;
/// Private data of a connection request that every peer takes (siw keeps 256 octets).
pub const PRIVATE_LEN_MAX: usize = 128;

/// What a work request was for; travels in its `wr_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    /// The program's kind of request.
    pub kind: u8,
    /// Run of the program, modulo 256, so that late completions are told apart.
    pub run: u8,
    /// Connection.
    pub index: u16,
    /// Number of the request, modulo 2^32; slot of a channel.
    pub number: u32,
}

impl Id {
    /// Kind of a channel's receives.
    pub const CHANNEL_RECEIVE: u8 = 0;
    /// Kind of a channel's Sends.
    pub const CHANNEL_SEND: u8 = 1;
    /// First kind that a program may use as it likes.
    pub const FIRST_FREE: u8 = 2;

    /// As a `wr_id`.
    #[must_use]
    pub const fn pack(self) -> u64 {
        let (kind, run, index, number) =
            (self.kind as u64, self.run as u64, self.index as u64, self.number as u64);
        kind << 56 | run << 48 | index << 32 | number
    }

    /// From a `wr_id`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes the fields apart")]
    pub const fn unpack(wr_id: u64) -> Self {
        Self {
            kind: (wr_id >> 56) as u8,
            run: (wr_id >> 48) as u8,
            index: (wr_id >> 32) as u16,
            number: wr_id as u32,
        }
    }
}

/// One end: a context with one protection domain and one completion queue for everything, so
/// that an idle end costs one pass of its shard per poll.
pub struct End {
    /// The device and its shard.
    pub context: Context,
    /// Everything belongs to it.
    pub pd: Pd,
    cq: Cq,
}

fn too_much(len: usize) -> String {
    format!("no {len} octets of memory: use a smaller size or fewer slots")
}

/// `len` octets of memory, zeroed. Takes long if they are many.
///
/// # Errors
/// If there is no memory.
pub fn allocate(context: &Context, len: usize) -> anyhow::Result<Buffer> {
    context.allocate(len.max(64)).with_context(|| too_much(len))
}

impl End {
    /// An end whose connections have at most `requests` outstanding, all together.
    ///
    /// # Errors
    /// If the queue is over a limit of the context.
    pub fn new(context: &Context, requests: usize) -> anyhow::Result<Self> {
        Ok(Self {
            pd: context.alloc_pd(),
            cq: context.create_cq(requests)?,
            context: context.clone(),
        })
    }

    /// Appends completions to `batch`; drives the shard when none is there.
    #[inline]
    pub fn poll(&self, batch: &mut Vec<Wc>) {
        self.cq.poll(batch);
    }

    /// Registers `len` octets of new memory, zeroed.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn memory(&self, len: usize, access: Access) -> anyhow::Result<Mr> {
        self.register(allocate(&self.context, len)?, access)
    }

    /// Registers memory.
    ///
    /// # Errors
    /// If the stack has no room for a region.
    pub fn register(&self, buffer: Buffer, access: Access) -> anyhow::Result<Mr> {
        let len = buffer.len();
        self.pd.register(buffer, access).with_context(|| too_much(len))
    }

    /// A queue pair on the end's completion queue.
    ///
    /// # Errors
    /// If the stack has no room for one.
    pub fn queue_pair(&self, max_send_wr: usize, max_recv_wr: usize) -> anyhow::Result<Qp> {
        let options = QpOptions { send_cq: &self.cq, recv_cq: &self.cq, max_send_wr, max_recv_wr };
        self.pd.create_qp(&self.context, &options).context("no room for another connection")
    }
}

/// Connection parameters with private data; `markers` asks for them in what the peer sends.
///
/// # Errors
/// If the private data are too long.
pub fn parameters(
    crc: bool,
    markers: bool,
    reads: u16,
    private: &[u8],
) -> anyhow::Result<ConnParam> {
    anyhow::ensure!(private.len() <= PRIVATE_LEN_MAX, "the private data are too long");
    let private_data = private.iter().copied().collect();
    Ok(ConnParam { crc, markers, ird: reads, ord: reads, private_data, ..ConnParam::default() })
}

/// A piece of `mr`.
#[must_use]
pub fn piece(mr: &Mr, offset: u64, len: u32) -> Sge {
    Sge { addr: mr.addr() + offset, len, lkey: mr.lkey() }
}

/// A payload of one piece.
#[must_use]
pub fn gather(sge: Sge) -> Payload {
    let mut list = SgList::new();
    list.push(sge);
    Payload::Gather(list)
}

/// Looks whether a connection that is being set up has come up.
///
/// # Errors
/// Why it never will.
pub fn established(qp: &Qp) -> anyhow::Result<Option<ConnInfo>> {
    while let Some(event) = qp.next_event() {
        if let Event::Established { info: agreed, .. } = event {
            return Ok(Some(*agreed));
        }
        if let Some(reason) = end_of(event) {
            bail!("{reason}");
        }
    }
    Ok(None)
}

/// Text of a peer as it may be shown on a terminal.
fn printable(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).chars().filter(|c| !c.is_control()).collect()
}

/// The reason for the end of a connection, if it has ended or could not be set up.
#[must_use]
pub fn ended(qp: &Qp) -> Option<Cow<'static, str>> {
    while let Some(event) = qp.next_event() {
        if let Some(reason) = end_of(event) {
            return Some(reason);
        }
    }
    match qp.state() {
        QpState::Error => Some(Cow::Borrowed("the connection has ended")),
        // Nothing here closes before it is done: it is the other end that does.
        QpState::Closing => Some(Cow::Borrowed(why(EndReason::PeerClosed))),
        _ => None,
    }
}

/// What an event says about the end of its connection.
fn end_of(event: Event) -> Option<Cow<'static, str>> {
    match event {
        Event::Disconnected { reason, .. } => Some(match reason.error() {
            Some((layer, kind, code)) if is_told(reason) => Cow::Owned(format!(
                "{} (layer {layer}, type {kind}, code {code:#04x})",
                why(reason)
            )),
            _ => Cow::Borrowed(why(reason)),
        }),
        Event::CqOverrun { .. } => Some(Cow::Borrowed("the completion queue overran")),
        Event::ConnectFailed { error, private_data, .. } => {
            let told = printable(&private_data);
            Some(Cow::Owned(if error == ConnectError::Rejected && !told.is_empty() {
                format!("refused by the other end: {told}")
            } else {
                format!("cannot connect: {error}")
            }))
        }
        _ => None,
    }
}

/// A Terminate says what it is about.
const fn is_told(reason: EndReason) -> bool {
    matches!(
        reason,
        EndReason::TerminateSent(_)
            | EndReason::TerminateUnsent(_)
            | EndReason::TerminateReceived(_)
    )
}

/// What is said of an end that has gone without a word.
pub const SILENT: &str = "the other end stopped answering: is it still running?";

const fn why(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Local => "the connection was closed at this end",
        EndReason::PeerClosed => "the other end closed the connection",
        EndReason::Reset => "the other end reset the connection: was it ended?",
        EndReason::TimedOut => SILENT,
        EndReason::TerminateSent(_) => "the other end broke the protocol; sent it a Terminate",
        EndReason::TerminateUnsent(_) => "the other end broke the protocol, and could not be told",
        EndReason::TerminateReceived(_) => "the other end sent a Terminate; its output says more",
        EndReason::BadTerminate => "the other end sent a Terminate that cannot be read",
        EndReason::DataBehindFin => "the other end sent octets behind the end of its stream",
        EndReason::LocalError => "a request failed at this end",
        _ => "the connection ended",
    }
}

/// Turns an unsuccessful completion into an error that says why.
///
/// # Errors
/// If the completion was not a success.
pub fn check(wc: &Wc, qp: &Qp) -> anyhow::Result<()> {
    match wc.status {
        WcStatus::Success => Ok(()),
        WcStatus::Flushed => match ended(qp) {
            Some(reason) => bail!("{reason}"),
            None => bail!("the connection ended before the work was done"),
        },
        status => bail!("{:?}: {status}", wc.opcode),
    }
}

/// Small messages both ways over a connection of their own. Receives are posted again at once,
/// Sends wait in order for room.
pub struct Channel {
    /// The connection.
    pub qp: Qp,
    inbox: Mr,
    slot_len: u32,
    pending: VecDeque<Vec<u8>>,
    unsent: usize,
}

impl Channel {
    /// A channel that takes messages of at most `slot_len` octets, `slots` at a time; not yet
    /// connected.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(end: &End, slots: u32, slot_len: u32) -> anyhow::Result<Self> {
        let count = usize::try_from(slots)?;
        let qp = end.queue_pair(count, count)?;
        let octets = count * usize::try_from(slot_len)?;
        let inbox = end.memory(octets, Access::LOCAL_WRITE)?;
        let channel = Self { qp, inbox, slot_len, pending: VecDeque::new(), unsent: 0 };
        for slot in 0..slots {
            channel.post_receive(slot)?;
        }
        Ok(channel)
    }

    fn post_receive(&self, slot: u32) -> anyhow::Result<()> {
        let id = Id { kind: Id::CHANNEL_RECEIVE, run: 0, index: 0, number: slot };
        let mut sg_list = SgList::new();
        let offset = u64::from(slot) * u64::from(self.slot_len);
        sg_list.push(piece(&self.inbox, offset, self.slot_len));
        let posted = self.qp.post_recv(RecvWr { wr_id: id.pack(), sg_list });
        posted.context("cannot post a receive for a message")
    }

    /// Sends a message of at most [`INLINE_LEN_MAX`] octets, or keeps it until there is room.
    ///
    /// # Errors
    /// If the connection is down, or far too many messages wait.
    pub fn send(&mut self, octets: &[u8]) -> anyhow::Result<()> {
        assert!(octets.len() <= INLINE_LEN_MAX, "messages fit into a request");
        anyhow::ensure!(self.pending.len() < PENDING_MAX, "the other end takes no messages");
        self.pending.push_back(octets.to_vec());
        self.flush()
    }

    /// Posts messages that waited for room.
    ///
    /// # Errors
    /// If the connection is down.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        while let Some(octets) = self.pending.front() {
            let payload = Payload::Inline(octets.iter().copied().collect());
            let id = Id { kind: Id::CHANNEL_SEND, run: 0, index: 0, number: 0 };
            let request = SendWr {
                wr_id: id.pack(),
                operation: Operation::Send { payload, solicited: false, invalidate: None },
                signaled: true,
                fence: false,
            };
            match self.qp.post_send(request) {
                Ok(()) => {
                    self.pending.pop_front();
                    self.unsent += 1;
                }
                Err(PostError::QueueFull) => break,
                Err(error) => match ended(&self.qp) {
                    Some(reason) => bail!("{reason}"),
                    None => return Err(error).context("cannot send a message"),
                },
            }
        }
        Ok(())
    }

    /// True when every message has left this end.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.unsent == 0
    }

    /// The connection is down, or has had its time to go down since this end closed it.
    #[must_use]
    pub fn is_over(&self, closed: Instant) -> bool {
        self.qp.state() == QpState::Error || closed.elapsed() > CLOSE_MAX
    }

    /// Takes note of a completion of this channel, and returns the message if it brought one.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn complete(&mut self, id: Id, wc: &Wc) -> anyhow::Result<Option<Vec<u8>>> {
        check(wc, &self.qp)?;
        if id.kind == Id::CHANNEL_SEND {
            self.unsent = self.unsent.saturating_sub(1);
            self.flush()?;
            return Ok(None);
        }
        let mut octets = vec![0; usize::try_from(wc.byte_len.min(self.slot_len))?];
        let offset = usize::try_from(id.number)? * usize::try_from(self.slot_len)?;
        self.inbox.read(offset, &mut octets);
        // The peer may close with its last message; then there is nothing more to receive.
        if self.qp.state() != QpState::Error {
            self.post_receive(id.number)?;
        }
        Ok(Some(octets))
    }
}

/// Notices when nothing has happened for too long.
#[derive(Debug)]
pub struct Watch {
    limit: Duration,
    since: Instant,
}

impl Watch {
    /// Starts now.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now() }
    }

    /// Something happened.
    pub const fn progress(&mut self, now: Instant) {
        self.since = now;
    }

    /// Complains if nothing has happened for too long while the end waited for `what`.
    ///
    /// # Errors
    /// After the limit.
    pub fn check(&self, now: Instant, what: &str) -> anyhow::Result<()> {
        anyhow::ensure!(
            now - self.since <= self.limit,
            "nothing from the other end for {} s while waiting for {what}: is it still running?",
            self.limit.as_secs_f64()
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_the_round_trip() {
        for id in [
            Id { kind: 7, run: 255, index: 65535, number: u32::MAX },
            Id { kind: 0, run: 0, index: 1, number: 2 },
        ] {
            assert_eq!(Id::unpack(id.pack()), id);
        }
    }

    #[test]
    fn the_watch_complains_once_the_limit_is_over() {
        let mut watch = Watch::new(Duration::from_secs(1));
        let start = watch.since;
        assert!(watch.check(start + Duration::from_millis(900), "x").is_ok());
        assert!(watch.check(start + Duration::from_millis(1100), "x").is_err());
        watch.progress(start + Duration::from_millis(500));
        assert!(watch.check(start + Duration::from_millis(1100), "x").is_ok());
    }

    #[test]
    fn text_of_a_peer_is_harmless() {
        assert_eq!(printable(b"busy\x1b[2J\n\xff"), "busy[2J\u{fffd}");
    }
}
