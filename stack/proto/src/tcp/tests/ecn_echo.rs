//! Explicit congestion notification (RFC 3168, RFC 8257): negotiation, ECT, and the exchange of CE,
//! ECE and CWR between two connections.

use super::bottleneck::Bottleneck;
use super::{Config, Endpoint, Fields, HeapFrame, Options, Script, at_us};
use crate::tcp::{Algorithm, EcnMode};
use crate::time::MILLISECOND;
use crate::wire::tcp::{Ecn, Flags, Segment};

const SETUP: Flags = Flags(Flags::ECE.0 | Flags::CWR.0);

fn config(ecn: EcnMode) -> Config {
    Config { ecn, congestion: Algorithm::NewReno, ..Config::default() }
}

/// A client that requested ECN, and whose peer accepted it.
fn ecn_established(congestion: Algorithm) -> Script {
    let cfg = Config { congestion, tail_loss_probe: false, ..config(EcnMode::Request) };
    let (mut script, syn) = Script::connecting(&cfg);
    assert_eq!(syn.flags, Flags::SYN | SETUP);
    assert_eq!(syn.ecn, Ecn::NotEct);
    let (seq, ack, window) = (script.seq, script.ack, script.window);
    script.seq += 1;
    let options = Options { ts: None, ..Script::full_options() };
    let flags = Flags::SYN | Flags::ACK | Flags::ECE;
    let reply = script.send(Fields { seq, ack, flags, window, options, ..Fields::default() });
    assert_eq!((reply[0].flags, reply[0].ecn), (Flags::ACK, Ecn::NotEct));
    script
}

/// The peer acknowledges everything up to the end of `seg`.
fn ack_all(script: &mut Script, seg: &Segment, flags: Flags) -> Vec<Segment> {
    script.wait_us(100);
    script.ack = seg.seq + seg.seq_len();
    let fields = script.fields();
    script.send(Fields { flags: fields.flags | flags, ..fields })
}

#[test]
fn ecn_is_used_only_if_requested_and_accepted() {
    let modes = [EcnMode::Off, EcnMode::Accept, EcnMode::Request];
    for client in modes {
        for server in modes {
            let mut link = Bottleneck::new([config(client), config(server)]);
            link.connect();
            let both = client == EcnMode::Request && server != EcnMode::Off;
            for side in 0..2 {
                assert_eq!(link.end(side).tcb.ecn.enabled, both, "{client:?} {server:?}");
                link.end(side).to_write = 5000;
                let now = link.now;
                let frames = link.end(side).transmit(now);
                let data: Vec<Segment> = frames.iter().map(HeapFrame::parse).collect();
                assert!(data.iter().any(|seg| !seg.payload.is_empty()));
                for seg in data.iter().filter(|seg| !seg.payload.is_empty()) {
                    let expected = if both { Ecn::Ect0 } else { Ecn::NotEct };
                    assert_eq!(seg.ecn, expected);
                    assert!(!seg.flags.any(SETUP));
                }
            }
        }
    }
}

#[test]
fn syn_ack_without_ece_or_with_reflected_flags_disables_ecn() {
    for flags in [SETUP, Flags::default(), Flags::CWR] {
        let (mut script, _) = Script::connecting(&config(EcnMode::Request));
        let (seq, ack, window) = (script.seq, script.ack, script.window);
        let flags = Flags::SYN | Flags::ACK | flags;
        script.send(Fields { seq, ack, flags, window, ..Fields::default() });
        script.seq += 1;
        assert!(!script.end.tcb.ecn.enabled, "{flags:?}");
        assert!(script.write(3000).iter().all(|seg| seg.ecn == Ecn::NotEct));
    }
    // ECE on a SYN-ACK without a request.
    let (mut script, syn) = Script::connecting(&config(EcnMode::Accept));
    assert_eq!(syn.flags, Flags::SYN);
    let (seq, ack, window) = (script.seq, script.ack, script.window);
    let flags = Flags::SYN | Flags::ACK | Flags::ECE;
    script.send(Fields { seq, ack, flags, window, ..Fields::default() });
    assert!(!script.end.tcb.ecn.enabled);
}

/// RFC 3168 section 6.1.1.1, and the rule of section 6.1.1 on hosts that must not set ECT.
#[test]
fn retransmitted_syn_does_not_request_ecn() {
    let (mut script, syn) = Script::connecting(&config(EcnMode::Request));
    assert!(syn.flags.has(SETUP));
    let again = script.fire();
    assert_eq!(again[0].flags, Flags::SYN);
    // The answer to the first SYN: CE is echoed, but ECT is not set.
    let (seq, ack, window) = (script.seq, script.ack, script.window);
    let flags = Flags::SYN | Flags::ACK | Flags::ECE;
    script.send(Fields { seq, ack, flags, window, ..Fields::default() });
    script.seq += 1;
    assert!(script.end.tcb.ecn.enabled);
    assert!(script.write(3000).iter().all(|seg| seg.ecn == Ecn::NotEct));
    let fields = Fields { ecn: Ecn::Ce, ..script.fields() };
    script.deliver(&fields, 100);
    script.wait_us(100);
    assert!(script.fire()[0].flags.has(Flags::ECE));
}

#[test]
fn retransmitted_syn_without_ecn_disables_it() {
    let now = at_us(1000);
    let (_, mut syn) = Script::connecting(&config(EcnMode::Request));
    let mut server = Endpoint::server(&config(EcnMode::Accept), &syn, 1, now);
    let reply = server.transmit(now).remove(0).parse();
    assert_eq!(reply.flags, Flags::SYN | Flags::ACK | Flags::ECE);
    syn.flags = Flags::SYN;
    let nothing = server.tcb.handle_segment(now, &syn, HeapFrame::new(&[]));
    assert!(matches!(nothing, crate::tcp::Delivered::Nothing));
    let reply = server.transmit(now).remove(0).parse();
    assert_eq!(reply.flags, Flags::SYN | Flags::ACK);
    assert!(!server.tcb.ecn.enabled);
}

#[test]
fn simultaneous_open_negotiates_ecn() {
    for mode in [EcnMode::Request, EcnMode::Accept] {
        let (mut script, _) = Script::connecting(&config(mode));
        let (seq, window) = (script.seq, script.window);
        let syn = Fields { seq, flags: Flags::SYN | SETUP, window, ..Fields::default() };
        let reply = script.send(syn).remove(0);
        // A host whose own SYN did not request ECN neither accepts it nor sets ECT.
        let agrees = mode == EcnMode::Request;
        assert_eq!(reply.flags.has(Flags::ECE), agrees);
        assert!(!reply.flags.has(Flags::CWR));
        assert_eq!(script.end.tcb.ecn.enabled, agrees);
    }
}

#[test]
fn ece_reduces_once_per_window_and_sends_cwr_once() {
    let mut script = ecn_established(Algorithm::NewReno);
    let sent = script.write(14_600);
    assert!(sent.iter().all(|seg| seg.ecn == Ecn::Ect0 && !seg.flags.has(Flags::CWR)));
    let before = script.end.tcb.cwnd();
    script.end.to_write = 100_000;
    let out = ack_all(&mut script, &sent[1], Flags::ECE);
    let reduced = script.end.tcb.cwnd();
    assert!(reduced < before, "{before} {reduced}");
    assert!(out.is_empty(), "eight segments are out, seven may be");
    // The peer sets ECE until it receives CWR; cwnd is not reduced again and does not grow.
    let mut cwr = 0;
    for seg in &sent[2..] {
        let out = ack_all(&mut script, seg, Flags::ECE);
        cwr += out.iter().filter(|seg| seg.flags.has(Flags::CWR)).count();
        assert!(out.iter().all(|seg| seg.ecn == Ecn::Ect0));
        assert_eq!(script.end.tcb.cwnd(), reduced);
    }
    assert_eq!(cwr, 1, "on the first new segment");
    // ECE for data sent after the reduction reduces again.
    let next = script.end.tcb.snd.nxt;
    script.ack = next;
    let fields = script.fields();
    script.send(Fields { flags: fields.flags | Flags::ECE, ..fields });
    assert!(script.end.tcb.cwnd() < reduced);
    let stats = script.end.tcb.stats();
    assert_eq!((stats.ece_reductions, stats.ece_in), (2, 10));
}

#[test]
fn loss_and_ece_in_one_window_reduce_once() {
    for echo_first in [true, false] {
        let mut script = ecn_established(Algorithm::NewReno);
        let sent = script.write(14_600);
        let block = (sent[2].seq, sent[9].seq + sent[9].seq_len());
        let ack = |script: &mut Script, sack: bool, flags: Flags| {
            script.ack = sent[1].seq;
            let mut fields = script.fields();
            fields.flags = fields.flags | flags;
            if sack {
                fields.options.sack.push(block);
            }
            script.wait_us(100);
            script.send(fields)
        };
        ack(&mut script, !echo_first, if echo_first { Flags::ECE } else { Flags::default() });
        let threshold = script.end.tcb.cc.ssthresh();
        let again = ack(&mut script, true, Flags::ECE);
        assert_eq!(script.end.tcb.cc.ssthresh(), threshold);
        let stats = script.end.tcb.stats();
        assert_eq!((stats.fast_recoveries, stats.retransmits), (1, 1));
        assert_eq!(stats.ece_reductions, u32::from(echo_first));
        for seg in again {
            assert_eq!((seg.ecn, seg.flags.has(Flags::CWR)), (Ecn::NotEct, false), "sent again");
        }
        // CWR is sent with new data only.
        script.end.to_write = 50_000;
        let out = ack_all(&mut script, &sent[9], Flags::ECE);
        assert!(out[0].flags.has(Flags::CWR) && out[0].ecn == Ecn::Ect0);
        assert!(!out[1].flags.has(Flags::CWR));
        assert_eq!(script.end.tcb.cc.ssthresh(), threshold);
    }
}

#[test]
fn receiver_sets_ece_until_cwr() {
    let mut script = ecn_established(Algorithm::NewReno);
    let data = |script: &mut Script, ecn: Ecn, flags: Flags| {
        let fields = script.fields();
        let fields = Fields { ecn, flags: fields.flags | flags, ..fields };
        script.deliver(&fields, 100);
        script.seq += 100;
        script.wait_us(100);
        script.fire().remove(0)
    };
    let none = Flags::default();
    assert!(!data(&mut script, Ecn::Ect0, none).flags.has(Flags::ECE));
    assert!(data(&mut script, Ecn::Ce, none).flags.has(Flags::ECE));
    let ack = data(&mut script, Ecn::Ect0, none);
    assert_eq!((ack.flags, ack.ecn), (Flags::ACK | Flags::ECE, Ecn::NotEct));
    // ECE is set on data segments too.
    assert!(script.write(100)[0].flags.has(Flags::ECE));
    assert!(!data(&mut script, Ecn::Ect0, Flags::CWR).flags.has(Flags::ECE));
    assert!(data(&mut script, Ecn::Ce, Flags::CWR).flags.has(Flags::ECE));
    assert_eq!(script.end.tcb.stats().ce_in, 2);
}

#[test]
fn dctcp_receiver_acks_each_ce_change_at_once() {
    let mut script = ecn_established(Algorithm::Dctcp);
    let start = script.seq;
    let marks = [false, true, true, false, true];
    for marked in marks {
        let ecn = if marked { Ecn::Ce } else { Ecn::Ect0 };
        let fields = Fields { ecn, ..script.fields() };
        script.deliver(&fields, 100);
        script.seq += 100;
    }
    // Processed as one burst; each change of CE is still acknowledged by itself.
    let acks: Vec<(u32, bool)> =
        script.output().iter().map(|ack| (ack.ack - start, ack.flags.has(Flags::ECE))).collect();
    assert_eq!(acks, [(100, false), (300, true), (400, false), (500, true)]);
}

/// A queue that marks CE instead of dropping: CE, ECE, reduction, CWR, and no loss.
#[test]
fn ce_marking_queue_fills_link_without_loss() {
    for congestion in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp] {
        let cfg = Config {
            congestion,
            recv_window: 4 << 20,
            max_records: 8000,
            ..config(EcnMode::Request)
        };
        let mut link = Bottleneck::new([cfg.clone(), cfg]);
        link.bits_per_second = 1_000_000_000;
        link.delay_ns = MILLISECOND;
        link.queue_max = 1_000_000;
        link.mark_above = Some(125_000);
        link.connect();
        let rate = link.run(600 * MILLISECOND);
        println!("{congestion:?}: {rate:.3} of the link, {} marks", link.marks);
        let stats = link.end(0).tcb.stats();
        assert_eq!((link.drops, stats.retransmits), (0, 0), "{congestion:?}");
        assert!(rate > 0.85, "{congestion:?} {rate}");
        let marked = u64::from(link.end(1).tcb.stats().ce_in);
        assert!(marked <= link.marks && marked + 200 > link.marks, "the rest is in flight");
        assert!(stats.ece_reductions > 1 && stats.ece_reductions < 300, "{stats:?}");
        if congestion != Algorithm::Dctcp {
            // At most one CWR per reduction, and each of them ended an echo.
            let reductions = u64::from(stats.ece_reductions);
            assert!(link.cwr <= reductions && link.cwr + 1 >= reductions);
        }
    }
}
