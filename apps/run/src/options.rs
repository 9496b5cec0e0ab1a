//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use ferrowarp_settings::{Origin, SETTINGS, Setting, Settings, SettingsBuilder};

use crate::failure::Failure;

/// Heading of the options that are no settings.
const RUN_HEADING: &str = "Running";

const ABOUT: &str = "Starts a verbs program on ferrowarp, iWARP in user space";

const LONG_ABOUT: &str = "\
Starts an unmodified verbs program, such as rping or ib_write_bw, on ferrowarp: iWARP in user
space. The program loads ferrowarp's libibverbs.so.1 and librdmacm.so.1 instead of the system's.

The settings come from a TOML file (--config, or else FERROWARP_CONFIG), from FERROWARP_*
variables, and from the options below; later ones override earlier ones. In the file the names
are those of the options without hyphens in front, but `device` for --dev and `address` for --ip.";

const EXAMPLES: &str = "\
Two ends on one machine, over shared memory, without privileges:

  iwarp-run --dev memif:/tmp/fw.sock,server --ip 198.18.0.1/24 rping -s -a 198.18.0.1 -v -C 10
  iwarp-run --dev memif:/tmp/fw.sock,client --ip 198.18.0.2/24 rping -c -a 198.18.0.1 -v -C 10

The same settings for several programs, from a file:

  printf 'device = \"memif:/tmp/fw.sock\"\\naddress = \"198.18.0.1/24\"\\n' > iwarp.toml
  iwarp-run --config iwarp.toml ib_write_bw -R -F

Or for everything that this shell starts:

  eval \"$(iwarp-run --config iwarp.toml --print)\"

iwarp-run replaces itself by the program, so signals and the exit status are the program's. It
exits with 125 if it fails itself, with 126 if the program cannot be started on this stack, and
with 127 if there is no such program.";

/// Options of `iwarp-run`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// File of settings.
    pub config: Option<PathBuf>,
    /// Settings that were given as options, with their values.
    pub given: Vec<(&'static Setting, Vec<String>)>,
    /// Folder of the libraries.
    pub library: Option<PathBuf>,
    /// Preloads the library.
    pub preload: bool,
    /// Name of an interface to create.
    pub iface: Option<String>,
    /// Enters a new network namespace.
    pub netns: bool,
    /// The program and its arguments; empty: the environment is printed.
    pub command: Vec<OsString>,
}

/// Command line that was parsed.
#[derive(Clone, Debug)]
pub enum Parsed {
    /// Options.
    Options(Box<Options>),
    /// Help or version.
    Text(String),
}

/// Returns the definition of the command line.
fn command() -> Command {
    let flag = |name: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help_heading(RUN_HEADING)
    };
    let value = |name: &'static str| Arg::new(name).long(name).help_heading(RUN_HEADING);
    let path = |name, of| value(name).value_name(of).value_parser(value_parser!(PathBuf));
    Command::new("iwarp-run")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .long_about(LONG_ABOUT)
        .after_long_help(EXAMPLES)
        .max_term_width(100)
        .override_usage("iwarp-run [OPTIONS] [--] COMMAND [ARGS]...")
        .arg(path("config", "FILE").help("File of settings (TOML) [default: FERROWARP_CONFIG]"))
        .args(SETTINGS.iter().map(setting))
        .arg(
            flag("direct")
                .help("The program opens the device itself and alone. There is no other way yet"),
        )
        .arg(flag("preload").help(
            "Sets LD_PRELOAD instead of LD_LIBRARY_PATH: for programs with an RPATH to other \
             libraries",
        ))
        .arg(path("library", "DIR").help(
            "Folder of our libibverbs.so.1 and librdmacm.so.1 [default: ../lib/ferrowarp or \
             lib/ferrowarp from the folder of iwarp-run]",
        ))
        .arg(value("iface").value_name("NAME").help(
            "Creates a kernel interface with the addresses, which carries nothing: for programs \
             that look for addresses there (MPI, libfabric). Needs CAP_NET_ADMIN. It goes when the \
             program and its children have ended or closed their descriptors",
        ))
        .arg(flag("netns").help(
            "Starts the program in a new network namespace, with the loopback interface alone. \
             Needs CAP_SYS_ADMIN",
        ))
        .arg(
            flag("print")
                .conflicts_with_all(["iface", "netns", "command"])
                .help("Prints the variables for a shell instead of starting a program"),
        )
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .num_args(1..)
                .trailing_var_arg(true)
                .required_unless_present("print")
                .value_parser(value_parser!(OsString))
                .help("Program to start, and its arguments"),
        )
}

/// Returns the option of a setting.
fn setting(setting: &'static Setting) -> Arg {
    let arg = Arg::new(setting.name)
        .long(setting.option)
        .value_names(setting.words)
        .num_args(setting.words.len())
        .action(if setting.is_list() { ArgAction::Append } else { ArgAction::Set })
        .help_heading(setting.topic.heading())
        .help(help(setting));
    if setting.option == setting.name { arg } else { arg.visible_alias(setting.name) }
}

fn help(setting: &Setting) -> String {
    let mut help = setting.help.trim_end_matches('.').to_owned();
    if setting.is_list() {
        help += "; may be given several times";
    }
    if !setting.default.is_empty() {
        help += &format!(" [default: {}]", setting.default);
    }
    help
}

impl Options {
    /// Parses the command line.
    ///
    /// # Errors
    /// If it is wrong.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Parsed, Failure> {
        let matches = match command().try_get_matches_from(arguments) {
            Ok(matches) => matches,
            Err(error) if !error.use_stderr() => {
                return Ok(Parsed::Text(error.render().to_string()));
            }
            Err(error) => return Err(wrong(&error)),
        };
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        let path = |name: &str| matches.get_one::<PathBuf>(name).cloned();
        let command = matches.get_many::<OsString>("command").unwrap_or_default();
        Ok(Parsed::Options(Box::new(Self {
            config: path("config"),
            given: SETTINGS.iter().filter_map(|setting| given(&matches, setting)).collect(),
            library: path("library"),
            preload: matches.get_flag("preload"),
            iface: text("iface"),
            netns: matches.get_flag("netns"),
            command: command.cloned().collect(),
        })))
    }

    /// Returns the file of settings: the option, or else the variable.
    #[must_use]
    pub fn config(&self) -> Option<PathBuf> {
        self.config.clone().or_else(SettingsBuilder::config_variable)
    }

    /// Reads the settings, as the program will.
    ///
    /// # Errors
    /// If one is wrong.
    pub fn settings(&self) -> Result<Settings, Failure> {
        let mut builder = SettingsBuilder::new();
        if let Some(path) = self.config() {
            builder.read_file(&path)?;
        }
        builder.read_variables()?;
        for (setting, values) in &self.given {
            let origin = Origin::Option(format!("--{}", setting.option));
            builder.set(setting, &origin, values.iter().map(String::as_str))?;
        }
        Ok(builder.build()?)
    }
}

/// Returns the values of a setting that was given as an option: the words of each with blanks
/// between them.
fn given(
    matches: &ArgMatches,
    setting: &'static Setting,
) -> Option<(&'static Setting, Vec<String>)> {
    let values = matches.get_occurrences::<String>(setting.name)?;
    Some((setting, values.map(|words| words.cloned().collect::<Vec<_>>().join(" ")).collect()))
}

/// Returns the error of a command line, in one line.
fn wrong(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let about = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    let is_missing = error.kind() == ErrorKind::MissingRequiredArgument;
    let about = if is_missing { "no program given" } else { about };
    let about: Vec<_> = about.split_whitespace().collect();
    Failure::own(format!("{} (see --help)", about.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, Failure> {
        let words = ["iwarp-run"].into_iter().chain(line.split_whitespace()).map(OsString::from);
        match Options::parse(words)? {
            Parsed::Options(options) => Ok(*options),
            Parsed::Text(text) => panic!("{text}"),
        }
    }

    #[test]
    fn each_setting_is_an_option() {
        command().debug_assert();
        let help = command().render_long_help().to_string();
        for setting in SETTINGS {
            assert!(help.contains(&format!("--{} ", setting.option)), "{}: {help}", setting.name);
        }
    }

    #[test]
    fn options_end_where_the_program_begins() {
        for line in ["--mtu 9000 rping -s --mtu 1", "--mtu 9000 -- rping -s --mtu 1"] {
            let options = parse(line).unwrap();
            assert_eq!(options.command, ["rping", "-s", "--mtu", "1"], "{line}");
            assert_eq!(options.given.len(), 1);
        }
        let options = parse("--print --device tap:iw0").unwrap();
        assert!(options.command.is_empty());
        assert_eq!(options.given[0].1, ["tap:iw0"]);
    }

    #[test]
    fn lists_are_given_several_times_and_routes_have_three_words() {
        let line = "--ip 198.18.0.1/24 --address 2001:2::1/64 --route default via 198.18.0.254 x";
        let options = parse(line).unwrap();
        let given = |name| &options.given.iter().find(|(set, _)| set.name == name).unwrap().1;
        assert_eq!(given("address"), &["198.18.0.1/24", "2001:2::1/64"]);
        assert_eq!(given("route"), &["default via 198.18.0.254"]);
    }

    #[test]
    fn wrong_lines_are_refused_in_one_line() {
        for (line, about) in [
            ("", "no program given (see --help)"),
            ("--mtu 1500", "no program given (see --help)"),
            ("--speed x", "unexpected argument '--speed' found (see --help)"),
            (
                "--print true",
                "the argument '--print' cannot be used with '[COMMAND]...' (see --help)",
            ),
            (
                "--print --netns",
                "the argument '--print' cannot be used with '--netns' (see --help)",
            ),
            (
                "--mtu 1500 --mtu 1500 x",
                "the argument '--mtu <BYTES>' cannot be used multiple times (see --help)",
            ),
        ] {
            let failure = parse(line).unwrap_err();
            assert_eq!((failure.status, failure.about.as_str()), (Failure::OWN, about), "{line}");
        }
    }
}
