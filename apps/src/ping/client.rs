//! The end that pings.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{bail, ensure};
use ferrowarp::{Access, Context, Mr, Wc};

use crate::link::{Channel, End, Id, Watch, established, parameters};
use crate::machine::{Machine, Step};
use crate::perf::latency_stats::Latencies;
use crate::ping::options::{Common, Rounds};
use crate::ping::wire::{ADVERT_LEN, Advert, shown, text};
use crate::ping::{CHANNEL_SLOTS, READS};
use crate::startup::{agreement, start};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    /// The source is advertised; the server reads it.
    Reading,
    /// The sink is advertised; the server writes it.
    Writing,
    Closing(Instant),
}

/// The end that pings.
pub struct Client {
    end: End,
    channel: Channel,
    source: Mr,
    sink: Mr,
    state: State,
    count: u64,
    size: u32,
    markers: bool,
    verify: bool,
    verbose: bool,
    number: u64,
    began: Instant,
    watch: Watch,
    batch: Vec<Wc>,
    /// Times of the rounds.
    pub latencies: Latencies,
}

impl Client {
    /// Begins to connect to `remote`, for `count` rounds.
    ///
    /// # Errors
    /// If there is no memory or no way to `remote`.
    pub fn new(
        context: &Context,
        remote: SocketAddr,
        common: &Common,
        rounds: &Rounds,
        count: u64,
    ) -> anyhow::Result<Self> {
        let end = End::new(context, usize::from(CHANNEL_SLOTS) * 2)?;
        let channel = Channel::new(&end, CHANNEL_SLOTS.into(), u32::try_from(ADVERT_LEN)?)?;
        let len = usize::try_from(rounds.size)?;
        let source = end.memory(len, Access::REMOTE_READ)?;
        let sink = end.memory(len, Access::REMOTE_WRITE)?;
        rounds.mpa.check(!rounds.no_crc, common.immediate)?;
        let mut param = parameters(!rounds.no_crc, rounds.markers, READS, &[])?;
        rounds.mpa.put_into(&mut param);
        common.reads.put_into(&mut param);
        param.start = start(common.immediate);
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
            began: Instant::now(),
            watch: Watch::new(common.timeout),
            batch: Vec::with_capacity(16),
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
        self.began = Instant::now();
        self.watch.progress(self.began);
        if self.number == self.count {
            self.state = State::Closing(self.began);
            self.channel.qp.disconnect()?;
            return Ok(());
        }
        self.source.write(0, &text(self.number, self.size));
        if self.verify {
            self.sink.fill(0, usize::try_from(self.size)?, 0xFF);
        }
        self.began = Instant::now();
        self.advertise(true)
    }

    fn end_round(&mut self) -> anyhow::Result<()> {
        let elapsed = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.latencies.record(elapsed);
        if self.verify || self.verbose {
            let mut came = vec![0; usize::try_from(self.size)?];
            self.sink.read(0, &mut came);
            if self.verbose {
                println!("ping data: {}", shown(&came));
            }
            let sent = text(self.number, self.size);
            let wrong = came.iter().zip(&sent).filter(|(a, b)| a != b).count();
            ensure!(
                !self.verify || wrong == 0,
                "round {}: {wrong} octets came back different",
                self.number
            );
        }
        self.number += 1;
        self.begin_round()
    }

    fn go_ahead(&mut self, octets: &[u8]) -> anyhow::Result<()> {
        ensure!(octets.len() == ADVERT_LEN, "the other end does not speak as rping does");
        match self.state {
            State::Reading => self.advertise(false),
            State::Writing => self.end_round(),
            State::Connecting | State::Closing(_) => bail!("the other end spoke out of turn"),
        }
    }
}

impl Machine for Client {
    fn step(&mut self) -> anyhow::Result<Step> {
        let connects_with_markers = self.markers && self.state == State::Connecting;
        self.advance().map_err(|error| {
            if connects_with_markers {
                error.context("with --markers, which not every peer knows (siw refuses them)")
            } else {
                error
            }
        })
    }
}

impl Client {
    fn advance(&mut self) -> anyhow::Result<Step> {
        self.batch.clear();
        self.end.poll(&mut self.batch);
        if let State::Closing(since) = self.state {
            let is_over = self.channel.is_over(since);
            return Ok(if is_over { Step::Finished } else { Step::Running });
        }
        for wc in core::mem::take(&mut self.batch) {
            if let Some(octets) = self.channel.complete(Id::unpack(wc.wr_id), &wc)? {
                self.go_ahead(&octets)?;
            }
        }
        if self.state == State::Connecting
            && let Some(agreed) = established(&self.channel.qp)?
        {
            if self.verbose {
                println!("{}", agreement(&agreed));
            }
            self.begin_round()?;
        }
        if let Some(reason) = crate::link::ended(&self.channel.qp)
            && !matches!(self.state, State::Closing(_))
        {
            bail!("{reason}");
        }
        self.watch.check(Instant::now(), "an answer")?;
        Ok(Step::Running)
    }
}
