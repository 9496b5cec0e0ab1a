//! One TCB under test, with an application above it and the engine's part below it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use ferrowarp_proto::device::{ChecksumMode, RxFrame};
use ferrowarp_proto::tcp::{
    Config, Contiguous, Delivered, Event, IssAndTsOffset, OooOffer, OooPool, State, Tcb, TooBig,
    Transmit, TxDemand,
};
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{
    Flags, FourTuple, HeaderTemplate, MAX_HEADER_LEN, Segment, rst_reply,
};

use super::packet::pattern;
use super::script::number;
use super::settings::Settings;
use super::system_under_test::{MACS, START, SystemUnderTest};
use crate::frame::{Frame, OutFrame};

/// Frames of one poll before it is considered an endless loop.
const FRAMES_MAX: usize = 10_000;

/// Handling of out-of-order data by the application.
#[derive(Clone, Copy)]
enum OooAction {
    Buffer,
    Consume,
    Drop,
}

/// See the [module's documentation](self).
pub struct TcbUnderTest {
    settings: Settings,
    tuple: FourTuple,
    tcb: Option<Tcb<Frame, Frame>>,
    listening: bool,
    /// Lengths of the records that the application still has to write.
    writes: VecDeque<usize>,
    /// Bytes written, and bytes delivered.
    written: u32,
    read: u32,
    /// The application leaves delivered data unconsumed.
    app_holds: bool,
    app_held: u32,
    pool: OooPool<Frame>,
    ooo_action: OooAction,
    events: Vec<String>,
    /// RSTs that the engine would send for segments without a connection.
    stateless_replies: Vec<Vec<u8>>,
}

impl TcbUnderTest {
    /// An end without a connection.
    #[must_use]
    pub fn new(settings: &Settings, tuple: FourTuple) -> Self {
        Self {
            settings: settings.clone(),
            tuple,
            tcb: None,
            listening: false,
            writes: VecDeque::new(),
            written: 0,
            read: 0,
            app_holds: false,
            app_held: 0,
            pool: OooPool::new(512, 16 << 20, settings.tcp.mss.into()),
            ooo_action: OooAction::Buffer,
            events: Vec::new(),
            stateless_replies: Vec::new(),
        }
    }

    fn tcb_mut(&mut self) -> Result<&mut Tcb<Frame, Frame>, String> {
        self.tcb.as_mut().ok_or_else(|| "there is no connection yet".to_owned())
    }

    fn config(&self) -> Arc<Config> {
        Arc::new(self.settings.tcp.clone())
    }

    fn template(&self) -> HeaderTemplate {
        HeaderTemplate::new(MACS[0], MACS[1], self.tuple)
    }

    fn iss_and_ts_offset(&self) -> IssAndTsOffset {
        let start = u32::try_from(START.as_micros()).expect("time starts early");
        let ts_offset = self.settings.tsval.wrapping_sub(start);
        IssAndTsOffset { iss: Seq(self.settings.iss), ts_offset }
    }

    /// Checks that `bytes` of `frame` are those at `position` of the stream.
    fn check(frame: &impl RxFrame, bytes: &Range<usize>, position: u32) -> Result<(), String> {
        if bytes.is_empty() {
            return Err("an empty range was delivered".to_owned());
        }
        let mut found = vec![0; bytes.len()];
        frame.copy_out(bytes.start, &mut found);
        let mut at = position;
        for byte in found {
            if byte != pattern(false, at) {
                return Err(format!("byte {} was delivered wrong", at.wrapping_add(1)));
            }
            at = at.wrapping_add(1);
        }
        Ok(())
    }

    fn deliver_in_order(
        &mut self,
        frame: &impl RxFrame,
        bytes: &Range<usize>,
    ) -> Result<(), String> {
        Self::check(frame, bytes, self.read)?;
        let len = u32::try_from(bytes.len()).expect("a frame is short");
        self.read = self.read.wrapping_add(len);
        if self.app_holds {
            self.app_held += len;
            self.tcb_mut()?.add_unconsumed(len);
        }
        Ok(())
    }

    fn handle_ooo(&mut self, frame: Frame, offer: OooOffer) -> Result<(), String> {
        let ahead = offer.seq() - self.tcb_mut()?.rcv_nxt();
        Self::check(&frame, &offer.bytes(), self.read.wrapping_add(ahead))?;
        let Some(tcb) = &mut self.tcb else { return Ok(()) };
        match self.ooo_action {
            OooAction::Buffer => drop(tcb.buffer_ooo(&mut self.pool, offer, frame)),
            OooAction::Consume => tcb.consumed_ooo(&mut self.pool, offer),
            OooAction::Drop => tcb.drop_ooo(offer),
        }
        Ok(())
    }

    fn handle_frame(&mut self, now: Instant, bytes: &[u8]) -> Result<(), String> {
        let frame = Frame::new(bytes.into());
        // Frames that do not parse are dropped by every engine.
        let Ok(segment) = Segment::parse(&frame, ChecksumMode::Software) else { return Ok(()) };
        let live = self.tcb.as_mut().filter(|tcb| tcb.state() != State::Closed);
        let is_open = self.listening;
        let Some(tcb) = live.filter(|tcb| !(is_open && tcb.may_recycle(&segment))) else {
            self.unmatched(now, &segment);
            return Ok(());
        };
        match tcb.handle_segment(now, &segment, frame) {
            Delivered::Nothing => {}
            Delivered::InOrder { frame, bytes } => self.deliver_in_order(&frame, &bytes)?,
            Delivered::OutOfOrder { frame, offer } => self.handle_ooo(frame, offer)?,
        }
        while let Some(next) = self.tcb_mut()?.next_contiguous() {
            match next {
                Contiguous::Buffered { segment: held, bytes } => {
                    self.deliver_in_order(&held, &bytes)?;
                    self.pool.release(held);
                }
                Contiguous::Consumed { len, .. } => self.read = self.read.wrapping_add(len),
            }
        }
        if let Some(tcb) = &mut self.tcb {
            tcb.release_ooo(&mut self.pool);
        }
        Ok(())
    }

    /// Handles a segment without a connection as an engine does.
    fn unmatched(&mut self, now: Instant, segment: &Segment) {
        let is_plain_syn =
            segment.flags.has(Flags::SYN) && !segment.flags.any(Flags::ACK | Flags::RST);
        if self.listening && is_plain_syn {
            let template = self.template();
            let origin = self.iss_and_ts_offset();
            self.tcb = Some(Tcb::accept(now, &self.config(), template, segment, origin));
            return;
        }
        let mut buf = vec![0; MAX_HEADER_LEN];
        let mode = ChecksumMode::Software;
        if let Some(fields) = rst_reply(segment) {
            let template = HeaderTemplate::new(MACS[0], MACS[1], segment.tuple);
            let len = template.emit(&mut buf, &fields, 0, mode);
            buf.truncate(len);
            self.stateless_replies.push(buf);
        }
    }

    fn handle_events(&mut self) {
        while let Some(tcb) = &mut self.tcb
            && let Some(event) = tcb.poll_event()
        {
            // An engine grants window growth within its budget; here it is always granted.
            if event == Event::RcvWndLimited {
                tcb.grow_window(tcb.window_wanted());
            } else {
                self.events.push(format!("{event:?}"));
            }
        }
    }

    /// Writes the next frame of the connection; false when it is idle.
    fn transmit_one(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) -> Result<bool, String> {
        let next_len = self.writes.front().copied();
        let is_last = self.writes.len() == 1;
        let (written, whole) = (self.written, self.settings.whole_records);
        let tcb = self.tcb_mut()?;
        let mut buf = vec![0xee; 70_000];
        let len_of = |len| u32::try_from(len).unwrap_or(u32::MAX);
        let ready = next_len.map_or(TxDemand::Nothing, |len| TxDemand::Record(len_of(len)));
        let len = match tcb.next_transmit(now, ready) {
            Transmit::Idle => return Ok(false),
            Transmit::Control(plan) => tcb.write_control(now, plan, &mut buf),
            Transmit::Retransmit(plan) => {
                let payload_len = plan.payload_len();
                let len = tcb.write_retransmit(now, plan, &mut buf);
                if len != tcb.header_len() + payload_len {
                    return Err(format!("{payload_len} bytes announced, another length written"));
                }
                len
            }
            Transmit::NewData(plan) => {
                let capacity = plan.capacity();
                let limit = if whole { capacity.max(tcb.emss()) } else { capacity };
                let payload_len = next_len.ok_or("nothing waits to be sent")?.min(limit);
                let start = tcb.header_len();
                for (byte, at) in buf[start..start + payload_len].iter_mut().zip(written..) {
                    *byte = pattern(true, at);
                }
                let push = is_last && next_len == Some(payload_len);
                let len = start + payload_len;
                buf.truncate(len);
                let mut frame = OutFrame(buf);
                let go = tcb.send_new_data(now, plan, &mut frame, payload_len, push);
                buf = frame.0;
                self.written += u32::try_from(payload_len).expect("a segment is short");
                let left = self.writes.front_mut().expect("it was asked for");
                *left -= payload_len;
                if *left == 0 {
                    self.writes.pop_front();
                }
                if !go {
                    return Ok(true);
                }
                len
            }
        };
        if len == 0 {
            return Err("a frame was announced and not written".to_owned());
        }
        buf.truncate(len);
        out.push(buf);
        Ok(true)
    }
}

impl SystemUnderTest for TcbUnderTest {
    fn receive(&mut self, now: Instant, burst: &[Vec<u8>]) -> Result<(), String> {
        for bytes in burst {
            self.handle_frame(now, bytes)?;
            self.handle_events();
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.tcb.as_ref().and_then(Tcb::deadline)
    }

    fn poll_transmit(&mut self, now: Instant) -> Result<Vec<Vec<u8>>, String> {
        let mut out = std::mem::take(&mut self.stateless_replies);
        if self.tcb.is_none() {
            return Ok(out);
        }
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.tcb_mut()?.handle_timeout(now);
            self.handle_events();
        }
        while self.transmit_one(now, &mut out)? {
            if out.len() > FRAMES_MAX {
                return Err("output never ends".to_owned());
            }
        }
        self.handle_events();
        Ok(out)
    }

    fn call(&mut self, now: Instant, words: &[&str]) -> Result<(), String> {
        match *words {
            ["connect"] => {
                let (template, origin) = (self.template(), self.iss_and_ts_offset());
                self.tcb = Some(Tcb::connect(now, &self.config(), template, origin));
            }
            ["listen"] => self.listening = true,
            ["unlisten"] => self.listening = false,
            ["write", len] => {
                let len = usize::try_from(number(len)?).map_err(|_| "a negative length")?;
                self.writes.push_back(len);
            }
            ["hold", "on"] => self.app_holds = true,
            ["hold", "off"] => self.app_holds = false,
            ["release", len] => {
                let len = u32::try_from(number(len)?).map_err(|_| "a negative length")?;
                self.app_held = self.app_held.checked_sub(len).ok_or("so much is not held")?;
                self.tcb_mut()?.consume(len);
            }
            ["close"] => self.tcb_mut()?.close(),
            ["abort"] => self.tcb_mut()?.abort(),
            ["shut-receive"] => self.tcb_mut()?.shut_receive(),
            ["open-window"] => self.tcb_mut()?.open_window(),
            ["too-big", mtu] => {
                let mtu = u16::try_from(number(mtu)?).map_err(|_| "no size of a packet")?;
                let tcb = self.tcb_mut()?;
                let packet_len = tcb.path_mtu().into();
                let error = TooBig { seq: tcb.snd_una(), ack: None, mtu: Some(mtu), packet_len };
                tcb.packet_too_big(now, &error);
            }
            ["ooo", "buffer"] => self.ooo_action = OooAction::Buffer,
            ["ooo", "consume"] => self.ooo_action = OooAction::Consume,
            ["ooo", "drop"] => self.ooo_action = OooAction::Drop,
            _ => return Err(format!("there is no call `{}`", words.join(" "))),
        }
        self.handle_events();
        Ok(())
    }

    fn state(&self) -> String {
        self.tcb.as_ref().map_or("None".to_owned(), |tcb| format!("{:?}", tcb.state()))
    }

    fn counter(&self, name: &str) -> Option<u64> {
        let tcb = self.tcb.as_ref()?;
        Some(match name {
            "cwnd" => tcb.cwnd().into(),
            "emss" => tcb.emss() as u64,
            "srtt-us" => tcb.srtt_ns() / 1000,
            "ooo-segments" => tcb.ooo_segments() as u64,
            "window-limit" => tcb.window_limit().into(),
            "read" => self.read.into(),
            "unsent" => self.writes.iter().map(|len| *len as u64).sum(),
            "all-acked" => tcb.all_acked().into(),
            "peer-finished" => tcb.peer_finished().into(),
            "closed" => tcb.is_closed().into(),
            _ => return counter_by_name(&format!("{:?}", tcb.stats()), name),
        })
    }

    fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }
}

/// Returns the value of a counter from the `Debug` output of a structure of counters.
pub fn counter_by_name(stats: &str, name: &str) -> Option<u64> {
    let name = name.replace('-', "_");
    let fields = stats.split_once('{')?.1.trim_end_matches('}').split(',');
    let mut fields = fields.filter_map(|field| field.trim().split_once(": "));
    fields.find(|(field, _)| *field == name).and_then(|(_, value)| value.trim().parse().ok())
}
