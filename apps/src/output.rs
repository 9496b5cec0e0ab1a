//! Standard output and standard error: the only place of the programs that writes to them.
//!
//! A write that fails never panics. It ends the run of a client; a server goes on, because others
//! need it. A pipe without a reader (`| head`) is not worth a message, any other failure is.
//!
//! A server's lines are written by a thread: nobody waits for a reader who pauses (`| less`).

use std::io::{self, Write as _};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::stop::{self, Stop};

/// Texts of a server that wait to be written, at most. More are dropped.
const QUEUE_LEN: usize = 1024;

/// Owner of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Role {
    /// A client's: a failure ends the run.
    #[default]
    Client,
    /// A server's: a failure is reported at once, and the server goes on.
    Server,
}

#[derive(Default)]
struct Output {
    /// Name of the program.
    name: &'static str,
    role: Role,
    /// Standard output is for a file that was asked for; text goes to standard error.
    is_taken: bool,
    /// First failure. Nothing is written to standard output after it.
    failure: Option<io::Error>,
    /// Texts for a server's thread, and the thread.
    printer: Option<(SyncSender<String>, JoinHandle<()>)>,
    /// Texts that were dropped.
    dropped: u64,
}

static OUTPUT: Mutex<Output> = Mutex::new(Output {
    name: "",
    role: Role::Client,
    is_taken: false,
    failure: None,
    printer: None,
    dropped: 0,
});

fn output() -> MutexGuard<'static, Output> {
    OUTPUT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the name of the program, with which messages begin.
pub fn set_name(name: &'static str) {
    output().name = name;
}

/// Leaves standard output to a file that was asked for: from now on text goes to standard error.
pub fn take_stdout() {
    output().is_taken = true;
}

/// Prints lines to standard output. A server drops them while nobody reads those before them.
pub fn print(lines: &str) {
    let mut output = output();
    if output.failure.is_some() {
        return;
    }
    let text = format!("{lines}\n");
    match &output.printer {
        Some((texts, _)) => output.dropped += u64::from(texts.try_send(text).is_err()),
        None => {
            let written = write_text(&text, output.is_taken);
            output.note(written);
        }
    }
}

/// Prints the first line of a server, which serves whatever happens to its output later.
///
/// # Errors
/// If standard output cannot be written, except if it is a pipe without a reader.
pub fn announce(line: &str) -> Result<(), Stop> {
    output().role = Role::Server;
    print(line);
    let mut output = output();
    match &output.failure {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Stop::Output),
        _ => {
            // Without a thread this one writes.
            output.printer = start_printer(output.is_taken).ok();
            Ok(())
        }
    }
}

/// Starts the thread that writes a server's texts.
fn start_printer(is_taken: bool) -> io::Result<(SyncSender<String>, JoinHandle<()>)> {
    let (sender, texts) = sync_channel::<String>(QUEUE_LEN);
    let write = move || {
        for text in texts {
            let written = write_text(&text, is_taken);
            let has_failed = written.is_err();
            note(written);
            if has_failed {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("printer".into()).spawn(write)?;
    Ok((sender, thread))
}

/// Waits until a server's texts are written. To be called at its end.
pub fn flush() {
    let printer = output().printer.take();
    if let Some((texts, thread)) = printer {
        drop(texts);
        let _ = thread.join();
    }
    let output = output();
    if output.dropped > 0 && output.failure.is_none() {
        output.complain(&format!("{} texts were not printed: nobody read them", output.dropped));
    }
}

/// Records the outcome of a write to standard output that was not [`print()`]'s.
pub fn note(written: io::Result<()>) {
    output().note(written);
}

/// Prints a message, which begins with the program's name, to standard error.
pub fn complain(message: &str) {
    output().complain(message);
}

/// True unless standard output failed, and the program with it. Reports a failure that has not been
/// reported.
#[must_use]
pub fn is_written() -> bool {
    let output = output();
    let Some(error) = &output.failure else { return true };
    let is_pipe = error.kind() == io::ErrorKind::BrokenPipe;
    if output.role == Role::Server {
        return is_pipe;
    }
    if !is_pipe {
        output.complain(&failure_text(error));
    }
    false
}

impl Output {
    fn note(&mut self, written: io::Result<()>) {
        let Err(error) = written else { return };
        match self.role {
            Role::Client => stop::request(Stop::Output),
            Role::Server if error.kind() == io::ErrorKind::BrokenPipe => {}
            Role::Server => self.complain(&failure_text(&error)),
        }
        self.failure.get_or_insert(error);
    }

    fn complain(&self, message: &str) {
        write_stderr(&format!("{}: {}\n", self.name, message.replace('\n', " ")));
    }
}

fn failure_text(error: &io::Error) -> String {
    format!("cannot write to standard output: {error}")
}

/// Writes a text to standard output, or to standard error if the former is taken.
fn write_text(text: &str, is_taken: bool) -> io::Result<()> {
    if is_taken {
        write_stderr(text);
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
}

/// Writes all of a message at once. Where standard error fails there is no place to say so.
fn write_stderr(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
