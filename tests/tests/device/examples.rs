//! The examples of the library, each as two processes over memif.

use std::process::Command;
use std::time::Duration;

use ferrowarp_tests::process::{self, Running};
use ferrowarp_tests::skip;

use crate::two_processes::Link;

/// A limit for what waits for an event. Nothing here takes as long, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the server and the client of an example, and expects these texts in their output. The
/// server ends with its client if it `ends`.
fn expect(name: &str, server_texts: &[&str], client_texts: &[&str], ends: bool) {
    expect_with(name, &[], server_texts, client_texts, ends);
}

/// As [`expect`], with further arguments of the server.
fn expect_with(
    name: &str,
    server_arguments: &[&str],
    server_texts: &[&str],
    client_texts: &[&str],
    ends: bool,
) {
    let Some(program) = process::program(&format!("examples/{name}")) else {
        skip(&format!("no example {name}; cargo build --profile test --examples"));
        return;
    };
    let dir = process::temp_dir().unwrap();
    let socket = dir.path().join("fw.sock");
    let start = |arguments: &[&str]| {
        let output = dir.path().join(format!("{}.log", arguments[0]));
        Running::start(Command::new(&program).args(arguments), output).unwrap()
    };
    let device = Link::Memif.server(&socket);
    let mut server = start(&[&["server", &device, "198.18.0.1"], server_arguments].concat());
    server.wait_for("listening on port 4791", TIMEOUT).unwrap();
    let device = Link::Memif.client(&socket);
    let client = start(&["client", &device, "198.18.0.2", "198.18.0.1:4791"]);
    let ended = client.finish(TIMEOUT).unwrap();
    assert!(
        ended.success() && client_texts.iter().all(|text| ended.output.contains(text)),
        "{name} client: {:?}\n{}\nserver:\n{}",
        ended.status,
        ended.output,
        server.output().unwrap()
    );
    for text in server_texts {
        server.wait_for(text, TIMEOUT).unwrap();
    }
    if ends {
        let ended = server.finish(TIMEOUT).unwrap();
        assert!(ended.success(), "{name} server: {:?}\n{}", ended.status, ended.output);
    }
}

#[test]
fn write_read_finds_what_was_written() {
    let found = ["found: written by the client", "end: the peer closed the connection"];
    let read = ["read back: written by the client", "end: the connection was closed locally"];
    expect("write_read", &found, &read, true);
}

#[test]
fn send_recv_delivers_all_messages() {
    let received = ["received 10000 messages; end: the peer closed the connection"];
    expect("send_recv", &received, &["sent 10000 messages; end: the connection was closed"], true);
}

#[test]
fn server_returns_messages_of_all_clients() {
    let left = ["a client left: the peer closed the connection"];
    expect("server", &left, &["all messages were returned"], true);
}

#[test]
fn tokio_serves_each_connection_in_a_task() {
    let (by_peer, locally) = ("end: the peer closed", "end: the connection was closed locally");
    expect("tokio", &[by_peer], &[locally], true);
}

#[test]
fn key_value_reads_whole_records() {
    let changed = ["changes; end: the peer closed the connection"];
    expect("key_value", &changed, &["10000 GETs, "], true);
}

#[test]
fn block_writes_and_reads_the_disk() {
    let dir = process::temp_dir().unwrap();
    let file = dir.path().join("disk");
    std::fs::write(&file, "X".repeat(5000)).unwrap();
    let client = ["the disk began with 'X'", "wrote and read 256 blocks; right: true"];
    let arguments = [file.to_str().unwrap()];
    expect_with("block", &arguments, &["read 5000 bytes of"], &client, false);
}
