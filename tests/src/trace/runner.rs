//! Runs a trace in virtual time.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::net::SocketAddr;

use ferrowarp_proto::time::Instant;
use ferrowarp_proto::wire::tcp::FourTuple;

use super::engine_under_test::EngineUnderTest;
use super::flow::Flow;
use super::packet::Packet;
use super::script::{Action, Line, Script, SegmentSpec, Time};
use super::settings::Settings;
use super::system_under_test::{MACS, OUR_PORT, PEER_PORT, START, SystemUnderTest, address};
use super::tcb_under_test::TcbUnderTest;

/// Maximum number of times that timers may fire at one point in time.
const TIMER_RUNS_MAX: u32 = 64;
/// Number of log lines shown when a trace fails.
const LOG_LINES_SHOWN: usize = 12;

/// Execution of one trace.
pub(super) struct TraceRun {
    pub(super) settings: Settings,
    pub(super) sut: Box<dyn SystemUnderTest>,
    pub(super) now: Instant,
    /// Segments sent and not yet matched by a line.
    pub(super) queue: VecDeque<(Instant, Packet)>,
    /// By port of the peer and local port.
    pub(super) flows: HashMap<(u16, u16), Flow>,
    /// Local port of the connection that the lines refer to.
    pub(super) our_port: u16,
    /// Log of segments and calls so far, in trace syntax.
    pub(super) log: Vec<String>,
}

/// Runs `script`.
///
/// # Errors
/// `LINE: expected and actual result`, with the last log lines.
pub fn run(script: &Script) -> Result<(), String> {
    let mut settings = Settings::default();
    for (number, name, value) in &script.settings {
        settings.set(name, value).map_err(|what| format!("{number}: {what}"))?;
    }
    let mut run = TraceRun::new(settings);
    let mut lines = script.lines.as_slice();
    while let [line, rest @ ..] = lines {
        let joined = rest.iter().take_while(|line| is_same_burst(line)).count();
        let joined = if matches!(line.action, Action::In { .. }) { joined } else { 0 };
        lines = &rest[joined..];
        run.line(line, &rest[..joined]).map_err(|what| run.report(line, &what))?;
    }
    let Some(last) = script.lines.last() else { return Ok(()) };
    run.expect_no_output().map_err(|what| run.report(last, &format!("after this line: {what}")))
}

fn is_same_burst(line: &Line) -> bool {
    let now = Time { relative: true, from: 0, to: 0 };
    matches!(line.action, Action::In { same_burst: true, .. }) && line.time == now
}

/// Creates the system under test that the settings select.
fn system_under_test(settings: &Settings) -> Box<dyn SystemUnderTest> {
    if settings.engine {
        return Box::new(EngineUnderTest::new(settings));
    }
    let tuple = FourTuple {
        local: SocketAddr::new(address(settings, 0), OUR_PORT),
        remote: SocketAddr::new(address(settings, 1), PEER_PORT),
    };
    Box::new(TcbUnderTest::new(settings, tuple))
}

impl TraceRun {
    fn new(settings: Settings) -> Self {
        let mut flows = HashMap::new();
        let iss = (!settings.engine).then_some(settings.iss);
        flows.insert((PEER_PORT, OUR_PORT), Flow::new(iss, settings.irs, settings.peer_tsval));
        let subject = system_under_test(&settings);
        Self {
            settings,
            sut: subject,
            now: START,
            queue: VecDeque::new(),
            flows,
            our_port: OUR_PORT,
            log: Vec::new(),
        }
    }

    fn report(&self, line: &Line, what: &str) -> String {
        let mut text = format!("{}: {}\n", line.number, line.text);
        for part in what.lines() {
            let _ = writeln!(text, "      {part}");
        }
        let skipped = self.log.len().saturating_sub(LOG_LINES_SHOWN);
        let _ = writeln!(text, "    on the wire{}:", if skipped > 0 { ", at last" } else { "" });
        for entry in &self.log[skipped..] {
            let _ = writeln!(text, "      {entry}");
        }
        text
    }

    pub(super) fn since_start(&self, at: Instant) -> String {
        format!("@{}ms", at.since(START) as f64 / 1e6)
    }

    fn micros(&self) -> u64 {
        self.now.since(START) / 1_000
    }

    pub(super) fn flow(&mut self, peer_port: u16, our_port: u16) -> &mut Flow {
        let Settings { irs, peer_tsval, .. } = self.settings;
        self.flows.entry((peer_port, our_port)).or_insert_with(|| Flow::new(None, irs, peer_tsval))
    }

    fn line(&mut self, line: &Line, joined: &[Line]) -> Result<(), String> {
        let base = if line.time.relative { self.now } else { START };
        let (from, to) = (base + line.time.from, base + line.time.to);
        match &line.action {
            Action::Out(spec) => return self.expect_out(from, to, spec),
            Action::Expect(words) if from == self.now => return self.expect(words),
            _ => self.expect_silence_until(from)?,
        }
        match &line.action {
            Action::In { spec, same_burst: at_once } => {
                let mut bursts = vec![self.build_frames(spec)?];
                for line in joined {
                    if let Action::In { spec, .. } = &line.action {
                        bursts.push(self.build_frames(spec)?);
                    }
                }
                if *at_once || bursts.len() > 1 {
                    self.receive(&bursts.concat())?;
                } else {
                    for frame in bursts.concat() {
                        self.receive(&[frame])?;
                    }
                }
                Ok(())
            }
            Action::Call(words) => {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                self.call(&words)
            }
            Action::Expect(words) => self.expect(words),
            Action::Silence | Action::Out(_) => Ok(()),
        }
    }

    /// Advances time to `until` and fires timers due before; nothing may be sent.
    pub(super) fn expect_silence_until(&mut self, until: Instant) -> Result<(), String> {
        self.expect_no_output()?;
        if until < self.now {
            return Err(format!("it is {} already", self.since_start(self.now)));
        }
        // If no time passes, a pending timer is overdue because of a stall: received segments are
        // processed before it.
        let passes = self.now < until;
        while let Some(at) = self.sut.deadline().filter(|at| passes && *at < until) {
            self.fire_timers(at)?;
            self.expect_no_output()?;
        }
        self.now = until;
        Ok(())
    }

    pub(super) fn expect_no_output(&mut self) -> Result<(), String> {
        let Some((at, packet)) = self.queue.pop_front() else { return Ok(()) };
        let text = self.text(&packet, true);
        Err(format!("not expected: {} > {text}", self.since_start(at)))
    }

    /// Fires the timers due at `at`.
    fn fire_timers(&mut self, at: Instant) -> Result<(), String> {
        self.now = self.now.max(at);
        for _ in 0..TIMER_RUNS_MAX {
            self.collect_output()?;
            if !self.queue.is_empty() || self.sut.deadline().is_none_or(|next| next > self.now) {
                return Ok(());
            }
        }
        Err("a timer fires and fires".to_owned())
    }

    pub(super) fn collect_output(&mut self) -> Result<(), String> {
        for frame in self.sut.poll_transmit(self.now)? {
            let packet = Packet::read(&frame)?;
            if packet.source.ip() != address(&self.settings, 0)
                || packet.target.ip() != address(&self.settings, 1)
                || frame[..6] != MACS[1]
                || frame[6..12] != MACS[0]
            {
                return Err("a frame with wrong addresses went out".to_owned());
            }
            let micros = self.micros();
            let ports = (packet.target.port(), packet.source.port());
            let wrong = self.flow(ports.0, ports.1).on_outgoing(&packet, micros);
            let text = self.text(&packet, true);
            self.log.push(format!("{} > {text}", self.since_start(self.now)));
            if !wrong.is_empty() && !self.settings.engine {
                return Err(format!("{}: > {text}", wrong.join("; ")));
            }
            self.queue.push_back((self.now, packet));
        }
        Ok(())
    }

    fn text(&self, packet: &Packet, outgoing: bool) -> String {
        let (ours, theirs) = if outgoing {
            (packet.source.port(), packet.target.port())
        } else {
            (packet.target.port(), packet.source.port())
        };
        let fallback = Flow::new(None, self.settings.irs, self.settings.peer_tsval);
        let flow = self.flows.get(&(theirs, ours)).unwrap_or(&fallback);
        let mut text = flow.describe(packet, outgoing);
        if theirs != PEER_PORT {
            let _ = write!(text, " peer-port {theirs}");
        }
        if ours != self.our_port {
            let _ = write!(text, " port {ours}");
        }
        text
    }

    /// Builds the frames of a line with incoming segments.
    pub(super) fn build_frames(&mut self, spec: &SegmentSpec) -> Result<Vec<Vec<u8>>, String> {
        let ours = spec.our_port.unwrap_or(self.our_port);
        let theirs = spec.peer_port.unwrap_or(PEER_PORT);
        let base = Packet::new(
            SocketAddr::new(address(&self.settings, 1), theirs),
            SocketAddr::new(address(&self.settings, 0), ours),
        );
        let micros = self.micros();
        let packets = self.flow(theirs, ours).incoming(spec, base, micros)?;
        for packet in &packets {
            let text = self.text(packet, false);
            self.log.push(format!("{} < {text}", self.since_start(self.now)));
        }
        let mut frames: Vec<Vec<u8>> =
            packets.iter().map(|packet| packet.frame(MACS[1], MACS[0])).collect();
        if spec.bad_checksum {
            for byte in frames.iter_mut().filter_map(|frame| frame.last_mut()) {
                *byte ^= 1;
            }
        }
        Ok(frames)
    }

    pub(super) fn receive(&mut self, burst: &[Vec<u8>]) -> Result<(), String> {
        self.sut.receive(self.now, burst)?;
        self.collect_output()
    }

    /// Returns the next segment sent, waiting for it until `to`.
    fn next_out(&mut self, from: Instant, to: Instant) -> Result<Packet, String> {
        let latest = to + self.settings.timer_slack_ns;
        while self.queue.is_empty() {
            match self.sut.deadline() {
                Some(at) if at.max(self.now) <= latest => self.fire_timers(at)?,
                next => {
                    let next = next.map_or("none".to_owned(), |at| self.since_start(at));
                    let to = self.since_start(to);
                    return Err(format!("nothing went out until {to} (next timer: {next})"));
                }
            }
        }
        let (at, packet) = self.queue.pop_front().expect("not empty");
        if at < from || latest < at {
            let text = self.text(&packet, true);
            let (at, from) = (self.since_start(at), self.since_start(from));
            return Err(format!("seen {at} > {text}\nexpected {from}"));
        }
        Ok(packet)
    }

    pub(super) fn expect_out(
        &mut self,
        from: Instant,
        to: Instant,
        spec: &SegmentSpec,
    ) -> Result<(), String> {
        for copy in 0..spec.repeat {
            let packet = self.next_out(from, to)?;
            let ports = (packet.target.port(), packet.source.port());
            let expected =
                (spec.peer_port.unwrap_or(PEER_PORT), spec.our_port.unwrap_or(self.our_port));
            let text = self.text(&packet, true);
            if ports.0 != expected.0 || ports.1 != expected.1 {
                return Err(format!("seen: {text}\nit goes to another port"));
            }
            let wrong = self.flow(ports.0, ports.1).mismatches(spec, copy, &packet);
            if !wrong.is_empty() {
                let nth = if spec.repeat > 1 {
                    format!(" ({} of {})", copy + 1, spec.repeat)
                } else {
                    String::new()
                };
                return Err(format!("seen{nth}: > {text}\n{}", wrong.join("\n")));
            }
        }
        Ok(())
    }
}
