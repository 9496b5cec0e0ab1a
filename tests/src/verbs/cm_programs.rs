//! The other programs of rdmacm-utils, and those of ibverbs-utils.

use std::io;
use std::time::Duration;

use crate::interop::case::failure;
use crate::verbs::case::{CASE_TIMEOUT, Case};
use crate::verbs::testbed::{End, Testbed, expect_text, one_line};

/// Timeout of a hundred connections.
const MANY_TIMEOUT: Duration = Duration::from_secs(60);

/// A server and a client that exit with 0 and print these texts.
struct Pair {
    name: &'static str,
    is_quick: bool,
    server: &'static str,
    client: &'static str,
    /// What each prints at its end.
    printed: [&'static str; 2],
    /// The server goes on: SIGINT ends it.
    is_endless: bool,
}

const PAIRS: [Pair; 7] = [
    Pair {
        name: "ucmatose/100-connections",
        is_quick: true,
        server: "ucmatose -c 100 -b {server}",
        client: "ucmatose -c 100 -s {server}",
        printed: ["return status 0"; 2],
        is_endless: false,
    },
    Pair {
        name: "ucmatose/bound-client",
        is_quick: false,
        server: "ucmatose -c 10 -S 4000 -C 50",
        client: "ucmatose -c 10 -S 4000 -C 50 -b {client} -s {server}",
        printed: ["return status 0"; 2],
        is_endless: false,
    },
    Pair {
        name: "ucmatose/ipv6",
        is_quick: false,
        server: "ucmatose -f ipv6 -b {server6}",
        client: "ucmatose -f ipv6 -s {server6}",
        printed: ["return status 0"; 2],
        is_endless: false,
    },
    Pair {
        name: "ucmatose/migrate",
        is_quick: false,
        server: "ucmatose -m -c 10 -b {server}",
        client: "ucmatose -m -c 10 -s {server}",
        printed: ["return status 0"; 2],
        is_endless: false,
    },
    Pair {
        name: "cmtime/100-connections",
        is_quick: true,
        server: "cmtime -c 100 -b {server}",
        client: "cmtime -c 100 -b {client} -s {server}",
        printed: ["", "disconnect"],
        is_endless: true,
    },
    Pair {
        name: "rdma_server/rdma_client",
        is_quick: true,
        server: "rdma_server -s {server}",
        client: "rdma_client -s {server}",
        printed: ["rdma_server: end 0", "rdma_client: end 0"],
        is_endless: false,
    },
    Pair {
        name: "rdma_xserver/rdma_xclient",
        is_quick: true,
        server: "rdma_xserver",
        client: "rdma_xclient -s {server}",
        printed: ["end 0"; 2],
        is_endless: false,
    },
];

/// A program that asks for a service that iWARP does not have.
struct Refused {
    name: &'static str,
    line: &'static str,
}

const REFUSED: [Refused; 4] = [
    Refused { name: "refused/udaddy", line: "udaddy -b {server}" },
    Refused { name: "refused/mckey", line: "mckey -m 239.1.1.1 -b {server}" },
    Refused { name: "refused/rdma_xserver-xrc", line: "rdma_xserver -c x" },
    Refused { name: "refused/ibv_ud_pingpong", line: "ibv_ud_pingpong -g 0" },
];

/// Returns the cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    let pairs = PAIRS
        .iter()
        .map(|pair| Case::new(pair.name, |testbed| run_pair(testbed, pair)).quick(pair.is_quick));
    let refused = REFUSED.iter().map(|refused| {
        Case::new(refused.name, |testbed| run_refused(testbed, refused)).quick(true)
    });
    let devices = [
        Case::new("devices/ibv_devices", ibv_devices).quick(true),
        Case::new("devices/ibv_devinfo", ibv_devinfo).quick(true),
        Case::new("devices/none-configured", none_configured).quick(true),
    ];
    devices.into_iter().chain(pairs).chain(refused).collect()
}

fn run_pair(testbed: &mut Testbed, pair: &Pair) -> io::Result<String> {
    let outputs = if pair.is_endless {
        let server = testbed.serve(pair.server)?;
        let client = testbed.run_ok(End::Client, pair.client, MANY_TIMEOUT)?;
        server.interrupt()?;
        [server.finish(CASE_TIMEOUT)?.output, client]
    } else {
        testbed.run_pair_ok(pair.server, pair.client, MANY_TIMEOUT)?
    };
    for (output, printed) in outputs.iter().zip(pair.printed) {
        expect_text(output, printed)?;
    }
    Ok(format!("{} / {}", pair.server, pair.client))
}

fn run_refused(testbed: &mut Testbed, refused: &Refused) -> io::Result<String> {
    let result = testbed.run(End::Server, refused.line, CASE_TIMEOUT)?;
    let status = result.status.ok_or_else(|| failure("it did not end"))?;
    if status.code().is_none_or(|code| code == 0) {
        return Err(failure(format!("{status}: {}", one_line(&result.output))));
    }
    let is_reason = |line: &&str| line.contains("not supported") || line.contains("iWARP");
    let reason = result.output.lines().find(is_reason).ok_or_else(|| {
        failure(format!("{status}, but no line says why: {}", one_line(&result.output)))
    })?;
    Ok(format!("{status}: {reason}"))
}

fn ibv_devices(testbed: &mut Testbed) -> io::Result<String> {
    let output = testbed.run_ok(End::Server, "ibv_devices", CASE_TIMEOUT)?;
    expect_text(&output, "ferrowarp0")?;
    Ok("lists ferrowarp0".into())
}

/// The port is active once the other end of the link is there.
fn ibv_devinfo(testbed: &mut Testbed) -> io::Result<String> {
    let peer = testbed.serve("rping -s -P -a {server}")?;
    let output = testbed.run_ok(End::Client, "ibv_devinfo -v", CASE_TIMEOUT)?;
    drop(peer);
    for text in ["iWARP (1)", "PORT_ACTIVE (4)", "Ethernet", "max_qp:", "GID["] {
        expect_text(&output, text)?;
    }
    Ok("iWARP, PORT_ACTIVE, Ethernet".into())
}

/// Without settings a line says what to set.
fn none_configured(testbed: &mut Testbed) -> io::Result<String> {
    let mut command = std::process::Command::new("ibv_devinfo");
    command.env("LD_LIBRARY_PATH", testbed.library());
    let result = testbed.start_command(End::Server, &mut command)?.finish(CASE_TIMEOUT)?;
    let about = result.output.lines().find(|line| line.starts_with("ferrowarp:"));
    let about = about.ok_or_else(|| failure(format!("no reason: {}", one_line(&result.output))))?;
    if result.success() || !about.contains("iwarp-run") {
        return Err(failure(format!("{:?}: {about}", result.status)));
    }
    Ok(about.into())
}
