//! One connection of a soak, and the ways in which it ends.

use anyhow::{Context as _, Result, bail, ensure};
use ferrowarp::cm::Abort;
use ferrowarp::{ConnEvent, EndReason, Mr, Post, Qp, RemoteAddr, SendRequest};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::requests::{Expected, Requests};

/// Bytes of a Write at most.
pub(crate) const WRITE_MAX: usize = 16 << 10;
/// Bytes of a message: seed and length of what was written.
const MESSAGE_LEN: usize = 8;
/// Bytes of a region for each connection: what is written, what is read, a message.
pub(crate) const STRIDE: usize = 2 * WRITE_MAX + 64;
/// Requests in each queue.
pub(crate) const DEPTH: usize = 16;
/// Writes that are outstanding when a connection ends, at most.
const LAST_WRITES_MAX: usize = 8;

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The end of this number closes.
    Close(usize),
    /// Both do.
    CloseBoth,
    /// The end disconnects, with requests outstanding.
    Disconnect(usize),
    /// The end sends a Terminate.
    Terminate(usize),
    /// A Write to a region that does not exist.
    Violation,
    /// The queue pair of the end is dropped, with requests outstanding.
    Drop(usize),
    /// Both are.
    DropBoth,
}

impl Ending {
    /// Returns any of them.
    pub(crate) fn any(rng: &mut SmallRng) -> Self {
        let end = rng.random_range(0..2);
        match rng.random_range(0..8) {
            0 | 1 => Self::Close(end),
            2 => Self::CloseBoth,
            3 => Self::Disconnect(end),
            4 => Self::Terminate(end),
            5 => Self::Violation,
            6 => Self::Drop(end),
            _ => Self::DropBoth,
        }
    }

    /// Returns whether it is graceful.
    pub(crate) const fn is_graceful(self) -> bool {
        matches!(self, Self::Close(_) | Self::CloseBoth)
    }
}

/// A connection: its queue pairs at the left and the right end, unless they are dropped.
pub(crate) struct Life {
    /// Left, right. The right one exists once its request is accepted.
    pub(crate) qps: [Option<Qp>; 2],
    /// Ends that are established.
    pub(crate) established: [bool; 2],
    /// Ends that have ended.
    ended: [bool; 2],
    /// Its end, once one is chosen.
    ending: Option<Ending>,
    /// Its place in the regions.
    place: usize,
    /// Pattern and length of the last Write.
    seed: u32,
    len: usize,
    /// Requests of each end.
    wr_ids: [Vec<u64>; 2],
    /// Those of the last Writes, which a graceful close of the left end executes.
    last_writes: usize,
}

/// The bytes of a Write.
fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let byte = |at: u32| at.wrapping_add(seed).wrapping_mul(0x9e37_79b1).to_be_bytes()[0];
    (0..u32::try_from(len).unwrap_or(u32::MAX)).map(byte).collect()
}

fn check(region: &Mr, offset: usize, seed: u32, len: usize, what: &str) -> Result<()> {
    let mut bytes = vec![0; len];
    region.read(offset, &mut bytes);
    ensure!(bytes == pattern(seed, len), "{what}: {len} bytes at {offset} are not those sent");
    Ok(())
}

impl Life {
    /// A connection that has the place `index` of the regions.
    pub(crate) fn new(active: Qp, index: usize) -> Self {
        let (established, ended) = ([false; 2], [false; 2]);
        let qps = [Some(active), None];
        let (place, wr_ids) = (index * STRIDE, [Vec::new(), Vec::new()]);
        let (seed, len, last_writes, ending) = (0, 0, 0, None);
        Self { qps, established, ended, ending, place, seed, len, wr_ids, last_writes }
    }

    fn qp(&self, end: usize) -> Result<&Qp> {
        self.qps[end].as_ref().context("the queue pair is dropped")
    }

    /// Takes the events of the establishment; true once both ends have theirs.
    pub(crate) fn is_established(&mut self) -> Result<bool> {
        for end in 0..2 {
            match self.qps[end].as_ref().and_then(Qp::next_event) {
                None => {}
                Some(ConnEvent::Established { .. }) => self.established[end] = true,
                Some(other) => bail!("instead of the establishment at end {end}: {other:?}"),
            }
        }
        Ok(self.established == [true; 2])
    }

    /// Posts the request that `begin` begins.
    fn send(
        &mut self,
        end: usize,
        expected: Expected,
        requests: &mut Requests,
        begin: impl for<'p, 'q> FnOnce(&'p mut Post<'q>) -> SendRequest<'p, 'q>,
    ) -> Result<u64> {
        let qp = self.qp(end)?;
        let wr_id = requests.add(qp.id(), expected);
        if let Err(error) = begin(&mut qp.post()).wr_id(wr_id).signaled().ring() {
            requests.cancel(wr_id);
            return Err(error.into());
        }
        self.wr_ids[end].push(wr_id);
        Ok(wr_id)
    }

    fn send_message(&mut self, end: usize, requests: &mut Requests) -> Result<u64> {
        let mut message = [0; MESSAGE_LEN];
        message[..4].copy_from_slice(&self.seed.to_be_bytes());
        message[4..].copy_from_slice(&u32::try_from(self.len)?.to_be_bytes());
        self.send(end, Expected::Success, requests, |post| post.send_inline(&message))
    }

    fn receive(&mut self, end: usize, region: &Mr, requests: &mut Requests) -> Result<u64> {
        let qp = self.qp(end)?;
        let wr_id = requests.add(qp.id(), Expected::Success);
        let place = region.sge(self.place + 2 * WRITE_MAX, u32::try_from(MESSAGE_LEN)?);
        qp.post_recv(wr_id, place)?;
        self.wr_ids[end].push(wr_id);
        Ok(wr_id)
    }

    fn check_message(&self, region: &Mr) -> Result<()> {
        let mut message = [0; MESSAGE_LEN];
        region.read(self.place + 2 * WRITE_MAX, &mut message);
        let values = [&message[..4], &message[4..]]
            .map(|word| word.try_into().map_or(u32::MAX, u32::from_be_bytes));
        let expected = [self.seed, u32::try_from(self.len)?];
        ensure!(values == expected, "message {values:?}, expected {expected:?}");
        Ok(())
    }

    fn write(
        &mut self,
        regions: [&Mr; 2],
        requests: &mut Requests,
        expected: Expected,
    ) -> Result<u64> {
        let [left, right] = regions;
        let source = left.sge(self.place, u32::try_from(self.len)?);
        let target = right.remote().at(self.place as u64);
        self.send(0, expected, requests, |post| post.write(source, target))
    }

    /// Writes to the right end and tells it so; returns what has to complete.
    pub(crate) fn post_write(
        &mut self,
        rng: &mut SmallRng,
        regions: [&Mr; 2],
        requests: &mut Requests,
    ) -> Result<[u64; 3]> {
        self.wr_ids.iter_mut().for_each(Vec::clear);
        (self.seed, self.len) = (rng.random(), rng.random_range(1..=WRITE_MAX));
        regions[0].write(self.place, &pattern(self.seed, self.len));
        let receive = self.receive(1, regions[1], requests)?;
        let write = self.write(regions, requests, Expected::Success)?;
        Ok([receive, write, self.send_message(0, requests)?])
    }

    /// Compares what was written and the message, and replies; returns what has to complete.
    pub(crate) fn post_reply(
        &mut self,
        regions: [&Mr; 2],
        requests: &mut Requests,
    ) -> Result<[u64; 2]> {
        self.check_message(regions[1])?;
        check(regions[1], self.place, self.seed, self.len, "RDMA Write")?;
        self.seed = self.seed.wrapping_add(1);
        regions[1].write(self.place, &pattern(self.seed, self.len));
        let receive = self.receive(0, regions[0], requests)?;
        Ok([receive, self.send_message(1, requests)?])
    }

    /// Compares the reply, and reads what the right end has; returns what has to complete.
    pub(crate) fn post_read(
        &mut self,
        regions: [&Mr; 2],
        requests: &mut Requests,
    ) -> Result<[u64; 1]> {
        self.check_message(regions[0])?;
        let [left, right] = regions;
        let sink = left.sge(self.place + WRITE_MAX, u32::try_from(self.len)?);
        let source = right.remote().at(self.place as u64);
        Ok([self.send(0, Expected::Success, requests, |post| post.read(sink, source))?])
    }

    /// Compares what was read; returns the bytes compared in the exchange.
    pub(crate) fn check_read(&self, regions: [&Mr; 2]) -> Result<u64> {
        check(regions[0], self.place + WRITE_MAX, self.seed, self.len, "RDMA Read")?;
        Ok(2 * (self.len + MESSAGE_LEN) as u64)
    }

    /// Posts some last Writes and a receive, and begins to end the connection.
    pub(crate) fn begin_end(
        &mut self,
        ending: Ending,
        rng: &mut SmallRng,
        regions: [&Mr; 2],
        requests: &mut Requests,
    ) -> Result<()> {
        self.ending = Some(ending);
        self.wr_ids.iter_mut().for_each(Vec::clear);
        self.receive(1, regions[1], requests)?;
        self.receive(0, regions[0], requests)?;
        (self.seed, self.len) = (rng.random(), rng.random_range(1..=WRITE_MAX));
        regions[0].write(self.place, &pattern(self.seed, self.len));
        requests.expect_any_of(&self.wr_ids);
        let expected = if ending == Ending::Close(0) { Expected::Success } else { Expected::Any };
        self.last_writes = rng.random_range(0..=LAST_WRITES_MAX);
        for _ in 0..self.last_writes {
            self.write(regions, requests, expected)?;
        }
        match ending {
            Ending::Close(end) => self.qp(end)?.close()?,
            Ending::CloseBoth => {
                self.qp(0)?.close()?;
                // The other end may have closed already.
                let _ = self.qp(1)?.close();
            }
            Ending::Disconnect(end) => self.qp(end)?.disconnect()?,
            Ending::Terminate(end) => self.qp(end)?.terminate(Abort::Operation)?,
            Ending::Violation => {
                let (rkey, addr) = (regions[1].rkey() ^ 0x5500, regions[1].addr());
                let nowhere = RemoteAddr { addr, rkey };
                self.send(0, Expected::Any, requests, |post| post.write_inline(&[1], nowhere))?;
            }
            Ending::Drop(end) => self.drop_qp(end, requests),
            Ending::DropBoth => [0, 1].into_iter().for_each(|end| self.drop_qp(end, requests)),
        }
        Ok(())
    }

    fn drop_qp(&mut self, end: usize, requests: &mut Requests) {
        self.qps[end] = None;
        self.ended[end] = true;
        requests.discard(self.wr_ids[end].drain(..));
    }

    /// Takes the events of the end; true once both ends have theirs, and all requests have
    /// completed.
    pub(crate) fn has_ended(&mut self, requests: &Requests) -> Result<bool> {
        let ending = self.ending.context("it is not being ended")?;
        for end in 0..2 {
            match self.qps[end].as_ref().and_then(Qp::next_event) {
                Some(ConnEvent::Disconnected { reason, .. }) => {
                    let is_close = matches!(reason, EndReason::Local | EndReason::PeerClosed);
                    let is_expected =
                        is_close || !ending.is_graceful() && !matches!(reason, EndReason::TimedOut);
                    ensure!(is_expected, "{ending:?}, end {end}: {reason:?}");
                    self.ended[end] = true;
                }
                Some(other) => bail!("{ending:?}, end {end}: {other:?}"),
                None => {}
            }
        }
        let are_done = self.wr_ids.iter().all(|wr_ids| requests.are_done(wr_ids));
        Ok(self.ended == [true; 2] && are_done)
    }

    /// Compares the last Writes with those sent, if they had to arrive; returns the bytes compared.
    pub(crate) fn check_last_writes(&self, regions: [&Mr; 2]) -> Result<u64> {
        if self.ending != Some(Ending::Close(0)) || self.last_writes == 0 {
            return Ok(0);
        }
        check(regions[1], self.place, self.seed, self.len, "RDMA Write before closing")?;
        Ok((self.last_writes * self.len) as u64)
    }
}
