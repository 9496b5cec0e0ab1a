//! perftest with rdma_cm (`-R`): each tool, and each tool with each option.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use crate::interop::case::failure;
use crate::interop::testbed::program_error;
use crate::process::Running;
use crate::verbs::case::{CASE_TIMEOUT, Case};
use crate::verbs::testbed::{End, Testbed, expect_success, expect_text, one_line};

/// Timeout of a run; of one over all sizes, up to 8 MiB, `ALL_TIMEOUT`.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);
const ALL_TIMEOUT: Duration = Duration::from_secs(180);

const TOOLS: [&str; 8] = [
    "ib_write_bw",
    "ib_read_bw",
    "ib_send_bw",
    "ib_atomic_bw",
    "ib_write_lat",
    "ib_read_lat",
    "ib_send_lat",
    "ib_atomic_lat",
];

/// Options of a row.
struct Options {
    name: &'static str,
    /// Options of both ends.
    both: &'static str,
    /// Tools that are part of the quick matrix with it.
    quick: &'static [&'static str],
}

const OPTIONS: [Options; 16] = [
    Options { name: "plain", both: "-n 1000", quick: &TOOLS },
    Options { name: "all-sizes", both: "-a -n 20", quick: &[] },
    Options { name: "8-mib", both: "-s 8388608 -n 10", quick: &[] },
    Options { name: "bidirectional", both: "-b -n 1000", quick: &["ib_write_bw", "ib_send_bw"] },
    Options { name: "16-queue-pairs", both: "-q 16 -n 200", quick: &["ib_read_bw", "ib_send_bw"] },
    Options { name: "both-16", both: "-q 16 -b -n 200", quick: &[] },
    Options { name: "events", both: "-e -n 500", quick: &["ib_send_bw", "ib_read_lat"] },
    Options { name: "inline", both: "-I 64 -s 64 -n 1000", quick: &["ib_send_lat"] },
    Options { name: "list", both: "-l 32 -n 640", quick: &["ib_write_bw"] },
    Options { name: "cq-mod", both: "-Q 10 -n 1000", quick: &["ib_send_bw"] },
    Options { name: "mtu", both: "-m 1024 -n 500", quick: &["ib_write_bw"] },
    Options { name: "duration", both: "-D 1", quick: &["ib_read_bw"] },
    Options { name: "send-depth", both: "-t 16 -n 500", quick: &[] },
    Options { name: "depths", both: "-t 16 -r 64 -n 500", quick: &[] },
    Options { name: "shared-receives", both: "--use-srq -n 500", quick: &["ib_send_bw"] },
    Options { name: "odd-size", both: "-s 65521 -n 200", quick: &[] },
];

/// What a tool prints when it refuses an option of ours itself.
const REFUSALS: [&str; 14] = [
    "Bidirectional is only available in BW test",
    "Events feature not available on",
    "Inline feature not available on",
    "Message size cannot be changed for Atomic tests",
    "Multiple QPs only available on bw tests",
    "On RDMA verbs rx depth can be only 1",
    "Post list is supported in BW tests only",
    "Using SRQ only avav", // as it spells it
    "is Available only on Latency tests",
    "run_infinitely exists only in BW tests",
    "Invalid Command or flag",
    "unrecognized option",
    "invalid option",
    "not supported by this test",
];

/// Returns the cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for options in &OPTIONS {
        for tool in TOOLS {
            let name = format!("perftest/{tool}/{}", options.name);
            let case = Case::new(name, move |testbed| measure(testbed, tool, options.both));
            cases.push(case.quick(options.quick.contains(&tool)));
        }
    }
    for tool in TOOLS {
        let is_quick = tool == "ib_write_bw";
        let name = format!("perftest/{tool}/run-infinitely");
        cases.push(Case::new(name, move |testbed| infinite(testbed, tool)).quick(is_quick));
        let name = format!("perftest/{tool}/json");
        cases.push(Case::new(name, move |testbed| json(testbed, tool)).quick(is_quick));
    }
    cases
}

/// A server that listens, or the refusal of a tool that does not take these options on any device.
enum Served {
    Listens(Running),
    Refuses(String),
}

fn serve(testbed: &mut Testbed, line: &str) -> io::Result<Served> {
    match testbed.serve(line) {
        Ok(server) => Ok(Served::Listens(server)),
        // The options are checked before the device is opened.
        Err(error) => refusal(&error.to_string()).map(Served::Refuses).ok_or(error),
    }
}

fn refusal(output: &str) -> Option<String> {
    let reason = |line: &str| REFUSALS.iter().find_map(|text| line.find(text));
    let mut lines = output.lines();
    lines.find_map(|line| Some(format!("refused by the tool: {}", line[reason(line)?..].trim())))
}

/// Runs a tool at both ends, which must print a line of figures.
fn measure(testbed: &mut Testbed, tool: &str, options: &str) -> io::Result<String> {
    let timeout = if options.starts_with("-a ") { ALL_TIMEOUT } else { RUN_TIMEOUT };
    match run(testbed, &format!("{tool} -R -F {options}"), timeout)? {
        Measured::Refused(refusal) => Ok(refusal),
        Measured::Figures(figures) => Ok(format!("{options}: {figures}")),
    }
}

/// Outcome of a run.
enum Measured {
    Figures(String),
    Refused(String),
}

/// Runs a command line as the server, and with an address as the client.
fn run(testbed: &mut Testbed, line: &str, timeout: Duration) -> io::Result<Measured> {
    let server = match serve(testbed, line)? {
        Served::Listens(server) => server,
        Served::Refuses(refusal) => return Ok(Measured::Refused(refusal)),
    };
    let client = testbed.run(End::Client, &format!("{line} {{server}}"), timeout)?;
    let server = server.finish(CASE_TIMEOUT)?;
    let [client, server] = [client, server].map(|result| expect_success(line, result));
    let (client, server) = match (client, server) {
        (Ok(client), Ok(server)) => (client, server),
        (Err(client), Err(server)) => {
            return Err(failure(format!("{client}; the server: {server}")));
        }
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    if let Some(line) = client.lines().chain(server.lines()).find(|line| is_complaint(line)) {
        return Err(failure(format!("it prints: {line}")));
    }
    let figures = figures(&client).ok_or_else(|| failure("no line of figures"))?;
    Ok(Measured::Figures(figures))
}

/// Runs until a signal: the client prints figures at each interval, and SIGINT ends it. The server,
/// which waits for the end of a run, is ended in the same way.
fn infinite(testbed: &mut Testbed, tool: &str) -> io::Result<String> {
    let line = format!("{tool} -R -F --run_infinitely -D 1");
    let server = match serve(testbed, &line)? {
        Served::Listens(server) => server,
        Served::Refuses(refusal) => return Ok(refusal),
    };
    let mut client = testbed.start(End::Client, &format!("{line} {{server}}"))?;
    let prints = |client: &Running| client.output().is_ok_and(|out| figures(&out).is_some());
    let deadline = Instant::now() + CASE_TIMEOUT;
    while !prints(&client) {
        if Instant::now() > deadline || client.has_exited()? {
            return Err(failure(format!("no figures: {}", one_line(&client.output()?))));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    client.interrupt()?;
    let client = client.finish(CASE_TIMEOUT)?;
    let by_signal = client.status.and_then(|status| status.signal());
    if by_signal != Some(2) {
        return Err(program_error(tool, &client));
    }
    server.interrupt()?;
    let server = server.finish(CASE_TIMEOUT)?;
    if server.status.is_none() {
        return Err(failure("the server did not end"));
    }
    Ok(format!("ended by SIGINT after: {}", figures(&client.output).unwrap_or_default()))
}

/// The report in a file, which has to be JSON if the tool can write it.
fn json(testbed: &mut Testbed, tool: &str) -> io::Result<String> {
    let help = testbed.run(End::Client, &format!("{tool} --help"), CASE_TIMEOUT)?.output;
    if !help.contains("--out_json") {
        return Ok("refused by the tool: it has no --out_json".into());
    }
    let report = testbed.shared_folder().join(format!("{tool}.json"));
    let line = format!("{tool} -R -F -n 1000 --out_json --out_json_file={}", report.display());
    if let Measured::Refused(refusal) = run(testbed, &line, RUN_TIMEOUT)? {
        return Ok(refusal);
    }
    let text = fs::read_to_string(&report)?;
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(&text) {
        let results = value.get("results").ok_or_else(|| failure("the report has no results"))?;
        return Ok(format!("results: {results}"));
    }
    // The report of perftest 4.5: keys and words have no quotation marks.
    for part in ["results: {", "MsgSize: ", "n_iterations: 1000"] {
        expect_text(&text, part)?;
    }
    Ok("as the tool writes it, which is not JSON: its keys have no quotation marks".into())
}

/// True for lines that a tool prints when something went wrong, whatever its exit status.
fn is_complaint(line: &str) -> bool {
    ["Couldn't", "Failed", "failed", "Unable", "Completion with error", "ferrowarp:"]
        .iter()
        .any(|word| line.contains(word))
}

/// Returns the last line that consists of numbers, with one blank between them.
fn figures(output: &str) -> Option<String> {
    let numbers = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.len() >= 4 && words.iter().all(|word| word.parse::<f64>().is_ok())
    };
    let line = output.lines().rfind(numbers)?;
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}
