//! Sessions of the client that a server serves: one at a time, with one worker or several.

use anyhow::Error;

use crate::perf::kind::Test;
use crate::perf::private_data::Group;
use crate::run_loop::Step;

/// Sessions of the client that is being served.
pub(super) struct ClientSessions {
    /// The server finishes after the first client.
    once: bool,
    /// Called with one line for each client that is gone.
    on_session: Box<dyn FnMut(&str) + Send>,
    client: Option<ServedClient>,
    /// The only client is gone.
    is_over: bool,
}

struct ServedClient {
    group: Group,
    /// Sessions in progress.
    current: Vec<SessionEntry>,
    /// Sessions admitted so far.
    admitted: u32,
    /// Reason of the first session that failed.
    failure: Option<Error>,
}

struct SessionEntry {
    token: u32,
    worker: usize,
}

impl ClientSessions {
    pub(super) fn new(once: bool, on_session: Box<dyn FnMut(&str) + Send>) -> Self {
        Self { once, on_session, client: None, is_over: false }
    }

    /// Admits a session, which `worker` will serve; false if another client is being served.
    pub(super) fn admit(&mut self, worker: usize, token: u32, group: Group) -> bool {
        if self.is_over {
            return false;
        }
        let client = self.client.get_or_insert_with(|| ServedClient {
            group,
            current: Vec::new(),
            admitted: 0,
            failure: None,
        });
        let is_new = client.current.iter().all(|entry| entry.token != token);
        let admits = client.group == group && client.admitted < group.sessions && is_new;
        if admits {
            client.admitted += 1;
            client.current.push(SessionEntry { token, worker });
        }
        admits
    }

    /// Forgets a session that could not begin.
    pub(super) fn withdraw(&mut self, token: u32) {
        let Some(client) = &mut self.client else { return };
        client.current.retain(|entry| entry.token != token);
        client.admitted -= 1;
        if client.current.is_empty() {
            self.client = None;
        }
    }

    /// Returns the worker that serves a session.
    pub(super) fn worker_of(&self, token: u32) -> Option<usize> {
        let current = &self.client.as_ref()?.current;
        current.iter().find(|entry| entry.token == token).map(|entry| entry.worker)
    }

    /// Handles the end of a session: once none of the client is left, reports it. `Finished` if the
    /// server is finished as well.
    ///
    /// # Errors
    /// The reason if a session of the only client has failed.
    pub(super) fn on_end(
        &mut self,
        token: u32,
        outcome: Result<Test, Error>,
    ) -> anyhow::Result<Step> {
        let Some(client) = &mut self.client else { return Ok(Step::Running) };
        client.current.retain(|entry| entry.token != token);
        let test = outcome.map_err(|error| client.failure.get_or_insert(error)).ok();
        if !client.current.is_empty() {
            return Ok(Step::Running);
        }
        let failure = client.failure.take();
        self.client = None;
        self.is_over = self.once;
        match (failure, test) {
            (Some(error), _) if self.once => return Err(error),
            (Some(error), _) => (self.on_session)(&format!("a session failed: {error:#}")),
            (None, test) => (self.on_session)(test.map_or("", Test::name)),
        }
        Ok(if self.once { Step::Finished } else { Step::Running })
    }

    /// True once the only client is gone.
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn sessions(once: bool) -> (ClientSessions, Arc<Mutex<Vec<String>>>) {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let hook = Arc::clone(&lines);
        let on_session = Box::new(move |line: &str| hook.lock().unwrap().push(line.to_owned()));
        (ClientSessions::new(once, on_session), lines)
    }

    #[test]
    fn sessions_of_one_client_are_served_together() {
        let (mut sessions, lines) = sessions(false);
        let group = Group { token: 7, sessions: 2 };
        assert!(sessions.admit(0, 7, group));
        assert!(!sessions.admit(0, 7, group), "twice");
        assert!(!sessions.admit(1, 9, Group::single(9)), "another client");
        assert!(sessions.admit(1, 8, group));
        assert!(!sessions.admit(1, 10, group), "one too many");
        assert_eq!((sessions.worker_of(7), sessions.worker_of(8)), (Some(0), Some(1)));
        assert_eq!(sessions.worker_of(9), None);
        assert_eq!(sessions.on_end(8, Ok(Test::WriteBw)).unwrap(), Step::Running);
        assert!(lines.lock().unwrap().is_empty() && !sessions.admit(1, 8, group));
        assert_eq!(sessions.on_end(7, Ok(Test::WriteBw)).unwrap(), Step::Running);
        assert_eq!(*lines.lock().unwrap(), ["write-bw"]);
        assert!(sessions.admit(1, 9, Group::single(9)));
    }

    #[test]
    fn first_failure_is_reported_once() {
        let group = Group { token: 7, sessions: 2 };
        for once in [false, true] {
            let (mut sessions, lines) = sessions(once);
            assert!(sessions.admit(0, 7, group) && sessions.admit(1, 8, group));
            let failed = |text| Err(Error::msg(text));
            assert_eq!(sessions.on_end(7, failed("first")).unwrap(), Step::Running);
            let end = sessions.on_end(8, failed("second"));
            assert_eq!(end.err().map(|error| error.to_string()), once.then(|| "first".to_owned()));
            let expected: &[&str] = if once { &[] } else { &["a session failed: first"] };
            assert_eq!(*lines.lock().unwrap(), expected);
            assert_eq!(sessions.is_over(), once);
        }
    }

    #[test]
    fn session_that_could_not_begin_frees_its_place() {
        let (mut sessions, _) = sessions(true);
        assert!(sessions.admit(0, 7, Group::single(7)));
        sessions.withdraw(7);
        assert!(!sessions.is_over() && sessions.admit(0, 8, Group::single(8)));
        assert_eq!(sessions.on_end(8, Ok(Test::ReadLat)).unwrap(), Step::Finished);
        assert!(sessions.is_over() && !sessions.admit(0, 9, Group::single(9)));
    }
}
