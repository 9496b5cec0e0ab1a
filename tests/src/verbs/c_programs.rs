//! Programs of ours in C (`tests/verbs`). Each has a list of checks, and exits with 1 if one fails.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::interop::case::failure;
use crate::interop::testbed::last_line;
use crate::process;
use crate::verbs::case::{CASE_TIMEOUT, Case};
use crate::verbs::testbed::{End, Testbed, expect_text, one_line};
use crate::workspace;

/// Timeout of a program, and of compiling one.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);

/// A program that needs no peer.
struct Checklist {
    name: &'static str,
    line: &'static str,
    is_quick: bool,
}

const CHECKLISTS: [Checklist; 6] = [
    Checklist { name: "bad-input/verbs", line: "{bin}/bad_input", is_quick: true },
    Checklist { name: "bad-input/rdma_cm", line: "{bin}/bad_input_cm", is_quick: true },
    Checklist { name: "process/surroundings", line: "{bin}/surroundings", is_quick: true },
    Checklist { name: "process/dlopen-dlclose", line: "{bin}/dlopen_close", is_quick: true },
    Checklist { name: "threads/one-queue-pair", line: "{bin}/threads", is_quick: true },
    Checklist {
        name: "threads/without-membarrier",
        line: "{bin}/no_membarrier {bin}/threads",
        is_quick: false,
    },
];

/// A way in which a client ends, and the messages that the server must have received. An end
/// without `exit` promises none.
struct Ending {
    how: &'static str,
    received: Option<u32>,
    /// The client exits with 0.
    succeeds: bool,
    is_quick: bool,
}

const ENDINGS: [Ending; 7] = [
    Ending { how: "exit", received: Some(16), succeeds: true, is_quick: true },
    Ending { how: "_exit", received: None, succeeds: true, is_quick: true },
    Ending { how: "kill", received: None, succeeds: false, is_quick: true },
    Ending { how: "abort", received: None, succeeds: false, is_quick: false },
    Ending { how: "fork", received: Some(2), succeeds: true, is_quick: true },
    Ending { how: "system", received: Some(2), succeeds: true, is_quick: true },
    Ending { how: "daemon", received: Some(2), succeeds: true, is_quick: true },
];

/// Returns the cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    let checklists = CHECKLISTS.iter().map(|list| {
        Case::new(list.name, |testbed| {
            let result = testbed.run(End::Server, list.line, PROGRAM_TIMEOUT)?;
            if result.success() {
                return Ok(last_line(&result.output).to_owned());
            }
            Err(failure(format!("{:?}: {}", result.status, one_line(&result.output))))
        })
        .quick(list.is_quick)
    });
    let endings = ENDINGS.iter().map(|ending| {
        Case::new(format!("ending/{}", ending.how), |testbed| end(testbed, ending))
            .quick(ending.is_quick)
    });
    checklists.chain(endings).collect()
}

/// Compiles all programs into the folder `into`.
///
/// # Errors
/// With what the compiler prints.
pub fn compile(into: &Path) -> io::Result<()> {
    fs::create_dir_all(into)?;
    for file in fs::read_dir(workspace::root().join("tests/verbs"))? {
        let source = file?.path();
        if source.extension().is_none_or(|extension| extension != "c") {
            continue;
        }
        let program = into.join(source.file_stem().unwrap_or_default());
        let mut command = Command::new("cc");
        command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-Wl,--as-needed", "-o"]);
        command.args([&program, &source]).args(["-lrdmacm", "-libverbs", "-lpthread", "-lm"]);
        let result = process::run(&mut command, PROGRAM_TIMEOUT)?;
        if !result.success() {
            return Err(failure(format!("{}: {}", source.display(), result.output.trim())));
        }
    }
    Ok(())
}

fn end(testbed: &mut Testbed, ending: &Ending) -> io::Result<String> {
    let server = testbed.serve("{bin}/ending server")?;
    let line = format!("{{bin}}/ending {} {{server}}", ending.how);
    let client = testbed.run(End::Client, &line, PROGRAM_TIMEOUT)?;
    if client.success() != ending.succeeds || client.status.is_none() {
        return Err(failure(format!("{:?}: {}", client.status, one_line(&client.output))));
    }
    let server = server.finish(CASE_TIMEOUT)?;
    let received = ending.received.map_or(String::new(), |count| format!("received {count}"));
    expect_text(&server.output, &format!("{received}, then disconnected"))?;
    Ok(last_line(&server.output).to_owned())
}
