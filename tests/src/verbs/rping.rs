//! `rping`, and ends that stop or die.

use std::io;
use std::time::{Duration, Instant};

use crate::interop::case::failure;
use crate::process::Running;
use crate::verbs::case::{CASE_TIMEOUT, Case};
use crate::verbs::testbed::{End, Testbed, expect_success, expect_text};

/// Message sizes: one word more than a pattern, short, a page, and the maximum.
const SIZES: [u32; 4] = [23, 64, 4096, 65535];
/// Time in which an end notices over memif and vhost that the other is gone.
const DEATH_NOTICED: Duration = Duration::from_secs(1);

/// Returns the cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, suffix) in [("ipv4", ""), ("ipv6", "6")] {
        for size in SIZES {
            let server = format!("rping -s -a {{server{suffix}}} -V -C 20 -S {size}");
            let client = format!("rping -c -a {{server{suffix}}} -V -C 20 -S {size}");
            let case = Case::new(format!("rping/{family}/{size}"), move |testbed| {
                testbed.run_pair_ok(&server, &client, CASE_TIMEOUT)?;
                Ok("20 rounds, validated at both ends".into())
            });
            cases.push(case.quick(matches!((family, size), ("ipv4", 64 | 65535) | ("ipv6", 4096))));
        }
    }
    cases.push(Case::new("rping/printed", printed).quick(true));
    cases.push(Case::new("rping/source-address", source_address));
    cases.push(Case::new("rping/persistent", persistent).quick(true));
    cases.push(Case::new("rping/interrupted-server", interrupted_server).quick(true));
    cases.push(Case::new("rping/killed-client", killed_client).quick(true));
    cases.push(Case::new("rping/killed-server", killed_server));
    cases.push(Case::new("rping/refused", refused).quick(true));
    cases.push(Case::new("rping/self-created-qp", self_created_qp));
    let over_vhost: [(_, fn(&mut Testbed) -> _); 3] =
        [("printed", printed), ("killed-client", killed_client), ("killed-server", killed_server)];
    for (name, body) in over_vhost {
        cases.push(Case::new(format!("vhost/rping/{name}"), move |testbed| {
            testbed.use_vhost();
            body(testbed)
        }));
    }
    cases
}

fn printed(testbed: &mut Testbed) -> io::Result<String> {
    let [server, client] = testbed.run_pair_ok(
        "rping -s -a {server} -v -C 3",
        "rping -c -a {server} -v -C 3",
        CASE_TIMEOUT,
    )?;
    expect_text(&server, "server ping data: rdma-ping-2: CDEFGHIJ")?;
    expect_text(&client, "ping data: rdma-ping-2: CDEFGHIJ")?;
    Ok("both ends print the data".into())
}

fn source_address(testbed: &mut Testbed) -> io::Result<String> {
    testbed.run_pair_ok("rping -s -C 3", "rping -c -I {client} -a {server} -C 3", CASE_TIMEOUT)?;
    Ok("client bound to its address, server to all".into())
}

/// One server, three clients in turn.
fn persistent(testbed: &mut Testbed) -> io::Result<String> {
    let server = testbed.serve("rping -s -P -a {server} -V")?;
    for size in [64, 1000, 65535] {
        let client = format!("rping -c -a {{server}} -V -C 5 -S {size}");
        testbed.run_ok(End::Client, &client, CASE_TIMEOUT)?;
    }
    server.interrupt()?;
    let server = server.finish(CASE_TIMEOUT)?;
    if server.status.is_none() {
        return Err(failure("SIGINT does not end the server"));
    }
    Ok("3 clients, 5 rounds each, validated at both ends".into())
}

/// SIGINT of a server ends it at once, and its client is disconnected.
fn interrupted_server(testbed: &mut Testbed) -> io::Result<String> {
    let mut server = testbed.serve("rping -s -P -a {server} -v")?;
    let client = testbed.start(End::Client, "rping -c -a {server} -V")?;
    server.wait_for("server ping data", CASE_TIMEOUT)?;
    let began = Instant::now();
    server.interrupt()?;
    let server = server.finish(CASE_TIMEOUT)?;
    if server.status.is_none() {
        return Err(failure("the server did not end"));
    }
    let client = client.finish(Duration::from_secs(20))?;
    if client.status.is_none() {
        return Err(failure("the client did not notice the end of the server"));
    }
    expect_text(&client.output, "DISCONNECT EVENT")?;
    Ok(format!("the client ended after {:.1} s", began.elapsed().as_secs_f32()))
}

fn killed_client(testbed: &mut Testbed) -> io::Result<String> {
    let mut server = testbed.serve("rping -s -a {server} -v")?;
    let client = testbed.start(End::Client, "rping -c -a {server} -V")?;
    server.wait_for("server ping data", CASE_TIMEOUT)?;
    drop(client);
    notices_death(server, "server DISCONNECT EVENT")
}

fn killed_server(testbed: &mut Testbed) -> io::Result<String> {
    let mut server = testbed.serve("rping -s -a {server} -v")?;
    let client = testbed.start(End::Client, "rping -c -a {server} -V")?;
    server.wait_for("server ping data", CASE_TIMEOUT)?;
    drop(server);
    notices_death(client, "client DISCONNECT EVENT")
}

/// Expects that an end is soon told that the other has just been killed, and ends.
fn notices_death(mut survivor: Running, printed: &str) -> io::Result<String> {
    let began = Instant::now();
    survivor.wait_for(printed, Duration::from_secs(20))?;
    let elapsed = began.elapsed();
    if elapsed > DEATH_NOTICED {
        return Err(failure(format!("DISCONNECTED only after {:.1} s", elapsed.as_secs_f32())));
    }
    if survivor.finish(CASE_TIMEOUT)?.status.is_none() {
        return Err(failure("the survivor did not end"));
    }
    Ok(format!("DISCONNECTED after {} ms", elapsed.as_millis()))
}

/// A port without a listener.
fn refused(testbed: &mut Testbed) -> io::Result<String> {
    let server = testbed.serve("rping -s -P -a {server} -p 7175")?;
    let began = Instant::now();
    let client = testbed.run(End::Client, "rping -c -a {server} -C 1", CASE_TIMEOUT)?;
    if client.status.is_none_or(|status| status.success()) {
        return Err(failure("the client did not fail"));
    }
    expect_text(&client.output, "RDMA_CM_EVENT_REJECTED")?;
    drop(server);
    Ok(format!("REJECTED after {:.1} s", began.elapsed().as_secs_f32()))
}

/// Option -q: a queue pair of `ibv_create_qp`, whose states the program changes.
fn self_created_qp(testbed: &mut Testbed) -> io::Result<String> {
    let [server, client] = testbed.run_pair(
        "rping -s -q -a {server} -V -C 5",
        "rping -c -q -a {server} -V -C 5",
        CASE_TIMEOUT,
    )?;
    expect_success("rping", server)?;
    expect_success("rping", client)?;
    Ok("5 rounds over queue pairs of ibv_create_qp".into())
}
