//! The stack on queues that a program in C lends, which owns the EAL and the port
//! (`tests/host_program`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use ferrowarp_tests::host_program_build::BUILD_HINT;
use ferrowarp_tests::process::{self, Running};
use ferrowarp_tests::skip;

const TIMEOUT: Duration = Duration::from_secs(120);

/// The compiled program; `None` without the library that it links.
fn host_program() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| ferrowarp_tests::host_program_build::build().unwrap());
    if built.is_none() {
        skip(BUILD_HINT);
    }
    built.as_deref()
}

/// The program, without arguments. Its EAL keeps its runtime folder below `folder`: whoever starts
/// an EAL has to remove that, which DPDK does not.
fn command(folder: &Path) -> Option<Command> {
    let mut command = Command::new(host_program()?);
    command.env("RUNTIME_DIRECTORY", folder);
    Some(command)
}

fn run(arguments: &[&str]) -> Option<String> {
    let folder = process::temp_dir().unwrap();
    let ended = process::run(command(folder.path())?.args(arguments), TIMEOUT).unwrap();
    assert!(ended.success(), "{:?}: {}", ended.status, ended.output);
    assert!(ended.output.ends_with("host: done\n"), "{}", ended.output);
    Some(ended.output)
}

#[test]
fn contexts_on_lent_queues_leave_the_program_everything() {
    let Some(output) = run(&["rings"]) else { return };
    let refused: Vec<_> =
        output.lines().filter_map(|line| line.strip_prefix("refused: ")).collect();
    let expected = [
        "call rte_eal_init before",
        "the port is not started (start it first)",
        "the port has no queue 3",
        "the objects of the mempool are not mbufs",
        "queue 2 is open already",
    ];
    assert_eq!(refused.len(), expected.len(), "{output}");
    for (line, expected) in refused.iter().zip(expected) {
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn redirection_table_of_the_program_is_read() {
    let Some(output) = run(&["rss"]) else { return };
    let lines: Vec<_> = output.lines().filter(|line| line.starts_with("steering: ")).collect();
    let [matching, others] = lines[..] else { panic!("{output}") };
    // Queues 2 and 3 are the first and the second of the context.
    assert!(matching.contains("Predicted"), "{matching}");
    assert!(matching.contains("table: [0, 1, 0, 1"), "{matching}");
    assert_eq!(others, "steering: Some(Unknown)");
}

/// An end of a memif link that is a program, with `iwperf` on its last queue pair.
fn end(role: &str, socket: &Path, queues: u16, arguments: &[&str]) -> Option<Command> {
    let mut command = command(socket.parent()?)?;
    let device = format!("port:net_memif0,queues={},mempool=stack", queues - 1);
    command.args(["memif", role]).arg(socket).args([&queues.to_string(), "--", "iwperf"]);
    command.args(arguments).args(["--dev", &device]);
    Some(command)
}

const SERVER: [&str; 4] = ["server", "--once", "--ip", "198.18.0.1/24"];
const CLIENT: [&str; 9] =
    ["write-bw", "198.18.0.1", "--verify", "-n", "500", "-s", "65536", "--ip", "198.18.0.2/24"];

fn finish(running: Running, name: &str) -> String {
    let ended = running.finish(TIMEOUT).unwrap();
    assert!(ended.success(), "{name}: {:?}: {}", ended.status, ended.output);
    ended.output
}

/// Both ends are programs with traffic of their own on the first queue pair, and the stack on the
/// second.
#[test]
fn two_programs_share_a_memif_link_with_the_stack() {
    let folder = process::temp_dir().unwrap();
    let socket = folder.path().join("memif.sock");
    let Some(mut server) = end("server", &socket, 2, &SERVER) else { return };
    let Some(mut client) = end("client", &socket, 2, &CLIENT) else { return };
    let mut server = Running::start(&mut server, folder.path().join("server.log")).unwrap();
    server.wait_for("waiting for clients", TIMEOUT).unwrap();
    let client = Running::start(&mut client, folder.path().join("client.log")).unwrap();
    for (output, name) in
        [(finish(client, "client"), "client"), (finish(server, "server"), "server")]
    {
        assert!(output.ends_with("host: done\n"), "{name}: {output}");
    }
}

/// The peer of the program's only queue pair is `iwperf` as it is.
#[test]
fn iwperf_reaches_the_stack_in_a_program() {
    let folder = process::temp_dir().unwrap();
    let socket = folder.path().join("memif.sock");
    let Some(iwperf) = process::program("iwperf") else {
        return skip("no iwperf; cargo build --profile test --bins");
    };
    let Some(mut server) = end("server", &socket, 1, &SERVER) else { return };
    let mut server = Running::start(&mut server, folder.path().join("server.log")).unwrap();
    server.wait_for("waiting for clients", TIMEOUT).unwrap();
    let mut client = Command::new(iwperf);
    client.args(CLIENT).args(["--dev", &format!("memif:{},client", socket.display())]);
    let client = process::run(&mut client, TIMEOUT).unwrap();
    assert!(client.success(), "{}", client.output);
    assert!(finish(server, "server").ends_with("host: done\n"));
}
