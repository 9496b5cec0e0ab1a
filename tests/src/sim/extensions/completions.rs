//! Polls completions and checks them.

use ferrowarp_proto::verbs::wc::{Wc, WcOpcode, WcStatus};

use super::setup::post_receive;
use super::{Area, ConnSlot, MESSAGE_LEN, SharedWords, Task, addr_of, cq, read_source};
use crate::sim::atomic_oracle::load_word;
use crate::sim::world::World;

impl ConnSlot {
    pub(super) fn poll(
        &mut self,
        world: &mut World,
        contests: &mut SharedWords,
        end: usize,
        conn: usize,
    ) {
        while let Some(wc) = world.ends[end].queues.poll(cq(conn)) {
            if wc.qp != self.sides[end].qp {
                assert_eq!((wc.status, wc.opcode), (WcStatus::Flushed, WcOpcode::Recv));
            } else if wc.opcode.is_receive() {
                self.check_receive(world, end, conn, &wc);
            } else {
                self.check_request(world, contests, end, conn, &wc);
            }
        }
    }

    /// Checks the completion of a request: it is the oldest one, and its result is right.
    fn check_request(
        &mut self,
        world: &World,
        contests: &mut SharedWords,
        end: usize,
        conn: usize,
        wc: &Wc,
    ) {
        let side = &mut self.sides[end];
        let posted = side.posted.pop_front().expect("a completion without a request");
        assert_eq!((posted.number, posted.opcode), (wc.wr_id, wc.opcode), "out of order");
        let is_answered = !matches!(posted.task, Task::Message);
        if wc.status != WcStatus::Success {
            side.has_failed |= is_answered;
            return;
        }
        let sink = addr_of(conn, Area::Sink, posted.number);
        assert!(!is_answered || !side.has_failed, "request {} overtook one", posted.number);
        match posted.task {
            Task::AccessWord { word: number, op } => {
                let fetched = load_word(world, end, sink);
                contests.words[1 - end][number].complete(side.users[number], op, fetched);
            }
            Task::ReadBlock { len } => {
                let len = len as usize;
                let got = world.ends[end].arena.read(sink, len);
                assert!(got == read_source()[..len], "octets of Read {} differ", posted.number);
            }
            Task::Message => {}
            Task::InvalidAtomic => panic!("request {} asked for what is not there", posted.number),
        }
    }

    /// Checks a received message: it is the oldest in flight, and its contents are right.
    fn check_receive(&mut self, world: &mut World, end: usize, conn: usize, wc: &Wc) {
        if wc.status != WcStatus::Success {
            return;
        }
        let number = self.sides[end].received;
        assert_eq!(wc.wr_id, number, "receive buffers complete in order");
        let index = usize::try_from(number).expect("small");
        let sent = *self.sides[1 - end].messages.get(index).expect("a message that nobody sent");
        let is_send = sent.opcode == WcOpcode::Send;
        assert_eq!(wc.opcode == WcOpcode::Recv, is_send, "kind of message {number}");
        assert_eq!(wc.immediate, (!is_send).then_some(sent.data), "data of message {number}");
        assert_eq!(wc.solicited, sent.solicited, "event of message {number}");
        let len = if is_send { MESSAGE_LEN } else { 0 };
        assert_eq!(wc.byte_len as usize, len, "length of message {number}");
        let (area, copies) = match sent.opcode {
            WcOpcode::Send => (Area::Receive, 2),
            WcOpcode::Write => (Area::Target, 1),
            _ => (Area::Target, 0),
        };
        let expected = sent.data.repeat(copies);
        let got = world.ends[end].arena.read(addr_of(conn, area, number), expected.len());
        assert_eq!(got, expected, "octets of message {number}");
        let side = &mut self.sides[end];
        side.received += 1;
        post_receive(world, side, end, conn);
    }
}
