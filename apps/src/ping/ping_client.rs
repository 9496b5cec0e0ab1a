//! The client of iwping.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{bail, ensure};
use ferrowarp::{Access, Context, Mr, Wc};

use crate::endpoint::{CLOSE_TIMEOUT, Endpoint, WrId, conn_param, poll_established};
use crate::message_channel::MessageChannel;
use crate::mpa_options::{negotiated_line, start_mode};
use crate::output;
use crate::perf::latency_stats::Latencies;
use crate::ping::advert::{ADVERT_LEN, Advert, ping_data, printable_text};
use crate::ping::iwping_options::{CommonArgs, PingArgs};
use crate::ping::{CHANNEL_SLOTS, IRD_ORD};
use crate::run_loop::{Step, Task};
use crate::watchdog::Watchdog;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    /// The source buffer is advertised; the server reads it.
    Reading,
    /// The sink buffer is advertised; the server writes it.
    Writing,
    Closing,
}

/// The client: sends pings.
pub struct PingClient {
    end: Endpoint,
    channel: MessageChannel,
    source: Mr,
    sink: Mr,
    state: State,
    count: u64,
    size: u32,
    markers: bool,
    verify: bool,
    verbose: bool,
    number: u64,
    round_start: Instant,
    watchdog: Watchdog,
    batch: Box<[Wc]>,
    /// Durations of the rounds.
    pub latencies: Latencies,
}

impl PingClient {
    /// Starts to connect to `remote`, for `count` rounds.
    ///
    /// # Errors
    /// If there is no memory or no route to `remote`.
    pub fn new(
        context: &Context,
        remote: SocketAddr,
        common: &CommonArgs,
        rounds: &PingArgs,
        count: u64,
    ) -> anyhow::Result<Self> {
        Self::on_shard(context, 0, remote, common, rounds, count)
    }

    /// As [`PingClient::new`], on any shard of the context.
    ///
    /// # Errors
    /// As [`PingClient::new`].
    pub fn on_shard(
        context: &Context,
        shard: usize,
        remote: SocketAddr,
        common: &CommonArgs,
        rounds: &PingArgs,
        count: u64,
    ) -> anyhow::Result<Self> {
        let end = Endpoint::on_shard(context, shard, usize::from(CHANNEL_SLOTS) * 2)?;
        let channel = MessageChannel::new(&end, CHANNEL_SLOTS.into(), u32::try_from(ADVERT_LEN)?)?;
        let len = usize::try_from(rounds.size)?;
        let source = end.alloc_mr(len, Access::REMOTE_READ)?;
        let sink = end.alloc_mr(len, Access::REMOTE_WRITE)?;
        let mut param = conn_param(!rounds.no_crc, rounds.markers, IRD_ORD, &[])?;
        rounds.mpa.apply_to(&mut param);
        common.reads.apply_to(&mut param);
        param.start = start_mode(common.immediate);
        channel.qp.connect(remote, param)?;
        Ok(Self {
            end,
            channel,
            source,
            sink,
            state: State::Connecting,
            count,
            size: rounds.size,
            markers: rounds.markers,
            verify: rounds.verify,
            verbose: common.verbose,
            number: 0,
            round_start: Instant::now(),
            watchdog: Watchdog::new(common.timeout),
            batch: [Wc::default(); 16].into(),
            latencies: Latencies::new(),
        })
    }

    fn advertise(&mut self, source: bool) -> anyhow::Result<()> {
        let mr = if source { &self.source } else { &self.sink };
        let advert = Advert { addr: mr.addr(), rkey: mr.rkey(), size: self.size };
        self.state = if source { State::Reading } else { State::Writing };
        self.channel.send(&advert.emit())
    }

    fn begin_round(&mut self) -> anyhow::Result<()> {
        self.round_start = Instant::now();
        self.watchdog.progress(self.round_start);
        if self.number == self.count {
            self.state = State::Closing;
            self.watchdog = Watchdog::new(CLOSE_TIMEOUT);
            self.channel.qp.disconnect()?;
            return Ok(());
        }
        self.source.write(0, &ping_data(self.number, self.size));
        if self.verify {
            self.sink.fill(0, usize::try_from(self.size)?, 0xFF);
        }
        self.round_start = Instant::now();
        self.advertise(true)
    }

    fn end_round(&mut self) -> anyhow::Result<()> {
        let elapsed = u64::try_from(self.round_start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.latencies.record(elapsed);
        if self.verify || self.verbose {
            let mut received = vec![0; usize::try_from(self.size)?];
            self.sink.read(0, &mut received);
            if self.verbose {
                output::print(&format!("ping data: {}", printable_text(&received)));
            }
            let sent = ping_data(self.number, self.size);
            let wrong = received.iter().zip(&sent).filter(|(a, b)| a != b).count();
            ensure!(!self.verify || wrong == 0, "round {}: {wrong} bytes differ", self.number);
        }
        self.number += 1;
        self.begin_round()
    }

    fn on_go_ahead(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        ensure!(bytes.len() == ADVERT_LEN, "the peer does not follow rping's protocol");
        match self.state {
            State::Reading => self.advertise(false),
            State::Writing => self.end_round(),
            State::Connecting | State::Closing => bail!("unexpected message from the peer"),
        }
    }
}

impl Task for PingClient {
    fn step(&mut self) -> anyhow::Result<Step> {
        let connects_with_markers = self.markers && self.state == State::Connecting;
        self.advance().map_err(|error| {
            if connects_with_markers {
                error.context("with --markers, which not every peer supports (siw refuses them)")
            } else {
                error
            }
        })
    }
}

impl PingClient {
    fn advance(&mut self) -> anyhow::Result<Step> {
        let polled = self.end.poll(&mut self.batch).len();
        if self.state == State::Closing {
            let is_over = self.channel.is_down() || self.watchdog.has_expired(Instant::now());
            return Ok(if is_over { Step::Finished } else { Step::Running });
        }
        for at in 0..polled {
            let wc = self.batch[at];
            if let Some(bytes) = self.channel.on_completion(WrId::unpack(wc.wr_id), &wc)? {
                self.on_go_ahead(&bytes)?;
            }
        }
        if self.state == State::Connecting
            && let Some(info) = poll_established(&self.channel.qp)?
        {
            if self.verbose {
                output::print(&negotiated_line(&info));
            }
            self.begin_round()?;
        }
        if let Some(reason) = crate::endpoint::end_reason(&self.channel.qp)
            && self.state != State::Closing
        {
            bail!("{reason}");
        }
        self.end.check_peer()?;
        self.watchdog.check(Instant::now(), "an answer")?;
        Ok(Step::Running)
    }
}
