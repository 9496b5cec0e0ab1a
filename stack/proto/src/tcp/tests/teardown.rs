//! Closing in every order, TIME-WAIT, abort.

use super::{Config, Event, Fields, Flags, Script, Seq};
use crate::tcp::State;

fn script() -> Script {
    Script::established(&Config::default(), Script::full_options())
}

fn fin(script: &Script) -> Fields {
    Fields { flags: Flags::FIN | Flags::ACK, ..script.fields() }
}

#[test]
fn active_close_ends_in_time_wait() {
    let mut script = script();
    let data = script.write(100);
    script.end.tcb.close();
    let out = script.output();
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].flags, out[0].seq), (Flags::FIN | Flags::ACK, data[0].seq + 100));
    assert_eq!(script.end.tcb.state(), State::FinWait1);
    script.ack = out[0].seq + 1;
    assert!(script.send(script.fields()).is_empty());
    assert_eq!(script.end.tcb.state(), State::FinWait2);
    assert!(script.end.tcb.all_acked());
    // Half-closed: the other direction stays open.
    script.send_data(script.fields(), 500);
    assert_eq!(script.end.read, 500);
    script.seq += 500;
    let ack = script.send(fin(&script));
    assert_eq!(script.end.tcb.state(), State::TimeWait);
    assert_eq!(ack.last().unwrap().ack, script.seq + 1);
    assert!(script.end.tcb.peer_finished());
    // A retransmitted FIN is acknowledged and restarts TIME-WAIT.
    let before = script.end.tcb.deadline();
    script.wait_us(1000);
    assert_eq!(script.send(fin(&script)).len(), 1);
    assert!(script.end.tcb.deadline() > before);
    assert!(script.fire().is_empty());
    assert_eq!(script.end.events[..2], [Event::PeerClosed, Event::TimeWait]);
    assert_eq!(script.end.events.last(), Some(&Event::Closed));
    assert!(script.end.tcb.is_closed());
}

#[test]
fn passive_close_ends_without_time_wait() {
    let mut script = script();
    let out = script.send_data(fin(&script), 10);
    assert_eq!(out[0].ack, script.seq + 11);
    assert_eq!((script.end.tcb.state(), script.end.read), (State::CloseWait, 10));
    script.seq += 11;
    // Half-closed: the local end may still send.
    assert_eq!(script.write(10).len(), 1);
    script.end.tcb.close();
    let out = script.output();
    assert_eq!(script.end.tcb.state(), State::LastAck);
    script.ack = out[0].seq + 1;
    script.send(script.fields());
    assert_eq!(script.end.events, [Event::PeerClosed, Event::Closed]);
    assert!(script.end.tcb.is_closed() && script.end.tcb.deadline().is_none());
}

#[test]
fn simultaneous_close_ends_in_time_wait() {
    let mut script = script();
    script.end.tcb.close();
    let ours = script.output();
    let out = script.send(fin(&script));
    assert_eq!(script.end.tcb.state(), State::Closing);
    assert_eq!(out.len(), 1);
    script.seq += 1;
    script.ack = ours[0].seq + 1;
    script.send(script.fields());
    assert_eq!(script.end.tcb.state(), State::TimeWait);
}

#[test]
fn out_of_order_fin_waits_for_missing_data() {
    let mut script = script();
    let first = script.fields();
    script.seq += 100;
    script.send_data(fin(&script), 50);
    assert!(!script.end.tcb.peer_finished());
    assert_eq!(script.end.tcb.state(), State::Established);
    let out = script.send_data(first, 100);
    assert!(script.end.tcb.peer_finished());
    assert_eq!(script.end.read, 150);
    assert_eq!(out[0].ack, script.seq + 51);
    // Bytes beyond the FIN are ignored.
    script.deliver(&Fields { seq: script.seq + 51, ..script.fields() }, 10);
    assert_eq!(script.end.read, 150);
}

#[test]
fn lost_fin_is_retransmitted() {
    let mut script = script();
    script.end.tcb.close();
    let fin = script.output();
    let again = script.fire();
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].flags, again[0].seq), (fin[0].flags, fin[0].seq));
}

#[test]
fn fin_is_sent_after_queued_data() {
    let mut script = script();
    script.end.tcb.close();
    let out = script.write(5000);
    assert!(out[..out.len() - 1].iter().all(|seg| !seg.payload.is_empty()));
    assert!(out.last().unwrap().flags.has(Flags::FIN));
    assert!(script.write(10).is_empty(), "nothing follows a FIN");
}

#[test]
fn abort_sends_rst() {
    let mut script = script();
    script.write(1000);
    script.end.tcb.abort();
    assert!(!script.end.tcb.is_closed());
    let out = script.output();
    assert_eq!(out.len(), 1);
    assert!(out[0].flags.has(Flags::RST));
    assert_eq!(out[0].seq, script.ack + 1000);
    assert!(script.end.tcb.is_closed() && !script.end.tcb.unsent_or_unacked());
    assert_eq!(script.end.events, [Event::Closed]);
}

#[test]
fn data_after_shut_receive_resets_connection() {
    let mut script = script();
    script.end.tcb.shut_receive();
    assert!(script.send(script.fields()).is_empty(), "an ACK is ignored");
    let out = script.send_data(script.fields(), 1);
    assert!(out[0].flags.has(Flags::RST));
    assert_eq!(script.end.tcb.state(), State::Closed);
}

#[test]
fn time_wait_is_recycled_only_by_newer_syn() {
    let mut script = script();
    script.end.tcb.close();
    script.ack = script.output()[0].seq + 1;
    script.send(fin(&script));
    assert_eq!(script.end.tcb.state(), State::TimeWait);
    let syn = |seq: Seq, ts: Option<(u32, u32)>| {
        let mut seg = crate::wire::tcp::Segment {
            tuple: script.end.tcb.tuple(),
            seq,
            ack: Seq(0),
            flags: Flags::SYN,
            window: 0,
            ecn: Default::default(),
            options: Script::full_options(),
            payload: 0..0,
        };
        seg.options.ts = ts;
        seg
    };
    let tcb = &script.end.tcb;
    assert!(tcb.may_recycle(&syn(Seq(0), Some((101, 0)))));
    assert!(!tcb.may_recycle(&syn(Seq(0), Some((99, 0)))));
    assert!(tcb.may_recycle(&syn(tcb.rcv_nxt() + 1, None)));
    assert!(!tcb.may_recycle(&syn(tcb.rcv_nxt() - 1, None)));
    // A RST does not end TIME-WAIT.
    let rst = Fields { seq: script.seq + 1, flags: Flags::RST, ..script.fields() };
    script.send(rst);
    assert_eq!(script.end.tcb.state(), State::TimeWait);
}
