//! Common parts of the programs on top of verbs: an endpoint with its completion queue, and the
//! reasons for which connections end.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use ferrowarp::{
    Access, Buffer, CompChannel, ConnEvent, ConnInfo, ConnParam, ConnRequest, ConnectError,
    Context, Cq, CqOptions, EndReason, Mr, Notify, Pd, Post, PostError, PostRefused, Qp, QpOptions,
    QpState, Sge, ShardHandle, Spinner, Wc, WcStatus,
};

use crate::peer_text::{bounded, shown_reason};

/// Timeout for the peer to close.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Private data of a connection request, in bytes, that every peer accepts (siw keeps 256).
pub const PRIVATE_LEN_MAX: usize = 128;

/// Purpose of a work request, encoded in its `wr_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrId {
    /// Kind of request, defined by the program.
    pub kind: u8,
    /// Run number modulo 256, which identifies late completions of an earlier run.
    pub run: u8,
    /// Connection index.
    pub index: u16,
    /// Number of the request, modulo 2^32; slot of a channel.
    pub number: u32,
}

impl WrId {
    /// Kind of a channel's receives.
    pub const CHANNEL_RECV: u8 = 0;
    /// Kind of a channel's Sends.
    pub const CHANNEL_SEND: u8 = 1;
    /// First kind that a program may define.
    pub const FIRST_APP_KIND: u8 = 2;

    /// Returns the `wr_id` of all requests of a kind, which need not be told apart.
    #[must_use]
    pub const fn of_kind(kind: u8) -> u64 {
        Self { kind, run: 0, index: 0, number: 0 }.pack()
    }

    /// Encodes a `wr_id`.
    #[must_use]
    pub const fn pack(self) -> u64 {
        let (kind, run, index, number) =
            (self.kind as u64, self.run as u64, self.index as u64, self.number as u64);
        kind << 56 | run << 48 | index << 32 | number
    }

    /// Decodes a `wr_id`.
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

/// A context with one protection domain, and one completion queue for the queue pairs of one shard,
/// so that an idle poll costs one poll of that shard.
pub struct Endpoint {
    /// The device.
    pub context: Context,
    /// Protection domain of all regions and queue pairs.
    pub pd: Pd,
    shard: ShardHandle,
    /// Channel of the completion queues, if the endpoint may sleep.
    channel: Option<CompChannel>,
    cq: Cq,
    /// Completion queues of the other shards at which connections arrived
    /// ([`Endpoint::create_qp_on`]).
    other_cqs: Vec<Cq>,
    requests: usize,
    spinner: RefCell<Spinner>,
    /// Time since which the link has no peer.
    gone_since: Cell<Option<Instant>>,
    /// The link had a peer at some time.
    had_peer: Cell<bool>,
}

/// Time for which the link has to be without its peer. We read the link ten times a second, so a
/// link may still look empty when its next peer has just connected.
const GONE: Duration = Duration::from_millis(300);

fn out_of_memory(len: usize) -> String {
    format!("no {len} bytes of memory: use a smaller size or fewer slots")
}

/// Allocates `len` bytes of zeroed memory, at least 64. Takes long if they are many.
///
/// # Errors
/// If there is no memory.
pub fn allocate(context: &Context, len: usize) -> anyhow::Result<Buffer> {
    context.allocate(len.max(64)).with_context(|| out_of_memory(len))
}

impl Endpoint {
    /// Creates an endpoint on the first shard. Its connections have at most `requests` outstanding
    /// in total.
    ///
    /// # Errors
    /// If the completion queue exceeds a limit of the context.
    pub fn new(context: &Context, requests: usize) -> anyhow::Result<Self> {
        Self::on_shard(context, 0, requests)
    }

    /// As [`Endpoint::new`], on any shard.
    ///
    /// # Errors
    /// As [`Endpoint::new`], and if there is no such shard.
    pub fn on_shard(context: &Context, shard: usize, requests: usize) -> anyhow::Result<Self> {
        Self::open(context, shard, requests, None)
    }

    /// As [`Endpoint::on_shard`], for an endpoint that may sleep ([`Endpoint::poll_or_sleep`]).
    ///
    /// # Errors
    /// As [`Endpoint::on_shard`].
    pub fn with_channel(context: &Context, shard: usize, requests: usize) -> anyhow::Result<Self> {
        let channel = context.create_comp_channel();
        let channel = channel.context("cannot create a completion channel (raise ulimit -n)")?;
        Self::open(context, shard, requests, Some(channel))
    }

    fn open(
        context: &Context,
        shard: usize,
        requests: usize,
        channel: Option<CompChannel>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            pd: context.alloc_pd(),
            cq: create_cq(context, shard, requests, channel.as_ref())?,
            channel,
            shard: context.shard(shard).context("there is no such shard")?,
            context: context.clone(),
            other_cqs: Vec::new(),
            requests,
            spinner: RefCell::default(),
            gone_since: Cell::default(),
            had_peer: Cell::default(),
        })
    }

    /// Checks that the shard still works: a server without connections learns of it only here.
    ///
    /// # Errors
    /// If the shard has failed.
    pub fn check_shard(&self) -> anyhow::Result<()> {
        check_shard(&self.shard)
    }

    /// Checks that the process at the other end of the link has not ended.
    ///
    /// # Errors
    /// If it has, or does not serve this end: TCP would wait for it.
    pub fn check_peer(&self) -> anyhow::Result<()> {
        if !self.context.peer_is_gone() {
            self.gone_since.set(None);
            self.had_peer.set(self.had_peer.get() || self.context.link_is_up());
            return Ok(());
        }
        let since = self.gone_since.get().unwrap_or_else(Instant::now);
        self.gone_since.set(Some(since));
        if since.elapsed() >= GONE && !self.had_peer.get() {
            bail!("cannot connect: {}", ConnectError::LinkDown);
        }
        ensure!(
            since.elapsed() < GONE,
            "the peer has left the link: has the program at the other end of --dev ended?"
        );
        Ok(())
    }

    /// Notes that a connection has come up: the link has a peer, whatever was seen before.
    pub fn on_peer(&self) {
        self.gone_since.set(None);
    }

    /// The shard of the endpoint.
    #[must_use]
    pub const fn shard(&self) -> &ShardHandle {
        &self.shard
    }

    /// Moves completions to `batch`, and returns those; polls the shard if there are none. Leaves
    /// the core to others that need it if there was nothing to do for long.
    #[inline]
    pub fn poll<'w>(&self, batch: &'w mut [Wc]) -> &'w [Wc] {
        let spinner = &mut *self.spinner.borrow_mut();
        let mut found = self.cq.poll_spinning(batch, spinner).len();
        for cq in &self.other_cqs {
            found += cq.poll_spinning(&mut batch[found..], spinner).len();
        }
        &batch[..found]
    }

    /// True if the endpoint may sleep.
    #[must_use]
    pub const fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    /// As [`Endpoint::poll`], but sleeps while there are no completions, for `timeout` at most.
    /// Without a channel it does not sleep.
    pub fn poll_or_sleep<'w>(&self, batch: &'w mut [Wc], timeout: Duration) -> &'w [Wc] {
        let mut found = self.poll(batch).len();
        if found == 0
            && let Some(channel) = &self.channel
        {
            // Events of completions that were polled after their queue was armed.
            while channel.next_event().is_some() {}
            for cq in core::iter::once(&self.cq).chain(&self.other_cqs) {
                // Fails once the context has ended, and the channel does not wait then.
                let _ = cq.req_notify(Notify::Next);
            }
            found = self.poll(batch).len();
            if found == 0 {
                // A further poll also finds the completions of other queues than the event's.
                let _ = channel.wait(timeout);
                found = self.poll(batch).len();
            }
        }
        &batch[..found]
    }

    /// Frames that the shard has passed on to others, since opening: they arrived at the wrong one.
    #[must_use]
    pub fn frames_forwarded(&self) -> u64 {
        self.shard.counters().engine.frames_forwarded
    }

    /// Polls the shards of the endpoint's connections once. True if there was anything to do.
    pub fn drive(&self) -> bool {
        let others = self.other_cqs.iter().filter_map(|cq| self.context.shard(cq.shard()?));
        others.fold(self.shard.drive(), |busy, shard| busy | shard.drive())
    }

    /// Registers `len` bytes of new memory, zeroed.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn alloc_mr(&self, len: usize, access: Access) -> anyhow::Result<Mr> {
        self.reg_mr(allocate(&self.context, len)?, access)
    }

    /// Registers memory.
    ///
    /// # Errors
    /// If the limit of regions is reached.
    pub fn reg_mr(&self, buffer: Buffer, access: Access) -> anyhow::Result<Mr> {
        let len = buffer.len();
        self.pd.register(buffer, access).with_context(|| out_of_memory(len))
    }

    /// Creates a queue pair on the endpoint's completion queue.
    ///
    /// # Errors
    /// If the limit of queue pairs is reached.
    pub fn create_qp(&self, max_send_wr: usize, max_recv_wr: usize) -> anyhow::Result<Qp> {
        self.create_qp_with(|cq| {
            QpOptions::new(cq).max_send_wr(max_send_wr).max_recv_wr(max_recv_wr)
        })
    }

    /// As [`Endpoint::create_qp`], with options.
    ///
    /// # Errors
    /// As [`Endpoint::create_qp`].
    pub fn create_qp_with<'a>(
        &'a self,
        options: impl FnOnce(&'a Cq) -> QpOptions<'a>,
    ) -> anyhow::Result<Qp> {
        self.new_qp(&options(&self.cq))
    }

    /// As [`Endpoint::create_qp_with`], for a connection that arrived at any shard: a port may
    /// spread the connections of a peer over all of them.
    ///
    /// # Errors
    /// As [`Endpoint::create_qp`].
    pub fn create_qp_on<'a>(
        &'a mut self,
        shard: usize,
        options: impl FnOnce(&'a Cq) -> QpOptions<'a>,
    ) -> anyhow::Result<Qp> {
        let is_of_shard = |cq: &Cq| cq.shard() == Some(shard);
        if !is_of_shard(&self.cq) && !self.other_cqs.iter().any(is_of_shard) {
            let channel = self.channel.as_ref();
            let cq = create_cq(&self.context, shard, self.requests, channel)?;
            self.other_cqs.push(cq);
        }
        let cq = self.other_cqs.iter().find(|cq| is_of_shard(cq)).unwrap_or(&self.cq);
        self.new_qp(&options(cq))
    }

    fn new_qp(&self, options: &QpOptions<'_>) -> anyhow::Result<Qp> {
        self.pd.create_qp(options).context("cannot create a queue pair for another connection")
    }
}

fn create_cq(
    context: &Context,
    shard: usize,
    requests: usize,
    channel: Option<&CompChannel>,
) -> anyhow::Result<Cq> {
    let options = CqOptions::new(requests).shard(shard);
    let options = channel.map_or(options, |channel| options.channel(channel));
    Ok(context.create_cq_with(&options)?)
}

/// Returns connection parameters with private data. `markers` requests MPA markers in received
/// FPDUs; `reads` is both IRD and ORD.
///
/// # Errors
/// If the private data are too long.
pub fn conn_param(
    crc: bool,
    markers: bool,
    reads: u16,
    private: &[u8],
) -> anyhow::Result<ConnParam> {
    anyhow::ensure!(private.len() <= PRIVATE_LEN_MAX, "the private data are too long");
    let param = ConnParam::new().crc(crc).markers(markers).ird(reads).ord(reads);
    Ok(param.private_data(private)?)
}

/// Rejects a connection request; the peer prints the reason, or its beginning.
pub fn reject(request: ConnRequest, reason: &str) {
    // The peer may have disconnected meanwhile, which is no error here.
    let _ = request.reject(bounded(reason, PRIVATE_LEN_MAX).as_bytes());
}

/// Returns the scatter/gather element of `len` bytes at `offset` of `mr`.
#[must_use]
pub fn sge_at(mr: &Mr, offset: u64, len: u32) -> Sge {
    Sge { addr: mr.addr() + offset, len, lkey: mr.lkey() }
}

/// Passes the requests of `post` to the stack. If the send queue of `qp` has no room for all of
/// them, returns how many it took.
///
/// # Errors
/// As [`refusal`].
#[inline]
pub fn ring(qp: &Qp, post: Post<'_>) -> anyhow::Result<Option<usize>> {
    match post.ring() {
        Ok(()) => Ok(None),
        Err(PostRefused { error: PostError::QueueFull, posted, .. }) => Ok(Some(posted)),
        Err(refused) => Err(refusal(qp, refused)),
    }
}

/// Returns the error for requests that were refused: the reason why the connection ended, if it
/// did.
#[cold]
#[must_use]
pub fn refusal(qp: &Qp, refused: PostRefused) -> anyhow::Error {
    match end_reason(qp) {
        Some(reason) => anyhow!("{reason}"),
        None => anyhow!(refused.error).context("a request was refused"),
    }
}

/// Polls a connection that is being set up. Returns its parameters once it is established.
///
/// # Errors
/// The reason if the connection failed.
pub fn poll_established(qp: &Qp) -> anyhow::Result<Option<ConnInfo>> {
    while let Some(event) = qp.next_event() {
        if let ConnEvent::Established { info, .. } = event {
            return Ok(Some(*info));
        }
        if let Some(reason) = event_end_reason(event) {
            bail!("{reason}");
        }
    }
    Ok(None)
}

/// Returns the reason why a connection ended or could not be set up, if it did.
#[must_use]
pub fn end_reason(qp: &Qp) -> Option<Cow<'static, str>> {
    let next = || std::iter::from_fn(|| qp.next_event()).find_map(event_end_reason);
    if let Some(reason) = next() {
        return Some(reason);
    }
    match qp.state() {
        // Another thread may have reported the reason meanwhile.
        QpState::Error => next().or(Some(Cow::Borrowed("the connection has ended"))),
        // This program does not close early, so the peer has closed.
        QpState::Closing => Some(Cow::Owned(EndReason::PeerClosed.to_string())),
        _ => None,
    }
}

/// Returns the reason for the end of the connection that an event reports, if it does.
fn event_end_reason(event: ConnEvent) -> Option<Cow<'static, str>> {
    match event {
        ConnEvent::Disconnected { reason, .. } => Some(Cow::Owned(reason.to_string())),
        ConnEvent::CqOverrun { .. } => Some(Cow::Borrowed("the completion queue overran")),
        ConnEvent::ConnectFailed { error, private_data, .. } => {
            let reason = shown_reason(&private_data);
            Some(Cow::Owned(if error == ConnectError::Rejected && !reason.is_empty() {
                format!("refused by the peer: {reason}")
            } else {
                format!("cannot connect: {error}")
            }))
        }
        _ => None,
    }
}

/// Error text for a peer that no longer responds.
pub const PEER_TIMED_OUT: &str = "the peer stopped answering: is it still running?";

/// Checks that a shard still works.
///
/// # Errors
/// If it has failed.
pub fn check_shard(shard: &ShardHandle) -> anyhow::Result<()> {
    ensure!(!shard.has_failed(), "{DEVICE_REMOVED}, or a defect ended the stack");
    Ok(())
}

/// Error text for a device that the kernel has taken back.
const DEVICE_REMOVED: &str = "the device was removed";

/// Checks a completion's status.
///
/// # Errors
/// The reason, if the completion was not successful.
pub fn check_wc(wc: &Wc, qp: &Qp) -> anyhow::Result<()> {
    match wc.status {
        WcStatus::Success => Ok(()),
        WcStatus::Flushed => match end_reason(qp) {
            Some(reason) => bail!("{reason}"),
            None => bail!("the connection ended before all requests completed"),
        },
        status => bail!("{:?}: {status}", wc.opcode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wr_id_round_trips() {
        for id in [
            WrId { kind: 7, run: 255, index: 65535, number: u32::MAX },
            WrId { kind: 0, run: 0, index: 1, number: 2 },
        ] {
            assert_eq!(WrId::unpack(id.pack()), id);
        }
    }
}
