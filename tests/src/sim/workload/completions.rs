//! Polls completions and checks them.

use ferrowarp_proto::verbs::wc::{Wc, WcOpcode, WcStatus};

use super::Workload;
use super::plan::EndPlan;
use super::side::{Area, Effect, Posted, addr_of, cq, read_source};
use crate::sim::atomic_oracle::load_word;
use crate::sim::world::World;

impl Workload {
    /// Polls all completions of an end and checks them.
    pub(super) fn poll(&mut self, world: &World, end: usize) {
        for conn in 0..self.slots.len() {
            while let Some(wc) = world.ends[end].queues.poll(cq(conn)) {
                if wc.qp != self.slots[conn].sides[end].qp {
                    // Of an earlier connection.
                    assert_eq!((wc.status, wc.opcode), (WcStatus::Flushed, WcOpcode::Recv));
                } else if wc.opcode.is_receive() {
                    self.check_receive(world, (end, conn), &wc);
                } else {
                    self.check_request(world, (end, conn), &wc);
                }
            }
        }
    }

    /// Checks the completion of a request: it is the oldest one, or the unsignaled ones before it
    /// have completed with it.
    fn check_request(&mut self, world: &World, (end, conn): (usize, usize), wc: &Wc) {
        loop {
            let side = &mut self.slots[conn].sides[end];
            let posted = side.posted.pop_front().expect("a completion without a request");
            let is_last = posted.number as u64 == wc.wr_id;
            assert!(is_last || !posted.signaled, "request {} was skipped", posted.number);
            if is_last {
                assert_eq!(posted.opcode, wc.opcode, "out of order");
                if wc.status != WcStatus::Success {
                    assert_ne!(self.plan.ends, EndPlan::Completes, "{wc:?}");
                    side.has_failed = true;
                    side.has_failed_read |= !matches!(posted.effect, Effect::Nothing);
                    return;
                }
                assert!(posted.signaled, "request {} asked for no completion", wc.wr_id);
                assert_eq!(posted.len, wc.byte_len as usize, "{wc:?}");
            }
            self.check_success(world, (end, conn), &posted);
            if is_last {
                return;
            }
        }
    }

    /// Checks the effect of a request that succeeded. Those done before the end of a connection do,
    /// even those posted after a Read that failed.
    fn check_success(&mut self, world: &World, (end, conn): (usize, usize), posted: &Posted) {
        let side = &mut self.slots[conn].sides[end];
        self.report.completed += 1;
        self.report.bytes += posted.len as u64;
        let number = posted.number;
        let sink = addr_of(conn, Area::Sink, number);
        let is_answered = !matches!(posted.effect, Effect::Nothing);
        assert!(!is_answered || !side.has_failed_read, "request {number} overtook one");
        match posted.effect {
            Effect::Nothing => {}
            Effect::Fetches { slot, offset } => {
                let got = world.ends[end].arena.read(sink, posted.len);
                let expected = read_source(1 - end, conn, slot, offset..offset + posted.len);
                assert!(got == expected, "bytes of Read {number} differ");
            }
            Effect::Word(expected) => {
                let fetched = load_word(world, end, sink);
                self.words.check(end, conn, expected, fetched);
            }
            Effect::Window => {
                let window = side.window.as_mut().expect("a run with windows");
                window.on_completion(&world.ends[end]);
            }
            Effect::Refused => panic!("request {number} asked for what is not there"),
        }
    }

    /// Checks a received Send or Immediate Data: it is the oldest in flight, its data are right,
    /// and all earlier Writes have been placed.
    fn check_receive(&mut self, world: &World, (end, conn): (usize, usize), wc: &Wc) {
        let [side, from] = self.slots[conn].ends(end);
        if wc.status != WcStatus::Success {
            let is_over = !world.ends[end].shard(side.shard).qp_state(wc.qp).is_connected();
            assert!(is_over && wc.status == WcStatus::Flushed, "{wc:?}, is over: {is_over}");
            side.flushed += 1;
            return;
        }
        assert_eq!(wc.wr_id, side.received as u64, "receive buffers complete in order");
        let sent = from.sends.pop_front().expect("a message that nobody sent");
        let number = sent.number;
        from.delivered = number + 1;
        assert_eq!(wc.immediate(), sent.immediate, "immediate data of message {number}");
        let is_send = sent.immediate.is_none();
        assert_eq!(wc.opcode == WcOpcode::Recv, is_send, "kind of message {number}");
        assert_eq!(wc.solicited, sent.solicited, "event of message {number}");
        if sent.is_len_sure || wc.byte_len > 0 {
            assert_eq!(wc.byte_len as usize, sent.len, "length of message {number}");
        }
        // Immediate Data do not change the receive buffer.
        let len = if is_send { sent.len } else { 0 };
        if let Some(window) = &mut side.window {
            window.on_receive(&world.ends[end], number, wc, sent.invalidate);
        }
        let got = world.ends[end].arena.read(addr_of(conn, Area::Receive, side.received), len);
        assert!(got == from.message(number, len), "bytes of message {number} differ");
        for (slot, write) in from.writes.iter().enumerate() {
            // A Write with Immediate Data has the number of its message.
            let Some((written, bytes)) = write.as_ref().filter(|(written, _)| *written <= number)
            else {
                continue;
            };
            let got = world.ends[end].arena.read(addr_of(conn, Area::Target, slot), bytes.len());
            assert!(
                got == *bytes,
                "Write {written} is not in memory when message {number} is delivered"
            );
        }
        side.received += 1;
        side.to_repost += 1;
        self.report.received += 1;
    }
}
