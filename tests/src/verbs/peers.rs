//! Stock `rping` against our `iwping`, which uses the API of the runtime.

use std::io;
use std::process::Command;

use crate::interop::case::failure;
use crate::interop::testbed::program_error;
use crate::process::program;
use crate::verbs::case::{CASE_TIMEOUT, Case};
use crate::verbs::testbed::{End, Testbed, expect_success, expect_text};

/// Returns the cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("peers/rping-to-iwping", |testbed| rping_to_iwping(testbed, "{server}"))
            .quick(true),
        Case::new("peers/iwping-to-rping", |testbed| iwping_to_rping(testbed, "{server}"))
            .quick(true),
        Case::new("peers/rping-to-iwping/ipv6", |testbed| rping_to_iwping(testbed, "{server6}")),
        Case::new("peers/iwping-to-rping/ipv6", |testbed| iwping_to_rping(testbed, "{server6}")),
    ]
}

fn iwping(testbed: &Testbed, end: End, line: &str) -> io::Result<Command> {
    let path = program("iwping").ok_or_else(|| failure("iwping was not built"))?;
    let mut command = Command::new(path);
    command.args(testbed.words(line)).args(testbed.device_options(end));
    Ok(command)
}

fn rping_to_iwping(testbed: &mut Testbed, server: &str) -> io::Result<String> {
    let mut command = iwping(testbed, End::Server, "server -v --timeout 60")?;
    let mut running = testbed.serve_command(&mut command)?;
    running.wait_for("waiting for clients", CASE_TIMEOUT)?;
    let client = format!("rping -c -V -a {server} -S 4096 -C 50");
    testbed.run_ok(End::Client, &client, CASE_TIMEOUT)?;
    let output = expect_success("iwping", running.finish(CASE_TIMEOUT)?)?;
    let served = output.lines().filter(|line| line.starts_with("server ping")).count();
    if served == 50 {
        Ok("50 rounds of 4096".into())
    } else {
        Err(failure(format!("{served} of 50")))
    }
}

fn iwping_to_rping(testbed: &mut Testbed, server: &str) -> io::Result<String> {
    let running = testbed.serve(&format!("rping -s -a {server} -S 4096"))?;
    let line = format!("client {server} -V -S 4096 -C 50 --timeout 60");
    let mut command = iwping(testbed, End::Client, &line)?;
    let client = testbed.start_command(End::Client, &mut command)?.finish(CASE_TIMEOUT)?;
    if !client.success() {
        return Err(program_error("iwping", &client));
    }
    expect_text(&client.output, "50 rounds of 4096 bytes, every byte verified")?;
    expect_success("rping", running.finish(CASE_TIMEOUT)?)?;
    Ok("50 rounds of 4096".into())
}
