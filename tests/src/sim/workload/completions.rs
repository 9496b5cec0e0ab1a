//! Polls completions and checks them.

use ferrowarp_proto::verbs::wc::{CqId, Wc, WcOpcode, WcStatus};

use super::{Area, DEPTH, Posted, Report, SLOT_LEN, Side, addr_of, message};
use crate::sim::atomic_oracle::{AtomicOracle, load_word};
use crate::sim::world::World;

/// Polls all completions of an end and checks them.
pub(super) fn poll(
    world: &mut World,
    sides: &mut [[Side; 2]],
    words: &mut AtomicOracle,
    end: usize,
    report: &mut Report,
) {
    for cq in 0..16 {
        while let Some(wc) = world.ends[end].queues.poll(CqId(cq)) {
            let conn = sides.iter().position(|pair| pair[end].qp == wc.qp).expect("a known QP");
            if wc.status == WcStatus::Flushed && wc.opcode.is_receive() {
                let qp = wc.qp;
                let is_over = !world.ends[end].engine.qp_state(qp).is_connected();
                assert!(is_over, "{wc:?} of a connection in operation");
                sides[conn][end].flushed += 1;
                continue;
            }
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            if wc.opcode.is_receive() {
                check_receive(world, &mut sides[conn], end, conn, &wc);
                continue;
            }
            let side = &mut sides[conn][end];
            loop {
                let posted = side.posted.pop_front().expect("a completion without a request");
                report.completed += 1;
                report.bytes += posted.len as u64;
                if posted.opcode == WcOpcode::Read && posted.word.is_none() {
                    check_read(world, end, conn, &posted);
                }
                if let WcOpcode::Bind | WcOpcode::Invalidate = posted.opcode {
                    let window = side.window.as_mut().expect("a run with windows");
                    window.on_completion(&world.ends[end]);
                }
                if let Some(expected) = posted.word {
                    let fetched = load_word(world, end, addr_of(conn, Area::Sink, posted.slot));
                    words.check(end, conn, expected, fetched);
                }
                if posted.number as u64 == wc.wr_id {
                    assert!(posted.signaled, "request {} asked for no completion", wc.wr_id);
                    assert_eq!((posted.opcode, posted.len), (wc.opcode, wc.byte_len as usize));
                    break;
                }
                assert!(!posted.signaled, "request {} was skipped", posted.number);
            }
        }
    }
}

/// Checks a received Send or Immediate Data: it is the oldest in flight, its data are right, and
/// all earlier Writes have been placed.
fn check_receive(world: &mut World, pair: &mut [Side; 2], end: usize, conn: usize, wc: &Wc) {
    let from = 1 - end;
    let wr_id = wc.wr_id;
    assert_eq!(wr_id, pair[end].received as u64, "receive buffers complete in order");
    pair[end].received += 1;
    let sent = pair[from].sends.pop_front().expect("a message that nobody sent");
    let number = sent.number;
    pair[from].delivered = number + 1;
    assert_eq!(wc.immediate, sent.immediate, "immediate data of message {number}");
    assert_eq!(wc.opcode == WcOpcode::Recv, sent.immediate.is_none(), "kind of message {number}");
    assert_eq!(wc.solicited, sent.solicited, "event of message {number}");
    // Immediate Data do not change the receive buffer.
    let len = if sent.immediate.is_some() { 0 } else { sent.len };
    assert_eq!(wc.byte_len as usize, len, "length of message {number}");
    if let Some(window) = &mut pair[end].window {
        window.on_receive(&world.ends[end], number, wc, sent.invalidate);
    }
    let slot = usize::try_from(wr_id).expect("small") % DEPTH;
    let got = world.ends[end].arena.read(addr_of(conn, Area::Receive, slot), len);
    assert!(got == message(from, conn, number, len), "octets of message {number} differ");
    for (slot, write) in pair[from].writes.iter().enumerate() {
        let Some((written, len)) = *write else { continue };
        // A Write with Immediate Data has the number of its message.
        if written <= number {
            let got = world.ends[end].arena.read(addr_of(conn, Area::Target, slot), len);
            assert!(
                got == message(from, conn, written, len),
                "Write {written} is not in memory when message {number} is delivered"
            );
        }
    }
    pair[end].to_repost += 1;
}

fn check_read(world: &World, end: usize, conn: usize, posted: &Posted) {
    let whole = message(1 - end, conn, 1_000_000 + posted.read_slot, SLOT_LEN);
    let expected = &whole[posted.read_offset..posted.read_offset + posted.len];
    let got = world.ends[end].arena.read(addr_of(conn, Area::Sink, posted.slot), posted.len);
    assert!(got == expected, "octets of Read {} differ", posted.number);
}
