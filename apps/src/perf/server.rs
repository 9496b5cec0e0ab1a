//! The end that listens: serves one session after the other.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use ferrowarp::{Access, Buffer, ConnInfo, ConnParam, ConnRequest, Context, Listener};

use crate::link::{End, Watch, allocate, parameters};
use crate::machine::{Idle, Machine, Step};
use crate::perf::control::{FLAG_CRC, Hello, Message, Region, Run, Welcome};
use crate::perf::limits::check_run;
use crate::perf::options::{REGION_LEN_MAX, Test};
use crate::perf::purpose::Purpose;
use crate::perf::session::{Session, advertise, completions_max, region_lens};
use crate::perf::work::{Turn, Work};
use crate::startup::ReadArgs;

/// Connection requests that may wait.
const BACKLOG: usize = 64;
/// Most data connections of a session.
pub const QPS_MAX: u16 = 4096;
/// Most requests, or receives, outstanding on a data connection.
const DEPTH_MAX: u32 = 16384;
/// RDMA Reads at a time for clients whose revision of MPA does not say how many they want.
const READS: u16 = 16;
/// A nap while memory is being prepared.
const NAP: Duration = Duration::from_micros(200);
/// Ticks between looks for connection requests while a run goes on.
const LISTEN_EVERY: u32 = 16;

/// The end that listens.
pub struct Server {
    context: Context,
    listener: Listener,
    once: bool,
    timeout: Duration,
    reads: ReadArgs,
    provide: Provide,
    serving: Option<Serving>,
    idle: Idle,
    /// Called with one line for each session that ends: its test, or why it failed.
    on_session: Box<dyn FnMut(&str) + Send>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The initiator's wishes are awaited.
    Greeting,
    /// Memory for them is being prepared.
    Providing,
    /// Between runs.
    Idle,
    /// A run is prepared, and begins soon.
    Prepared,
    /// A run goes on.
    Running,
    /// The initiator has said good-bye.
    Closing(Instant),
}

/// A session.
struct Serving {
    session: Session,
    accepted: Vec<bool>,
    state: State,
    run: Option<Run>,
    work: Option<Work>,
    turn: Turn,
    watch: Watch,
    reads: ReadArgs,
    until_listen: u32,
    provide: Provide,
    /// What prepares the memory, on a thread of its own so that this end stays alive meanwhile.
    provider: Option<JoinHandle<anyhow::Result<[Buffer; 2]>>>,
}

/// Gets memory for the regions `tx` and `rx`.
type Provide = fn(&Context, [usize; 2]) -> anyhow::Result<[Buffer; 2]>;

fn provide(context: &Context, [tx, rx]: [usize; 2]) -> anyhow::Result<[Buffer; 2]> {
    Ok([allocate(context, tx)?, allocate(context, rx)?])
}

impl Server {
    /// Listens on `port`. With `once` the machine finishes with the first session.
    ///
    /// # Errors
    /// If the port is in use.
    pub fn new(
        context: &Context,
        port: u16,
        once: bool,
        timeout: Duration,
        reads: ReadArgs,
        on_session: Box<dyn FnMut(&str) + Send>,
    ) -> anyhow::Result<Self> {
        let listener = context.listen(port, BACKLOG)?;
        let context = context.clone();
        Ok(Self {
            context,
            listener,
            once,
            timeout,
            reads,
            provide,
            serving: None,
            idle: Idle::default(),
            on_session,
        })
    }

    /// Takes connection requests; refuses what does not belong to the session.
    fn listen(&mut self) {
        while let Some(request) = self.listener.poll() {
            let purpose = Purpose::parse(&request.offer().private_data);
            let refused = match (purpose, &mut self.serving) {
                (Ok(Purpose::Control { .. }), Some(_)) => {
                    Err((request, "busy with another client: try again later".to_owned()))
                }
                (Ok(Purpose::Control { token, qps, tx_depth, rx_depth }), None) => {
                    let limits = Limits { token, qps, tx_depth, rx_depth };
                    Serving::accept(&self.context, request, limits, self.timeout, self.reads).map(
                        |serving| {
                            self.serving = Some(Serving { provide: self.provide, ..serving });
                        },
                    )
                }
                (Ok(Purpose::Data { token, index }), Some(serving)) => {
                    serving.accept_data(request, token, index)
                }
                (Ok(Purpose::Data { .. }), None) => {
                    Err((request, "no such session: it may have failed".to_owned()))
                }
                (Err(error), _) => Err((request, error.to_string())),
            };
            if let Err((request, reason)) = refused {
                // The peer may have gone meanwhile, which is no error here.
                let _ = request.reject(reason.as_bytes());
            }
        }
    }
}

impl Machine for Server {
    #[inline]
    fn step(&mut self) -> anyhow::Result<Step> {
        let Some(serving) = &mut self.serving else {
            let busy = self.context.drive();
            self.listen();
            self.idle.step(busy || self.serving.is_some());
            return Ok(Step::Running);
        };
        match serving.step() {
            Ok(Step::Running) => {
                if serving.until_listen == 0 {
                    self.listen();
                }
                Ok(Step::Running)
            }
            Ok(Step::Finished) => {
                (self.on_session)(serving.session.test().name());
                self.serving = None;
                Ok(if self.once { Step::Finished } else { Step::Running })
            }
            Err(error) => {
                let _ = serving.session.say(Message::Failure(format!("{error:#}")));
                // It leaves in a pass; what is posted and has not left is flushed by the end.
                self.context.drive();
                serving.session.disconnect();
                self.serving = None;
                if self.once {
                    return Err(error);
                }
                (self.on_session)(&format!("a session failed: {error:#}"));
                Ok(Step::Running)
            }
        }
    }
}

/// What a control connection's private data ask for.
struct Limits {
    token: u32,
    qps: u32,
    tx_depth: u32,
    rx_depth: u32,
}

/// What a connection is accepted with: as many RDMA Reads as its initiator says, if it does.
fn terms(offer: &ConnInfo, crc: bool, reads: ReadArgs) -> anyhow::Result<ConnParam> {
    let asked = offer.ird.max(offer.ord);
    let asked = if asked == 0 { READS } else { asked };
    let mut param = parameters(crc, offer.markers_out, asked, &[])?;
    reads.put_into(&mut param);
    Ok(param)
}

type Refused = (ConnRequest, String);

impl Serving {
    fn accept(
        context: &Context,
        request: ConnRequest,
        limits: Limits,
        timeout: Duration,
        reads: ReadArgs,
    ) -> Result<Self, Refused> {
        match Self::begin(context, &limits, timeout, reads) {
            Err(error) => Err((request, format!("{error:#}"))),
            Ok(serving) => {
                let offer = request.offer();
                if let Ok(param) = terms(offer, offer.crc, reads) {
                    // A peer that has gone meanwhile is noticed by the watch.
                    let _ = request.accept(&serving.session.control.qp, param);
                }
                Ok(serving)
            }
        }
    }

    fn begin(
        context: &Context,
        limits: &Limits,
        timeout: Duration,
        reads: ReadArgs,
    ) -> anyhow::Result<Self> {
        let &Limits { token, qps, tx_depth, rx_depth } = limits;
        let served = 1..=u32::from(QPS_MAX);
        ensure!(served.contains(&qps), "1 to {QPS_MAX} queue pairs are served");
        ensure!((1..=DEPTH_MAX).contains(&tx_depth), "a depth of 1 to {DEPTH_MAX} is served");
        ensure!((1..=DEPTH_MAX).contains(&rx_depth), "1 to {DEPTH_MAX} receives are served");
        let qps = u16::try_from(qps)?;
        let end = End::new(context, completions_max(qps, tx_depth, rx_depth))?;
        let control = Session::control_channel(&end, qps)?;
        // The regions come with the wishes; until then there is nothing to reach.
        let nothing = Region::default();
        let hello = Hello {
            test: Test::WriteBw,
            flags: 0,
            qps,
            tx_depth,
            rx_depth,
            token,
            span: 0,
            tx: nothing,
            rx: nothing,
        };
        let (tx, rx) = (end.memory(64, Access::ALL)?, end.memory(64, Access::ALL)?);
        let peer = Welcome { tx: nothing, rx: nothing };
        let session = Session {
            end,
            control,
            data: Vec::new(),
            tx,
            rx,
            peer,
            hello,
            initiator: false,
            number: 0,
            alive: Instant::now(),
        };
        Ok(Self {
            session,
            accepted: vec![false; usize::from(qps)],
            state: State::Greeting,
            run: None,
            work: None,
            turn: Turn::new(),
            watch: Watch::new(timeout),
            reads,
            until_listen: 0,
            provide,
            provider: None,
        })
    }

    fn accept_data(&mut self, request: ConnRequest, token: u32, index: u32) -> Result<(), Refused> {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let hello = &self.session.hello;
        let (Some(qp), Some(accepted)) =
            (self.session.data.get(index), self.accepted.get_mut(index))
        else {
            return Err((request, "no such data connection was agreed on".to_owned()));
        };
        if token != hello.token || core::mem::replace(accepted, true) {
            return Err((request, "another client's session, or connected twice".to_owned()));
        }
        let offer = request.offer();
        if let Ok(param) = terms(offer, hello.has(FLAG_CRC), self.reads) {
            // A peer that has gone meanwhile is noticed by the watch.
            let _ = request.accept(qp, param);
        }
        Ok(())
    }

    fn step(&mut self) -> anyhow::Result<Step> {
        let is_tick = self.turn.tick();
        if let State::Closing(since) = self.state {
            // Flushed receives complete with an error now: expected.
            let _ = self.turn.poll(&mut self.session, None);
            let overdue = self.turn.now() - since > crate::link::CLOSE_MAX;
            if overdue {
                self.session.disconnect();
            }
            let is_over = overdue || self.session.is_down();
            return Ok(if is_over { Step::Finished } else { Step::Running });
        }
        self.turn.poll(&mut self.session, self.work.as_mut())?;
        while let Some(frame) = self.turn.next_frame()? {
            self.message(frame.run, frame.message)?;
        }
        if self.state == State::Running
            && let Some(work) = &mut self.work
        {
            work.pump(&mut self.session, self.turn.now())?;
            if work.is_finished() {
                self.session.say(Message::Report(work.tally()))?;
                self.work = None;
                self.session.number += 1;
                self.state = State::Idle;
            }
        }
        if is_tick && !matches!(self.state, State::Closing(_)) {
            self.tick()?;
        }
        Ok(Step::Running)
    }

    fn tick(&mut self) -> anyhow::Result<()> {
        let now = self.turn.now();
        self.until_listen = match (self.state, self.until_listen) {
            (State::Running, 0) => LISTEN_EVERY,
            (State::Running, left) => left - 1,
            _ => 0,
        };
        if core::mem::take(&mut self.turn.stirred) {
            self.watch.progress(now);
        }
        if let Some(reason) = self.session.ended() {
            bail!("{reason}");
        }
        if self.state != State::Greeting {
            self.session.show_life(now)?;
        }
        if self.state == State::Providing {
            self.welcome()?;
        }
        self.watch.check(now, "the client")
    }

    fn message(&mut self, run: u32, message: Message) -> anyhow::Result<()> {
        if message == Message::Alive {
            return Ok(());
        }
        ensure!(run == self.session.number, "the other end talks of run {run}");
        match (self.state, message) {
            (State::Greeting, Message::Hello(hello)) => self.greet(hello),
            (State::Idle, Message::Run(run)) => {
                ensure!(self.accepted.iter().all(|&there| there), "connections are missing");
                check_run(&self.session.hello, &run)?;
                self.work = Some(Work::prepare(&mut self.session, run, Instant::now())?);
                self.run = Some(run);
                self.session.say(Message::Ready)?;
                // An active half begins with the word; a passive one may be needed before it.
                self.state = State::Prepared;
                Ok(())
            }
            (State::Prepared, Message::Go) => {
                if let (Some(work), Some(run)) = (&mut self.work, self.run) {
                    work.start(&self.session, run, Instant::now());
                }
                self.state = State::Running;
                Ok(())
            }
            (State::Idle, Message::Bye) => {
                // The initiator disconnects when it has the answer.
                self.state = State::Closing(self.turn.now());
                self.session.say(Message::Bye)
            }
            (State::Running, message) => match &mut self.work {
                Some(work) => work.message(&mut self.session, &message),
                None => Ok(()),
            },
            (state, message) => {
                bail!("the client said {message:?} in state {state:?}: another version?")
            }
        }
    }

    fn greet(&mut self, hello: Hello) -> anyhow::Result<()> {
        let expected = self.session.hello;
        ensure!(
            (hello.token, hello.qps) == (expected.token, expected.qps)
                && (hello.tx_depth, hello.rx_depth) == (expected.tx_depth, expected.rx_depth),
            "the client wants something else than its connection said"
        );
        ensure!(
            (1..=REGION_LEN_MAX / u64::from(hello.qps)).contains(&hello.span)
                && hello.span.is_multiple_of(8),
            "regions of {} times {} octets are not served",
            hello.qps,
            hello.span
        );
        let lens = region_lens(&hello, false)?;
        let (context, provide) = (self.session.end.context.clone(), self.provide);
        let told = "no thread for the memory of a session";
        let thread = std::thread::Builder::new().name("iwperf-memory".to_owned());
        self.provider = Some(thread.spawn(move || provide(&context, lens)).context(told)?);
        self.session.hello = hello;
        self.state = State::Providing;
        Ok(())
    }

    /// Answers the wishes once there is memory.
    fn welcome(&mut self) -> anyhow::Result<()> {
        let Some(provider) = self.provider.take_if(|provider| provider.is_finished()) else {
            // It has the core, if there is only one.
            std::thread::sleep(NAP);
            return Ok(());
        };
        let buffers = provider.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let [tx, rx] = buffers.map(|buffer| self.session.end.register(buffer, Access::ALL));
        let (tx, rx) = (tx?, rx?);
        let hello = self.session.hello;
        self.session.data = (0..hello.qps)
            .map(|_| Session::data_queue_pair(&self.session.end, &hello))
            .collect::<anyhow::Result<_>>()?;
        let welcome = Welcome { tx: advertise(&tx), rx: advertise(&rx) };
        self.session.peer = Welcome { tx: hello.tx, rx: hello.rx };
        (self.session.tx, self.session.rx) = (tx, rx);
        self.state = State::Idle;
        self.session.say(Message::Welcome(welcome))
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
