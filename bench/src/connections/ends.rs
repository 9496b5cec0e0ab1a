//! Two contexts over `ring` on one thread, and connections between them in any number.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ferrowarp::device::DeviceSpec;
use ferrowarp::{Config, ConnParam, Context, Cq, Event, Listener, Pd, Qp, QpOptions, Wc, WcStatus};

use super::allocations::{Allocated, CountAllocations};

/// First of the ports on which the right end listens; the source ports begin above them.
const PORT: u16 = 4791;
/// Ports from which connections are opened.
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 10_000..=65_534;
/// Connections to one port: fewer than there are source ports, so that one is found at once even
/// while ended connections keep theirs in TIME-WAIT.
const CONNECTIONS_PER_PORT: usize = 25_000;
/// Connections that are set up, or ended, at a time.
const WINDOW: usize = 32;
/// Entries of each completion queue: more than what is outstanding at a time.
const CQ_LEN: usize = 1 << 14;
/// Time without progress after which a measurement is given up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Configuration of the host 198.18.0.`host` for so many connections at a time.
#[must_use]
pub fn config(host: u8, connections: usize) -> Config {
    let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, host].into(), 24);
    config.source_ports = SOURCE_PORTS;
    config.qps_max = connections;
    // As many again may be in TIME-WAIT.
    config.limits.connections_max = 2 * connections;
    config.limits.queue_entries_max = 1 << 26;
    config.drop_linger = Duration::ZERO;
    config
}

/// One of the two contexts.
pub struct End {
    // Before what they use: fields are dropped in their order.
    /// Completion queue of all its queue pairs.
    pub cq: Cq,
    /// Protection domain.
    pub pd: Pd,
    /// The context.
    pub context: Context,
    completions: Vec<Wc>,
    /// What it has allocated since the start.
    allocated: Allocated,
}

impl End {
    fn new(context: Context) -> Result<Self> {
        let (cq, pd) = (context.create_cq(CQ_LEN)?, context.alloc_pd());
        let completions = Vec::with_capacity(CQ_LEN);
        Ok(Self { cq, pd, context, completions, allocated: Allocated::default() })
    }

    /// Polls once: drives the stack, and passes each completion on.
    ///
    /// # Errors
    /// The error of `completed`.
    #[inline]
    pub fn poll(&mut self, mut completed: impl FnMut(&Wc) -> Result<()>) -> Result<()> {
        self.cq.poll(&mut self.completions);
        self.completions.drain(..).try_for_each(|wc| completed(&wc))
    }
}

/// A connection of the left end with the right one.
pub struct Connection {
    /// Queue pair of the left end.
    pub active: Qp,
    /// Queue pair of the right end.
    pub passive: Qp,
}

/// Requests that a queue pair may have outstanding.
#[derive(Clone, Copy, Debug)]
pub struct Depths {
    /// Of its send queue.
    pub send: usize,
    /// Of its receive queue.
    pub recv: usize,
}

/// Two contexts, polled by the thread that measures.
pub struct Ends {
    listeners: Vec<Listener>,
    /// The end that connects.
    pub left: End,
    /// The end that accepts.
    pub right: End,
    count_allocations: CountAllocations,
}

/// Completions that are expected of no connection in use.
fn flushed(wc: &Wc) -> Result<()> {
    ensure!(wc.status == WcStatus::Flushed, "unexpected completion: {wc:?}");
    Ok(())
}

/// Time since the last progress.
struct Progress(Instant);

impl Progress {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn check(&mut self, is_progress: bool, what: &str) -> Result<()> {
        if is_progress {
            self.0 = Instant::now();
        }
        ensure!(self.0.elapsed() < TIMEOUT, "{what}: no progress in {TIMEOUT:?}");
        Ok(())
    }
}

impl Ends {
    /// Opens two contexts for so many connections at a time. What each end allocates is counted by
    /// `count_allocations`.
    ///
    /// # Errors
    /// Errors of the device and the verbs.
    pub fn open(connections: usize, count_allocations: CountAllocations) -> Result<Self> {
        let (left, right) = Context::ring_pair(config(1, connections), config(2, connections))?;
        let ports = u16::try_from(connections.div_ceil(CONNECTIONS_PER_PORT).max(1))?;
        ensure!(PORT + ports <= *SOURCE_PORTS.start(), "{connections} are too many connections");
        let listen = |port| right.listen(port, 2 * WINDOW);
        let listeners = (PORT..PORT + ports).map(listen).collect::<Result<_, _>>()?;
        let (left, right) = (End::new(left)?, End::new(right)?);
        Ok(Self { listeners, left, right, count_allocations })
    }

    /// Returns the number of ports on which the right end listens.
    #[must_use]
    pub fn port_count(&self) -> usize {
        self.listeners.len()
    }

    /// Returns what the calls and polls of each end have allocated and not freed: left, right.
    #[must_use]
    pub const fn allocated(&self) -> [Allocated; 2] {
        [self.left.allocated, self.right.allocated]
    }

    /// Executes `act`, and accounts what it allocates to the left end.
    fn at_left<T>(&mut self, act: impl FnOnce(&mut End) -> T) -> T {
        counted(&mut self.left, self.count_allocations, act)
    }

    /// The same for the right end.
    fn at_right<T>(&mut self, act: impl FnOnce(&mut End) -> T) -> T {
        counted(&mut self.right, self.count_allocations, act)
    }

    /// Creates `count` queue pairs at each end.
    ///
    /// # Errors
    /// Errors of the verbs.
    pub fn create(&mut self, count: usize, depths: Depths) -> Result<Vec<Connection>> {
        let create = |end: &mut End| {
            let options = QpOptions::new(&end.cq).max_send_wr(depths.send).max_recv_wr(depths.recv);
            end.pd.create_qp(&options)
        };
        let pair = |_| {
            let (active, passive) = (self.at_left(create)?, self.at_right(create)?);
            Ok(Connection { active, passive })
        };
        (0..count).map(pair).collect()
    }

    /// Connects these queue pairs, some at a time, and takes their events.
    ///
    /// # Errors
    /// If one of them fails, or it takes too long.
    pub fn connect(&mut self, connections: &[Connection]) -> Result<()> {
        let mut pending = VecDeque::with_capacity(WINDOW);
        let (mut started, mut done) = (0, 0);
        let mut progress = Progress::new();
        while done < connections.len() {
            let before = (started, done);
            while started < connections.len() && pending.len() < WINDOW {
                let port = PORT + u16::try_from(started % self.listeners.len())?;
                let mut param = ConnParam::default();
                param.private_data.extend_from_slice(&(started as u64).to_be_bytes())?;
                let active = &connections[started].active;
                self.at_left(|_| active.connect(([198, 18, 0, 2], port).into(), param))?;
                pending.push_back((started, [false; 2]));
                started += 1;
            }
            self.at_left(|end| end.poll(flushed))?;
            self.accept(connections)?;
            for (index, established) in &mut pending {
                let Connection { active, passive } = &connections[*index];
                established[0] |= self.at_left(|_| is_established(active))?;
                established[1] |= self.at_right(|_| is_established(passive))?;
            }
            let count = pending.len();
            pending.retain(|(_, established)| *established != [true; 2]);
            done += count - pending.len();
            progress.check((started, done) != before, "set-up")?;
        }
        Ok(())
    }

    /// Accepts the requests that have arrived, each with the queue pair that it names.
    fn accept(&mut self, connections: &[Connection]) -> Result<()> {
        self.at_right(|end| end.poll(flushed))?;
        let listeners = std::mem::take(&mut self.listeners);
        for listener in &listeners {
            while let Some(request) = self.at_right(|_| listener.poll()) {
                let index = request.offer().private_data.first_chunk().copied();
                let index = usize::try_from(index.map_or(u64::MAX, u64::from_be_bytes))?;
                let Connection { passive, .. } =
                    connections.get(index).context("no such number")?;
                self.at_right(|_| request.accept(passive, ConnParam::default()))?;
            }
        }
        self.listeners = listeners;
        Ok(())
    }

    /// Creates and connects `count` queue pairs at each end.
    ///
    /// # Errors
    /// As [`Self::create`] and [`Self::connect`].
    pub fn set_up(&mut self, count: usize, depths: Depths) -> Result<Vec<Connection>> {
        let connections = self.create(count, depths)?;
        self.connect(&connections)?;
        Ok(connections)
    }

    /// Ends connections gracefully, some at a time, and destroys their queue pairs.
    ///
    /// # Errors
    /// If one ends in another way than by closing, or it takes too long.
    pub fn end(&mut self, connections: Vec<Connection>) -> Result<()> {
        let mut waiting = connections.into_iter();
        let mut closing: Vec<(Connection, [bool; 2])> = Vec::with_capacity(WINDOW);
        let mut progress = Progress::new();
        loop {
            let free = WINDOW - closing.len();
            for connection in waiting.by_ref().take(free) {
                connection.active.close()?;
                closing.push((connection, [false; 2]));
            }
            self.left.poll(flushed)?;
            self.right.poll(flushed)?;
            for (Connection { active, passive }, ended) in &mut closing {
                ended[0] |= has_ended(active)?;
                ended[1] |= has_ended(passive)?;
            }
            let count = closing.len();
            closing.retain(|(_, ended)| *ended != [true; 2]);
            if closing.is_empty() && waiting.len() == 0 {
                return Ok(());
            }
            progress.check(closing.len() < count, "closing")?;
        }
    }

    /// Polls both ends for so long.
    ///
    /// # Errors
    /// If there is a completion other than a flushed one.
    pub fn poll_for(&mut self, duration: Duration) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < duration {
            self.at_left(|end| end.poll(flushed))?;
            self.at_right(|end| end.poll(flushed))?;
        }
        Ok(())
    }

    /// Polls both ends until at most `count` connections are left at each, TIME-WAIT included.
    ///
    /// # Errors
    /// If it takes too long.
    pub fn wait_until_left(&mut self, count: usize) -> Result<()> {
        let start = Instant::now();
        loop {
            self.left.poll(flushed)?;
            self.right.poll(flushed)?;
            let counts = [&self.left, &self.right].map(|end| end.context.connection_count());
            if counts.iter().all(|&left| left <= count) {
                return Ok(());
            }
            ensure!(start.elapsed() < TIMEOUT, "{counts:?} connections left, {count} expected");
        }
    }

    /// Fails unless both ends are as before the first connection.
    ///
    /// # Errors
    /// With what is left.
    pub fn check_nothing_left(&self) -> Result<()> {
        for (name, end) in [("left", &self.left), ("right", &self.right)] {
            let usage = end.context.usage().engine;
            let counts = [
                usage.connections,
                usage.half_open,
                usage.awaiting_request,
                usage.awaiting_decision,
                usage.tuples,
                usage.retained_segments,
                usage.partial_fpdus,
                usage.ooo_frames,
            ];
            ensure!(
                counts.iter().all(|&count| count == 0),
                "left over at the {name} end: {usage:?}"
            );
        }
        Ok(())
    }
}

fn counted<T>(
    end: &mut End,
    count_allocations: CountAllocations,
    act: impl FnOnce(&mut End) -> T,
) -> T {
    let (mut act, mut result) = (Some(act), None);
    let allocated = count_allocations(&mut || result = act.take().map(|act| act(end)));
    end.allocated += allocated;
    result.expect("executed once")
}

/// Takes the event of the establishment, if it has come.
fn is_established(qp: &Qp) -> Result<bool> {
    match qp.next_event() {
        None => Ok(false),
        Some(Event::Established { .. }) => Ok(true),
        Some(other) => bail!("in place of the establishment: {other:?}"),
    }
}

/// Takes the event of the end, if it has come.
fn has_ended(qp: &Qp) -> Result<bool> {
    use ferrowarp::EndReason::{Local, PeerClosed};
    match qp.next_event() {
        None => Ok(false),
        Some(Event::Disconnected { reason: Local | PeerClosed, .. }) => Ok(true),
        Some(other) => bail!("in place of the end: {other:?}"),
    }
}
