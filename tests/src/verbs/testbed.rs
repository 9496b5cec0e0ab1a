//! Testbed of a case: a link between two processes, and programs at its ends.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::interop::case::failure;
use crate::interop::guest::GuestKind;
use crate::interop::testbed::{self, program_error};
use crate::process::{ProcessResult, Running, TempDir, program, temp_dir};
use crate::verbs::case::CASE_TIMEOUT;

/// Time from the opened device to the listener of a program that does not print when it listens.
const SETTLE: Duration = Duration::from_millis(200);

/// An end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It owns the socket, and is started first.
    Server,
    /// It connects to the server.
    Client,
}

impl End {
    /// Role in `memif:SOCKET,ROLE`, and in the names of logs.
    fn role(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    /// Addresses of this end.
    #[must_use]
    pub fn addresses(self) -> [&'static str; 2] {
        match self {
            Self::Server => ["198.18.0.1", "2001:2::1"],
            Self::Client => ["198.18.0.2", "2001:2::2"],
        }
    }
}

/// Resources of a case.
pub struct Testbed {
    iwarp_run: PathBuf,
    /// Folder of the programs in C, once they are compiled.
    compiled: PathBuf,
    /// Folder of the socket: the path of a socket is short.
    sockets: TempDir,
    /// Number of the link, and of its socket.
    link: u32,
    /// The link is `vhost` with `virtio-user`, otherwise `memif`.
    is_vhost: bool,
    folder: PathBuf,
    /// Number of programs started so far: each has a log of its own.
    count: u32,
    /// Folder of the guest's log, and the guest once a case has needed it.
    guest: (PathBuf, Option<testbed::Testbed>),
}

impl Testbed {
    /// Creates a testbed, with logs in `folder` and programs in C in `compiled`.
    ///
    /// # Errors
    /// If `iwarp-run` was not built, or there is no folder for sockets.
    pub fn new(folder: &Path, compiled: &Path) -> io::Result<Self> {
        let iwarp_run = program("iwarp-run").ok_or_else(|| failure("iwarp-run was not built"))?;
        let sockets = temp_dir()?;
        // Other users connect too.
        fs::set_permissions(sockets.path(), fs::Permissions::from_mode(0o777))?;
        let (folder, compiled) = (folder.to_path_buf(), compiled.to_path_buf());
        let guest = (folder.clone(), None);
        Ok(Self { iwarp_run, compiled, sockets, link: 0, is_vhost: false, folder, count: 0, guest })
    }

    /// Begins another case, with logs in `folder`: the next server makes a new link.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn begin(&mut self, folder: PathBuf) -> io::Result<()> {
        self.link += 1;
        self.is_vhost = false;
        self.folder = folder;
        fs::create_dir_all(&self.folder)
    }

    /// Has the case use `vhost` and `virtio-user` instead of `memif`.
    pub fn use_vhost(&mut self) {
        self.is_vhost = true;
    }

    /// Returns the folder of the case's logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the guest with Linux's siw; boots it if no case has needed it yet.
    ///
    /// # Errors
    /// If it does not boot.
    pub fn guest(&mut self) -> io::Result<&mut testbed::Testbed> {
        let (folder, guest) = &mut self.guest;
        match guest {
            Some(guest) => Ok(guest),
            None => Ok(guest.insert(testbed::Testbed::open(folder, GuestKind::Siw)?)),
        }
    }

    /// Returns the path of `iwarp-run`.
    #[must_use]
    pub fn iwarp_run(&self) -> &Path {
        &self.iwarp_run
    }

    /// Returns the folder of the libraries.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.iwarp_run.with_file_name("lib/ferrowarp")
    }

    /// Returns the folder of sockets, which all users may write.
    #[must_use]
    pub fn shared_folder(&self) -> &Path {
        self.sockets.path()
    }

    fn socket(&self) -> PathBuf {
        self.sockets.path().join(format!("link{}", self.link))
    }

    /// Returns the options of device and addresses, for `iwarp-run` and for our own programs.
    #[must_use]
    pub fn device_options(&self, end: End) -> Vec<String> {
        let [v4, v6] = end.addresses();
        let socket = self.socket();
        let device = match (self.is_vhost, end) {
            (false, _) => format!("memif:{},{}", socket.display(), end.role()),
            (true, End::Server) => format!("vhost:{}", socket.display()),
            (true, End::Client) => format!("virtio-user:{}", socket.display()),
        };
        ["--dev", &device, "--ip", &format!("{v4}/24"), "--ip", &format!("{v6}/64")]
            .map(String::from)
            .into()
    }

    /// Builds the command line of an unmodified program; see [`Testbed::words`].
    #[must_use]
    pub fn command(&self, end: End, line: &str) -> Command {
        let mut command = Command::new(&self.iwarp_run);
        command.args(self.device_options(end)).arg("--").args(self.words(line));
        command.current_dir(&self.folder);
        command
    }

    /// Returns the words of a command line. `{server}` and `{client}` stand for the addresses of
    /// the ends, `{server6}` and `{client6}` for those of IPv6, `{bin}` for the folder of the
    /// programs in C, `{library}` for the folder of the libraries, `{run}` for `iwarp-run`.
    #[must_use]
    pub fn words(&self, line: &str) -> Vec<String> {
        let [server, server6] = End::Server.addresses();
        let [client, client6] = End::Client.addresses();
        let (bin, library) = (self.compiled.to_string_lossy(), self.library());
        let replaced = line
            .replace("{server}", server)
            .replace("{server6}", server6)
            .replace("{client}", client)
            .replace("{client6}", client6)
            .replace("{bin}", &bin)
            .replace("{library}", &library.to_string_lossy())
            .replace("{run}", &self.iwarp_run.to_string_lossy());
        replaced.split_whitespace().map(String::from).collect()
    }

    /// Starts a program.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&mut self, end: End, line: &str) -> io::Result<Running> {
        let mut command = self.command(end, line);
        self.start_command(end, &mut command)
    }

    /// Starts a command, with a log of its own.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_command(&mut self, end: End, command: &mut Command) -> io::Result<Running> {
        self.count += 1;
        let log = self.folder.join(format!("{}-{}.log", self.count, end.role()));
        fs::write(log.with_extension("command"), format!("{command:?}\n"))?;
        Running::start(command, log)
    }

    /// Starts a server, and waits until it has opened its device and had time to listen.
    ///
    /// # Errors
    /// If it ends first.
    pub fn serve(&mut self, line: &str) -> io::Result<Running> {
        let mut command = self.command(End::Server, line);
        self.serve_command(&mut command)
    }

    /// Starts a server as [`Testbed::serve`] does.
    ///
    /// # Errors
    /// If it ends first.
    pub fn serve_command(&mut self, command: &mut Command) -> io::Result<Running> {
        let mut running = self.start_command(End::Server, command)?;
        let socket = self.socket();
        running
            .wait_until(|| socket.exists(), CASE_TIMEOUT)
            .map_err(|error| failure(format!("the server opened no device: {error}")))?;
        std::thread::sleep(SETTLE);
        Ok(running)
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn run(&mut self, end: End, line: &str, timeout: Duration) -> io::Result<ProcessResult> {
        self.start(end, line)?.finish(timeout)
    }

    /// Runs a program that must succeed, and returns its output.
    ///
    /// # Errors
    /// With its output, unless it exited with status 0 within `timeout`.
    pub fn run_ok(&mut self, end: End, line: &str, timeout: Duration) -> io::Result<String> {
        expect_success(line, self.run(end, line, timeout)?)
    }

    /// Runs a server and a client to their ends.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn run_pair(
        &mut self,
        server: &str,
        client: &str,
        timeout: Duration,
    ) -> io::Result<[ProcessResult; 2]> {
        let server = self.serve(server)?;
        let client = self.run(End::Client, client, timeout)?;
        // A client that fails leaves some servers waiting for another one.
        let timeout = if client.success() { timeout } else { Duration::from_secs(2) };
        Ok([server.finish(timeout)?, client])
    }

    /// Runs a server and a client that must succeed, and returns their outputs.
    ///
    /// # Errors
    /// With the output of one that did not exit with status 0.
    pub fn run_pair_ok(
        &mut self,
        server: &str,
        client: &str,
        timeout: Duration,
    ) -> io::Result<[String; 2]> {
        let [of_server, of_client] = self.run_pair(server, client, timeout)?;
        let of_client = expect_success(client, of_client);
        match (expect_success(server, of_server), of_client) {
            (Ok(server), Ok(client)) => Ok([server, client]),
            // Either error may be the cause of the other.
            (Err(server), Err(client)) => Err(failure(format!("{client}; {server}"))),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }
}

/// Returns the output of a program that has exited with status 0.
///
/// # Errors
/// With its status and the last line of its output.
pub fn expect_success(line: &str, result: ProcessResult) -> io::Result<String> {
    if result.success() || is_teardown_of_rping(line, &result) {
        return Ok(result.output);
    }
    let name = line.split(' ').next().unwrap_or(line);
    Err(program_error(name, &result))
}

/// At its end rping destroys the event channel that its other thread reads: that thread may exit
/// with this error before the program does with 0, also over cards. What the program had still to
/// print follows it.
fn is_teardown_of_rping(line: &str, result: &ProcessResult) -> bool {
    line.contains("rping")
        && result.status.and_then(|status| status.code()) == Some(255)
        && result.output.lines().any(|line| line.starts_with("rdma_get_cm_event: "))
}

/// Expects a text in an output.
///
/// # Errors
/// With the text that is absent.
pub fn expect_text(output: &str, text: &str) -> io::Result<()> {
    if output.contains(text) {
        return Ok(());
    }
    Err(failure(format!("no '{text}' in: {}", one_line(output))))
}

/// Returns the end of an output in one line.
#[must_use]
pub fn one_line(output: &str) -> String {
    const SHOWN: usize = 300;
    let line = output.split_whitespace().collect::<Vec<_>>().join(" ");
    let from = line.len().saturating_sub(SHOWN);
    let from = (from..=line.len()).find(|at| line.is_char_boundary(*at)).unwrap_or_default();
    line[from..].to_owned()
}
