//! The client of iwperf (initiator): controls the runs of a session and collects the results.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use ferrowarp::{Access, ConnParam, Context};

use crate::endpoint::{Endpoint, Watchdog, conn_param, poll_established};
use crate::perf::hdr::Interval;
use crate::perf::kind::Test;
use crate::perf::message::{Hello, Message, Region, Run, Tally, Welcome};
use crate::perf::options::TestArgs;
use crate::perf::private_data::ConnRole;
use crate::perf::progress::{Progress, WaitSpinner};
use crate::perf::report::{Measurement, TestParams};
use crate::perf::session::{Session, advertise, completions_max, region_lens};
use crate::perf::test_run::{SessionPoller, TestRun};
use crate::run_loop::{Step, Task};

/// Data connections that are set up concurrently.
const CONNECT_WINDOW: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The control connection is being set up.
    ConnectingControl,
    /// Awaiting Welcome with the responder's regions.
    AwaitingWelcome,
    /// The data connections before this index are established.
    ConnectingData(usize),
    /// Awaiting Ready: the responder prepares a run.
    Preparing,
    /// A run is in progress.
    Running,
    /// All runs are finished; the connections are being closed since this time.
    Closing(Instant),
    /// All connections are closed.
    Closed,
}

/// Callback for the parameters once they are negotiated (without a result), and for each result.
pub type OnResult = Box<dyn FnMut(&TestParams, Option<&Measurement>) + Send>;

/// The client (initiator).
pub struct Client {
    session: Session,
    remote: SocketAddr,
    args: TestArgs,
    state: State,
    runs: VecDeque<Run>,
    test_run: Option<TestRun>,
    report: Option<Tally>,
    poller: SessionPoller,
    watchdog: Watchdog,
    progress: Option<Progress>,
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
    /// Starts to connect to `remote`.
    ///
    /// # Errors
    /// If there is no memory or no route to `remote`.
    pub fn new(
        context: &Context,
        remote: SocketAddr,
        args: &TestArgs,
        setting: TestParams,
        on_result: OnResult,
    ) -> anyhow::Result<Self> {
        let test = setting.test;
        let mut hello = hello(test, args);
        let end =
            Endpoint::new(context, completions_max(hello.qps, hello.tx_depth, hello.rx_depth))?;
        let [tx, rx] = region_lens(&hello, true)?;
        let (tx, rx) = (end.alloc_mr(tx, Access::ALL)?, end.alloc_mr(rx, Access::ALL)?);
        (hello.tx, hello.rx) = (advertise(&tx), advertise(&rx));
        let control = Session::control_channel(&end, hello.qps)?;
        let data = (0..hello.qps)
            .map(|_| Session::create_data_qp(&end, &hello))
            .collect::<anyhow::Result<_>>()?;
        let purpose = ConnRole::Control {
            token: hello.token,
            qps: hello.qps.into(),
            tx_depth: hello.tx_depth,
            rx_depth: hello.rx_depth,
        };
        control.qp.connect(remote, connect_param(args, purpose)?)?;
        let peer = Welcome { tx: Region::default(), rx: Region::default() };
        let now = Instant::now();
        Ok(Self {
            session: Session {
                end,
                control,
                data,
                tx,
                rx,
                peer,
                hello,
                initiator: true,
                run_number: 0,
                next_checked: 0,
                last_alive_sent: now,
            },
            remote,
            args: args.clone(),
            state: State::ConnectingControl,
            runs: args.sizes(test).into_iter().map(|size| args.run(test, size)).collect(),
            test_run: None,
            report: None,
            poller: SessionPoller::new(),
            watchdog: Watchdog::new(args.timeout),
            progress: None,
            waiting: WaitSpinner::new(now),
            run_started: now,
            session_started: now,
            setting,
            on_result,
            results: Vec::new(),
            intervals: Vec::new(),
        })
    }

    /// Returns the partial result of an unfinished run, for the record.
    #[must_use]
    pub fn unfinished(&self) -> Option<Measurement> {
        let run = self.runs.front()?;
        let mut result = Measurement::new(&self.setting, run.size);
        if let Some(work) = &self.test_run {
            let tally = work.tally();
            result.set_rates(tally.messages, 0, tally.duration_ns);
            result.bytes_verified = tally.verified;
            result.errors = tally.errors;
        }
        result.errors += 1;
        Some(result)
    }

    fn wait_reason(&self) -> &'static str {
        match self.state {
            State::ConnectingControl | State::ConnectingData(_) => "a connection",
            State::AwaitingWelcome => "its regions",
            State::Preparing => "its preparations",
            State::Running => "the run",
            State::Closing(_) | State::Closed => "its end",
        }
    }

    fn connect_data(&mut self, from: usize) -> anyhow::Result<()> {
        let window = self.session.data.iter().enumerate().skip(from).take(CONNECT_WINDOW);
        for (index, qp) in window {
            let token = self.session.hello.token;
            let purpose = ConnRole::Data { token, index: u32::try_from(index)? };
            qp.connect(self.remote, connect_param(&self.args, purpose)?)?;
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
            self.state = State::Closing(self.poller.now());
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
                let (Some(work), Some(run)) = (&mut self.test_run, self.runs.front()) else {
                    bail!("Ready from the peer without a run");
                };
                self.session.send_control(Message::Go)?;
                let now = Instant::now();
                self.progress = Some(Progress::new(now));
                self.run_started = now;
                work.start(&self.session, *run, now);
                self.state = State::Running;
                Ok(())
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
                bail!("unexpected message {message:?} in state {state:?}: another version?")
            }
        }
    }

    /// Computes the result of the run and starts the next.
    fn finish_run(&mut self, report: &Tally) -> anyhow::Result<()> {
        let (Some(work), Some(run)) = (self.test_run.take(), self.runs.pop_front()) else {
            bail!("Report without a run");
        };
        self.progress = None;
        let own = work.tally();
        let mut result = Measurement::new(&self.setting, run.size);
        result.set_rates(
            own.messages + report.messages,
            own.bytes + report.bytes,
            own.duration_ns.max(report.duration_ns),
        );
        result.bytes_verified = own.verified + report.verified;
        result.errors = own.errors + report.errors;
        // A run without a full window has no peak; a peak is never below the average.
        result.peak_gbit_s = work.peak_gbit_s().max(result.bw_gbit_s);
        if let Some(latencies) = work.latencies() {
            result.lat_us = latencies.summary();
            self.intervals.push(Interval {
                start: self.run_started - self.session_started,
                duration: Duration::from_nanos(own.duration_ns),
                tag: format!("{}-{}", self.setting.test.name(), run.size),
                histogram: latencies.histogram().clone(),
            });
        }
        (self.on_result)(&self.setting, Some(&result));
        self.results.push(result);
        self.session.run_number += 1;
        self.prepare()
    }

    /// Work that need not be done at each step.
    fn tick(&mut self) -> anyhow::Result<()> {
        let now = self.poller.now();
        if core::mem::take(&mut self.poller.had_activity) {
            self.watchdog.progress(now);
        }
        if matches!(self.state, State::AwaitingWelcome | State::Preparing | State::Running) {
            if let Some(reason) = self.session.next_end_reason() {
                bail!("{reason}");
            }
            if let (Some(progress), Some(run), Some(work)) =
                (&mut self.progress, self.runs.front(), &self.test_run)
            {
                progress.show(now, run, work.progress());
            }
        }
        if !matches!(self.state, State::ConnectingControl | State::Closing(_) | State::Closed) {
            self.session.send_alive_if_due(now)?;
        }
        match self.state {
            State::ConnectingControl
            | State::AwaitingWelcome
            | State::ConnectingData(_)
            | State::Preparing => {
                self.waiting.show(now, self.wait_reason());
            }
            _ => self.waiting.clear(now),
        }
        self.watchdog.check(now, self.wait_reason())
    }

    /// Disconnects once the responder has replied with Bye, and waits until all connections are
    /// down.
    fn close(&mut self, since: Instant) {
        // Flushed receives complete with an error now, as expected.
        let polled = self.poller.poll(&mut self.session, None);
        let overdue = self.poller.now() - since > crate::endpoint::CLOSE_TIMEOUT;
        let frame = self.poller.next_frame();
        let answered = matches!(&frame, Ok(Some(frame)) if frame.message == Message::Bye);
        if answered || overdue || polled.is_err() || frame.is_err() {
            self.session.disconnect();
        }
        if self.session.is_down() || overdue {
            self.state = State::Closed;
        }
    }
}

impl Task for Client {
    #[inline]
    fn step(&mut self) -> anyhow::Result<Step> {
        let is_tick = self.poller.tick();
        if let State::Closing(since) = self.state {
            self.close(since);
        }
        if self.state == State::Closed {
            return Ok(Step::Finished);
        }
        if matches!(self.state, State::Closing(_)) {
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
        if self.state != State::Closed {
            let _ = self
                .session
                .send_control(Message::Failure("the client aborted the session".to_owned()));
            self.session.disconnect();
        }
    }
}

/// Returns the parameters of a connection request.
fn connect_param(args: &TestArgs, purpose: ConnRole) -> anyhow::Result<ConnParam> {
    let mut param = conn_param(!args.no_crc, args.markers, args.outs, &purpose.emit())?;
    args.mpa.apply_to(&mut param);
    args.reads.apply_to(&mut param);
    Ok(param)
}

fn hello(test: Test, args: &TestArgs) -> Hello {
    Hello {
        test,
        flags: args.flags(),
        qps: args.qps,
        tx_depth: args.tx_depth,
        rx_depth: args.rx_depth(test),
        // Random, so that concurrent sessions are distinct.
        token: u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or(1),
        span: args.span(test),
        tx: Region::default(),
        rx: Region::default(),
    }
}
