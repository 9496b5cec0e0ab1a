//! Actions of the `!` and `=` lines of a trace.

use super::flow::Flow;
use super::runner::TraceRun;
use super::script::{self, duration, number};
use super::settings::Settings;
use super::system_under_test::PEER_PORT;

impl TraceRun {
    pub(super) fn expect(&mut self, words: &[String]) -> Result<(), String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (seen, expected) = match words[..] {
            ["state", expected] => (self.sut.state(), expected.to_owned()),
            ["events", ref expected @ ..] => {
                let seen = self.sut.take_events().join(" ");
                let expected = expected.join(" ");
                (seen, if expected == "none" { String::new() } else { expected })
            }
            ["deadline", "none"] => {
                let seen = self.sut.deadline().map(|at| self.since_start(at));
                (seen.unwrap_or("none".to_owned()), "none".to_owned())
            }
            ["deadline", wait] => {
                let at = wait.strip_prefix('+').ok_or("`deadline +DELTA` or `deadline none`")?;
                let expected = self.now + duration(at)?;
                let seen = self.sut.deadline();
                let text = |at| self.since_start(at);
                let seen = seen.map(|at| {
                    let close =
                        at.since(expected).max(expected.since(at)) <= self.settings.timer_slack_ns;
                    if close { expected } else { at }
                });
                (seen.map_or("none".to_owned(), text), text(expected))
            }
            [name, range] => {
                let unknown = || format!("nothing is called `{name}`");
                let seen = self.sut.counter(name).ok_or_else(unknown)?;
                let (from, to) = range.split_once("..").unwrap_or((range, range));
                let (from, to) = (number(from)?, number(to)?);
                if i64::try_from(seen).is_ok_and(|seen| from <= seen && seen <= to) {
                    return Ok(());
                }
                (seen.to_string(), range.to_owned())
            }
            _ => return Err("`= NAME VALUE`".to_owned()),
        };
        if seen == expected {
            return Ok(());
        }
        Err(format!("{} is `{seen}`, expected `{expected}`", words[0]))
    }

    pub(super) fn call(&mut self, words: &[&str]) -> Result<(), String> {
        self.log.push(format!("{} ! {}", self.since_start(self.now), words.join(" ")));
        match *words {
            ["open", role, ref options @ ..] => return self.open(role, options),
            ["warm-up", count, "rtt", rtt] => {
                return self.warm_up_rtt(number(count)?, duration(rtt)?);
            }
            ["stall", time] => {
                self.now = self.now + duration(time)?;
                return Ok(());
            }
            ["new-flow"] => {
                let key = (PEER_PORT, self.our_port);
                let Settings { irs, peer_tsval, .. } = self.settings;
                self.flows.insert(key, Flow::new(None, irs, peer_tsval));
                return Ok(());
            }
            ["write", len, times] => {
                let times = times.strip_prefix('x').ok_or("`write LENGTH xTIMES`")?;
                for _ in 0..number(times)? {
                    self.sut.call(self.now, &["write", len])?;
                }
            }
            _ => self.sut.call(self.now, words)?,
        }
        self.collect_output()?;
        if self.settings.engine && words[0] == "connect" {
            self.learn_port();
        }
        Ok(())
    }

    /// Learns the ephemeral port that the engine chose.
    fn learn_port(&mut self) {
        if let Some((_, packet)) = self.queue.back() {
            self.our_port = packet.source.port();
        }
    }

    /// Receives a segment given in trace syntax.
    fn segment_in(&mut self, text: &str) -> Result<(), String> {
        let frames = self.build_frames(&script::segment(text)?)?;
        self.receive(&frames)
    }

    fn segment_out(&mut self, text: &str) -> Result<(), String> {
        self.expect_out(self.now, self.now, &script::segment(text)?)
    }

    /// The three-way handshake: `open client|server [ecn] [rtt TIME] OPTIONS OF THE PEER'S SYN`.
    fn open(&mut self, role: &str, options: &[&str]) -> Result<(), String> {
        let mut rtt = 10_000_000;
        let mut ecn = false;
        let mut syn_options = String::from("mss 1000");
        let mut words = options.iter().copied();
        while let Some(word) = words.next() {
            match word {
                "rtt" => rtt = duration(words.next().ok_or("`rtt` of what?")?)?,
                "ecn" => ecn = true,
                _ => syn_options = format!("{syn_options} {word}"),
            }
        }
        match role {
            "client" => {
                self.call(&["connect"])?;
                self.segment_out(if ecn { "SEW 0" } else { "S 0" })?;
                self.expect_silence_until(self.now + rtt)?;
                let flags = if ecn { "SE." } else { "S." };
                self.segment_in(&format!("{flags} 0 ack 1 {syn_options}"))?;
                self.segment_out(". 1 ack 1")?;
            }
            "server" => {
                self.call(&["listen"])?;
                let flags = if ecn { "SEW" } else { "S" };
                self.segment_in(&format!("{flags} 0 {syn_options}"))?;
                self.segment_out(if ecn { "SE. 0 ack 1" } else { "S. 0 ack 1" })?;
                self.expect_silence_until(self.now + rtt)?;
                self.segment_in(". 1 ack 1")?;
            }
            _ => return Err("`open client` or `open server`".to_owned()),
        }
        self.expect_no_output()?;
        let events = self.sut.take_events().join(" ");
        if events == "Established" {
            return Ok(());
        }
        Err(format!("the handshake reported the events `{events}`"))
    }

    /// Writes 100 bytes `count` times; each write is acknowledged after `rtt`.
    fn warm_up_rtt(&mut self, count: i64, rtt: u64) -> Result<(), String> {
        for _ in 0..count {
            self.call(&["write", "100"])?;
            let (_, packet) = self.queue.pop_front().ok_or("nothing was sent")?;
            self.expect_silence_until(self.now + rtt)?;
            let flow = self.flow(PEER_PORT, self.our_port);
            let ack = packet.seq.wrapping_add(packet.seq_len());
            let ack = ack.wrapping_sub(flow.iss.unwrap_or(0));
            let seq = packet.ack.wrapping_sub(flow.irs);
            self.segment_in(&format!(". {seq} ack {ack}"))?;
        }
        self.expect_no_output()
    }
}
