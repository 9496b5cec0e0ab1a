//! RFC 9293 section 3.10 event by event: the effect of each call and each segment in each state.

use super::{
    Config, Endpoint, Event, Fields, Flags, HeaderTemplate, HeapFrame, MAC, Options, Script, Seq,
    at_us, tuple,
};
use crate::device::ChecksumMode;
use crate::tcp::State;
use crate::time::{MILLISECOND, SECOND};
use crate::wire::tcp::Segment;

fn script() -> Script {
    Script::established(&Config::default(), Script::full_options())
}

fn fin(script: &Script) -> Fields {
    Fields { flags: Flags::FIN | Flags::ACK, ..script.fields() }
}

/// A connection brought to `state` by its own calls and its peer.
fn in_state(state: State) -> Script {
    if state == State::SynSent {
        return Script::connecting(&Config::default()).0;
    }
    if state == State::SynReceived {
        let mut script = Script::connecting(&Config::default()).0;
        script.send(Fields {
            seq: script.seq,
            flags: Flags::SYN,
            window: 8000,
            options: Script::full_options(),
            ..Fields::default()
        });
        script.seq += 1;
        script.ts = Some((100, 0));
        return script;
    }
    let mut script = script();
    let closes = |script: &mut Script| {
        script.end.tcb.close();
        script.output().pop().expect("a FIN").seq + 1
    };
    let finishes = |script: &mut Script| {
        script.send(fin(script));
        script.seq += 1;
    };
    match state {
        State::CloseWait => finishes(&mut script),
        State::FinWait1 => drop(closes(&mut script)),
        State::FinWait2 | State::TimeWait => {
            script.ack = closes(&mut script);
            script.send(script.fields());
            if state == State::TimeWait {
                finishes(&mut script);
            }
        }
        State::Closing => {
            closes(&mut script);
            finishes(&mut script);
        }
        State::LastAck => {
            finishes(&mut script);
            closes(&mut script);
        }
        State::Closed => {
            script.end.tcb.abort();
            script.output();
        }
        _ => {}
    }
    script.end.events.clear();
    script
}

const STATES: [State; 10] = [
    State::Closed,
    State::SynSent,
    State::SynReceived,
    State::Established,
    State::FinWait1,
    State::FinWait2,
    State::CloseWait,
    State::Closing,
    State::LastAck,
    State::TimeWait,
];

/// ABORT (RFC 9293 section 3.10.5).
#[test]
fn abort_sends_rst_only_in_states_of_section_3_10_5() {
    for state in STATES {
        let mut script = in_state(state);
        assert_eq!(script.end.tcb.state(), state);
        script.end.tcb.abort();
        let out = script.output();
        let resets = matches!(
            state,
            State::SynReceived
                | State::Established
                | State::FinWait1
                | State::FinWait2
                | State::CloseWait
        );
        assert_eq!(out.len(), usize::from(resets), "{state:?}");
        assert!(out.iter().all(|seg| seg.flags.has(Flags::RST)));
        assert!(script.end.tcb.is_closed() && script.end.tcb.deadline().is_none(), "{state:?}");
    }
}

/// CLOSE (RFC 9293 section 3.10.4).
#[test]
fn close_follows_section_3_10_4_in_each_state() {
    for (state, after, frames) in [
        (State::Closed, State::Closed, 0),
        (State::SynSent, State::Closed, 0),
        (State::SynReceived, State::SynReceived, 0),
        (State::Established, State::FinWait1, 1),
        (State::FinWait1, State::FinWait1, 0),
        (State::FinWait2, State::FinWait2, 0),
        (State::CloseWait, State::LastAck, 1),
        (State::Closing, State::Closing, 0),
        (State::LastAck, State::LastAck, 0),
        (State::TimeWait, State::TimeWait, 0),
    ] {
        let mut script = in_state(state);
        script.end.tcb.close();
        let out = script.output();
        assert_eq!((script.end.tcb.state(), out.len()), (after, frames), "{state:?}");
        assert!(out.iter().all(|seg| seg.flags == Flags::FIN | Flags::ACK));
    }
}

/// A RST with the sequence number of the peer's FIN resets a connection that has received that FIN,
/// except in TIME-WAIT.
#[test]
fn rst_at_sequence_number_of_peer_fin_is_accepted() {
    for state in STATES {
        let has_finished = matches!(state, State::CloseWait | State::Closing | State::LastAck);
        if matches!(state, State::Closed | State::SynSent) {
            continue;
        }
        let mut script = in_state(state);
        let seq = script.seq - 1;
        for (seq, is_taken) in [(seq - 1, false), (seq, has_finished)] {
            let rst = Fields { seq, flags: Flags::RST, ..script.fields() };
            assert!(script.send(rst).is_empty());
            assert_eq!(script.end.tcb.is_closed(), is_taken, "{state:?} {seq:?}");
        }
        let expected: &[Event] = if has_finished { &[Event::Reset, Event::Closed] } else { &[] };
        assert_eq!(script.end.events, expected, "{state:?}");
    }
}

/// A SYN that reuses the port and may be old is answered with an ACK; a peer without that
/// connection answers with a RST, which ends TIME-WAIT, so that its next SYN is accepted.
#[test]
fn rst_answering_challenge_ack_ends_time_wait() {
    let mut script = in_state(State::TimeWait);
    let exact = Fields { seq: script.seq, flags: Flags::RST, ..script.fields() };
    assert!(script.send(exact.clone()).is_empty());
    assert_eq!(script.end.tcb.state(), State::TimeWait, "an old one");
    let ts = script.ts.map(|(val, echo)| (val.wrapping_sub(1000), echo));
    let options = Options { ts, ..Script::full_options() };
    let syn = Fields { seq: script.seq - 5000, flags: Flags::SYN, options, ..script.fields() };
    let reply = script.send(syn);
    assert_eq!((reply.len(), reply[0].ack), (1, script.seq));
    let inside = Fields { seq: script.seq + 1, flags: Flags::RST, ..script.fields() };
    script.send(inside);
    assert_eq!(script.end.tcb.state(), State::TimeWait, "not exact");
    assert!(script.send(exact).is_empty());
    assert!(script.end.tcb.is_closed());
    assert_eq!(script.end.events, [Event::Closed], "the end was reported before");
}

/// Section 3.10.7.4, second check; RFC 5961 section 3.2; RFC 1337 for TIME-WAIT.
#[test]
fn rst_is_accepted_only_at_rcv_nxt_in_each_state() {
    for state in STATES {
        if matches!(state, State::Closed | State::SynSent) {
            continue;
        }
        let rst = |script: &Script, seq| Fields { seq, flags: Flags::RST, ..script.fields() };
        let mut script = in_state(state);
        let outside = rst(&script, script.seq - 2);
        assert!(script.send(outside).is_empty(), "{state:?}: outside the window");
        let inside = rst(&script, script.seq + 1);
        let out = script.send(inside);
        assert_eq!(script.end.tcb.state(), state, "not exact");
        assert_eq!(out.len(), usize::from(state != State::TimeWait), "{state:?}: a challenge");
        assert!(out.iter().all(|seg| seg.flags == Flags::ACK && seg.ack == script.seq));
        // Starts before the window, with payload that reaches into it.
        let reaching = rst(&script, script.seq - 5);
        script.deliver(&reaching, 20);
        assert!(script.output().is_empty());
        assert_eq!(script.end.tcb.state(), state);
        let exact = rst(&script, script.seq);
        assert!(script.send(exact).is_empty());
        if state == State::TimeWait {
            assert_eq!(script.end.tcb.state(), State::TimeWait);
        } else {
            assert_eq!(script.end.events, [Event::Reset, Event::Closed], "{state:?}");
        }
    }
}

/// RFC 5961 section 4: a SYN with any sequence number changes nothing and gets a challenge ACK.
#[test]
fn syn_gets_challenge_ack_in_each_synchronized_state() {
    for state in STATES {
        if !state.is_synchronized() {
            continue;
        }
        let mut script = in_state(state);
        for ahead in [0, 100, 1_000_000, u32::MAX - 5000] {
            for ts in [script.ts, None] {
                let options = Options { ts, ..Script::full_options() };
                let seq = script.seq + ahead;
                let syn = Fields { seq, flags: Flags::SYN, options, ..script.fields() };
                let out = script.send(syn);
                assert_eq!(out.len(), 1, "{state:?} {ahead} {ts:?}");
                assert_eq!((out[0].flags, out[0].ack), (Flags::ACK, script.seq));
                assert_eq!(script.end.tcb.state(), state);
                script.wait_us(100_000);
            }
        }
    }
}

#[test]
fn challenge_ack_limit_is_per_connection() {
    let cfg = Config { challenge_acks: 1, ..Config::default() };
    let mut scripts = [0, 1].map(|_| Script::established(&cfg, Script::full_options()));
    for script in &mut scripts {
        let syn = Fields { flags: Flags::SYN, ..script.fields() };
        let reply_count: usize = (0..20).map(|_| script.send(syn.clone()).len()).sum();
        assert_eq!(reply_count, 1);
        // A keepalive probe is still answered.
        let probe = Fields { seq: script.seq - 1, ..script.fields() };
        assert_eq!(script.send(probe).len(), 1);
    }
}

/// Section 3.5 figure 8, also with SYNs that are lost and retransmitted.
#[test]
fn simultaneous_open_keeps_options() {
    for lost in 0..4 {
        let cfg = std::sync::Arc::new(Config::default());
        let mut now = at_us(1_000_000);
        let make = |side: usize, now| {
            let tuple = tuple(false, side == 1);
            let template = HeaderTemplate::new(MAC[side], MAC[1 - side], tuple);
            let iss = super::iss_and_ts_offset([0xffff_ffff, 9000][side]);
            Endpoint::new(super::TestTcb::connect(now, &cfg, template, iss), side)
        };
        let mut ends = [make(0, now), make(1, now)];
        let mut round = 0;
        while !ends.iter().all(|end| end.tcb.state() == State::Established) {
            let sent = [ends[0].transmit(now), ends[1].transmit(now)];
            for (side, frames) in sent.iter().enumerate() {
                // In the first rounds frames of one or both sides are lost.
                let loses = round < 2 && lost & (1 << side) != 0;
                for frame in frames.iter().filter(|_| !loses) {
                    ends[1 - side].receive(now, frame);
                }
            }
            now = now + MILLISECOND;
            if sent.iter().all(Vec::is_empty) {
                now = ends.iter().filter_map(|end| end.tcb.deadline()).min().unwrap().max(now);
                ends.iter_mut().for_each(|end| end.timeout(now));
            }
            round += 1;
            assert!(round < 50, "never established");
        }
        for _ in 0..3 {
            let sent = [ends[0].transmit(now), ends[1].transmit(now)];
            for (side, frames) in sent.iter().enumerate() {
                frames.iter().for_each(|frame| ends[1 - side].receive(now, frame));
            }
        }
        for end in &mut ends {
            let tcb = &end.tcb;
            assert!(tcb.sack && tcb.ts_on && tcb.scaling, "lost {lost}");
            assert_eq!((tcb.snd.wscale, tcb.rcv.wscale, tcb.emss()), (7, 7, 1448));
            end.to_write = 10_000;
        }
        for _ in 0..20 {
            let sent = [ends[0].transmit(now), ends[1].transmit(now)];
            for (side, frames) in sent.iter().enumerate() {
                frames.iter().for_each(|frame| ends[1 - side].receive(now, frame));
            }
        }
        assert_eq!((ends[0].read, ends[1].read), (10_000, 10_000));
    }
}

#[test]
fn data_and_fin_on_syn_ack_are_not_acknowledged() {
    let cfg = Config::default();
    let (mut script, syn) = Script::connecting(&cfg);
    script.ts = Some((100, 0));
    // Payload of the SYN-ACK is not acknowledged, so the peer retransmits it.
    let fields = Fields {
        seq: script.seq,
        ack: syn.seq + 1,
        flags: Flags::SYN | Flags::ACK | Flags::FIN,
        window: 8000,
        options: Script::full_options(),
        ..Fields::default()
    };
    let out = script.send_data(fields, 20);
    assert_eq!((out.len(), out[0].ack, script.end.read), (1, script.seq + 1, 0));
    script.seq += 1;
    let out = script.send_data(fin(&script), 20);
    assert_eq!((out[0].ack, script.end.read), (script.seq + 21, 20));
    assert_eq!(script.end.tcb.state(), State::CloseWait);
}

#[test]
fn last_ack_of_handshake_may_carry_data_and_fin() {
    let cfg = Config::default();
    let now = at_us(1);
    let mut client = Endpoint::client(&cfg, 1, now);
    let syn = client.transmit(now).remove(0).parse();
    let mut server = Endpoint::server(&cfg, &syn, 50, now);
    let syn_ack = server.transmit(now).remove(0);
    client.receive(now, &syn_ack);
    client.to_write = 30;
    let template = HeaderTemplate::new(MAC[0], MAC[1], client.tcb.tuple());
    let mut buf = [0; 200];
    let fields = Fields {
        seq: Seq(2),
        ack: Seq(51),
        flags: Flags::ACK | Flags::FIN | Flags::URG,
        window: 1000,
        options: Options::timestamps(syn.options.ts),
        ..Fields::default()
    };
    let start = template.base_len() + fields.options.wire_len();
    for (i, byte) in buf[start..start + 30].iter_mut().enumerate() {
        *byte = super::pattern(0, i as u64);
    }
    let len = template.emit(&mut buf, &fields, 30, ChecksumMode::Software);
    server.receive(now, &HeapFrame::new(&buf[..len]));
    assert_eq!(server.read, 30, "urgent or not");
    assert_eq!(server.tcb.state(), State::CloseWait);
    assert_eq!(server.events, [Event::Established, Event::PeerClosed]);
    assert_eq!(server.transmit(now)[0].parse().ack, Seq(33));
}

#[test]
fn fin_acknowledging_our_fin_skips_closing() {
    let mut script = in_state(State::FinWait1);
    script.ack = script.end.tcb.snd.nxt;
    script.send(fin(&script));
    assert_eq!(script.end.tcb.state(), State::TimeWait);
    assert_eq!(script.end.events, [Event::PeerClosed, Event::TimeWait]);
}

#[test]
fn duplicate_fin_is_acked_in_each_later_state() {
    for state in [State::CloseWait, State::Closing, State::LastAck, State::TimeWait] {
        let mut script = in_state(state);
        let again = Fields { seq: script.seq - 1, ..fin(&script) };
        let out = script.send(again);
        assert_eq!(out.len(), 1, "{state:?}");
        assert_eq!(out[0].ack, script.seq);
        assert_eq!(script.end.tcb.state(), state);
    }
}

#[test]
fn duplicate_fin_restarts_time_wait() {
    let mut script = in_state(State::TimeWait);
    let wait = Config::default().time_wait_ns;
    for _ in 0..3 {
        script.now = script.now + wait / 2;
        let again = Fields { seq: script.seq - 1, ..fin(&script) };
        assert_eq!(script.send(again).len(), 1);
        assert_eq!(script.end.tcb.deadline(), Some(script.now + wait));
    }
    script.fire();
    assert!(script.end.tcb.is_closed());
}

#[test]
fn fin_wait_2_times_out_without_segments() {
    let mut script = in_state(State::FinWait2);
    let start = script.now;
    let cfg = Config::default();
    // A segment restarts the timeout.
    script.now = script.now + cfg.fin_wait_ns / 2;
    script.send_data(script.fields(), 100);
    script.seq += 100;
    let last_rx_at = script.now;
    while script.now < last_rx_at + cfg.fin_wait_ns {
        assert_eq!(script.end.tcb.state(), State::FinWait2);
        let _ = script.fire();
    }
    assert_eq!(script.now, last_rx_at + cfg.fin_wait_ns);
    assert!(script.now > start + cfg.fin_wait_ns);
    assert_eq!(script.end.events, [Event::TimedOut, Event::Closed]);
    assert!(script.end.tcb.is_closed());
}

fn syn_to(script: &Script, seq: Seq, ts: Option<(u32, u32)>) -> Segment {
    Segment {
        tuple: script.end.tcb.tuple(),
        seq,
        ack: Seq(0),
        flags: Flags::SYN,
        window: 0,
        ecn: Default::default(),
        options: Options { ts, ..Script::full_options() },
        payload: 0..0,
    }
}

/// RFC 6191 section 2, its five cases.
#[test]
fn time_wait_is_recycled_as_in_rfc_6191() {
    let script = in_state(State::TimeWait);
    let tcb = &script.end.tcb;
    let next = tcb.rcv_nxt();
    assert!(tcb.may_recycle(&syn_to(&script, next - 9, Some((101, 0)))));
    assert!(tcb.may_recycle(&syn_to(&script, next + 9, Some((100, 0)))));
    assert!(!tcb.may_recycle(&syn_to(&script, next - 9, Some((100, 0)))));
    assert!(tcb.may_recycle(&syn_to(&script, next + 9, None)));
    assert!(!tcb.may_recycle(&syn_to(&script, next - 9, None)));
    assert!(tcb.successor_seq() > tcb.snd.nxt, "and sequence numbers continue from there");
    // Without timestamps in the old connection: those of the SYN distinguish old from new segments.
    let options = Options { ts: None, ..Script::full_options() };
    let mut script = Script::established(&Config::default(), options);
    script.end.tcb.close();
    script.ack = script.output()[0].seq + 1;
    script.send(fin(&script));
    let tcb = &script.end.tcb;
    assert_eq!(tcb.state(), State::TimeWait);
    assert!(tcb.may_recycle(&syn_to(&script, tcb.rcv_nxt() - 9, Some((1, 0)))));
    assert!(!tcb.may_recycle(&syn_to(&script, tcb.rcv_nxt() - 9, None)));
    assert!(tcb.may_recycle(&syn_to(&script, tcb.rcv_nxt() + 9, None)));
}

/// Section 3.10.7.4, fourth check: back to LISTEN.
#[test]
fn new_syn_in_window_recycles_syn_received() {
    let cfg = Config::default();
    let now = at_us(1);
    let mut client = Endpoint::client(&cfg, 1, now);
    let syn = client.transmit(now).remove(0).parse();
    let mut server = Endpoint::server(&cfg, &syn, 50, now);
    server.transmit(now);
    let other = |seq| Segment { seq: Seq(seq), ..syn.clone() };
    assert!(!server.tcb.may_recycle(&syn), "the same segment is answered again");
    assert!(server.tcb.may_recycle(&other(100)));
    assert!(!server.tcb.may_recycle(&other(0x4000_0000)), "outside the window: a challenge ACK");
    let reset = Segment { flags: Flags::SYN | Flags::RST, ..other(100) };
    assert!(!server.tcb.may_recycle(&reset));
    // After a simultaneous open there is no LISTEN to return to.
    let active = in_state(State::SynReceived);
    assert!(!active.end.tcb.may_recycle(&syn_to(&active, active.seq + 100, active.ts)));
}

#[test]
fn syn_sent_times_out_after_three_minutes() {
    let (mut script, _) = Script::connecting(&Config::default());
    let start = script.now;
    while script.end.tcb.deadline().is_some() {
        script.fire();
    }
    assert!(script.now.since(start) >= 180 * SECOND);
    assert_eq!(script.end.events, [Event::R1Exceeded, Event::TimedOut, Event::Closed]);
}
