//! Bulk transfers over emulated cards by iwperf, in both directions, verified at the sink; the
//! flows of several shards, each of which a queue of the card receives; and a card of a host
//! program.

use std::io;

use crate::interop::bulk::value;
use crate::interop::card::{CARD_TIMEOUT, Card, PATIENT, PEERS, Peer, family_option, other_route};
use crate::interop::case::{CASE_TIMEOUT, Case, Route, failure};
use crate::interop::guest::GuestCommand;
use crate::interop::ping::expect_exit_ok;
use crate::interop::testbed::{Testbed, program_error};

/// Port of iwperf.
const PORT: u16 = 18515;
/// Transfers of the other cases: messages of many segments, with an odd rest.
const BULK: Transfer = Transfer { size: 100_001, messages: 20, qps: 2, depth: 8, timeout: PATIENT };
/// Transfers of two shards: what is outstanding fits one receive queue of the card. QEMU keeps a
/// frame for a queue without buffers on the tap queue on which it came, and looks at that again
/// only when the other queue is given buffers.
const SHARDS: Transfer =
    Transfer { size: 10_001, messages: 100, qps: 8, depth: 2, timeout: PATIENT };
/// File of the results in the guest.
const RESULTS: &str = "/tmp/results.json";

/// Transfer of iwperf, both ways.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// Bytes of a message.
    pub size: u64,
    /// Messages of each queue pair.
    pub messages: u64,
    /// Queue pairs.
    pub qps: u64,
    /// Messages outstanding.
    pub depth: u64,
    /// Option `--timeout` of the client.
    pub timeout: &'static str,
}

impl Transfer {
    /// Returns the options of iwperf's client: both ends send.
    fn options(self) -> String {
        let Self { size, messages, qps, depth, timeout } = self;
        format!("--verify -b -s {size} -n {messages} -q {qps} -t {depth} {timeout}")
    }

    /// Bytes in both directions.
    pub(super) const fn bytes(self) -> u64 {
        2 * self.size * self.messages * self.qps
    }

    fn summary(self) -> String {
        format!("{} bytes over {} queue pairs verified", self.bytes(), self.qps)
    }

    /// Checks that the results of iwperf's client show all bytes verified, and returns a summary.
    pub(super) fn expect_verified(self, results: &str) -> io::Result<String> {
        self.expect_bytes("iwperf", json_number(results, "bytes_verified")?)
    }

    /// Checks that an end has verified what both have sent, and returns a summary.
    fn expect_bytes(self, name: &str, verified: u64) -> io::Result<String> {
        if verified != self.bytes() {
            let expected = self.bytes();
            return Err(failure(format!("{name} verified {verified} bytes, not {expected}")));
        }
        Ok(self.summary())
    }
}

/// Returns the bulk cases of a card.
pub(super) fn cases(card: Card) -> Vec<Case> {
    let mut cases = Vec::new();
    for (test, route) in
        [("write-bw", Route::PLAIN), ("read-bw", other_route(card)), ("send-bw", Route::PLAIN.v6())]
    {
        for (peer, name) in PEERS {
            let client = move |testbed: &mut Testbed| card_connects(testbed, peer, test);
            let server = move |testbed: &mut Testbed| card_listens(testbed, peer, test);
            cases.push(card.case(&format!("bulk/{test}/to-{name}"), route, client));
            cases.push(card.case(&format!("bulk/{test}/from-{name}"), route, server));
        }
    }
    for (path, route) in [("ipv4", Route::PLAIN), ("ipv6", Route::PLAIN.v6())] {
        let offloaded =
            move |testbed: &mut Testbed| checksums(testbed, "", card.checksum, card.has_tso);
        cases.push(card.case(&format!("checksums/offloaded/{path}"), route, offloaded));
        let option = "--checksum=software";
        let software = move |testbed: &mut Testbed| checksums(testbed, option, "software", false);
        cases.push(card.case(&format!("checksums/software/{path}"), route, software));
    }
    if card.name == "virtio-2-queues" {
        for (path, route) in [("ipv4", Route::PLAIN), ("ipv6", Route::PLAIN.v6())] {
            cases.push(card.case(&format!("shards/{path}/to-tap"), route, shards_connect));
            cases.push(card.case(&format!("shards/{path}/from-tap"), route, shards_listen));
        }
    }
    cases
}

/// `iwperf TEST` over the card; its results are printed as JSON.
fn card_connects(testbed: &mut Testbed, peer: Peer, test: &str) -> io::Result<String> {
    BULK.expect_verified(&transfer(testbed, peer, BULK, test)?)
}

/// A transfer with the checksums in this mode, which iwperf has to report; where the card cuts
/// frames, it has to have cut some. The capture shows whether all checksums are right.
fn checksums(testbed: &mut Testbed, option: &str, mode: &str, has_tso: bool) -> io::Result<String> {
    let output = transfer(testbed, Peer::Tap, BULK, &format!("write-bw {option}"))?;
    if !output.contains(&format!("\"checksum\": \"{mode}\"")) {
        return Err(failure(format!("iwperf does not report checksums by {mode}")));
    }
    let cut = json_number(&output, "tx_tso_frames")?;
    if (cut > 0) != has_tso {
        return Err(failure(format!("{cut} frames were cut by the card")));
    }
    let bytes = BULK.expect_verified(&output)?;
    Ok(format!("{bytes}, {cut} frames cut by the card"))
}

/// Runs `iwperf TEST` over the card, and returns its results.
fn transfer(
    testbed: &mut Testbed,
    peer: Peer,
    transfer: Transfer,
    test: &str,
) -> io::Result<String> {
    transfer_during(testbed, peer, transfer, test, |_, _| Ok(()))
}

/// As [`transfer`], with a disturbance once the client has started.
pub(super) fn transfer_during(
    testbed: &mut Testbed,
    peer: Peer,
    transfer: Transfer,
    test: &str,
    disturb: impl FnOnce(&mut Testbed, &GuestCommand) -> io::Result<()>,
) -> io::Result<String> {
    let addr = match peer {
        Peer::Tap => testbed.stack_addr(),
        Peer::Siw => testbed.guest_addr(),
    };
    let line = format!("{test} {} --json {RESULTS} {addr}", transfer.options());
    let line = format!("{} && cat {RESULTS}", testbed.card_command("iwperf", &line));
    match peer {
        Peer::Tap => {
            let server = format!("server --once {PATIENT}");
            let server = testbed.serve("iwperf", &server, "waiting for clients")?;
            let client = run_disturbed(testbed, &line, disturb)?;
            let server = server.finish(CASE_TIMEOUT)?;
            if !server.success() {
                return Err(program_error("iwperf on the host", &server));
            }
            Ok(client)
        }
        Peer::Siw => {
            let family = family_option(testbed);
            let server =
                testbed.guest.start(&format!("siw_peer perf-server --sessions 1 {family}"))?;
            testbed.guest.run_ok(&format!("listening {PORT}"))?;
            let client = run_disturbed(testbed, &line, disturb)?;
            let server = server.finish(CASE_TIMEOUT);
            expect_exit_ok("siw_peer", &server)?;
            // What it received; a client counts both directions.
            transfer.expect_bytes("siw_peer", 2 * value(&server.output, "verified")?)?;
            Ok(client)
        }
    }
}

/// Runs a command of the guest that must succeed, with a disturbance. Returns its output.
fn run_disturbed(
    testbed: &mut Testbed,
    line: &str,
    disturb: impl FnOnce(&mut Testbed, &GuestCommand) -> io::Result<()>,
) -> io::Result<String> {
    let client = testbed.guest.start(line)?;
    disturb(testbed, &client)?;
    let client = client.finish(CARD_TIMEOUT);
    expect_exit_ok("iwperf", &client)?;
    Ok(client.output)
}

/// `iwperf server` over the card.
fn card_listens(testbed: &mut Testbed, peer: Peer, test: &str) -> io::Result<String> {
    let line = testbed.card_command("iwperf", &format!("server --once {PATIENT}"));
    let server = testbed.guest.start(&line)?;
    let (summary, _) = run_client_of(testbed, server, peer, test)?;
    Ok(summary)
}

/// A program in C owns the EAL and a card, whose buffers hold 2 KiB of a frame, and lends its queue
/// to `iwperf server`: longer frames arrive in several buffers. The program requires that there are
/// such frames, and that all buffers are back in the end.
pub(super) fn host_program_listens(testbed: &mut Testbed) -> io::Result<String> {
    let mtu = testbed.route().mtu;
    let bdf = testbed.card_bdf();
    let device = format!("port:{bdf},queues=0,mempool=stack");
    let line = format!("server --once {PATIENT} --dev {device}");
    let line = format!("iwperf {line} --mtu {mtu} --address {}/24", testbed.card_addr());
    let line = format!("host_program card {bdf} {mtu} -- {line}");
    let server = testbed.guest.start(&line)?;
    let (summary, output) = run_client_of(testbed, server, Peer::Siw, "write-bw")?;
    let scattered = output.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(format!("{summary}; {}", scattered.unwrap_or_default()))
}

/// Runs a client of this `iwperf server` to its end. Returns a summary, and the server's output.
fn run_client_of(
    testbed: &mut Testbed,
    server: GuestCommand,
    peer: Peer,
    test: &str,
) -> io::Result<(String, String)> {
    server.wait_for("waiting for clients", CASE_TIMEOUT)?;
    let addr = testbed.card_addr();
    let (name, outcome) = match peer {
        Peer::Tap => {
            let line = format!("{test} {addr} {}", BULK.options());
            ("iwperf", testbed.run_ok("iwperf", &line, CARD_TIMEOUT).map(|_| None))
        }
        Peer::Siw => {
            let mut line = format!("siw_peer perf-client {addr} {test} --verify --bidirectional");
            let Transfer { size, messages, qps, depth, .. } = BULK;
            line += &format!(" --size {size} --iters {messages} --qps {qps} --tx-depth {depth}");
            let client = testbed.guest.run(&line, CARD_TIMEOUT)?;
            let verified = expect_exit_ok("siw_peer", &client)
                .and_then(|()| value(&client.output, "verified"));
            ("siw_peer", verified.map(Some))
        }
    };
    // If iwperf failed, its output explains more.
    let server = server.finish(CASE_TIMEOUT);
    expect_exit_ok("iwperf", &server)?;
    let summary = match outcome? {
        Some(verified) => BULK.expect_bytes(name, verified)?,
        // Exit status 0: it has verified the received bytes, as the server has.
        None => BULK.summary(),
    };
    Ok((summary, server.output))
}

/// Two shards connect: the frames of each connection arrive at the queue of its shard.
fn shards_connect(testbed: &mut Testbed) -> io::Result<String> {
    let output = transfer(testbed, Peer::Tap, SHARDS, "write-bw --shards 2")?;
    let bytes = SHARDS.expect_verified(&output)?;
    // Of each shard, and of the context.
    Ok(format!("{bytes}, {}", flows_on_their_shards(&output, 3)?))
}

/// Two shards are connected to: as [`shards_connect`].
fn shards_listen(testbed: &mut Testbed) -> io::Result<String> {
    let line = format!("server --once {PATIENT} --shards 2 --json {RESULTS}");
    let line = format!("{} && cat {RESULTS}", testbed.card_command("iwperf", &line));
    let server = testbed.guest.start(&line)?;
    server.wait_for("waiting for clients", CASE_TIMEOUT)?;
    let line = format!("write-bw {} {}", testbed.card_addr(), SHARDS.options());
    testbed.run_ok("iwperf", &line, CARD_TIMEOUT)?;
    let server = server.finish(CASE_TIMEOUT);
    expect_exit_ok("iwperf", &server)?;
    Ok(format!("{}, {}", SHARDS.summary(), flows_on_their_shards(&server.output, 1)?))
}

/// Checks that the key and the redirection table of the card have predicted the queue of each
/// segment that was looked at, and that none was forwarded to another shard, by so many counters.
fn flows_on_their_shards(output: &str, counters: usize) -> io::Result<String> {
    let forwarded = json_numbers(output, "frames_forwarded");
    if forwarded != vec![0; counters] {
        return Err(failure(format!("frames were forwarded: {forwarded:?}")));
    }
    let checked = json_number(output, "rss_checked")?;
    let mismatches = json_number(output, "rss_mismatches")?;
    if checked == 0 || mismatches != 0 {
        return Err(failure(format!("{mismatches} of {checked} segments on another queue")));
    }
    Ok(format!("nothing forwarded, {checked} segments as the card's RSS predicts"))
}

/// Returns the values of the lines `"key": VALUE` of indented JSON.
fn json_numbers(text: &str, key: &str) -> Vec<u64> {
    let start = format!("\"{key}\": ");
    let values = text.lines().filter_map(|line| line.trim().strip_prefix(&start));
    values.filter_map(|value| value.trim_end_matches(',').parse().ok()).collect()
}

fn json_number(text: &str, key: &str) -> io::Result<u64> {
    let first = json_numbers(text, key).first().copied();
    first.ok_or_else(|| failure(format!("iwperf did not print {key}")))
}
