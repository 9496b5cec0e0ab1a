//! The client of iwperf (initiator): controls the runs of a session and collects the results.

mod figures;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{bail, ensure};
use ferrowarp::{Access, Context};

use crate::endpoint::{CLOSE_TIMEOUT, Endpoint, poll_established};
use crate::perf::client_params::{connect_param, data_remote, hello};
use crate::perf::control::{Hello, Message, Region, Run, Tally, Welcome};
use crate::perf::hdr::Interval;
use crate::perf::interval_lines::IntervalLines;
use crate::perf::iwperf_options::TestArgs;
use crate::perf::private_data::{ConnRole, Group};
use crate::perf::progress::{Progress, WaitSpinner};
use crate::perf::receives::Receives;
use crate::perf::report::{Measurement, OnResult, TestParams};
use crate::perf::session::{Session, advertise, completions_max, region_lens};
use crate::perf::test_run::{SessionPoller, TestRun};
use crate::perf::worker::{BarrierPhase, Worker};
use crate::run_loop::{Step, Task};
use crate::stop;
use crate::watchdog::Watchdog;

/// Data connections that are set up concurrently.
const CONNECT_WINDOW: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing has been sent.
    Idle,
    /// The control connection is being set up.
    ConnectingControl,
    /// Awaiting Welcome with the responder's regions.
    AwaitingWelcome,
    /// The data connections before this index are established.
    ConnectingData(usize),
    /// Awaiting Ready: the responder prepares a run.
    Preparing,
    /// The run is prepared; the other workers' are not.
    Prepared,
    /// A run is in progress.
    Running,
    /// The run is finished here, but not yet at other workers.
    RunFinished,
    /// All runs are finished; the connections are being closed.
    Closing,
    /// All connections are closed here, but not at other workers, which may need this shard.
    AllClosed,
    /// Finished.
    Closed,
}

/// The client (initiator), or its worker for one shard.
pub struct Client {
    pub(super) session: Session,
    worker: Worker,
    /// Barrier at which this worker waits for the others, or last did.
    barrier: BarrierPhase,
    /// Frames forwarded to other shards before the run.
    forwarded_before: u64,
    remote: SocketAddr,
    args: TestArgs,
    state: State,
    runs: VecDeque<Run>,
    test_run: Option<TestRun>,
    report: Option<Tally>,
    poller: SessionPoller,
    watchdog: Watchdog,
    progress: Option<Progress>,
    /// Lines of intervals, instead of a progress bar.
    lines: Option<IntervalLines>,
    waiting: WaitSpinner,
    run_started: Instant,
    session_started: Instant,
    /// Parameters common to all results. `crc` and `markers` are the negotiated values once the
    /// control connection is established.
    pub setting: TestParams,
    on_result: OnResult,
    /// Results so far.
    pub results: Vec<Measurement>,
    /// Latencies of the runs so far.
    pub intervals: Vec<Interval>,
}

impl Client {
    /// Prepares the only worker of a client, which will connect to `remote`.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(
        context: &Context,
        remote: SocketAddr,
        args: &TestArgs,
        setting: TestParams,
        on_result: OnResult,
    ) -> anyhow::Result<Self> {
        let worker = Worker::single(setting.qps);
        Self::on_worker(context, remote, args, setting, worker, on_result)
    }

    /// Prepares a worker. All of them have to run, each on a thread of its own.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn on_worker(
        context: &Context,
        remote: SocketAddr,
        args: &TestArgs,
        setting: TestParams,
        worker: Worker,
        on_result: OnResult,
    ) -> anyhow::Result<Self> {
        let test = setting.test;
        let mut hello = hello(test, args, &worker);
        let completions = completions_max(hello.qps, hello.tx_depth, hello.rx_depth);
        let end = match args.queues.events {
            true => Endpoint::with_channel(context, worker.shard, completions)?,
            false => Endpoint::on_shard(context, worker.shard, completions)?,
        };
        let [tx, rx] = region_lens(&hello, true)?;
        let (tx, rx) = (end.alloc_mr(tx, Access::ALL)?, end.alloc_mr(rx, Access::ALL)?);
        (hello.tx, hello.rx) = (advertise(&tx), advertise(&rx));
        let control = Session::control_channel(&end, hello.qps)?;
        let receives = Receives::new(&end, &hello, true)?;
        let data = (0..hello.qps)
            .map(|_| Session::create_data_qp(&end, &hello, &receives))
            .collect::<anyhow::Result<_>>()?;
        let peer = Welcome { tx: Region::default(), rx: Region::default() };
        let now = Instant::now();
        let interval = args.length.interval();
        let lines = interval.map(|interval| {
            IntervalLines::new(interval, worker.index == 0, Arc::clone(&worker.completed))
        });
        Ok(Self {
            session: Session {
                end,
                control,
                data,
                receives,
                tx,
                rx,
                peer,
                hello,
                initiator: true,
                run_number: 0,
                next_checked: 0,
                down_count: 0,
                is_disconnected: false,
                last_alive_sent: now,
            },
            worker,
            barrier: BarrierPhase::NONE,
            forwarded_before: 0,
            remote,
            args: args.clone(),
            state: State::Idle,
            runs: args.sizes(test).into_iter().map(|size| args.run(test, size)).collect(),
            test_run: None,
            report: None,
            poller: SessionPoller::new(),
            watchdog: Watchdog::new(args.timeout),
            progress: None,
            lines,
            waiting: WaitSpinner::new(now),
            run_started: now,
            session_started: now,
            setting,
            on_result,
            results: Vec::new(),
            intervals: Vec::new(),
        })
    }

    fn wait_reason(&self) -> &'static str {
        match self.state {
            State::Idle | State::ConnectingControl | State::ConnectingData(_) => "a connection",
            State::AwaitingWelcome => "its regions",
            State::Preparing => "its preparations",
            State::Prepared => "other shards' preparations",
            State::Running | State::RunFinished => "the run",
            State::Closing | State::AllClosed | State::Closed => "its end",
        }
    }

    /// Begins to connect. The time that the other workers' preparations took does not count.
    fn connect_control(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        self.watchdog.progress(now);
        self.waiting.clear(now);
        let Hello { token, qps, tx_depth, rx_depth, .. } = self.session.hello;
        let team = self.worker.team.as_ref();
        let group = team
            .map_or(Group::single(token), |team| Group { token: team.token, sessions: team.count });
        let role = ConnRole::Control { token, qps, tx_depth, rx_depth, group };
        self.session.control.qp.connect(self.remote, connect_param(&self.args, role)?)?;
        self.state = State::ConnectingControl;
        Ok(())
    }

    /// Waits in `state` until all workers do. Immediately true if this is the only one.
    fn await_team(&mut self, state: State) -> bool {
        let Some(team) = &self.worker.team else { return true };
        self.barrier = team.arrive(self.barrier);
        self.state = state;
        false
    }

    /// Goes on once all workers are in the same state.
    fn poll_team(&mut self) -> anyhow::Result<()> {
        if self.worker.team.as_ref().is_some_and(|team| !team.have_arrived(self.barrier)) {
            return Ok(());
        }
        match self.state {
            State::Prepared => self.begin_run(),
            State::RunFinished => self.prepare(),
            _ => Ok(()),
        }
    }

    fn connect_data(&mut self, from: usize) -> anyhow::Result<()> {
        let window = self.session.data.iter().enumerate().skip(from).take(CONNECT_WINDOW);
        for (index, qp) in window {
            let token = self.session.hello.token;
            let index = u32::try_from(index)?;
            let purpose = ConnRole::Data { token, index };
            let remote = data_remote(self.remote, self.worker.first_qp + index)?;
            qp.connect(remote, connect_param(&self.args, purpose)?)?;
        }
        self.state = State::ConnectingData(from);
        Ok(())
    }

    /// Polls the connections that are being set up.
    fn poll_connections(&mut self) -> anyhow::Result<()> {
        match self.state {
            State::ConnectingControl => {
                if let Some(info) = poll_established(&self.session.control.qp)? {
                    self.setting.crc = info.crc;
                    self.setting.markers = info.markers_in || info.markers_out;
                    (self.on_result)(&self.setting, None);
                    self.state = State::AwaitingWelcome;
                    self.session.send_control(Message::Hello(self.session.hello))?;
                }
            }
            State::ConnectingData(index)
                if poll_established(&self.session.data[index])?.is_some() =>
            {
                self.watchdog.progress(self.poller.now());
                let next = index + 1;
                if next == self.session.data.len() {
                    self.prepare()?;
                } else if next % CONNECT_WINDOW == 0 {
                    self.connect_data(next)?;
                } else {
                    self.state = State::ConnectingData(next);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Prepares the next run, or sends Bye.
    fn prepare(&mut self) -> anyhow::Result<()> {
        let Some(run) = self.runs.front() else {
            self.session.send_control(Message::Bye)?;
            self.state = State::Closing;
            self.watchdog = Watchdog::new(CLOSE_TIMEOUT);
            return Ok(());
        };
        self.test_run = Some(TestRun::prepare(&mut self.session, *run, self.poller.now())?);
        self.report = None;
        self.session.send_control(Message::Run(*run))?;
        self.state = State::Preparing;
        Ok(())
    }

    fn on_message(&mut self, run: u32, message: Message) -> anyhow::Result<()> {
        if !matches!(message, Message::Alive) {
            ensure!(run == self.session.run_number, "the peer names unknown run {run}");
        }
        match (self.state, message) {
            (State::AwaitingWelcome, Message::Welcome(welcome)) => {
                self.session.peer = welcome;
                self.connect_data(0)
            }
            (State::Preparing, Message::Ready) => {
                if self.await_team(State::Prepared) {
                    self.begin_run()
                } else {
                    Ok(())
                }
            }
            (State::Running, Message::Report(tally)) => {
                self.report = Some(tally);
                Ok(())
            }
            (_, Message::Alive) => Ok(()),
            (State::Running, message) => match &mut self.test_run {
                Some(work) => work.on_message(&mut self.session, &message),
                None => Ok(()),
            },
            (state, message) => {
                bail!("unexpected {message:?} in state {state:?}: use one version at both ends")
            }
        }
    }

    fn begin_run(&mut self) -> anyhow::Result<()> {
        let (Some(work), Some(run)) = (&mut self.test_run, self.runs.front()) else {
            bail!("Ready from the peer without a run");
        };
        if self.worker.team.is_some() {
            self.forwarded_before = self.session.end.frames_forwarded();
        }
        self.session.send_control(Message::Go)?;
        let now = Instant::now();
        match &mut self.lines {
            Some(lines) => lines.start(now),
            None => self.progress = (self.worker.index == 0).then(|| Progress::new(now)),
        }
        self.run_started = now;
        work.start(&self.session, *run, now);
        self.state = State::Running;
        Ok(())
    }

    /// Ends an endless run after a signal, as the number of messages ends others.
    fn end_run(&mut self, now: Instant) -> anyhow::Result<()> {
        match (self.state, &mut self.test_run) {
            (State::Running, Some(work)) => work.end(now),
            (State::RunFinished | State::Closing | State::AllClosed | State::Closed, _) => {}
            // There is nothing to finish.
            _ => stop::check()?,
        }
        Ok(())
    }

    /// Work that need not be done at each step.
    fn tick(&mut self) -> anyhow::Result<()> {
        let now = self.poller.now();
        if core::mem::take(&mut self.poller.had_activity) {
            self.watchdog.progress(now);
        }
        let is_connected = matches!(
            self.state,
            State::AwaitingWelcome
                | State::Preparing
                | State::Prepared
                | State::Running
                | State::RunFinished
        );
        if is_connected && let Some(reason) = self.session.next_end_reason() {
            bail!("{reason}");
        }
        if self.state == State::Running {
            self.show_run(now);
        }
        if self.args.length.run_infinitely && stop::was_interrupted() {
            self.end_run(now)?;
        }
        if !matches!(self.state, State::Closing | State::Closed) {
            self.session.end.check_peer()?;
        }
        if !matches!(self.state, State::ConnectingControl | State::Closing | State::Closed) {
            self.session.send_alive_if_due(now)?;
        }
        match self.state {
            State::ConnectingData(index) if self.worker.index == 0 => {
                self.waiting.show_count(now, "connections", index, self.session.data.len());
            }
            State::ConnectingControl
            | State::AwaitingWelcome
            | State::Preparing
            | State::Prepared
                if self.worker.index == 0 =>
            {
                self.waiting.show(now, self.wait_reason());
            }
            _ => self.waiting.clear(now),
        }
        self.watchdog.check(now, self.wait_reason())
    }

    /// Disconnects once the responder has replied with Bye, and waits until all connections are
    /// down.
    fn close(&mut self) {
        // Flushed receives complete with an error now, as expected.
        let polled = self.poller.poll(&mut self.session, None);
        let overdue = self.watchdog.has_expired(self.poller.now());
        let frame = self.poller.next_frame();
        let answered = matches!(&frame, Ok(Some(frame)) if frame.message == Message::Bye);
        if answered || overdue || polled.is_err() || frame.is_err() {
            self.session.disconnect();
        }
        if self.session.is_down() || overdue {
            let is_only = self.await_team(State::AllClosed);
            if is_only {
                self.state = State::Closed;
            }
        }
    }

    /// Polls the shard until the other workers' connections are closed as well.
    fn poll_closed(&mut self) {
        self.session.end.drive();
        if self.worker.team.as_ref().is_none_or(|team| team.have_arrived(self.barrier)) {
            self.state = State::Closed;
        }
    }
}

impl Task for Client {
    #[inline]
    fn step(&mut self) -> anyhow::Result<Step> {
        self.advance().map_err(|error| self.poller.explain(&mut self.session, error))
    }

    fn linger(&mut self) {
        self.session.end.drive();
    }
}

impl Client {
    #[inline]
    fn advance(&mut self) -> anyhow::Result<Step> {
        let is_tick = self.poller.tick();
        if self.state == State::Closing {
            self.close();
        }
        match self.state {
            State::Idle => self.connect_control()?,
            State::AllClosed => self.poll_closed(),
            _ => {}
        }
        if self.state == State::Closed {
            return Ok(Step::Finished);
        }
        if matches!(self.state, State::Closing | State::AllClosed) {
            return Ok(Step::Running);
        }
        self.poller.poll(&mut self.session, self.test_run.as_mut())?;
        while let Some(frame) = self.poller.next_frame()? {
            self.on_message(frame.run, frame.message)?;
        }
        if self.state == State::Running
            && let Some(work) = &mut self.test_run
        {
            work.poll(&mut self.session, self.poller.now())?;
            if let Some(report) = self.report
                && work.is_finished()
            {
                self.finish_run(&report)?;
            }
        } else {
            self.poll_connections()?;
            self.poll_team()?;
        }
        if is_tick {
            self.tick()?;
        }
        Ok(Step::Running)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // After a failure, so that the server does not have to wait for its timeout.
        if !matches!(self.state, State::Idle | State::AllClosed | State::Closed) {
            self.session.fail("the client aborted the session");
        }
    }
}
