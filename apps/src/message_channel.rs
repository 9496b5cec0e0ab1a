//! Channel of small control messages.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ferrowarp::{Access, Mr, PostError, Qp, QpState, Wc, WcStatus};

use crate::endpoint::{Endpoint, WrId, check_wc, ring, sge_at};

/// Longest message in bytes: what the requests of a queue pair have room for.
const MESSAGE_LEN_MAX: usize = 96;
/// Most messages waiting for a free slot in a send queue; more means that the peer is stuck.
const TX_BACKLOG_MAX: usize = 4096;
/// Longest wait for the last message to leave.
pub(crate) const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_millis(50);
/// Error text for a receive that was refused.
const NO_RECEIVE: &str = "cannot post a receive for a message";

/// Channel of small messages in both directions over a connection of its own. Receives are reposted
/// immediately; Sends are queued in order while the send queue is full.
pub struct MessageChannel {
    /// The connection.
    pub qp: Qp,
    recv_mr: Mr,
    slot_len: u32,
    tx_backlog: VecDeque<Vec<u8>>,
    sends_outstanding: usize,
    sends_max: usize,
}

impl MessageChannel {
    /// Creates a channel with `slots` receives of `slot_len` bytes each; not yet connected.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(end: &Endpoint, slots: u32, slot_len: u32) -> anyhow::Result<Self> {
        let count = usize::try_from(slots)?;
        let qp = end.create_qp(count, count)?;
        let bytes = count * usize::try_from(slot_len)?;
        let recv_mr = end.alloc_mr(bytes, Access::LOCAL_WRITE)?;
        let (tx_backlog, sends_outstanding) = (VecDeque::new(), 0);
        let channel =
            Self { qp, recv_mr, slot_len, tx_backlog, sends_outstanding, sends_max: count };
        for slot in 0..slots {
            channel.post_recv(slot).context(NO_RECEIVE)?;
        }
        Ok(channel)
    }

    fn post_recv(&self, slot: u32) -> Result<(), PostError> {
        let id = WrId { kind: WrId::CHANNEL_RECV, run: 0, index: 0, number: slot };
        let offset = u64::from(slot) * u64::from(self.slot_len);
        self.qp.post_recv(id.pack(), sge_at(&self.recv_mr, offset, self.slot_len))
    }

    /// Sends a message of at most 96 bytes, or queues it if the send queue is full.
    ///
    /// # Errors
    /// If the connection is down, or too many messages are queued.
    pub fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        assert!(bytes.len() <= MESSAGE_LEN_MAX, "messages fit inline");
        anyhow::ensure!(self.tx_backlog.len() < TX_BACKLOG_MAX, "the peer receives no messages");
        self.tx_backlog.push_back(bytes.to_vec());
        self.flush()
    }

    /// Posts queued messages.
    ///
    /// # Errors
    /// If the connection is down.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        let room = self.sends_max.saturating_sub(self.sends_outstanding);
        let count = self.tx_backlog.len().min(room);
        if count == 0 {
            return Ok(());
        }
        let wr_id = WrId::of_kind(WrId::CHANNEL_SEND);
        let mut post = self.qp.post();
        for bytes in self.tx_backlog.iter().take(count) {
            post.send_inline(bytes).wr_id(wr_id).signaled();
        }
        let posted = ring(&self.qp, post)?.unwrap_or(count);
        self.tx_backlog.drain(..posted);
        self.sends_outstanding += posted;
        Ok(())
    }

    /// Sends a last message, waits briefly until it has left, and disconnects. Requests that are
    /// still posted then are flushed.
    pub fn close_with(&mut self, end: &Endpoint, bytes: &[u8]) {
        let deadline = Instant::now() + LAST_MESSAGE_TIMEOUT;
        let mut outcome = self.send(bytes);
        while outcome.is_ok() && !self.is_idle() && Instant::now() < deadline {
            outcome = self.advance_sends(end);
        }
        let _ = self.qp.disconnect();
    }

    /// Polls for the completions of messages sent; drops all other completions of `end`.
    ///
    /// # Errors
    /// If the connection is down.
    pub fn advance_sends(&mut self, end: &Endpoint) -> anyhow::Result<()> {
        end.drive();
        let mut batch = [Wc::default(); 64];
        end.poll(&mut batch).iter().try_for_each(|wc| {
            let id = WrId::unpack(wc.wr_id);
            let is_own = wc.qp == self.qp.id() && id.kind < WrId::FIRST_APP_KIND;
            if is_own { self.on_completion(id, wc).map(drop) } else { Ok(()) }
        })
    }

    /// Returns the messages that have arrived and were not polled yet, after a failure: the peer's
    /// reason may be among them.
    pub fn take_messages(&self, end: &Endpoint) -> Vec<Vec<u8>> {
        let mut batch = vec![Wc::default(); 256];
        end.poll(&mut batch).iter().filter_map(|wc| self.message(wc)).collect()
    }

    /// Returns the message of a completion, if it has one.
    #[must_use]
    pub fn message(&self, wc: &Wc) -> Option<Vec<u8>> {
        let id = WrId::unpack(wc.wr_id);
        let is_message = wc.qp == self.qp.id() && id.kind == WrId::CHANNEL_RECV;
        (is_message && wc.status == WcStatus::Success).then(|| self.read(id, wc))
    }

    fn read(&self, id: WrId, wc: &Wc) -> Vec<u8> {
        let index = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let mut bytes = vec![0; index(wc.byte_len.min(self.slot_len))];
        self.recv_mr.read(index(id.number) * index(self.slot_len), &mut bytes);
        bytes
    }

    /// True if every message has been posted and completed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tx_backlog.is_empty() && self.sends_outstanding == 0
    }

    /// True if the connection is down.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.qp.state() == QpState::Error
    }

    /// Handles a completion of this channel. Returns the message if it is a receive.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn on_completion(&mut self, id: WrId, wc: &Wc) -> anyhow::Result<Option<Vec<u8>>> {
        check_wc(wc, &self.qp)?;
        if id.kind == WrId::CHANNEL_SEND {
            self.sends_outstanding = self.sends_outstanding.saturating_sub(1);
            self.flush()?;
            return Ok(None);
        }
        let bytes = self.read(id, wc);
        let posted = self.post_recv(id.number);
        // The last messages before the device is removed are delivered nevertheless.
        if self.qp.state() == QpState::Rts {
            posted.context(NO_RECEIVE)?;
        }
        Ok(Some(bytes))
    }
}
