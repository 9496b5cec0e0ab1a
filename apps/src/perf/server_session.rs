//! A session of the server of iwperf (responder).

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use ferrowarp::{Access, Buffer, ConnInfo, ConnParam, ConnRequest, Context, INLINE_LEN_MAX};

use crate::endpoint::{CLOSE_TIMEOUT, Endpoint, allocate, conn_param};
use crate::mpa_options::IrdOrdArgs;
use crate::perf::control::{FLAG_CRC, FLAG_EVENTS, Hello, Message, Region, Run, Welcome};
use crate::perf::kind::Test;
use crate::perf::limits::{DEPTH_MAX, QPS_MAX, REGION_LEN_MAX, check_run};
use crate::perf::receives::Receives;
use crate::perf::session::{Session, advertise, completions_max, region_lens};
use crate::perf::test_run::{SessionPoller, TestRun};
use crate::run_loop::Step;
use crate::watchdog::Watchdog;

/// IRD and ORD for clients with an MPA revision that does not negotiate them.
const IRD_DEFAULT: u16 = 16;
/// Polling interval while memory is being allocated.
const ALLOCATION_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Ticks between polls of the listener during a run.
const TICKS_PER_LISTENER_POLL: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Awaiting the initiator's Hello.
    AwaitingHello,
    /// Memory for the regions is being allocated.
    Allocating,
    /// Between runs.
    Idle,
    /// A run is prepared; awaiting Go.
    Prepared,
    /// A run is in progress.
    Running,
    /// Bye was received; awaiting the initiator's disconnection.
    Closing,
}

/// A session.
pub(super) struct ServerSession {
    pub(super) session: Session,
    accepted: Vec<bool>,
    state: State,
    run: Option<Run>,
    test_run: Option<TestRun>,
    poller: SessionPoller,
    watchdog: Watchdog,
    reads: IrdOrdArgs,
    pub(super) ticks_until_listener_poll: u32,
    pub(super) allocate_regions: AllocateRegions,
    /// Allocates the memory, on a thread of its own so that connections stay alive meanwhile.
    allocation: Option<JoinHandle<anyhow::Result<[Buffer; 2]>>>,
}

/// Allocates memory for the regions `tx` and `rx`.
pub(super) type AllocateRegions = fn(&Context, [usize; 2]) -> anyhow::Result<[Buffer; 2]>;

pub(super) fn allocate_regions(
    context: &Context,
    [tx, rx]: [usize; 2],
) -> anyhow::Result<[Buffer; 2]> {
    Ok([allocate(context, tx)?, allocate(context, rx)?])
}

/// Session request in the private data of a control connection.
pub(super) struct SessionRequest {
    pub(super) token: u32,
    pub(super) qps: u32,
    pub(super) tx_depth: u32,
    pub(super) rx_depth: u32,
}

/// Terms on which the server serves sessions.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// Time without progress after which a session ends.
    pub(super) timeout: Duration,
    pub(super) reads: IrdOrdArgs,
    /// Sessions may sleep while nothing completes.
    pub(super) serves_events: bool,
}

/// Returns the parameters to accept a connection with. IRD and ORD are the larger of those the
/// initiator offers, if it does, unless overridden by `reads`.
fn accept_param(offer: &ConnInfo, crc: bool, reads: IrdOrdArgs) -> anyhow::Result<ConnParam> {
    let ird = offer.ird.max(offer.ord);
    let ird = if ird == 0 { IRD_DEFAULT } else { ird };
    let mut param = conn_param(crc, offer.markers_out, ird, &[])?;
    reads.apply_to(&mut param);
    Ok(param)
}

pub(super) type Rejected = (ConnRequest, String);

impl ServerSession {
    pub(super) fn accept(
        context: &Context,
        request: ConnRequest,
        limits: SessionRequest,
        terms: Terms,
    ) -> Result<Self, Rejected> {
        match Self::begin(context, request.shard(), &limits, terms) {
            Err(error) => Err((request, format!("{error:#}"))),
            Ok(serving) => {
                let offer = request.offer();
                if let Ok(param) = accept_param(offer, offer.crc, terms.reads) {
                    // If the peer has disconnected meanwhile, the watchdog expires.
                    let _ = request.accept(&serving.session.control.qp, param);
                }
                Ok(serving)
            }
        }
    }

    fn begin(
        context: &Context,
        shard: usize,
        limits: &SessionRequest,
        terms: Terms,
    ) -> anyhow::Result<Self> {
        let &SessionRequest { token, qps, tx_depth, rx_depth } = limits;
        let served = 1..=QPS_MAX;
        ensure!(served.contains(&qps), "1 to {QPS_MAX} queue pairs are served");
        ensure!((1..=DEPTH_MAX).contains(&tx_depth), "a depth of 1 to {DEPTH_MAX} is served");
        ensure!((1..=DEPTH_MAX).contains(&rx_depth), "1 to {DEPTH_MAX} receives are served");
        let completions = completions_max(qps, tx_depth, rx_depth);
        let end = match terms.serves_events {
            true => Endpoint::with_channel(context, shard, completions)?,
            false => Endpoint::on_shard(context, shard, completions)?,
        };
        let control = Session::control_channel(&end, qps)?;
        // The regions are allocated after Hello; until then they are minimal.
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
            inline_size: 0,
        };
        let (tx, rx) = (end.alloc_mr(64, Access::ALL)?, end.alloc_mr(64, Access::ALL)?);
        let peer = Welcome { tx: nothing, rx: nothing };
        let session = Session {
            end,
            control,
            data: Vec::new(),
            receives: Receives::Empty,
            tx,
            rx,
            peer,
            hello,
            initiator: false,
            run_number: 0,
            next_checked: 0,
            down_count: 0,
            is_disconnected: false,
            last_alive_sent: Instant::now(),
        };
        Ok(Self {
            session,
            accepted: vec![false; usize::try_from(qps)?],
            state: State::AwaitingHello,
            run: None,
            test_run: None,
            poller: SessionPoller::new(),
            watchdog: Watchdog::new(terms.timeout),
            reads: terms.reads,
            ticks_until_listener_poll: 0,
            allocate_regions,
            allocation: None,
        })
    }

    pub(super) const fn has_token(&self, token: u32) -> bool {
        self.session.hello.token == token
    }

    pub(super) fn accept_data(&mut self, request: ConnRequest, index: u32) -> Result<(), Rejected> {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        if self.accepted.get(index) == Some(&true) {
            return Err((request, "this data connection is connected twice".to_owned()));
        }
        let crc = self.session.hello.has(FLAG_CRC);
        let qp = match self.session.data_qp_on(index, request.shard()) {
            Ok(qp) => qp,
            Err(error) => return Err((request, format!("{error:#}"))),
        };
        self.accepted[index] = true;
        if let Ok(param) = accept_param(request.offer(), crc, self.reads) {
            // If the peer has disconnected meanwhile, the watchdog expires.
            let _ = request.accept(qp, param);
        }
        Ok(())
    }

    /// Advances the session. `is_alone`: its thread serves no other one.
    pub(super) fn step(&mut self, is_alone: bool) -> anyhow::Result<Step> {
        self.poller.may_sleep = is_alone;
        self.advance().map_err(|error| self.poller.explain(&mut self.session, error))
    }

    fn advance(&mut self) -> anyhow::Result<Step> {
        let is_tick = self.poller.tick();
        if self.state == State::Closing {
            // Flushed receives complete with an error now, as expected.
            let _ = self.poller.poll(&mut self.session, None);
            let overdue = self.watchdog.has_expired(self.poller.now());
            if overdue {
                self.session.disconnect();
            }
            let is_over = overdue || self.session.is_down();
            return Ok(if is_over { Step::Finished } else { Step::Running });
        }
        self.poller.poll(&mut self.session, self.test_run.as_mut())?;
        while let Some(frame) = self.poller.next_frame()? {
            self.on_message(frame.run, frame.message)?;
        }
        if self.state == State::Running
            && let Some(work) = &mut self.test_run
        {
            work.poll(&mut self.session, self.poller.now())?;
            if work.is_finished() {
                self.session.send_control(Message::Report(work.tally()))?;
                self.test_run = None;
                self.session.run_number += 1;
                self.state = State::Idle;
            }
        }
        if is_tick && self.state != State::Closing {
            self.tick()?;
        }
        Ok(Step::Running)
    }

    fn tick(&mut self) -> anyhow::Result<()> {
        let now = self.poller.now();
        self.ticks_until_listener_poll = match (self.state, self.ticks_until_listener_poll) {
            (State::Running, 0) => TICKS_PER_LISTENER_POLL,
            (State::Running, left) => left - 1,
            _ => 0,
        };
        if core::mem::take(&mut self.poller.had_activity) {
            self.watchdog.progress(now);
        }
        if let Some(reason) = self.session.next_end_reason() {
            bail!("{reason}");
        }
        self.session.end.check_peer()?;
        if self.state != State::AwaitingHello {
            self.session.send_alive_if_due(now)?;
        }
        if self.state == State::Allocating {
            self.poll_allocation()?;
        }
        self.watchdog.check(now, "the client")
    }

    fn on_message(&mut self, run: u32, message: Message) -> anyhow::Result<()> {
        if message == Message::Alive {
            return Ok(());
        }
        ensure!(run == self.session.run_number, "the peer names unknown run {run}");
        match (self.state, message) {
            (State::AwaitingHello, Message::Hello(hello)) => self.on_hello(hello),
            (State::Idle, Message::Run(run)) => {
                ensure!(
                    self.accepted.iter().all(|&is_connected| is_connected),
                    "connections are missing"
                );
                check_run(&self.session.hello, &run)?;
                self.test_run = Some(TestRun::prepare(&mut self.session, run, Instant::now())?);
                self.run = Some(run);
                self.session.send_control(Message::Ready)?;
                // An active half starts at Go; a passive one may receive messages before it.
                self.state = State::Prepared;
                Ok(())
            }
            (State::Prepared, Message::Go) => {
                if let (Some(work), Some(run)) = (&mut self.test_run, self.run) {
                    work.start(&self.session, run, Instant::now());
                }
                self.state = State::Running;
                Ok(())
            }
            (State::Idle, Message::Bye) => {
                // The initiator disconnects when it has received the reply.
                self.state = State::Closing;
                self.watchdog = Watchdog::new(CLOSE_TIMEOUT);
                self.session.send_control(Message::Bye)
            }
            (State::Running, message) => match &mut self.test_run {
                Some(work) => work.on_message(&mut self.session, &message),
                None => Ok(()),
            },
            (state, message) => {
                bail!("unexpected {message:?} in state {state:?}: use one version at both ends")
            }
        }
    }

    fn on_hello(&mut self, hello: Hello) -> anyhow::Result<()> {
        let expected = self.session.hello;
        ensure!(
            (hello.token, hello.qps) == (expected.token, expected.qps)
                && (hello.tx_depth, hello.rx_depth) == (expected.tx_depth, expected.rx_depth),
            "Hello differs from the private data of the connection"
        );
        ensure!(
            (1..=REGION_LEN_MAX / u64::from(hello.buffers())).contains(&hello.span)
                && hello.span.is_multiple_of(8),
            "regions of {} times {} bytes are not served",
            hello.buffers(),
            hello.span
        );
        ensure!(
            !hello.has(FLAG_EVENTS) || self.session.end.has_channel(),
            "-e is for both ends: start the server with -e too"
        );
        let inline = usize::try_from(hello.inline_size)?;
        ensure!(inline <= INLINE_LEN_MAX, "{INLINE_LEN_MAX} inline bytes are served at most");
        let lens = region_lens(&hello, false)?;
        let (context, provide) = (self.session.end.context.clone(), self.allocate_regions);
        let error_text = "no thread can be started for the memory (raise ulimit -u)";
        let thread = std::thread::Builder::new().name("iwperf-memory".to_owned());
        self.allocation = Some(thread.spawn(move || provide(&context, lens)).context(error_text)?);
        self.session.hello = hello;
        self.state = State::Allocating;
        Ok(())
    }

    /// Sends Welcome once the memory is allocated.
    fn poll_allocation(&mut self) -> anyhow::Result<()> {
        let Some(provider) = self.allocation.take_if(|provider| provider.is_finished()) else {
            // Leaves the core to the allocating thread, if there is only one.
            std::thread::sleep(ALLOCATION_POLL_INTERVAL);
            return Ok(());
        };
        let buffers = provider.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let [tx, rx] = buffers.map(|buffer| self.session.end.reg_mr(buffer, Access::ALL));
        let (tx, rx) = (tx?, rx?);
        let hello = self.session.hello;
        self.session.receives = Receives::new(&self.session.end, &hello, false)?;
        let (end, receives) = (&self.session.end, &self.session.receives);
        self.session.data = (0..hello.qps)
            .map(|_| Session::create_data_qp(end, &hello, receives))
            .collect::<anyhow::Result<_>>()?;
        let welcome = Welcome { tx: advertise(&tx), rx: advertise(&rx) };
        self.session.peer = Welcome { tx: hello.tx, rx: hello.rx };
        (self.session.tx, self.session.rx) = (tx, rx);
        self.state = State::Idle;
        self.session.send_control(Message::Welcome(welcome))
    }
}
