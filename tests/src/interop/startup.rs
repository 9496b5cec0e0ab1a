//! Exchanges of `interop_end` with `siw_peer exchange`: connection set-up, each form of Send in
//! unaligned memory, and Terminates of either end.

use std::io;

use crate::interop::case::{CASE_TIMEOUT, Case, Route, Version, failure};
use crate::interop::ping::expect_exit_ok;
use crate::interop::testbed::{Testbed, last_line, program_error};

/// Port of exchanges.
const PORT: u16 = 4796;
const END: &str = "examples/interop_end";
/// Messages of a case that does not test transfers.
const SHORT: &str = "--sizes 64";
/// Empty, tiny, one and several segments, and 4 MiB.
const ALL_SIZES: &str = "--sizes 0,1,2,3,1000,1461,65535,1000001,4194304";

/// The end that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Stack,
    Siw,
}

const CLIENTS: [(Client, &str); 2] = [(Client::Stack, "by-us"), (Client::Siw, "by-siw")];

/// Options of both ends of an exchange, and the expected output of ours.
#[derive(Clone)]
struct Exchange {
    client: Client,
    /// Options of both ends.
    both: String,
    /// Options of our end.
    ours: String,
    /// Options of siw's end.
    theirs: String,
    /// Text that the output of our end must contain.
    expected: String,
}

impl Exchange {
    fn new(client: Client, both: impl Into<String>) -> Self {
        let empty = String::new;
        Self { client, both: both.into(), ours: empty(), theirs: empty(), expected: empty() }
    }

    fn ours(self, options: impl Into<String>) -> Self {
        Self { ours: options.into(), ..self }
    }

    fn theirs(self, options: impl Into<String>) -> Self {
        Self { theirs: options.into(), ..self }
    }

    fn expects(self, text: impl Into<String>) -> Self {
        Self { expected: text.into(), ..self }
    }
}

/// Returns all exchanges.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, exchange: Exchange, quick: bool| {
        let is_rejected = exchange.both.contains("--reject");
        let case =
            Case::new(name, Route::PLAIN, move |testbed| run(testbed, &exchange)).quick(quick);
        cases.push(if is_rejected { case.without_fpdus() } else { case });
    };
    for (client, role) in CLIENTS {
        let exchange = |both: &str| Exchange::new(client, both);
        add(format!("exchange/all-sizes/{role}"), exchange(ALL_SIZES), false);
        add(format!("exchange/some-sizes/{role}"), exchange("--sizes 0,1,1461,65535"), true);
        private_data(client, role, &mut add);
        for depth in [1, 2, 16, 128] {
            let reads = format!("{SHORT} --ird {depth} --ord {depth}");
            let negotiated = format!("IRD {depth}, ORD {depth}\n");
            let quick = depth == 128;
            add(
                format!("startup/reads-{depth}/{role}"),
                exchange(&reads).expects(negotiated),
                quick,
            );
        }
        let no_crc = exchange(SHORT).ours("--no-crc");
        add(format!("startup/no-crc-wanted/{role}"), no_crc.expects("negotiated: "), false);
        terminates(client, role, &mut add);
    }
    let by_us = || Exchange::new(Client::Stack, SHORT);
    let old = Exchange::new(Client::Stack, "--no-reads --sizes 1,65535").ours("--mpa-revision 1");
    add("startup/revision-1".into(), old.expects("negotiated: MPA revision 1, "), true);
    for kind in ["write", "read"] {
        let ready = by_us().ours(format!("--peer-to-peer {kind}"));
        add(format!("startup/peer-to-peer-{kind}"), ready, kind == "write");
    }
    add("startup/client-server".into(), by_us().ours("--client-server"), true);
    cases.push(
        Case::new("startup/peer-to-peer-send", Route::PLAIN, rtr_by_send_is_refused)
            .without_fpdus(),
    );
    cases
}

/// siw does not support a Send as the ready-to-receive message, and our end reports it. After that
/// siw never serves another connection, so the guest is powered off.
fn rtr_by_send_is_refused(testbed: &mut Testbed) -> io::Result<String> {
    let _server = testbed.guest.start(&format!("siw_peer exchange {SHORT}"))?;
    testbed.guest.run_ok(&format!("listening {PORT}"))?;
    let line = format!("{} {SHORT} --peer-to-peer send", testbed.guest_addr());
    let result = testbed.run(END, &line, CASE_TIMEOUT)?;
    if result.success() || !result.output.contains("no ready-to-receive message") {
        return Err(program_error("interop_end", &result));
    }
    testbed.guest.power_off()?;
    Ok(last_line(&result.output).to_owned())
}

/// Private data of request, reply and reject. siw accepts 252 bytes, which with the four of
/// revision 2 make 256, and sends 251: with 252 it announces none.
fn private_data(client: Client, role: &str, add: &mut impl FnMut(String, Exchange, bool)) {
    for (ours, theirs) in [(1, 2), (252, 251)] {
        let our_options = format!("--private {ours} --expect-private {theirs}");
        let their_options = format!("--private {theirs} --expect-private {ours}");
        let both =
            |options| Exchange::new(client, options).ours(&our_options).theirs(&their_options);
        let quick = ours == 252;
        add(format!("startup/private-{ours}/{role}"), both(SHORT), quick);
        let reject = both("--reject").expects("rejected");
        add(format!("startup/reject-{ours}/{role}"), reject, quick);
    }
}

/// Each error by either end, with layer, type and code of the resulting Terminate. The faulty
/// invalidation comes with a Send, which consumes a receive. siw fails that receive, but neither
/// sends a Terminate nor closes the connection, so there is no such case with a fault of ours.
fn terminates(client: Client, role: &str, add: &mut impl FnMut(String, Exchange, bool)) {
    for (fault, code) in [
        ("write", "1/1/00"),
        ("read", "0/1/00"),
        ("invalidate", "0/2/09"),
        ("send", "1/2/02"),
        ("bounds", "1/1/01"),
        ("stale", "1/1/00"),
    ] {
        for fault_by in ["initiator", "responder"] {
            let is_ours = (client == Client::Stack) == (fault_by == "initiator");
            if is_ours && fault == "invalidate" {
                continue;
            }
            let direction = if is_ours { "received" } else { "sent" };
            let both = format!("{SHORT} --fault {fault} --fault-by {fault_by}");
            let exchange =
                Exchange::new(client, both).expects(format!("terminate-{direction} {code}"));
            let quick = fault == "write" && client == Client::Stack;
            let owner = if is_ours { "ours" } else { "theirs" };
            add(format!("terminate/{fault}-{owner}/{role}"), exchange, quick);
        }
    }
}

fn run(testbed: &mut Testbed, exchange: &Exchange) -> io::Result<String> {
    let Exchange { client, both, ours, theirs, expected } = exchange;
    let (output, theirs) = match client {
        Client::Stack => {
            let family = if testbed.route().version == Version::V6 { "--ipv6" } else { "" };
            let line = format!("siw_peer exchange {family} {both} {theirs}");
            let server = testbed.guest.start(&line)?;
            testbed.guest.run_ok(&format!("listening {PORT}"))?;
            let line = format!("{} {both} {ours}", testbed.guest_addr());
            let client = testbed.run(END, &line, CASE_TIMEOUT)?;
            (client, server.finish(CASE_TIMEOUT))
        }
        Client::Siw => {
            let server = testbed.serve(END, &format!("{both} {ours}"), "listening on port")?;
            let line = format!("siw_peer exchange {} {both} {theirs}", testbed.stack_addr());
            let client = testbed.guest.run(&line, CASE_TIMEOUT)?;
            (server.finish(CASE_TIMEOUT)?, client)
        }
    };
    if !output.success() {
        let (ours, theirs) = (program_error("interop_end", &output), last_line(&theirs.output));
        return Err(failure(format!("{ours}; siw_peer: {theirs}")));
    }
    expect_exit_ok("siw_peer", &theirs)?;
    if !output.output.contains(expected) {
        return Err(failure(format!("no '{expected}' in: {}", output.output.trim())));
    }
    let starts = ["result: ", "ended: ", "rejected"];
    let results = output.output.lines().filter(|line| starts.iter().any(|s| line.starts_with(s)));
    Ok(results.collect::<Vec<_>>().join(", "))
}
