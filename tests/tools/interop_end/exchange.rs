//! An exchange over an established connection; see tests/interop/exchange_steps.c for the protocol.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use ferrowarp::{
    Access, ConnEvent, Context, EndReason, Mr, Qp, RemoteAddr, SendFlags, Sge, Stag, Wc, WcStatus,
};
use ferrowarp_apps::endpoint::{Endpoint, sge_at};

use crate::steps::{BURST_MAX, BURST_READ_LEN, Kind, OFFSET_MAX, Step, region_len, steps};
use crate::{Fault, InteropEndOptions, Role};

const NOTE_MAGIC: u32 = 0x4E4F_5445;
const NOTE_LEN: usize = 64;
/// Receives for notes: one that is being processed, and two that may be received meanwhile.
const NOTE_SLOTS: u64 = 3;
const WINDOW_LEN: usize = 64;
/// Initial content of memory.
const UNTOUCHED: u8 = 0xA5;
const DEPTH: usize = BURST_MAX + 16;
/// Timeout of each wait.
const WAIT_MAX: Duration = Duration::from_secs(20);

// Kinds of requests, the `wr_id` of their completions.
const NOTE: usize = 0;
const STEP: usize = 1;
const SENT: usize = 2;
const DONE: usize = 3;
/// `DONE` as a `wr_id`.
const DONE_ID: u64 = DONE as u64;

/// Control message between the ends.
#[derive(Clone, Copy, Debug, Default)]
struct Note {
    step: u32,
    /// Ready: STag to invalidate.
    stag: u32,
    address: u64,
    /// Checked: number of wrong bytes.
    errors: u64,
    /// First note of each end: its regions.
    tx_address: u64,
    rx_address: u64,
    len: u64,
    tx_stag: u32,
    rx_stag: u32,
}

impl Note {
    fn emit(&self) -> [u8; NOTE_LEN] {
        let mut out = [0; NOTE_LEN];
        let fields = [
            (u64::from(NOTE_MAGIC), 4),
            (self.step.into(), 4),
            (self.stag.into(), 4),
            (self.address, 8),
            (self.errors, 8),
            (self.tx_address, 8),
            (self.rx_address, 8),
            (self.len, 8),
            (self.tx_stag.into(), 4),
            (self.rx_stag.into(), 4),
        ];
        let mut at = 0;
        for (value, len) in fields {
            out[at..at + len].copy_from_slice(&value.to_be_bytes()[8 - len..]);
            at += len;
        }
        out
    }

    fn parse(bytes: &[u8; NOTE_LEN]) -> Option<Self> {
        let be32 = |at| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let be64 = |at| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        (be32(0) == NOTE_MAGIC).then(|| Self {
            step: be32(4),
            stag: be32(8),
            address: be64(12),
            errors: be64(20),
            tx_address: be64(28),
            rx_address: be64(36),
            len: be64(44),
            tx_stag: be32(52),
            rx_stag: be32(56),
        })
    }
}

/// One end of an exchange.
pub(crate) struct Exchange<'a> {
    options: &'a InteropEndOptions,
    is_initiator: bool,
    end: Endpoint,
    /// Queue pair of the connection.
    pub(crate) qp: Qp,
    tx: Mr,
    rx: Mr,
    notes: Mr,
    window: Option<Mr>,
    peer: Note,
    ord: u16,
    notes_expected: u64,
    notes_posted: u64,
    notes_read: u64,
    /// Number of completions by kind.
    counts: [u64; 4],
    /// Last completion of a step.
    step_wc: Option<Wc>,
    /// What the last Send with Invalidate invalidated at the peer.
    stale: RemoteAddr,
    steps: u64,
    bytes: u64,
}

impl<'a> Exchange<'a> {
    /// Creates an end that is not connected yet.
    pub(crate) fn new(
        context: &Context,
        options: &'a InteropEndOptions,
        is_initiator: bool,
    ) -> anyhow::Result<Self> {
        let end = Endpoint::new(context, 4 * DEPTH)?;
        let len = region_len(options);
        let notes_len = usize::try_from(NOTE_SLOTS)? * NOTE_LEN;
        let mut exchange = Self {
            options,
            is_initiator,
            qp: end.create_qp(DEPTH, DEPTH)?,
            tx: end.alloc_mr(len, Access::ALL)?,
            rx: end.alloc_mr(len, Access::ALL)?,
            notes: end.alloc_mr(notes_len, Access::LOCAL_WRITE)?,
            end,
            window: None,
            peer: Note::default(),
            ord: 0,
            notes_expected: 0,
            notes_posted: 0,
            notes_read: 0,
            counts: [0; 4],
            step_wc: None,
            stale: RemoteAddr::default(),
            steps: 0,
            bytes: 0,
        };
        // The first note, and the notes of the first active end.
        exchange.expect_notes(1)?;
        if is_initiator {
            exchange.expect_notes(2 * steps(options).len() as u64)?;
        }
        Ok(exchange)
    }

    /// Runs all steps, from the first note to the end of the connection. `ord` limits outstanding
    /// RDMA Reads.
    pub(crate) fn run(&mut self, ord: u16) -> anyhow::Result<()> {
        self.ord = ord;
        let offer = Note {
            tx_address: self.tx.addr(),
            rx_address: self.rx.addr(),
            len: self.rx.len() as u64,
            tx_stag: self.tx.rkey(),
            rx_stag: self.rx.rkey(),
            ..Note::default()
        };
        if self.is_initiator {
            self.send_note(&offer)?;
            self.peer = self.take_note()?;
            self.run_active()?;
            self.run_passive()?;
        } else {
            self.peer = self.take_note()?;
            self.send_note(&offer)?;
            self.run_passive()?;
            self.run_active()?;
        }
        self.finish()?;
        println!("result: steps={} bytes={}", self.steps, self.bytes);
        Ok(())
    }

    // Completions and notes.

    /// Drives the stack until there are `count` completions of a kind.
    fn wait(&mut self, kind: usize, count: u64) -> anyhow::Result<()> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut batch = [Wc::default(); 32];
        let mut failed = None;
        while self.counts[kind] < count {
            // The awaited completion may precede the end of the connection in the same batch.
            if let Some(Wc { opcode, status, .. }) = failed {
                let reason = self.qp.next_event();
                bail!("step {}: {opcode:?}: {status} ({reason:?})", self.steps);
            }
            for wc in self.end.poll(&mut batch) {
                let wc_kind = usize::try_from(wc.wr_id)?;
                if wc.status != WcStatus::Success {
                    failed = failed.or(Some(*wc));
                    continue;
                }
                if wc_kind == STEP {
                    self.step_wc = Some(*wc);
                }
                self.counts[wc_kind] += 1;
            }
            ensure!(Instant::now() < deadline, "no message in step {}", self.steps);
        }
        Ok(())
    }

    fn receive(&self, kind: usize, mr: &Mr, offset: usize, len: usize) -> anyhow::Result<()> {
        let sge = sge_at(mr, offset as u64, u32::try_from(len)?);
        self.qp.post_recv(kind as u64, sge)?;
        Ok(())
    }

    /// Posts the Send of a step.
    fn send(&self, source: Sge, solicited: bool, invalidated: Option<Stag>) -> anyhow::Result<()> {
        let flags = SendFlags::SIGNALED.and(SendFlags::SOLICITED.when(solicited));
        let mut post = self.qp.post();
        let mut request = post.send(source).wr_id(DONE_ID).with(flags);
        if let Some(stag) = invalidated {
            request = request.with_invalidate(stag);
        }
        request.ring()?;
        Ok(())
    }

    /// Expects `count` further notes, and posts receives for them, a few at a time.
    fn expect_notes(&mut self, count: u64) -> anyhow::Result<()> {
        self.notes_expected += count;
        while self.notes_posted < self.notes_expected.min(self.notes_read + NOTE_SLOTS) {
            let slot = usize::try_from(self.notes_posted % NOTE_SLOTS)?;
            self.receive(NOTE, &self.notes, slot * NOTE_LEN, NOTE_LEN)?;
            self.notes_posted += 1;
        }
        Ok(())
    }

    fn take_note(&mut self) -> anyhow::Result<Note> {
        self.wait(NOTE, self.notes_read + 1)?;
        let slot = usize::try_from(self.notes_read % NOTE_SLOTS)?;
        let mut bytes = [0; NOTE_LEN];
        self.notes.read(slot * NOTE_LEN, &mut bytes);
        self.notes_read += 1;
        self.expect_notes(0)?;
        Note::parse(&bytes).context("expected a note, got another message")
    }

    fn send_note(&mut self, note: &Note) -> anyhow::Result<()> {
        self.qp.post().send_inline(&note.emit()).wr_id(SENT as u64).signaled().ring()?;
        Ok(())
    }

    // The active end.

    /// Returns the number of messages of `by` after all steps for which a receive is posted: the
    /// responder's last note, which ends the exchange, or the Send with a faulty STag.
    fn trailing_messages(&self, by: Role) -> u64 {
        u64::from(match self.options.fault {
            None => by == Role::Responder,
            Some(Fault::Invalidate) => by == self.options.fault_by,
            Some(_) => false,
        })
    }

    fn run_active(&mut self) -> anyhow::Result<()> {
        let all = steps(self.options);
        for step in &all {
            let ready = self.take_note()?;
            if step.number as usize + 1 == all.len() && !self.is_initiator {
                self.expect_notes(self.trailing_messages(Role::Initiator))?;
            }
            ensure!(ready.step == step.number, "the peer is ready for step {}", ready.step);
            self.run_active_step(step, &ready)?;
            let checked = self.take_note()?;
            let (errors, number) = (checked.errors, step.number);
            ensure!(errors == 0, "the peer found {errors} errors in step {number}");
            self.steps += 1;
            self.bytes += step.len(self.ord) as u64;
        }
        Ok(())
    }

    fn run_active_step(&mut self, step: &Step, ready: &Note) -> anyhow::Result<()> {
        fill(&self.tx, step.source, step.size, step, self.is_initiator);
        let source = sge_at(&self.tx, step.source as u64, u32::try_from(step.size)?);
        match step.kind {
            Kind::Send { solicited, invalidates } => {
                if invalidates {
                    self.stale = RemoteAddr { addr: ready.address, rkey: ready.stag };
                }
                self.send(source, solicited, invalidates.then_some(ready.stag))?;
                return self.wait(DONE, self.counts[DONE] + 1);
            }
            Kind::Write => {
                let addr = self.peer.rx_address + step.sink as u64;
                let remote = RemoteAddr { addr, rkey: self.peer.rx_stag };
                self.qp.post().write(source, remote).wr_id(DONE_ID).signaled().ring()?;
                self.wait(DONE, self.counts[DONE] + 1)?;
            }
            Kind::Read => self.read(step, step.size)?,
            Kind::Burst => self.read(step, BURST_READ_LEN)?,
        }
        self.qp.post().send(&[]).wr_id(DONE_ID).signaled().ring()?;
        self.wait(DONE, self.counts[DONE] + 1)
    }

    /// Reads a step's bytes by RDMA Reads of `len` bytes, all posted at once, and checks them.
    fn read(&mut self, step: &Step, len: usize) -> anyhow::Result<()> {
        let total_len = step.len(self.ord);
        let mut count = 0;
        let mut post = self.qp.post();
        for at in (0..total_len).step_by(len.max(1)) {
            let sink = sge_at(&self.rx, (step.sink + at) as u64, u32::try_from(len)?);
            let addr = self.peer.tx_address + (step.source + at) as u64;
            let remote = RemoteAddr { addr, rkey: self.peer.tx_stag };
            post.read(sink, remote).wr_id(DONE_ID).signaled();
            count += 1;
        }
        post.ring()?;
        self.wait(DONE, self.counts[DONE] + count)?;
        let errors = mismatches(&self.rx, step.sink, total_len, step, !self.is_initiator);
        ensure!(errors == 0, "{errors} bytes read are wrong");
        Ok(())
    }

    // The passive end.

    fn run_passive(&mut self) -> anyhow::Result<()> {
        let all = steps(self.options);
        for step in &all {
            let is_last = step.number as usize + 1 == all.len();
            self.run_passive_step(step, is_last)?;
        }
        Ok(())
    }

    fn run_passive_step(&mut self, step: &Step, is_last: bool) -> anyhow::Result<()> {
        let mut ready = Note { step: step.number, ..Note::default() };
        if let Kind::Send { invalidates: true, .. } = step.kind {
            // Only an STag bound to the connection can be invalidated by its peer.
            let buffer = self.end.context.allocate(WINDOW_LEN)?;
            let window = self.end.pd.register_for(&self.qp, buffer, Access::ALL)?;
            (ready.stag, ready.address) = (window.rkey(), window.addr());
            self.window = Some(window);
        }
        self.rx.fill(0, self.rx.len(), UNTOUCHED);
        let is_fetched = matches!(step.kind, Kind::Read | Kind::Burst);
        if is_fetched {
            let len = self.tx.len() - OFFSET_MAX;
            fill(&self.tx, step.source, len, step, self.is_initiator);
        }
        let expected = if let Kind::Send { .. } = step.kind { step.size } else { 0 };
        self.receive(STEP, &self.rx, step.sink, expected)?;
        self.send_note(&ready)?;
        self.wait(STEP, self.counts[STEP] + 1)?;
        self.check_arrival(step, expected, &ready)?;
        let mut checked = Note { step: step.number, ..Note::default() };
        if !is_fetched {
            checked.errors = mismatches(&self.rx, step.sink, step.size, step, !self.is_initiator);
            for outside in [step.sink - 1, step.sink + step.size] {
                let mut byte = [0];
                self.rx.read(outside, &mut byte);
                checked.errors += u64::from(byte != [UNTOUCHED]);
            }
        }
        if is_last {
            let count = 2 * steps(self.options).len() as u64;
            self.expect_notes(if self.is_initiator {
                self.trailing_messages(Role::Responder)
            } else {
                count
            })?;
        }
        self.send_note(&checked)?;
        ensure!(checked.errors == 0, "{} bytes of {step:?} are wrong", checked.errors);
        self.steps += 1;
        Ok(())
    }

    /// Checks length, Solicited Event and invalidated STag of a step's message.
    fn check_arrival(&self, step: &Step, expected: usize, ready: &Note) -> anyhow::Result<()> {
        let wc = self.step_wc.context("a step without a completion")?;
        let len = usize::try_from(wc.byte_len)?;
        ensure!(len == expected, "{len} bytes received in {step:?}");
        let (solicited, invalidates) = match step.kind {
            Kind::Send { solicited, invalidates } => (solicited, invalidates),
            _ => (false, false),
        };
        ensure!(wc.solicited == solicited, "{step:?} has solicited {}", wc.solicited);
        let invalidated = invalidates.then_some(ready.stag);
        ensure!(wc.invalidated() == invalidated, "{step:?} invalidated {:?}", wc.invalidated());
        Ok(())
    }

    // The fault, and the end.

    fn inject_fault(&self, fault: Fault) -> anyhow::Result<()> {
        let Note { rx_address, tx_address, len, rx_stag, .. } = self.peer;
        // An STag index that is not in use.
        let wrong = rx_stag ^ 0x00FF_FF00;
        let (source, sink) = (sge_at(&self.tx, 0, 64), sge_at(&self.rx, 0, 64));
        let at = |rkey, addr| RemoteAddr { addr, rkey };
        let mut post = self.qp.post();
        let request = match fault {
            Fault::Write => post.write(source, at(wrong, rx_address)),
            Fault::Read => post.read(sink, at(wrong, tx_address)),
            Fault::Invalidate => post.send(source).with_invalidate(wrong),
            Fault::Send => post.send(source),
            Fault::Bounds => post.write(source, at(rx_stag, rx_address + len - 32)),
            Fault::Stale => post.write(source, self.stale),
        };
        request.wr_id(DONE_ID).signaled().ring()?;
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let is_ours = (self.options.fault_by == Role::Initiator) == self.is_initiator;
        match self.options.fault {
            None if self.is_initiator => {
                self.take_note()?;
                self.qp.disconnect()?;
            }
            None => self.send_note(&Note::default())?,
            Some(fault) if is_ours => self.inject_fault(fault)?,
            Some(_) => {}
        }
        self.wait_end()
    }

    /// Waits until the connection has ended, and prints the reason.
    fn wait_end(&self) -> anyhow::Result<()> {
        loop {
            let event = self.qp.wait_event(WAIT_MAX).context("the connection was not closed")?;
            if let ConnEvent::Disconnected { reason, .. } = event {
                println!("ended: {}", describe_end(&reason));
                return Ok(());
            }
        }
    }
}

/// Returns the name of a reason, with the fields of a Terminate.
fn describe_end(reason: &EndReason) -> String {
    let (name, terminate) = match reason {
        EndReason::TerminateSent(terminate) => ("terminate-sent", terminate),
        EndReason::TerminateUnsent(terminate) => ("terminate-unsent", terminate),
        EndReason::TerminateReceived(terminate) => ("terminate-received", terminate),
        other => return format!("{other:?}"),
    };
    let (layer, error_type, code) = terminate.cause();
    format!("{name} {layer}/{error_type}/{code:02x} segment={:?}", terminate.segment_len)
}

/// Bytes per copy to or from registered memory.
const COPY_LEN: usize = 4096;

fn fill(mr: &Mr, offset: usize, len: usize, step: &Step, by_initiator: bool) {
    let mut scratch = [0; COPY_LEN];
    for at in (0..len).step_by(COPY_LEN) {
        let chunk = &mut scratch[..COPY_LEN.min(len - at)];
        step.pattern(by_initiator).fill(at, chunk);
        mr.write(offset + at, chunk);
    }
}

fn mismatches(mr: &Mr, offset: usize, len: usize, step: &Step, by_initiator: bool) -> u64 {
    let mut scratch = [0; COPY_LEN];
    let mut errors = 0;
    for at in (0..len).step_by(COPY_LEN) {
        let chunk = &mut scratch[..COPY_LEN.min(len - at)];
        mr.read(offset + at, chunk);
        errors += step.pattern(by_initiator).mismatches(at, chunk);
    }
    errors
}
