//! Events of a queue pair, and waits for them.

use std::time::Duration;

use ferrowarp_proto::verbs::cm::{CmError, ConnEvent, ConnInfo, ConnectError};

use super::Qp;
use crate::fork::{check_process, is_child};
use crate::handle::event_channel::EventChannel;

impl Qp {
    /// Has the queue pair report to this channel from now on. If it has events that nobody has
    /// taken, this channel reports them, even if another one has.
    ///
    /// # Errors
    /// `OtherChannel`: the channel is of another context; `Ended` in a child made by `fork`.
    #[doc(alias = "rdma_migrate_id")]
    pub fn set_event_channel(&self, channel: &EventChannel) -> Result<(), CmError> {
        check_process()?;
        if !channel.belongs_to(self.context()) {
            return Err(CmError::OtherChannel);
        }
        let has_events = || self.shared.has_events();
        self.context().events.migrate(self.event(), channel.id(), has_events);
        Ok(())
    }

    /// Removes and returns the oldest event. Does not poll the shard.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    #[must_use]
    pub fn next_event(&self) -> Option<ConnEvent> {
        // In a child of `fork` another thread may have held the lock.
        let has_events = self.shared.has_events() && !is_child();
        if !has_events {
            return None;
        }
        let context = self.context();
        let event = self.shared.next_event(self.id, &context.taken_events)?;
        if !self.shared.has_events() {
            context.events.remove_if_unseen(self.event(), || !self.shared.has_events());
        }
        Some(event)
    }

    /// Reason why there is no outcome yet.
    #[cold]
    fn why_no_outcome(&self) -> ConnectError {
        let timed_out = ConnectError::TimedOut;
        let Some(shard) = self.bound_shard() else { return timed_out };
        let named = shard.control(|engine, _| engine.with_link(self.id, timed_out));
        named.unwrap_or(timed_out)
    }

    /// Waits until the connection is established, and takes the event. Sleeps, unless only the
    /// application polls the shard ([`DriveMode::Inline`]): then it polls while it waits, and the
    /// other context of a pair made by [`Context::ring_pair`] as well.
    ///
    /// # Errors
    /// Reason of the failure; `TimedOut` if the outcome is not known after `timeout`, or once the
    /// context is closed; `LinkDown` if the link to the peer is down then.
    ///
    /// [`Context::ring_pair`]: crate::Context::ring_pair
    /// [`DriveMode::Inline`]: crate::DriveMode::Inline
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    pub fn wait_established(&self, timeout: Duration) -> Result<ConnInfo, ConnectError> {
        self.context()
            .wait_for(self.event(), self.shared.source(), timeout, || self.next_outcome())
            .unwrap_or_else(|| Err(self.why_no_outcome()))
    }

    /// Takes the next event, if it is the outcome of connecting or accepting.
    pub(crate) fn next_outcome(&self) -> Option<Result<ConnInfo, ConnectError>> {
        match self.next_event()? {
            ConnEvent::Established { info, .. } => Some(Ok(*info)),
            ConnEvent::ConnectFailed { error, .. } => Some(Err(error)),
            ConnEvent::Disconnected { .. } => Some(Err(ConnectError::Reset)),
            _ => None,
        }
    }

    /// Waits for the next event, as [`Qp::wait_established`] does.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    #[must_use]
    pub fn wait_event(&self, timeout: Duration) -> Option<ConnEvent> {
        let source = self.shared.source();
        self.context().wait_for(self.event(), source, timeout, || self.next_event())
    }
}
