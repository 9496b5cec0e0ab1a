//! The server of iwperf (responder): serves one client after another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferrowarp::{ConnRequest, Context, ListenAddr, ShardHandle};

use crate::acceptor::Acceptor;
use crate::endpoint::{check_shard, reject};
use crate::mpa_options::IrdOrdArgs;
use crate::perf::client_sessions::ClientSessions;
use crate::perf::private_data::{ConnRole, Group};
use crate::perf::server_session::{
    AllocateRegions, Rejected, ServerSession, SessionRequest, Terms, allocate_regions,
};
use crate::run_loop::{IdleBackoff, Step, Task};

/// Listen backlog: connection requests.
const BACKLOG: usize = 64;

/// The server (responder), or its worker for one shard.
pub struct Server {
    context: Context,
    /// Number of the worker, and its shard.
    worker: usize,
    shard: ShardHandle,
    acceptor: Arc<Acceptor>,
    sessions: Arc<Mutex<ClientSessions>>,
    timeout: Duration,
    reads: IrdOrdArgs,
    /// Serves sessions that sleep while nothing completes. The context needs a thread that drives
    /// it meanwhile.
    pub serves_events: bool,
    allocate_regions: AllocateRegions,
    /// Sessions that this worker serves: one, unless several of a client arrive at one shard.
    current: Vec<ServerSession>,
    idle: IdleBackoff,
}

impl Server {
    /// Starts to listen on `addr`, and on the next port for clients with more connections than one
    /// port serves. With `once` the tasks finish after the first client. `on_session` is called
    /// with one line for each client that is gone: its test, or the reason of its failure.
    ///
    /// Returns a worker for each shard of the context, which all have to run.
    ///
    /// # Errors
    /// If the port is in use, or the address is not one of the context.
    pub fn workers(
        context: &Context,
        addr: impl Into<ListenAddr>,
        once: bool,
        timeout: Duration,
        reads: IrdOrdArgs,
        on_session: Box<dyn FnMut(&str) + Send>,
    ) -> anyhow::Result<Vec<Self>> {
        let addr = addr.into();
        let ports = core::iter::once(addr.port()).chain(addr.port().checked_add(1));
        let listen = |port| context.listen(addr.with_port(port), BACKLOG);
        let listeners = ports.map(listen).collect::<Result<_, _>>()?;
        let acceptor = Arc::new(Acceptor::new(listeners, context.shard_count()));
        let sessions = Arc::new(Mutex::new(ClientSessions::new(once, on_session)));
        let worker = |(worker, shard)| Self {
            context: context.clone(),
            worker,
            shard,
            acceptor: Arc::clone(&acceptor),
            sessions: Arc::clone(&sessions),
            timeout,
            reads,
            serves_events: false,
            allocate_regions,
            current: Vec::new(),
            idle: IdleBackoff::default(),
        };
        Ok((0..).map_while(|index| context.shard(index)).enumerate().map(worker).collect())
    }

    /// Accepts connection requests; rejects those that do not belong to the session.
    fn poll_listener(&mut self) {
        let acceptor = Arc::clone(&self.acceptor);
        let sessions = Arc::clone(&self.sessions);
        // A data connection belongs to its session's worker, any other to its shard's worker.
        let worker_of = |request: &ConnRequest| {
            let role = ConnRole::parse(&request.offer().private_data);
            let serving = match role {
                Ok(ConnRole::Data { token, .. }) => lock(&sessions).worker_of(token),
                _ => None,
            };
            serving.unwrap_or_else(|| request.shard())
        };
        while let Some(request) = acceptor.poll(self.worker, worker_of) {
            let refused = match ConnRole::parse(&request.offer().private_data) {
                Ok(ConnRole::Control { token, qps, tx_depth, rx_depth, group }) => {
                    let limits = SessionRequest { token, qps, tx_depth, rx_depth };
                    self.begin_session(request, limits, group)
                }
                Ok(ConnRole::Data { token, index }) => {
                    match self.current.iter_mut().find(|serving| serving.has_token(token)) {
                        Some(serving) => serving.accept_data(request, index),
                        None => Err((request, "no such session: it may have failed".to_owned())),
                    }
                }
                Err(error) => Err((request, error.to_string())),
            };
            if let Err((request, reason)) = refused {
                reject(request, &reason);
            }
        }
    }

    fn begin_session(
        &mut self,
        request: ConnRequest,
        limits: SessionRequest,
        group: Group,
    ) -> Result<(), Rejected> {
        let token = limits.token;
        if !lock(&self.sessions).admit(self.worker, token, group) {
            return Err((request, "busy with another client: try again later".to_owned()));
        }
        let terms =
            Terms { timeout: self.timeout, reads: self.reads, serves_events: self.serves_events };
        match ServerSession::accept(&self.context, request, limits, terms) {
            Ok(mut serving) => {
                serving.allocate_regions = self.allocate_regions;
                self.current.push(serving);
                Ok(())
            }
            Err(refused) => {
                lock(&self.sessions).withdraw(token);
                Err(refused)
            }
        }
    }

    /// Handles the outcome of a session's step. Returns `Finished` if the server is finished.
    fn finish_session(
        &mut self,
        index: usize,
        outcome: anyhow::Result<Step>,
    ) -> anyhow::Result<Step> {
        if matches!(outcome, Ok(Step::Running)) {
            return outcome;
        }
        let mut serving = self.current.swap_remove(index);
        let outcome = outcome.map(|_| serving.session.test()).inspect_err(|error| {
            serving.session.fail(&format!("{error:#}"));
        });
        let token = serving.session.hello.token;
        // Its queue pairs are gone before another client is admitted.
        drop(serving);
        lock(&self.sessions).on_end(token, outcome)
    }
}

fn lock(sessions: &Mutex<ClientSessions>) -> MutexGuard<'_, ClientSessions> {
    sessions.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Task for Server {
    #[inline]
    fn step(&mut self) -> anyhow::Result<Step> {
        if self.current.is_empty() {
            if lock(&self.sessions).is_over() {
                return Ok(Step::Finished);
            }
            let busy = self.shard.drive();
            check_shard(&self.shard)?;
            self.poll_listener();
            self.idle.step(busy || !self.current.is_empty());
            return Ok(Step::Running);
        }
        let mut is_listener_due = true;
        let is_alone = self.current.len() == 1;
        // From the last one on: one that has ended is removed.
        for index in (0..self.current.len()).rev() {
            let serving = &mut self.current[index];
            let outcome = serving.step(is_alone);
            is_listener_due &= serving.ticks_until_listener_poll == 0;
            if self.finish_session(index, outcome)? == Step::Finished {
                return Ok(Step::Finished);
            }
        }
        if is_listener_due {
            self.poll_listener();
        }
        Ok(Step::Running)
    }

    fn linger(&mut self) {
        self.shard.drive();
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
