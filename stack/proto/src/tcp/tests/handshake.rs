//! Opening: active, passive and simultaneous open; options; resets; retransmission.

use super::{
    Config, Endpoint, Event, Fields, Flags, HeaderTemplate, MAC, Options, Script, Seq, TxDemand,
    at_us,
};
use crate::device::ChecksumMode;
use crate::tcp::{State, Transmit};
use crate::time::{MILLISECOND, SECOND};

#[test]
fn active_and_passive_open_establish_connection() {
    let cfg = Config::default();
    let now = at_us(5);
    let mut client = Endpoint::client(&cfg, 0xffff_ffff, now);
    let syn = client.transmit(now);
    assert_eq!(syn.len(), 1);
    let syn = syn[0].parse();
    assert_eq!((syn.flags, syn.seq), (Flags::SYN, Seq(0xffff_ffff)));
    assert_eq!(u32::from(syn.window), cfg.startup_window);
    let options = &syn.options;
    assert_eq!((options.mss, options.wscale, options.sack_permitted), (Some(1460), Some(7), true));

    let mut server = Endpoint::server(&cfg, &syn, 77, now);
    assert_eq!(server.tcb.state(), State::SynReceived);
    let syn_ack = server.transmit(now);
    assert_eq!(syn_ack.len(), 1);
    assert_eq!(syn_ack[0].parse().flags, Flags::SYN | Flags::ACK);
    assert_eq!(syn_ack[0].parse().ack, Seq(0), "the sequence number wrapped");
    client.receive(now, &syn_ack[0]);
    assert_eq!(client.events, [Event::Established]);
    let ack = client.transmit(now);
    assert_eq!(ack.len(), 1);
    server.receive(now, &ack[0]);
    assert_eq!(server.events, [Event::Established]);
    assert_eq!(server.tcb.state(), State::Established);
    assert_eq!((client.tcb.emss(), server.tcb.emss()), (1448, 1448));
    assert!(client.transmit(now).is_empty() && server.transmit(now).is_empty());
}

#[test]
fn options_are_used_only_if_both_sides_offer_them() {
    let bare = Config { timestamps: false, sack: false, mss: 900, ..Config::default() };
    let script = Script::established(
        &bare,
        Options { mss: Some(1460), sack_permitted: true, ts: None, ..Options::default() },
    );
    assert_eq!(script.end.tcb.emss(), 900);
    assert!(!script.end.tcb.sack && !script.end.tcb.ts_on);
    assert_eq!((script.end.tcb.rcv.wscale, script.end.tcb.snd.wscale), (0, 0));

    let script = Script::established(&Config::default(), Options::default());
    assert_eq!(script.end.tcb.emss(), 536, "a peer without an MSS option has 536");
    let tiny = Options { mss: Some(1), ..Script::full_options() };
    let script = Script::established(&Config::default(), tiny);
    assert_eq!(script.end.tcb.emss(), 64 - 12, "an MSS of headers alone is invalid");
}

#[test]
fn simultaneous_open_establishes_connection() {
    let cfg = Config::default();
    let (mut script, syn) = Script::connecting(&cfg);
    let ours = script.send(Fields {
        seq: Seq(5000),
        flags: Flags::SYN,
        window: 8000,
        options: Script::full_options(),
        ..Fields::default()
    });
    assert_eq!(script.end.tcb.state(), State::SynReceived);
    assert_eq!(ours.len(), 1);
    assert_eq!(
        (ours[0].flags, ours[0].seq, ours[0].ack),
        (Flags::SYN | Flags::ACK, syn.seq, Seq(5001))
    );
    // The peer's SYN-ACK repeats the sequence number of its SYN.
    let reply = script.send(Fields {
        seq: Seq(5000),
        ack: syn.seq + 1,
        flags: Flags::SYN | Flags::ACK,
        window: 8000,
        options: Options { ts: Some((101, 0)), ..Options::default() },
        ..Fields::default()
    });
    assert_eq!(script.end.events, [Event::Established]);
    assert_eq!(reply.len(), 1);
    assert_eq!(reply[0].flags, Flags::ACK);
    script.seq = Seq(5001);
    script.ts = Some((102, 0));
    assert!(!script.write(100).is_empty());
}

#[test]
fn syn_is_retransmitted_with_backoff_then_times_out() {
    let cfg = Config { syn_retries: 3, ..Config::default() };
    let (mut script, syn) = Script::connecting(&cfg);
    let start = script.now;
    for wait in [200, 600, 1400] {
        let again = script.fire();
        assert_eq!(again.len(), 1);
        assert_eq!((again[0].flags, again[0].seq), (Flags::SYN, syn.seq));
        assert_eq!(script.now.since(start), wait * MILLISECOND);
    }
    assert!(script.fire().is_empty());
    assert_eq!(script.end.events, [Event::R1Exceeded, Event::TimedOut, Event::Closed]);
    assert!(script.end.tcb.is_closed() && script.end.tcb.deadline().is_none());
}

#[test]
fn duplicate_syn_is_answered_with_syn_ack() {
    let cfg = Config::default();
    let now = at_us(1);
    let mut client = Endpoint::client(&cfg, 1, now);
    let syn = client.transmit(now).remove(0);
    let mut server = Endpoint::server(&cfg, &syn.parse(), 2, now);
    assert_eq!(server.transmit(now).len(), 1);
    server.receive(now, &syn);
    let again = server.transmit(now);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].parse().flags, Flags::SYN | Flags::ACK);
    // The timer retransmits it too; after the last retry the peer is sent a RST.
    let mut now = now;
    for _ in 0..cfg.syn_ack_retries {
        now = server.tcb.deadline().unwrap();
        server.timeout(now);
        assert_eq!(server.transmit(now).len(), 1);
    }
    now = server.tcb.deadline().unwrap().max(now);
    server.timeout(now);
    assert_eq!(server.events, [Event::R1Exceeded, Event::TimedOut, Event::Closed]);
    assert!(!server.tcb.is_closed());
    assert!(server.transmit(now)[0].parse().flags.has(Flags::RST));
    assert!(server.tcb.is_closed());
}

#[test]
fn syn_sent_resets_bad_ack_and_takes_rst_only_with_valid_ack() {
    let cfg = Config::default();
    let (mut script, syn) = Script::connecting(&cfg);
    let ack = Fields { ack: syn.seq + 9, flags: Flags::ACK, ..Fields::default() };
    let reply = script.send(ack.clone());
    assert_eq!((reply[0].flags, reply[0].seq), (Flags::RST, syn.seq + 9));
    assert!(script.send(Fields { flags: Flags::RST | Flags::ACK, ..ack }).is_empty());
    assert!(script.send(Fields { flags: Flags::RST, ..Fields::default() }).is_empty());
    assert_eq!(script.end.tcb.state(), State::SynSent);
    let refused = Fields { ack: syn.seq + 1, flags: Flags::RST | Flags::ACK, ..Fields::default() };
    assert!(script.send(refused).is_empty());
    assert_eq!(script.end.events, [Event::Reset, Event::Closed]);
    assert!(script.end.tcb.is_closed());
}

/// A listener that is ready a moment later.
#[test]
fn refused_syn_is_sent_again_for_a_while() {
    let cfg = Config { refusal_retry_ns: 20 * MILLISECOND, ..Config::default() };
    let (mut script, syn) = Script::connecting(&cfg);
    let refused = Fields { ack: syn.seq + 1, flags: Flags::RST | Flags::ACK, ..Fields::default() };
    let mut again = 0;
    while script.end.events.is_empty() {
        assert!(script.send(refused.clone()).is_empty(), "not at once");
        if let Some(at) = script.end.tcb.deadline() {
            script.now = at;
            script.end.timeout(at);
            let sent = script.end.transmit(at);
            assert_eq!(
                (sent.len(), sent[0].parse().seq, sent[0].parse().flags),
                (1, syn.seq, syn.flags)
            );
            again += 1;
        }
    }
    assert!((4..=5).contains(&again), "{again}: the time of the first SYN is coarse");
    assert_eq!(script.end.events, [Event::Reset, Event::Closed]);
}

#[test]
fn syn_received_resets_bad_ack() {
    let cfg = Config { timestamps: false, ..Config::default() };
    let now = at_us(1);
    let mut client = Endpoint::client(&cfg, 1, now);
    let syn = client.transmit(now).remove(0).parse();
    let mut server = Endpoint::server(&cfg, &syn, 50, now);
    let template = HeaderTemplate::new(MAC[0], MAC[1], client.tcb.tuple());
    let mut buf = [0; 100];
    let fields = Fields { seq: Seq(2), ack: Seq(60), flags: Flags::ACK, ..Fields::default() };
    let len = template.emit(&mut buf, &fields, 0, ChecksumMode::Software);
    server.transmit(now);
    server.receive(now, &super::HeapFrame::new(&buf[..len]));
    let reply = server.transmit(now);
    assert_eq!(reply.len(), 1);
    assert_eq!((reply[0].parse().flags, reply[0].parse().seq), (Flags::RST, Seq(60)));
    assert_eq!(server.tcb.state(), State::SynReceived);
}

#[test]
fn data_is_not_sent_before_established() {
    let cfg = Config::default();
    let (mut script, _) = Script::connecting(&cfg);
    assert_eq!(script.end.tcb.next_transmit(script.now, TxDemand::Record(1)), Transmit::Idle);
}

#[test]
fn close_in_syn_sent_closes_and_in_syn_received_waits() {
    let cfg = Config::default();
    let (mut script, _) = Script::connecting(&cfg);
    script.end.tcb.close();
    script.end.poll_events();
    assert_eq!(script.end.events, [Event::Closed]);
    assert!(script.end.tcb.is_closed());
    // A close in SYN-RECEIVED waits for the end of the handshake.
    let now = at_us(1);
    let mut client = Endpoint::client(&cfg, 1, now);
    let syn = client.transmit(now).remove(0).parse();
    let mut server = Endpoint::server(&cfg, &syn, 2, now);
    server.tcb.close();
    client.receive(now, &server.transmit(now)[0]);
    server.receive(now, &client.transmit(now)[0]);
    assert_eq!(server.tcb.state(), State::FinWait1);
    assert_eq!(server.transmit(now)[0].parse().flags, Flags::FIN | Flags::ACK);
}

#[test]
fn handshake_gives_an_rtt_sample() {
    let (mut script, _) = Script::connecting(&Config::default());
    script.wait_us(300);
    let seq = script.seq;
    script.deliver(
        &Fields {
            seq,
            ack: script.ack,
            flags: Flags::SYN | Flags::ACK,
            window: 100,
            ..Fields::default()
        },
        0,
    );
    assert_eq!(script.end.tcb.srtt_ns(), 300_000);
    assert!(script.end.tcb.rtt.rto(&script.end.tcb.cfg) < SECOND);
}
