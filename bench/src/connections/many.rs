//! Very many connections: set up, each used for some messages, and ended.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ferrowarp::{Access, Mr, Operation, Payload, RecvWr, SendWr, SgList, Wc, WcOpcode, WcStatus};

use super::allocations;
use super::ends::{Connection, Depths, Ends};

/// Bytes of a message: number of the connection, and number of the round.
const MESSAGE_LEN: usize = 16;
/// Messages under way.
const WINDOW: usize = 256;
/// Time without a message after which the rounds are given up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A phase: its name, its seconds, and the bytes that are resident after it.
pub type Phase = (String, f64, u64);

/// Results.
#[derive(Clone, Debug)]
pub struct Many {
    /// Connections.
    pub count: usize,
    /// Ports of the peer that they were opened to.
    pub ports: usize,
    /// Resident bytes before the first one.
    pub resident_before: u64,
    /// The phases in order.
    pub phases: Vec<Phase>,
}

/// Sets up `count` connections, sends `rounds` messages on each, and ends them. All have to
/// succeed, and nothing may be left.
///
/// # Errors
/// If that is not so.
pub fn run(count: usize, rounds: usize, mut progress: impl FnMut(&str)) -> Result<Many> {
    let mut ends = Ends::open(count, allocations::uncounted)?;
    let mut many = Many {
        count,
        ports: ends.port_count(),
        resident_before: allocations::resident()?,
        phases: vec![],
    };
    let frames_free = frames_free(&ends);
    let mut phase = |many: &mut Many, name: String, start: Instant| -> Result<()> {
        let (seconds, resident) = (start.elapsed().as_secs_f64(), allocations::resident()?);
        let mib = resident >> 20;
        progress(&format!("many, {count} connections, {name}: {seconds:.2} s, {mib} MiB resident"));
        many.phases.push((name, seconds, resident));
        Ok(())
    };
    let start = Instant::now();
    let connections = ends.set_up(count, Depths { send: 1, recv: 1 })?;
    phase(&mut many, "set up".to_owned(), start)?;
    let mut messages = Messages::new(&ends, &connections)?;
    for round in 1..=rounds {
        let start = Instant::now();
        messages.round(&mut ends, &connections, round as u64)?;
        phase(&mut many, format!("message {round} of each"), start)?;
    }
    drop(messages);
    let usage = [&ends.left, &ends.right].map(|end| end.context.usage().engine.connections);
    ensure!(usage == [count; 2], "{usage:?} connections are left of {count}");
    let start = Instant::now();
    ends.end(connections)?;
    phase(&mut many, "ended".to_owned(), start)?;
    let start = Instant::now();
    ends.wait_until_left(0)?;
    ends.check_nothing_left()?;
    let frames_left = self::frames_free(&ends);
    ensure!(frames_left >= frames_free, "frames free: {frames_free:?}, now {frames_left:?}");
    phase(&mut many, "TIME-WAIT".to_owned(), start)?;
    Ok(many)
}

/// Free frames of each end, all pools together.
fn frames_free(ends: &Ends) -> [u32; 2] {
    let sum = |free: ferrowarp::FramesFree| free.data + free.control + free.reserve;
    [&ends.left, &ends.right].map(|end| end.context.usage().frames_free.map_or(0, sum))
}

/// Messages from the left end to the right one, in a buffer of each connection.
struct Messages {
    region: Mr,
    /// Connections by the index of their queue pair at the right end.
    by_qp: Vec<usize>,
}

impl Messages {
    fn new(ends: &Ends, connections: &[Connection]) -> Result<Self> {
        let len = connections.len() * MESSAGE_LEN;
        let buffer = ends.right.context.allocate(len)?;
        let region = ends.right.pd.register(buffer, Access::LOCAL_WRITE)?;
        let mut by_qp = Vec::new();
        for (index, connection) in connections.iter().enumerate() {
            let qp = connection.passive.id().index as usize;
            by_qp.resize(by_qp.len().max(qp + 1), usize::MAX);
            by_qp[qp] = index;
        }
        Ok(Self { region, by_qp })
    }

    /// Sends one message on each connection, and compares what arrives.
    fn round(&mut self, ends: &mut Ends, connections: &[Connection], round: u64) -> Result<()> {
        let (mut posted, mut sent, mut received) = (0, 0, 0);
        let mut last_progress = Instant::now();
        while sent < connections.len() || received < connections.len() {
            let before = (sent, received);
            while posted < connections.len() && posted - sent.min(received) < WINDOW {
                self.post(&connections[posted], posted, round)?;
                posted += 1;
            }
            ends.left.poll(|wc| {
                ensure!(wc.status == WcStatus::Success, "{wc:?}");
                sent += 1;
                Ok(())
            })?;
            ends.right.poll(|wc| {
                received += 1;
                self.check(wc, round)
            })?;
            if (sent, received) != before {
                last_progress = Instant::now();
            }
            ensure!(last_progress.elapsed() < TIMEOUT, "{sent} sent, {received} received, no more");
        }
        Ok(())
    }

    fn post(&self, connection: &Connection, index: usize, round: u64) -> Result<()> {
        let place = self.region.sge(index * MESSAGE_LEN, u32::try_from(MESSAGE_LEN)?);
        let sg_list = SgList::from([place]);
        connection.passive.post_recv(RecvWr { wr_id: index as u64, sg_list })?;
        let payload = Payload::Inline(message(index as u64, round).into());
        let operation = Operation::Send { payload, solicited: false, invalidate: None };
        let wr = SendWr { wr_id: index as u64, operation, signaled: true, fence: false };
        Ok(connection.active.post_send(wr)?)
    }

    /// Compares a message with the one sent on its connection.
    fn check(&self, wc: &Wc, round: u64) -> Result<()> {
        let is_message = wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv;
        ensure!(is_message && wc.byte_len as usize == MESSAGE_LEN, "{wc:?}");
        let index = usize::try_from(wc.wr_id)?;
        let of_qp = self.by_qp.get(wc.qp.index as usize).context("no such queue pair")?;
        let mut bytes = [0; MESSAGE_LEN];
        self.region.read(index * MESSAGE_LEN, &mut bytes);
        let is_right = *of_qp == index && bytes == message(wc.wr_id, round);
        ensure!(is_right, "round {round}, connection {index}: {bytes:?}, {wc:?}");
        Ok(())
    }
}

fn message(index: u64, round: u64) -> [u8; MESSAGE_LEN] {
    let mut message = [0; MESSAGE_LEN];
    message[..8].copy_from_slice(&index.to_be_bytes());
    message[8..].copy_from_slice(&round.to_be_bytes());
    message
}
