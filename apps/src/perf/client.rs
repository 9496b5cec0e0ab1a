//! The end that connects: leads a session through its runs and collects the results.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use ferrowarp::{Access, ConnParam, Context};

use crate::link::{End, Watch, established, parameters};
use crate::machine::{Machine, Step};
use crate::perf::control::{Hello, Message, Region, Run, Tally, Welcome};
use crate::perf::hdr::Interval;
use crate::perf::options::{Test, TestArgs};
use crate::perf::progress::{Progress, Waiting};
use crate::perf::purpose::Purpose;
use crate::perf::report::{Measurement, Setting};
use crate::perf::session::{Session, advertise, completions_max, region_lens};
use crate::perf::work::{Turn, Work};

/// Data connections that are set up at a time.
const CONNECT_WINDOW: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The control connection is being set up.
    Calling,
    /// The other end's regions are awaited.
    Greeting,
    /// The data connections before this one are up.
    Connecting(usize),
    /// The other end prepares a run.
    Preparing,
    /// A run goes on.
    Running,
    /// All runs are over.
    Closing(Instant),
    /// Nothing is left.
    Closed,
}

/// Is told the setting once it is agreed (without a result), and each result as it comes.
pub type OnResult = Box<dyn FnMut(&Setting, Option<&Measurement>) + Send>;

/// The end that connects.
pub struct Client {
    session: Session,
    remote: SocketAddr,
    args: TestArgs,
    state: State,
    runs: VecDeque<Run>,
    work: Option<Work>,
    report: Option<Tally>,
    turn: Turn,
    watch: Watch,
    progress: Option<Progress>,
    waiting: Waiting,
    run_started: Instant,
    began: Instant,
    /// What is the same for all results. `crc` is what was agreed, once that is known.
    pub setting: Setting,
    on_result: OnResult,
    /// Results so far.
    pub results: Vec<Measurement>,
    /// Latencies of the runs so far.
    pub intervals: Vec<Interval>,
}

impl Client {
    /// Begins to connect to `remote`.
    ///
    /// # Errors
    /// If there is no memory or no way to `remote`.
    pub fn new(
        context: &Context,
        remote: SocketAddr,
        args: &TestArgs,
        setting: Setting,
        on_result: OnResult,
    ) -> anyhow::Result<Self> {
        let test = setting.test;
        let mut hello = hello(test, args);
        let end = End::new(context, completions_max(hello.qps, hello.tx_depth, hello.rx_depth))?;
        let [tx, rx] = region_lens(&hello, true)?;
        let (tx, rx) = (end.memory(tx, Access::ALL)?, end.memory(rx, Access::ALL)?);
        (hello.tx, hello.rx) = (advertise(&tx), advertise(&rx));
        let control = Session::control_channel(&end, hello.qps)?;
        let data = (0..hello.qps)
            .map(|_| Session::data_queue_pair(&end, &hello))
            .collect::<anyhow::Result<_>>()?;
        let purpose = Purpose::Control {
            token: hello.token,
            qps: hello.qps.into(),
            tx_depth: hello.tx_depth,
            rx_depth: hello.rx_depth,
        };
        control.qp.connect(remote, wishes(args, purpose)?)?;
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
                number: 0,
                alive: now,
            },
            remote,
            args: args.clone(),
            state: State::Calling,
            runs: args.sizes(test).into_iter().map(|size| args.run(test, size)).collect(),
            work: None,
            report: None,
            turn: Turn::new(),
            watch: Watch::new(args.timeout),
            progress: None,
            waiting: Waiting::new(now),
            run_started: now,
            began: now,
            setting,
            on_result,
            results: Vec::new(),
            intervals: Vec::new(),
        })
    }

    /// The result of a run that did not end, for the record.
    #[must_use]
    pub fn unfinished(&self) -> Option<Measurement> {
        let run = self.runs.front()?;
        let mut result = Measurement::new(&self.setting, run.size);
        if let Some(work) = &self.work {
            let tally = work.tally();
            result.set_rates(tally.messages, 0, tally.duration_ns);
            result.bytes_verified = tally.verified;
            result.errors = tally.errors;
        }
        result.errors += 1;
        Some(result)
    }

    fn waits_for(&self) -> &'static str {
        match self.state {
            State::Calling | State::Connecting(_) => "a connection",
            State::Greeting => "its regions",
            State::Preparing => "its preparations",
            State::Running => "the run",
            State::Closing(_) | State::Closed => "its end",
        }
    }

    fn call_data(&mut self, from: usize) -> anyhow::Result<()> {
        let window = self.session.data.iter().enumerate().skip(from).take(CONNECT_WINDOW);
        for (index, qp) in window {
            let token = self.session.hello.token;
            let purpose = Purpose::Data { token, index: u32::try_from(index)? };
            qp.connect(self.remote, wishes(&self.args, purpose)?)?;
        }
        self.state = State::Connecting(from);
        Ok(())
    }

    /// Looks whether the connections that are being set up are there.
    fn wait_connected(&mut self) -> anyhow::Result<()> {
        match self.state {
            State::Calling => {
                if let Some(agreed) = established(&self.session.control.qp)? {
                    self.setting.crc = agreed.crc;
                    self.setting.markers = agreed.markers_in || agreed.markers_out;
                    (self.on_result)(&self.setting, None);
                    self.state = State::Greeting;
                    self.session.say(Message::Hello(self.session.hello))?;
                }
            }
            State::Connecting(index) if established(&self.session.data[index])?.is_some() => {
                self.watch.progress(self.turn.now());
                let next = index + 1;
                if next == self.session.data.len() {
                    self.prepare()?;
                } else if next % CONNECT_WINDOW == 0 {
                    self.call_data(next)?;
                } else {
                    self.state = State::Connecting(next);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Prepares the next run, or says good-bye.
    fn prepare(&mut self) -> anyhow::Result<()> {
        let Some(run) = self.runs.front() else {
            self.session.say(Message::Bye)?;
            self.state = State::Closing(self.turn.now());
            return Ok(());
        };
        self.work = Some(Work::prepare(&mut self.session, *run, self.turn.now())?);
        self.report = None;
        self.session.say(Message::Run(*run))?;
        self.state = State::Preparing;
        Ok(())
    }

    fn message(&mut self, run: u32, message: Message) -> anyhow::Result<()> {
        if !matches!(message, Message::Alive) {
            ensure!(run == self.session.number, "the other end talks of run {run}");
        }
        match (self.state, message) {
            (State::Greeting, Message::Welcome(welcome)) => {
                self.session.peer = welcome;
                self.call_data(0)
            }
            (State::Preparing, Message::Ready) => {
                let (Some(work), Some(run)) = (&mut self.work, self.runs.front()) else {
                    bail!("the other end is ready for nothing");
                };
                self.session.say(Message::Go)?;
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
            (State::Running, message) => match &mut self.work {
                Some(work) => work.message(&mut self.session, &message),
                None => Ok(()),
            },
            (state, message) => {
                bail!("the other end said {message:?} in state {state:?}: another version?")
            }
        }
    }

    /// Puts the result of the run together and goes on to the next.
    fn conclude(&mut self, report: &Tally) -> anyhow::Result<()> {
        let (Some(work), Some(run)) = (self.work.take(), self.runs.pop_front()) else {
            bail!("a run ended that had not begun");
        };
        self.progress = None;
        let own = work.tally();
        let mut result = Measurement::new(&self.setting, run.size);
        result.set_rates(
            own.messages + report.messages,
            own.octets + report.octets,
            own.duration_ns.max(report.duration_ns),
        );
        result.bytes_verified = own.verified + report.verified;
        result.errors = own.errors + report.errors;
        // A run without a whole stretch has no peak of its own, and none is below the average.
        result.peak_gbit_s = work.peak_gbit_s().max(result.bw_gbit_s);
        if let Some(latencies) = work.latencies() {
            result.lat_us = latencies.summary();
            self.intervals.push(Interval {
                start: self.run_started - self.began,
                duration: Duration::from_nanos(own.duration_ns),
                tag: format!("{}-{}", self.setting.test.name(), run.size),
                histogram: latencies.histogram().clone(),
            });
        }
        (self.on_result)(&self.setting, Some(&result));
        self.results.push(result);
        self.session.number += 1;
        self.prepare()
    }

    /// What need not be done at each step.
    fn tick(&mut self) -> anyhow::Result<()> {
        let now = self.turn.now();
        if core::mem::take(&mut self.turn.stirred) {
            self.watch.progress(now);
        }
        if matches!(self.state, State::Greeting | State::Preparing | State::Running) {
            if let Some(reason) = self.session.ended() {
                bail!("{reason}");
            }
            if let (Some(progress), Some(run), Some(work)) =
                (&mut self.progress, self.runs.front(), &self.work)
            {
                progress.show(now, run, work.progress());
            }
        }
        if !matches!(self.state, State::Calling | State::Closing(_) | State::Closed) {
            self.session.show_life(now)?;
        }
        match self.state {
            State::Calling | State::Greeting | State::Connecting(_) | State::Preparing => {
                self.waiting.show(now, self.waits_for());
            }
            _ => self.waiting.clear(now),
        }
        self.watch.check(now, self.waits_for())
    }

    /// Disconnects once the other end has answered the good-bye, and waits until all is down.
    fn close(&mut self, since: Instant) {
        // Flushed receives complete with an error now: expected.
        let polled = self.turn.poll(&mut self.session, None);
        let overdue = self.turn.now() - since > crate::link::CLOSE_MAX;
        let frame = self.turn.next_frame();
        let answered = matches!(&frame, Ok(Some(frame)) if frame.message == Message::Bye);
        if answered || overdue || polled.is_err() || frame.is_err() {
            self.session.disconnect();
        }
        if self.session.is_down() || overdue {
            self.state = State::Closed;
        }
    }
}

impl Machine for Client {
    #[inline]
    fn step(&mut self) -> anyhow::Result<Step> {
        let is_tick = self.turn.tick();
        if let State::Closing(since) = self.state {
            self.close(since);
        }
        if self.state == State::Closed {
            return Ok(Step::Finished);
        }
        if matches!(self.state, State::Closing(_)) {
            return Ok(Step::Running);
        }
        self.turn.poll(&mut self.session, self.work.as_mut())?;
        while let Some(frame) = self.turn.next_frame()? {
            self.message(frame.run, frame.message)?;
        }
        if self.state == State::Running
            && let Some(work) = &mut self.work
        {
            work.pump(&mut self.session, self.turn.now())?;
            if let Some(report) = self.report
                && work.is_finished()
            {
                self.conclude(&report)?;
            }
        } else {
            self.wait_connected()?;
        }
        if is_tick {
            self.tick()?;
        }
        Ok(Step::Running)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // After a failure the other end need not wait for its time-out.
        if self.state != State::Closed {
            let _ = self.session.say(Message::Failure("the client gave up".to_owned()));
            self.session.disconnect();
        }
    }
}

/// What each connection is asked for.
fn wishes(args: &TestArgs, purpose: Purpose) -> anyhow::Result<ConnParam> {
    let mut param = parameters(!args.no_crc, args.markers, args.outs, &purpose.emit())?;
    args.mpa.put_into(&mut param);
    args.reads.put_into(&mut param);
    Ok(param)
}

fn hello(test: Test, args: &TestArgs) -> Hello {
    Hello {
        test,
        flags: args.flags(),
        qps: args.qps,
        tx_depth: args.tx_depth,
        rx_depth: args.rx_depth(test),
        // Two sessions that begin at the same moment are told apart.
        token: u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or(1),
        span: args.span(test),
        tx: Region::default(),
        rx: Region::default(),
    }
}
