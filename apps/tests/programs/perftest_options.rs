//! The options of perftest over a pair of rings, and between two processes.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::commands::{LoopRunner, error_line, two_cores};
use crate::shards::ServerProcess;

/// Limit for what takes a moment, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs iwperf with these arguments.
fn run(line: &str) -> Output {
    let iwperf = env!("CARGO_BIN_EXE_iwperf");
    Command::new(iwperf).args(line.split_whitespace()).output().unwrap()
}

#[test]
fn options_without_effect_change_nothing() {
    let fx = LoopRunner::new();
    let line = "send-bw -n 20 -R -z -F -N -x 3 -c RC --report_gbits";
    assert_eq!(fx.results(line)[0]["iterations"], 20);
}

/// Each number of messages also leaves a last list that is shorter, and a last message that is
/// signaled out of turn.
#[test]
fn lists_and_moderation_transfer_every_message() {
    let fx = LoopRunner::new();
    for test in ["write-bw", "read-bw", "send-bw", "atomic-bw", "write-bw --write-with-imm"] {
        let size = if test == "atomic-bw" { "" } else { "-s 3000" };
        for queues in ["-l 1", "-l 8", "-Q 1", "-Q 16", "-l 12 -Q 4", "-l 8 -q 3 -b"] {
            for verify in ["", "--verify"] {
                let line = format!("{test} {size} -n 203 -t 16 {queues} {verify}");
                let result = &fx.results(&line)[0];
                let streams = if queues.ends_with("-b") { 6 } else { 1 };
                assert_eq!(result["iterations"], 203 * streams, "{line}");
                assert_eq!(result["errors"], 0, "{line}");
            }
        }
        let line = format!("{test} {size} -D 0.1 -t 16 -Q 16");
        assert!(fx.results(&line)[0]["iterations"].as_u64() > Some(0), "{line}");
    }
    // Fewer slots than requests per signaled one.
    let line = "read-bw -s 128M -n 20 -t 16 -Q 16 --verify";
    assert_eq!(fx.results(line)[0]["bytes_verified"], 20_u64 << 27, "{line}");
}

#[test]
fn messages_are_sent_inline_up_to_a_size() {
    let fx = LoopRunner::new();
    for test in ["write-bw", "send-bw", "write-bw --write-with-imm", "write-lat", "send-lat"] {
        for size in [1, 96, 97, 256, 257] {
            let line = format!("{test} -s {size} -n 200 -t 16 -I 256 --verify");
            assert_eq!(fx.results(&line)[0]["errors"], 0, "{line}");
        }
        let line = format!("{test} -s 60 -n 200 -I 64");
        assert_eq!(fx.results(&line)[0]["iterations"], 200, "{line}");
    }
    let line = "send-bw -b -q 3 -s 200 -n 100 -t 16 -l 4 -I 200 --verify";
    assert_eq!(fx.results(line)[0]["bytes_verified"], 6 * 100 * 200, "{line}");
}

#[test]
fn sink_has_as_many_receives_as_asked_for() {
    let fx = LoopRunner::new();
    for test in ["send-bw", "send-lat", "write-bw --write-with-imm"] {
        for receives in [1, 3, 1000] {
            for verify in ["", "--verify"] {
                let line = format!("{test} -s 3000 -n 200 -t 16 -r {receives} {verify}");
                assert_eq!(fx.results(&line)[0]["errors"], 0, "{line}");
            }
        }
    }
}

/// Messages of several queue pairs take the receives in any order.
#[test]
fn sink_receives_from_a_shared_queue() {
    let fx = LoopRunner::new();
    for test in ["send-bw", "send-lat", "send-bw -q 5", "send-bw -q 3 -b", "send-bw -q 5 -r 7"] {
        let streams = match test {
            "send-bw -q 3 -b" => 6,
            _ if test.contains("-q 5") => 5,
            _ => 1,
        };
        for verify in ["", "--verify"] {
            let line = format!("{test} -s 3000 -n 200 -t 16 --use-srq {verify}");
            let result = &fx.results(&line)[0];
            assert_eq!(
                (&result["iterations"], &result["errors"]),
                (&(200 * streams).into(), &0.into())
            );
        }
    }
    let line = "send-bw -a -q 2 -n 5 -t 4 --use-srq --verify";
    assert_eq!(fx.results(line).len(), 23);
}

#[test]
fn both_ends_sleep_while_nothing_completes() {
    let fx = LoopRunner::new();
    let two = two_cores();
    let one = two.split(',').next().unwrap();
    for test in [
        "write-bw",
        "read-bw",
        "send-bw",
        "atomic-bw",
        "read-lat",
        "send-lat",
        "atomic-lat",
        "send-bw -q 3 -b",
        "write-bw -l 4 -Q 4",
        "send-bw -q 3 --use-srq",
        "write-bw --write-with-imm",
        "send-bw -D 0.2",
        "send-lat -D 0.2",
    ] {
        for (cores, verify) in [(one, "--verify"), (&two, "")] {
            let count = if test.contains("-D") { "" } else { "-n 200" };
            let line = format!("{test} {count} -t 16 -e --cores {cores} {verify}");
            let result = &fx.results(&line)[0];
            assert_eq!(result["errors"], 0, "{line}");
            assert!(result["iterations"].as_u64() >= Some(2), "{line}: {result}");
        }
    }
    let line = format!("send-bw --shards 2 -q 4 -n 200 -e --verify --cores {two}");
    assert_eq!(fx.results(&line)[0]["iterations"], 800);
}

/// Runs a client and a server with `--once` over memif; returns the client's output, and whether
/// the server succeeded.
fn two_processes(fx: &LoopRunner, server: &str, client: &str) -> (Output, bool) {
    let (test, options) = client.split_once(' ').unwrap();
    let socket = fx.path("fw.sock");
    let _ = std::fs::remove_file(&socket);
    let socket = socket.display();
    let mut server = ServerProcess::start(&format!(
        "server --once {server} --dev memif:{socket},server --ip 198.18.0.1/24 --timeout 60"
    ));
    let line = format!(
        "{test} 198.18.0.1 {options} --dev memif:{socket},client --ip 198.18.0.2/24 --timeout 60"
    );
    let output = run(&line);
    (output, server.wait())
}

#[test]
fn options_hold_at_both_ends_of_two_processes() {
    let fx = LoopRunner::new();
    for (server, client) in [
        ("-e", "send-bw -e -q 3 -s 3000 -n 200 -t 16 --use-srq --verify"),
        ("-e", "send-bw -e -q 2 -b -s 200 -n 200 -t 16 -l 4 -I 256 --verify"),
        ("-e", "send-lat -e -n 200 --use-srq"),
        ("-e", "read-lat -e -n 200"),
        ("-e", "write-bw -n 200"),
        ("", "send-bw -q 3 -n 200 --use-srq -r 60 -Q 10"),
    ] {
        let (output, has_served) = two_processes(&fx, server, client);
        assert!(output.status.success() && has_served, "{client}: {output:?}");
    }
    let (output, has_served) = two_processes(&fx, "", "send-bw -e -n 200");
    let error = error_line(&output);
    assert!(error.ends_with("start the server with -e too"), "{error}");
    assert!(!output.status.success() && !has_served);
}

/// Messages and rate of a line of the table.
fn figures(line: &str) -> (u64, f64) {
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words.len(), 5, "{line}");
    (words[1].parse().unwrap(), words[4].parse().unwrap())
}

/// A program with the lines that it prints, killed on drop.
struct Printing {
    child: Child,
    lines: Receiver<String>,
}

impl Printing {
    fn start(line: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_iwperf"))
            .args(line.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    /// Returns the next line; `None` at the end.
    fn next_line(&self) -> Option<String> {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("it prints nothing"),
        }
    }

    /// Returns lines of figures: `count` of them, or all if there are fewer.
    fn next_figures(&self, count: usize) -> Vec<(u64, f64)> {
        let lines = std::iter::from_fn(|| self.next_line());
        let is_table = |line: &String| line.starts_with(" 4096 ");
        lines.filter(is_table).map(|line| figures(&line)).take(count).collect()
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Interrupts a client after three intervals with messages, and checks these and its result.
fn interrupt_after_three_lines(line: &str) {
    let mut program = Printing::start(line);
    // On a busy machine an interval may have none.
    let mut messages_of_intervals = 0;
    for _ in 0..3 {
        let (messages, rate) = loop {
            let next = program.next_figures(1);
            let &(messages, rate) = next.first().expect("the run goes on");
            if messages > 0 {
                break (messages, rate);
            }
        };
        assert!(rate > 0.0, "{line}");
        messages_of_intervals += messages;
    }
    let pid = Pid::from_raw(program.child.id().try_into().unwrap());
    nix::sys::signal::kill(pid, Signal::SIGINT).unwrap();
    let all = program.next_figures(usize::MAX);
    let (messages, _) = *all.last().unwrap();
    assert!(messages >= messages_of_intervals, "{line}: {messages}");
    assert!(program.child.wait().unwrap().success(), "{line}");
}

#[test]
fn endless_run_ends_with_its_result_after_a_signal() {
    let fx = LoopRunner::new();
    let report = fx.path("report.json");
    let two = two_cores();
    for test in ["write-bw -l 8", "send-bw -q 2 -b", "read-bw -Q 16 --shards 2", "send-bw -e"] {
        interrupt_after_three_lines(&format!(
            "loop {test} -s 4K -t 16 --run_infinitely -i 0.05 --verify --cores {two} --json {}",
            report.display()
        ));
        let text = std::fs::read_to_string(&report).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let result = &value["results"][0];
        assert_eq!((&value["failure"], &result["errors"]), (&().into(), &0.into()), "{test}");
    }
    // The active half of the server ends with the client's.
    let socket = fx.path("fw.sock");
    let socket = socket.display();
    let mut server = ServerProcess::start(&format!(
        "server --once --dev memif:{socket},server --ip 198.18.0.1/24 --timeout 60"
    ));
    interrupt_after_three_lines(&format!(
        "write-bw 198.18.0.1 -s 4K -b --run_infinitely -D 0.05 --dev memif:{socket},client \
         --ip 198.18.0.2/24 --timeout 60"
    ));
    assert!(server.wait());
}

#[test]
fn run_prints_a_line_for_each_interval() {
    let _fx = LoopRunner::new();
    let program = Printing::start("loop write-bw -s 4K -D 0.5 -i 0.1");
    let lines = program.next_figures(usize::MAX);
    // A busy machine may skip most.
    assert!(lines.len() > 1, "{lines:?}");
    let (total, intervals) = lines.split_last().unwrap();
    assert!(total.0 >= intervals.iter().map(|line| line.0).sum());
}

#[test]
fn contradictions_name_a_remedy() {
    let _fx = LoopRunner::new();
    for (line, expected) in [
        ("write-bw -t 16 -l 17", "give -t 17 or more, or a smaller -l"),
        ("write-bw -t 16 -Q 17", "give -t 17 or more, or a smaller -Q"),
        ("write-bw -l 16 -Q 5", "let one be a multiple of the other"),
        ("send-bw --verify -l 128", "use -l 97 or less"),
        ("send-lat -l 4", "-l needs a bandwidth test"),
        ("read-bw -I 64", "omit -I"),
        ("write-bw --use-srq", "--use-srq needs send-bw or send-lat"),
        ("send-bw -q 4 --use-srq -r 3", "give -r 4 or more"),
        ("write-lat --run_infinitely", "--run_infinitely needs a bandwidth test"),
        ("send-lat -i 1 -D 1", "-i needs a bandwidth test"),
        ("write-bw --run_infinitely -i 1 -D 1", "give -i or -D"),
        ("write-lat -e", "write-lat polls memory"),
        ("send-lat -e -r 1", "needs two receives"),
        ("send-lat -e -t 1 --verify", "needs two receives"),
        ("write-bw -r 64", "-r needs a test that consumes receives"),
        ("write-bw -c UD", "possible values: RC"),
    ] {
        let output = run(&format!("loop {line}"));
        assert_eq!(output.status.code(), Some(2), "{line}: {output:?}");
        let error = error_line(&output);
        assert!(error.contains(expected), "{line}: {error}");
    }
}
