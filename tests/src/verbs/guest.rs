//! Stock programs on the stack, over `tap`, against stock programs on Linux's siw in a guest.

use std::io;
use std::time::Duration;

use crate::interop::case::{self, Route, Version, failure};
use crate::interop::ping::expect_exit_ok;
use crate::interop::testbed;
use crate::verbs::case::{CASE_TIMEOUT, Case};
use crate::verbs::testbed::{Testbed, expect_success, expect_text};

/// Timeout of a run: the guest is emulated.
const GUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A program of which one end runs in the guest, in both roles.
struct Pair {
    name: &'static str,
    /// Command lines; `{}` is the server's address.
    server: &'static str,
    client: &'static str,
    /// Port on which the server listens.
    port: u16,
    version: Version,
    /// What each end prints.
    printed: &'static str,
    /// The server sends first. As the initiator siw requests no peer-to-peer mode of MPA, so the
    /// stack must not send before siw does, and both wait.
    server_sends_first: bool,
}

impl Pair {
    const fn new(name: &'static str, line: &'static str, port: u16) -> Self {
        Self {
            name,
            server: line,
            client: line,
            port,
            version: Version::V4,
            printed: "",
            server_sends_first: false,
        }
    }
}

const PERFTEST: u16 = 18515;

const PAIRS: [Pair; 9] = [
    Pair {
        server: "rping -s -a {} -V -S 4096 -C 50",
        client: "rping -c -a {} -V -S 4096 -C 50",
        ..Pair::new("rping", "", 7174)
    },
    Pair {
        server: "rping -s -a {} -V -S 65535 -C 10",
        client: "rping -c -a {} -V -S 65535 -C 10",
        version: Version::V6,
        ..Pair::new("rping-ipv6", "", 7174)
    },
    Pair {
        server: "ucmatose -c 20 -b {}",
        client: "ucmatose -c 20 -s {}",
        printed: "return status 0",
        server_sends_first: true,
        ..Pair::new("ucmatose", "", 7471)
    },
    Pair::new("ib_write_bw", "ib_write_bw -R -F -s 4096 -n 500", PERFTEST),
    Pair::new("ib_read_bw", "ib_read_bw -R -F -s 4096 -n 500", PERFTEST),
    Pair::new("ib_send_bw", "ib_send_bw -R -F -s 4096 -n 500", PERFTEST),
    Pair {
        server_sends_first: true,
        ..Pair::new("ib_write_lat", "ib_write_lat -R -F -n 200", PERFTEST)
    },
    Pair::new("ib_read_lat", "ib_read_lat -R -F -n 200", PERFTEST),
    Pair::new("ib_send_lat", "ib_send_lat -R -F -n 200", PERFTEST),
];

/// Returns the cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    let by_us = PAIRS.iter().map(|pair| {
        Case::new(format!("siw/{}/by-us", pair.name), |testbed| by_us(guest(testbed, pair)?, pair))
    });
    let by_siw = PAIRS.iter().filter(|pair| !pair.server_sends_first).map(|pair| {
        Case::new(format!("siw/{}/by-siw", pair.name), |testbed| {
            by_siw(guest(testbed, pair)?, pair)
        })
    });
    by_us.chain(by_siw).collect()
}

/// Boots the guest, unless it is up, and configures it for the pair.
fn guest<'a>(testbed: &'a mut Testbed, pair: &Pair) -> io::Result<&'a mut testbed::Testbed> {
    let route = if pair.version == Version::V6 { Route::PLAIN.v6() } else { Route::PLAIN };
    let nothing = case::Case::new(pair.name, route, |_| Ok(String::new()));
    let folder = testbed.folder().to_path_buf();
    let guest = testbed.guest()?;
    guest.configure(&nothing, &folder)?;
    Ok(guest)
}

/// Command line of an end with the server's address. perftest's server takes none.
fn line(text: &str, server: impl std::fmt::Display, is_client: bool) -> String {
    let is_perftest = text.starts_with("ib_");
    match (is_perftest, is_client) {
        (true, true) => format!("{text} {server}"),
        (true, false) => text.to_owned(),
        (false, _) => text.replace("{}", &server.to_string()),
    }
}

/// The client runs on the stack.
fn by_us(guest: &mut testbed::Testbed, pair: &Pair) -> io::Result<String> {
    let server = guest.guest.start(&line(pair.server, guest.guest_addr(), false))?;
    guest.guest.run_ok(&format!("listening {}", pair.port))?;
    let client_line = line(pair.client, guest.guest_addr(), true);
    let client = guest.run_verbs(&client_line, GUEST_TIMEOUT)?;
    let client = expect_success(&client_line, client);
    let server = server.finish(CASE_TIMEOUT);
    let server_ended = expect_exit_ok("the server", &server);
    let client = match (client, server_ended) {
        (Err(client), Err(server)) => return Err(failure(format!("{client}; {server}"))),
        (client, server_ended) => server_ended.and(client)?,
    };
    expect_text(&client, pair.printed)?;
    expect_text(&server.output, pair.printed)?;
    Ok(client_line)
}

/// The client runs in the guest.
fn by_siw(guest: &mut testbed::Testbed, pair: &Pair) -> io::Result<String> {
    let server_line = line(pair.server, guest.stack_addr(), false);
    let server = guest.serve_verbs(&server_line)?;
    let client_line = line(pair.client, guest.stack_addr(), true);
    let client = guest.guest.run(&client_line, GUEST_TIMEOUT)?;
    let client_ended = expect_exit_ok("the client", &client);
    let server = expect_success(&server_line, server.finish(CASE_TIMEOUT)?);
    let server = match (client_ended, server) {
        (Err(client), Err(server)) => return Err(failure(format!("{client}; {server}"))),
        (client_ended, server) => client_ended.and(server)?,
    };
    expect_text(&client.output, pair.printed)?;
    expect_text(&server, pair.printed)?;
    Ok(client_line)
}
