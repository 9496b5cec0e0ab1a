//! `iwarp-run`: starts an unmodified verbs program on ferrowarp.
//!
//! It checks the [settings](ferrowarp_settings), prepares the environment in which the dynamic
//! loader finds our `libibverbs.so.1` and `librdmacm.so.1`, and replaces itself by the program
//! (`execve`). So no parent process exists: signals, job control and the exit status are the
//! program's own.
//!
//! | Module | Purpose |
//! |---|---|
//! | [`options`] | Command line, made from the list of settings |
//! | [`library`] | Folder of the libraries |
//! | [`program_file`] | The program: search, and reasons why the loader would ignore us |
//! | [`variables`] | Variables of the program's environment |
//! | [`interface`] | `--iface` and `--netns` |

pub mod failure;
pub mod interface;
pub mod library;
mod netlink;
pub mod options;
pub mod program_file;
mod system_calls;
pub mod variables;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use ferrowarp_settings::{Settings, misspelled};

use crate::failure::Failure;
use crate::options::{Options, Parsed};
use crate::variables::Variable;

/// Runs `iwarp-run` with this command line. Returns only if the program was not started: with the
/// status of a failure, or after printing what was requested.
#[must_use]
pub fn run_program(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let done = match Options::parse(arguments) {
        Ok(Parsed::Options(options)) => run(*options),
        Ok(Parsed::Text(text)) => print(text.as_bytes()),
        Err(failure) => Err(failure),
    };
    done.map_or_else(
        |failure| {
            complain(&failure.about);
            ExitCode::from(failure.status)
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Prints a line on standard error. If that fails nobody is there to be told.
fn complain(about: &str) {
    let _ = writeln!(io::stderr(), "iwarp-run: {about}");
}

fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(text).and_then(|()| out.flush());
    printed.map_err(|error| Failure::own(format!("standard output: {error}")))
}

/// Starts the program; returns without an error only if the environment was printed.
fn run(options: Options) -> Result<(), Failure> {
    let settings = options.settings()?;
    warn_of_misspelled_variables();
    let folder = library::find(options.library.as_deref())?;
    let variables = variables::of(&options, &folder)?;
    let Some((name, arguments)) = options.command.split_first() else {
        return print(&variables::shell_text(&variables));
    };
    let path = program_file::find(name, env::var_os("PATH").as_deref())?;
    program_file::check(&path)?;
    prepare_network(&options, &settings)?;
    Err(execute(&path, name, arguments, variables))
}

fn warn_of_misspelled_variables() {
    let names = env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    for found in misspelled(names) {
        complain(&format!("{} is no setting: do you mean {}?", found.variable, found.meant));
    }
}

fn prepare_network(options: &Options, settings: &Settings) -> Result<(), Failure> {
    interface::check_device(options, &settings.device)?;
    if options.netns {
        interface::enter_namespace()?;
    }
    let addresses = settings.addresses.iter().map(|own| own.ip);
    options.iface.iter().try_for_each(|name| interface::create(name, addresses.clone()))
}

/// Replaces this process by the program; returns the reason if that fails.
fn execute(
    path: &std::path::Path,
    name: &OsStr,
    arguments: &[OsString],
    variables: Vec<Variable>,
) -> Failure {
    let variables = variables.into_iter().map(|variable| (variable.name, variable.value));
    let error = Command::new(path).arg0(name).args(arguments).envs(variables).exec();
    Failure::of_exec(path, &error)
}
