//! rping in the guest against iwping, both ways.

use std::io;
use std::time::Duration;

use crate::interop::case::{Case, PATIENCE, Route, Version, failure};
use crate::interop::guest::GuestEnded;
use crate::interop::lab::{Lab, failed, last_line};

/// What rping and iwping take, about: 64 KiB less one octet is the most.
const SIZES: [u32; 4] = [64, 1461, 4096, 65535];
/// Rounds of a case.
const ROUNDS: u32 = 1000;
/// How long a case may take: a round of 64 KiB takes 20 ms in the emulated guest, and far more
/// over a bad path.
const ROUNDS_PATIENCE: Duration = Duration::from_secs(240);
/// Port of rping.
const PORT: u16 = 7174;

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// `iwping server`.
    Ours,
    /// `rping -s`.
    Theirs,
    /// `rping -s -P`.
    TheirsPersistent,
}

/// Every server, size, version of IP and MTU, and what else pings are good for.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (server, name) in [
        (Server::Ours, "rping-to-iwping"),
        (Server::Theirs, "iwping-to-rping"),
        (Server::TheirsPersistent, "iwping-to-rping-P"),
    ] {
        for route in routes() {
            for size in SIZES {
                let path = route.to_string().replace(' ', "-").to_lowercase();
                let full = format!("ping/{name}/{path}/{size}");
                let is_quick = is_quick(server, route, size);
                let rounds = if is_quick && size > 4096 { ROUNDS / 4 } else { ROUNDS };
                let case = Case::new(full, route, move |lab| rounds_of(lab, server, size, rounds));
                cases.push(case.quick(is_quick));
            }
        }
    }
    cases.push(Case::new("ping/reconnect/50", Route::PLAIN, |lab| reconnect(lab, 50)));
    cases.push(Case::new("ping/reconnect/8", Route::PLAIN, |lab| reconnect(lab, 8)).quick(true));
    cases.push(Case::new("ping/two-clients", Route::PLAIN, two_clients).quick(true));
    cases.push(
        Case::new("ping/markers-wanted", Route::PLAIN, markers_wanted).quick(true).without_fpdus(),
    );
    cases
}

fn routes() -> [Route; 6] {
    let (v4, v6) = (Route::PLAIN, Route::PLAIN.v6());
    [v4.mtu(576), v4, v4.mtu(9000), v6.mtu(1280), v6, v6.mtu(9000)]
}

/// One of each server, size, version and MTU, not every combination.
fn is_quick(server: Server, route: Route, size: u32) -> bool {
    let chosen = [
        (Server::Ours, Version::V4, 576, 4096),
        (Server::Ours, Version::V6, 1500, 65535),
        (Server::Theirs, Version::V4, 1500, 65535),
        (Server::Theirs, Version::V6, 1280, 1461),
        (Server::TheirsPersistent, Version::V4, 9000, 64),
    ];
    chosen.contains(&(server, route.version, route.mtu, size))
}

/// `rounds` verified pings of `size` octets.
///
/// # Errors
/// If a round fails at either end, or some are missing.
pub fn rounds_of(lab: &mut Lab, server: Server, size: u32, rounds: u32) -> io::Result<String> {
    match server {
        Server::Ours => served_by_us(lab, size, rounds),
        Server::Theirs => served_by_them(lab, "", size, rounds),
        Server::TheirsPersistent => served_by_them(lab, "-P", size, rounds),
    }
}

fn served_by_us(lab: &mut Lab, size: u32, rounds: u32) -> io::Result<String> {
    let server = lab.serve("iwping", "server -v", "waiting for clients")?;
    let client = lab.guest.run(&rping_client(lab, size, rounds), ROUNDS_PATIENCE)?;
    let client = ended_well("rping", &client);
    let server = server.finish(PATIENCE)?;
    let ended = if server.success() { Ok(()) } else { Err(failed("iwping", &server)) };
    match (ended, client) {
        // Either may be the cause of the other.
        (Err(server), Err(client)) => return Err(failure(format!("{server}; {client}"))),
        (server, client) => server.and(client)?,
    }
    let served = server.output.lines().filter(|line| line.starts_with("server ping")).count();
    if served != usize::try_from(rounds).expect("a small number") {
        return Err(failure(format!("{served} of {rounds} rounds")));
    }
    Ok(format!("{rounds} rounds of {size}"))
}

fn served_by_them(lab: &mut Lab, how: &str, size: u32, rounds: u32) -> io::Result<String> {
    let server = lab.guest.start(&rping_server(lab, how, size))?;
    lab.guest.does(&format!("listening {PORT}"))?;
    let told = our_client(lab, size, rounds)?;
    if how.is_empty() {
        ended_well("rping", &server.finish(PATIENCE))?;
    }
    if !told.contains(&format!("{rounds} rounds of {size} octets, every octet verified")) {
        return Err(failure(format!("iwping says: {}", last_line(&told))));
    }
    let median = told.split("median ").nth(1).and_then(|rest| rest.split(' ').next());
    Ok(format!("{rounds} rounds of {size}, median {} usec", median.unwrap_or("?")))
}

/// The command line of a client in the guest.
#[must_use]
pub fn rping_client(lab: &Lab, size: u32, rounds: u32) -> String {
    format!("rping -c -V -a {} -S {size} -C {rounds}", lab.ours())
}

/// The command line of a server in the guest.
#[must_use]
pub fn rping_server(lab: &Lab, how: &str, size: u32) -> String {
    format!("rping -s {how} -a {} -S {size}", lab.theirs())
}

/// Runs a client of ours; its output.
///
/// # Errors
/// Unless all rounds succeeded.
pub fn our_client(lab: &mut Lab, size: u32, rounds: u32) -> io::Result<String> {
    let line = format!("client {} -V -S {size} -C {rounds}", lab.theirs());
    lab.does("iwping", &line, ROUNDS_PATIENCE)
}

/// # Errors
/// With the last words of a command in the guest, unless it ended with code 0.
pub fn ended_well(name: &str, ended: &GuestEnded) -> io::Result<()> {
    if ended.code == Some(0) {
        return Ok(());
    }
    let code = ended.code.map_or("did not end".to_owned(), |code| format!("exit code {code}"));
    Err(failure(format!("{name} in the guest: {code}: {}", last_line(&ended.output))))
}

/// Connections one after the other, each by a program of its own, with one round each.
fn reconnect(lab: &mut Lab, count: u32) -> io::Result<String> {
    let _server = lab.guest.start(&rping_server(lab, "-P", 64))?;
    lab.guest.does(&format!("listening {PORT}"))?;
    let mut complaints = Vec::new();
    for number in 0..count {
        if let Err(error) = our_client(lab, 64, 1) {
            complaints.push(format!("connection {number}: {error}"));
        }
    }
    if let Some(first) = complaints.first() {
        return Err(failure(format!("{} of {count} failed; {first}", complaints.len())));
    }
    Ok(format!("{count} connections, one round each"))
}

/// Two clients in the guest at the same time.
fn two_clients(lab: &mut Lab) -> io::Result<String> {
    let server = lab.serve("iwping", "server -P -v", "waiting for clients")?;
    let line = rping_client(lab, 1000, ROUNDS / 4);
    let clients = [lab.guest.start(&line)?, lab.guest.start(&line)?];
    for client in clients {
        ended_well("rping", &client.finish(ROUNDS_PATIENCE))?;
    }
    let told = server.output()?;
    let served = told.lines().filter(|line| line.starts_with("server ping")).count();
    server.interrupt()?;
    server.finish(PATIENCE)?;
    if served != 500 {
        return Err(failure(format!("{served} of 500 rounds: {}", last_line(&told))));
    }
    Ok("2 clients with 250 rounds each".into())
}

/// siw refuses markers, and we say so.
fn markers_wanted(lab: &mut Lab) -> io::Result<String> {
    let _server = lab.guest.start(&rping_server(lab, "-P", 64))?;
    lab.guest.does(&format!("listening {PORT}"))?;
    let line = format!("client {} -C 1 --markers", lab.theirs());
    let ended = lab.run("iwping", &line, PATIENCE)?;
    if ended.status.is_none_or(|status| status.success()) || !ended.output.contains("siw refuses") {
        return Err(failed("iwping", &ended));
    }
    // The next connection, without them, is none the worse.
    our_client(lab, 64, 10)?;
    Ok(format!("siw refuses; iwping says: {}", last_line(&ended.output)))
}
