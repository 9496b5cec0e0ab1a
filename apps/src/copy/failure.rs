//! End of a copy that failed: each side learns the other's reason.

use std::io;
use std::time::Instant;

use anyhow::{Error, anyhow};
use ferrowarp::{QpState, Wc};

use crate::copy::copy_message::Message;
use crate::endpoint::{CLOSE_TIMEOUT, Endpoint};
use crate::message_channel::{LAST_MESSAGE_TIMEOUT, MessageChannel};
use crate::run_loop::Step;
use crate::watchdog::Watchdog;

/// A copy that has failed here, while the peer is told why.
pub(super) struct Failing {
    error: Option<Error>,
    /// The peer has failed first.
    is_peers: bool,
    /// Time at which nothing was left to do.
    ended: Option<Instant>,
    watchdog: Watchdog,
}

impl Failing {
    /// Sends the cause of `error` to the peer, unless the peer has sent a reason of its own, which
    /// replaces `error` then. `polled`: the completions polled last.
    #[cold]
    pub(super) fn begin(
        end: &Endpoint,
        channel: &mut MessageChannel,
        polled: &[Wc],
        error: Error,
    ) -> Self {
        // The end of the connection may be noticed before the message that precedes it.
        let polled = polled.iter().filter_map(|wc| channel.message(wc));
        let reason = polled.chain(channel.take_messages(end)).find_map(|bytes| {
            let Message::Failure { reason } = Message::parse(&bytes)? else { return None };
            Some(peer_error(&reason))
        });
        let is_peers = reason.is_some();
        let error = reason.unwrap_or_else(|| {
            // The connection may be down already.
            let _ = channel.send(&Message::Failure { reason: cause_for_peer(&error) }.emit());
            error
        });
        let watchdog = Watchdog::new(CLOSE_TIMEOUT);
        Self { error: Some(error), is_peers, ended: None, watchdog }
    }

    /// Polls until the message has left, then disconnects. After a failure of the peer, lets it
    /// disconnect and report its own error first: both may be ends of one program, which prints one
    /// line, and the peer's names the file.
    ///
    /// # Errors
    /// The error of the copy, at the end.
    pub(super) fn step(
        &mut self,
        end: &Endpoint,
        channel: &mut MessageChannel,
    ) -> anyhow::Result<Step> {
        let is_down = channel.advance_sends(end).is_err() || channel.qp.state() != QpState::Rts;
        let now = Instant::now();
        let has_work = self.is_peers || !channel.is_idle();
        if !is_down && has_work && !self.watchdog.has_expired(now) {
            return Ok(Step::Running);
        }
        let ended = *self.ended.get_or_insert(now);
        if self.is_peers && now.saturating_duration_since(ended) < LAST_MESSAGE_TIMEOUT {
            return Ok(Step::Running);
        }
        let _ = channel.qp.disconnect();
        self.error.take().map_or(Ok(Step::Finished), Err)
    }
}

/// Returns the error of a copy that failed at the peer.
pub(super) fn peer_error(reason: &str) -> Error {
    anyhow!("the peer failed: {reason}")
}

/// Returns the cause of a failure, without paths of this host.
pub(super) fn cause_for_peer(error: &Error) -> String {
    let cause = error.root_cause();
    if cause.is::<io::Error>() {
        format!("its file cannot be read or written: {cause}")
    } else {
        cause.to_string()
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn peer_learns_the_cause_but_no_path() {
        let error = io::Error::from_raw_os_error(nix::libc::ENOSPC);
        let error = Err::<(), _>(error).context("cannot write /secret/place").unwrap_err();
        let cause = cause_for_peer(&error);
        assert!(cause.contains("No space left on device") && !cause.contains("secret"), "{cause}");
        assert_eq!(cause_for_peer(&Error::msg("slots overlap")), "slots overlap");
    }
}
