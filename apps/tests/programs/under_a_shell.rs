//! The programs as a shell starts them, in situations that have nothing to do with RDMA: output
//! that cannot be written, closed descriptors, signals, arguments that are no text, and files of
//! all kinds. One table, one loop.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{self, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGSTOP, SIGTERM};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, geteuid, mkfifo};
use serde_json::Value;

use crate::alone;

/// Limit for a program, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a program has to survive what may not end it.
const SURVIVAL: Duration = Duration::from_millis(100);
/// Rows at a time: a program mostly waits for its devices to open and close.
const WORKERS: usize = 6;
/// CPU time, in ticks of 10 ms, of a program that has opened its devices.
const RUNNING_TICKS: u64 = 20;

const PERF_SERVER: &str = "iwperf server --dev memif:$PWD/sock,server --ip 198.18.0.1/24";
const PING_SERVER: &str = "iwping server -P -v --dev memif:$PWD/sock,server --ip 198.18.0.1/24";
const COPY_SERVER: &str =
    "iwcopy server --timeout 60 --dev memif:$PWD/sock,server --ip 198.18.0.1/24";
const LINK: &str = "iwlink --left memif:$PWD/sock,server --right memif:$PWD/other,server";

/// A program in one of its roles.
struct Program {
    /// Server that it needs, if any.
    server: &'static str,
    /// A short run; empty for a server.
    short: &'static str,
    /// A run that ends only when it is told to.
    long: &'static str,
    /// It serves others: its end by a signal is no failure.
    serves: bool,
}

const PROGRAMS: [Program; 10] = [
    Program {
        server: "",
        short: "iwperf loop write-bw -n 10 --timeout 60",
        long: "iwperf loop write-bw -D 600 --timeout 60",
        serves: false,
    },
    Program {
        server: "",
        short: "iwping loop -C 3 -v --timeout 60",
        long: "iwping loop -C 1000000000 --timeout 60",
        serves: false,
    },
    Program {
        server: "",
        short: "iwcopy loop small --timeout 60",
        long: "iwcopy loop large --timeout 60",
        serves: false,
    },
    Program {
        server: PERF_SERVER,
        short: "iwperf write-bw 198.18.0.1 -n 10 --timeout 60 --dev memif:$PWD/sock,client \
                --ip 198.18.0.2/24",
        long: "iwperf send-lat 198.18.0.1 -D 600 --timeout 60 --dev memif:$PWD/sock,client \
               --ip 198.18.0.2/24",
        serves: false,
    },
    Program {
        server: PING_SERVER,
        short: "iwping client 198.18.0.1 -C 3 -v --timeout 60 --dev memif:$PWD/sock,client \
                --ip 198.18.0.2/24",
        long: "iwping client 198.18.0.1 --timeout 60 --dev memif:$PWD/sock,client \
               --ip 198.18.0.2/24",
        serves: false,
    },
    Program {
        server: COPY_SERVER,
        short: "iwcopy client 198.18.0.1 small --timeout 60 --dev memif:$PWD/sock,client \
                --ip 198.18.0.2/24",
        long: "iwcopy client 198.18.0.1 large --timeout 60 --dev memif:$PWD/sock,client \
               --ip 198.18.0.2/24",
        serves: false,
    },
    Program { server: "", short: "", long: PERF_SERVER, serves: true },
    Program { server: "", short: "", long: PING_SERVER, serves: true },
    Program { server: "", short: "", long: COPY_SERVER, serves: false },
    Program { server: "", short: "", long: LINK, serves: true },
];

/// A program in a situation, and how it has to end.
#[derive(Clone, Debug, Default)]
struct Row {
    server: &'static str,
    /// Shell commands; the last one is the program.
    script: String,
    /// Nobody reads the standard output.
    is_closed: bool,
    /// Signals to send once the program runs; it has to survive all but the last.
    signals: Vec<Signal>,
    /// The last one is sent once more, after this time.
    again: Option<Duration>,
    /// Status; of a signal, as a shell tells it.
    code: i32,
    /// Part of the only line of standard error, if there has to be one.
    error: Option<&'static str>,
    /// Files that the program creates or changes.
    changes: Vec<&'static str>,
    /// Standard output is JSON.
    prints_json: bool,
}

const fn code_of(signal: Signal) -> i32 {
    128 + signal as i32
}

/// Rows of each program, whatever its files.
fn rows_of(program: &Program) -> Vec<Row> {
    let mut rows = Vec::new();
    let base = Row { server: program.server, ..Row::default() };
    let no_space = Some("cannot write to standard output: No space left on device");
    if !program.short.is_empty() {
        let short = program.short;
        let run = |script| Row { script, ..base.clone() };
        for descriptors in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
            rows.push(run(format!("exec {short} {descriptors}")));
        }
        rows.push(run(format!("trap '' PIPE; exec {short}")));
        let full = run(format!("exec {short} >/dev/full"));
        rows.push(Row { code: 1, error: no_space, ..full });
        rows.push(Row { is_closed: true, code: 1, ..run(format!("exec {short}")) });
    }
    let long = program.long;
    let end = |signals: &[Signal], script| {
        let last = *signals.last().unwrap();
        let (code, error) =
            if program.serves { (0, None) } else { (code_of(last), Some("interrupted")) };
        Row { script, signals: signals.to_vec(), code, error, ..base.clone() }
    };
    // A closing terminal and timeout(1) send theirs twice.
    let millisecond = Some(Duration::from_millis(1));
    for (signal, again) in [(SIGHUP, millisecond), (SIGINT, None), (SIGTERM, millisecond)] {
        rows.push(Row { again, ..end(&[signal], format!("exec {long}")) });
    }
    let ignored = "trap '' HUP INT; exec";
    let many = [SIGHUP, SIGINT, SIGPIPE, SIGSTOP, SIGCONT, SIGTERM];
    rows.push(end(&many, format!("{ignored} {long}")));
    rows.push(end(&[SIGTERM, SIGINT], format!("trap '' TERM; exec {long}")));
    if program.short.is_empty() {
        rows.push(Row { is_closed: true, ..end(&[SIGTERM], format!("exec {long}")) });
        rows.push(end(&[SIGTERM], format!("exec {long} <&- >&- 2>&-")));
        rows.last_mut().unwrap().error = None;
        let full = Row { script: format!("exec {long} >/dev/full"), ..base.clone() };
        rows.push(Row { code: 1, error: no_space, ..full });
    }
    rows
}

/// Rows of an option whose file may exist: `command` ends in the option.
fn rows_of_report(command: &str, signals: &[Signal]) -> Vec<Row> {
    let row = |before: &str, file: &str| Row {
        script: format!("{before} exec {command} {file}"),
        signals: signals.to_vec(),
        ..Row::default()
    };
    let changes = |file, changes| Row { changes, ..row("", file) };
    let fails = |file, error| Row { code: 1, error: Some(error), signals: vec![], ..row("", file) };
    let is_json = command.ends_with("--json");
    vec![
        changes("old", vec!["old", "hard"]),
        changes("link", vec!["old", "hard"]),
        changes("dangling", vec!["target"]),
        changes("new", vec!["new"]),
        changes("\"$(printf 'no\\377text')\"", vec!["no\u{fffd}text"]),
        row("", "/dev/null"),
        Row { prints_json: is_json, ..row("", "-") },
        Row { prints_json: is_json, ..row("", "/dev/stdout") },
        Row { changes: vec!["read"], ..row("cat fifo > read & ", "fifo") },
        fails("folder", "cannot write folder: choose another place: Is a directory"),
        fails("absent/new", "cannot write absent/new: choose another place: No such file"),
        fails("absent/", "cannot write absent/: choose another place: Is a directory"),
        Row { signals: signals.to_vec(), ..fails("/dev/full", "No space left on device") },
    ]
}

/// Rows of the files of iwcopy.
fn rows_of_copy() -> Vec<Row> {
    let row = |words: &str| Row { script: format!("exec iwcopy {words}"), ..Row::default() };
    let fails = |words, error| Row { code: 1, error: Some(error), ..row(words) };
    let makes = |words, file| Row { changes: vec![file], ..row(words) };
    let fifo = row("loop small --out fifo");
    vec![
        makes("loop small --out new", "new"),
        makes("loop /proc/cpuinfo --out new", "new"),
        makes("loop \"$(printf 'no\\377name')\" --out new", "new"),
        row("loop small --out /dev/null"),
        row("loop small --out -"),
        row("loop small --out /dev/stdout"),
        Row { script: format!("cat fifo > read & {}", fifo.script), ..makes("", "read") },
        fails("loop small --out old", "cannot write old: choose another place: File exists"),
        fails("loop small --out link", "cannot write link: choose another place: File exists"),
        fails(
            "loop small --out dangling",
            "cannot write dangling: choose another place: File exists",
        ),
        fails("loop small --out folder", "cannot write folder: choose another place"),
        fails("loop small --out absent/new", "cannot write absent/new: choose another place"),
        fails("loop small --out absent/", "cannot write absent/: choose another place"),
        fails("loop small --out /dev/full", "cannot write /dev/full: choose another place"),
        fails("loop folder", "cannot read folder: not a regular file"),
        fails("loop fifo", "cannot read fifo: not a regular file"),
        fails("loop /dev/zero", "cannot read /dev/zero: not a regular file"),
        fails("loop absent", "cannot read absent: No such file"),
    ]
}

/// Rows of output whose reader takes its time.
fn rows_of_slow_readers() -> Vec<Row> {
    let row = |script: String| Row { script, ..Row::default() };
    let late =
        format!("{{ sleep 10; exec cat fifo > read; }} & {COPY_SERVER} --out fifo >/dev/null &");
    let client = "while test ! -S sock; do sleep 0.1; done; exec iwcopy client 198.18.0.1 small \
                  --timeout 2 --dev memif:$PWD/sock,client --ip 198.18.0.2/24";
    let pausing = "head -c 20000000 /dev/zero > long; { sleep 8; cmp - long; } < fifo & \
                   iwcopy loop long --timeout 3 --out fifo; code=$?; wait $! || code=99; \
                   rm long; exit $code";
    let interrupted = row("exec 3<>fifo; exec iwcopy loop large --out fifo".to_owned());
    // The pipe has one page for the lines of the server.
    let stuck_server = format!(
        "exec 3<>fifo; dd if=/dev/zero bs=4k count=15 >&3 2>/dev/null; {PING_SERVER} >&3 & \
         while test ! -S sock; do sleep 0.1; done; \
         iwping client 198.18.0.1 -C 300 --timeout 5 --dev memif:$PWD/sock,client \
         --ip 198.18.0.2/24; code=$?; kill -9 $!; exit $code"
    );
    vec![
        row(stuck_server),
        // Its file is opened before a client is waited for.
        Row {
            code: 1,
            error: Some("cannot write absent/new"),
            ..row(format!("exec {COPY_SERVER} --out absent/new"))
        },
        Row { changes: vec!["read"], ..row(format!("{late} {client}")) },
        row(pausing.to_owned()),
        Row {
            signals: vec![SIGTERM],
            code: code_of(SIGTERM),
            error: Some("interrupted"),
            ..interrupted
        },
    ]
}

/// Rows of options that contradict each other, or name what is not there.
fn rows_of_contradictions() -> Vec<Row> {
    let row = |code, script: &str, error| Row {
        script: format!("exec {script}"),
        code,
        error: Some(error),
        ..Row::default()
    };
    let files =
        ["new --hdr new", "./new --hdr new", "old --hdr link", "- --hdr -", "hard --hdr old"];
    let two_files = files.map(|files| {
        row(1, &format!("iwperf loop write-lat -n 10 --json {files}"), "are one file: give two")
    });
    let no_core = "core 9999 cannot be used: choose from ";
    let windows = "--recv-window is above --recv-window-max";
    let mut rows = vec![
        row(1, &format!("{LINK} --core 9999"), no_core),
        row(1, "iwping loop --cores 9999", no_core),
        row(2, "iwperf loop write-bw --recv-window 2M --recv-window-max 1M", windows),
        row(2, "iwping loop --recv-window 2M --recv-window-max 1M", windows),
        row(2, "iwping server --ip 198.18.0.1/24 --dev eal:--help", "help ends the program"),
    ];
    rows.extend(two_files);
    rows
}

/// Rows of runs that are cut short, with files.
fn rows_of_cut_runs() -> Vec<Row> {
    let perf = PROGRAMS[0].long;
    let lat = "iwperf loop send-lat -D 600 --timeout 60";
    let row = |script: &str, signal| Row {
        script: format!("exec {script}"),
        signals: vec![signal],
        code: code_of(signal),
        error: (signal != SIGKILL).then_some("interrupted"),
        ..Row::default()
    };
    let not_text = |script| Row { script, code: 2, error: Some("invalid UTF-8"), ..Row::default() };
    // Once its output is stuck, only a second request ends it.
    let fill = "exec 3<>fifo; dd if=/dev/zero bs=1k count=64 >&3 2>/dev/null";
    let stuck = Row { script: format!("{fill}; exec {LINK} >&3"), ..row("", SIGTERM) };
    let endless = "iwperf loop write-bw --run_infinitely --timeout 60";
    vec![
        Row { code: 0, error: None, ..row(endless, SIGINT) },
        Row { code: 0, error: None, ..row(endless, SIGTERM) },
        Row { again: Some(Duration::from_millis(1500)), error: None, ..stuck },
        Row { changes: vec!["new"], ..row(&format!("{perf} --json new"), SIGINT) },
        Row { changes: vec!["new"], ..row(&format!("{lat} --json new"), SIGTERM) },
        row(&format!("{perf} --json new"), SIGKILL),
        row(&format!("{perf} --json old"), SIGKILL),
        row("iwcopy loop large --out new", SIGTERM),
        row("iwcopy loop large --out new", SIGKILL),
        not_text("exec iwperf loop write-bw --dev \"$(printf '\\377')\"".to_owned()),
        not_text("exec iwping loop --dev \"$(printf '\\377')\"".to_owned()),
        not_text("exec iwcopy loop small --dev \"$(printf '\\377')\"".to_owned()),
        not_text("exec iwlink --left \"$(printf '\\377')\"".to_owned()),
    ]
}

/// Rows with a file system of their own. The folder is a mount that the script's end removes, so
/// the script itself checks what is left.
fn rows_of_file_systems() -> Vec<Row> {
    let on = |mount: &str, prepare: &str, command: &str, check: &str| Row {
        script: format!(
            "exec unshare -m sh -c '{mount} || exit 98; echo before > folder/old; {prepare}; \
             {command}; code=$?; {check} || exit 99; exit $code'"
        ),
        ..Row::default()
    };
    let tmpfs = "mount -t tmpfs -o size=16k none folder";
    let row = |prepare: &str, command: &str, check: &str, error| Row {
        code: 1,
        error: Some(error),
        ..on(tmpfs, prepare, command, check)
    };
    let fill = "dd if=/dev/zero of=folder/filler bs=1k count=1000 2>/dev/null";
    let is_old = "test \"$(ls folder)\" = old && test \"$(cat folder/old)\" = before";
    let is_full = "rm folder/filler && test \"$(cat folder/old)\" = before && test ! -e folder/new";
    let read_only = "mount -o remount,ro none folder";
    // Its report is longer than a page.
    let perf = "iwperf loop write-bw -a -n 1 -t 1 --timeout 60 --json";
    let full = "No space left on device";
    let ro = "Read-only file system";
    let a_lot = "head -c 100000 /dev/zero > long";
    // Without fallocate: one without limit, and one of 100 KiB.
    let ramfs = "mount -t ramfs none folder";
    let ext2 = "mkfs.ext2 -qF -b 1024 -N 16 disk 100 >/dev/null 2>&1 && mount -o loop disk folder";
    let longer = "head -c 100000 /dev/zero > folder/old";
    let is_report = "tail -c 3 folder/old | grep -q ^}$";
    vec![
        row(fill, &format!("{perf} folder/new"), is_full, full),
        row(fill, &format!("{perf} folder/old"), is_full, full),
        Row {
            changes: vec!["long"],
            ..row(a_lot, "iwcopy loop long --out folder/new", is_old, full)
        },
        on(ramfs, "true", &format!("{perf} folder/old"), is_report),
        on(ramfs, longer, &format!("{perf} folder/old"), is_report),
        Row {
            code: 1,
            error: Some(full),
            changes: vec!["disk"],
            ..on(ext2, fill, &format!("{perf} folder/old"), is_full)
        },
        row(read_only, &format!("{perf} folder/new"), is_old, ro),
        row(read_only, &format!("{perf} folder/old"), is_old, ro),
        row(read_only, "iwcopy loop small --out folder/new", is_old, ro),
    ]
}

#[test]
fn programs_end_as_a_shell_expects() {
    let _lock = alone();
    let end = [SIGTERM];
    // The longest first, so that none is left alone at the end.
    let mut rows = rows_of_slow_readers();
    rows.extend(PROGRAMS.iter().flat_map(rows_of));
    rows.extend(rows_of_report("iwperf loop write-bw -n 10 --timeout 60 --json", &[]));
    rows.extend(rows_of_report("iwperf loop write-lat -n 10 --timeout 60 --hdr", &[]));
    rows.extend(rows_of_report(&format!("{PERF_SERVER} --json"), &end));
    rows.extend(rows_of_report(&format!("{LINK} --json"), &end));
    rows.extend(rows_of_copy());
    rows.extend(rows_of_contradictions());
    rows.extend(rows_of_cut_runs());
    if geteuid().is_root() {
        rows.extend(rows_of_file_systems());
    } else {
        println!("skipped: not root, which full and read-only file systems need");
    }
    let count = rows.len();
    let (rows, complaints) = (Mutex::new(rows.into_iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(row) = { rows.lock().unwrap().next() } {
                    if let Err(complaint) = check(&row) {
                        complaints.lock().unwrap().push(format!("{complaint}\n    {row:?}"));
                    }
                }
            });
        }
    });
    let complaints = complaints.into_inner().unwrap();
    assert!(complaints.is_empty(), "{} of {count}:\n{}", complaints.len(), complaints.join("\n"));
}

/// A process of a row, killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Starts a script, with signals as a terminal's shell has them.
    fn start(script: &str, folder: &Path, stdout: Stdio, stderr: Stdio) -> Self {
        let programs = Path::new(env!("CARGO_BIN_EXE_iwperf")).parent().unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let child = Command::new("env")
            .args(["--default-signal=HUP,INT,TERM,PIPE", "sh", "-c", script])
            .current_dir(folder)
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .unwrap();
        Self(child)
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Waits until `is_true`, or the process has ended.
    fn wait_until(&mut self, is_true: impl Fn(&Self) -> bool) -> Result<(), String> {
        let start = Instant::now();
        while !is_true(self) && !self.has_ended() {
            if start.elapsed() > TIMEOUT {
                return Err("it hangs".to_owned());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn send(&self, signal: Signal) {
        nix::sys::signal::kill(Pid::from_raw(self.0.id().try_into().unwrap()), signal).unwrap();
    }

    /// CPU time so far, in ticks.
    fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
    }

    /// Returns the status as a shell tells it.
    fn code(&mut self) -> Result<i32, String> {
        self.wait_until(|_| false)?;
        let status = self.0.wait().unwrap();
        Ok(status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap())
    }
}

/// Mode, owner, inode and contents of each file.
type Snapshot = BTreeMap<String, (u32, u32, u64, Vec<u8>)>;

fn snapshot(folder: &Path) -> Snapshot {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let state = |path: std::path::PathBuf| {
        let meta = path.symlink_metadata().unwrap();
        let contents = if meta.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else if meta.is_file() && meta.len() < 1 << 20 {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, (meta.mode(), meta.uid(), meta.ino(), contents))
    };
    // The sockets of memif.
    let is_socket = |name: &str| ["sock", "other"].contains(&name);
    entries.map(state).filter(|(name, _)| !is_socket(name)).collect()
}

/// Files of each kind.
fn prepare(folder: &Path) {
    let path = |name: &str| folder.join(name);
    fs::write(path("small"), "a small file").unwrap();
    let odd = std::os::unix::ffi::OsStrExt::from_bytes(b"no\xffname");
    fs::write(folder.join::<&std::ffi::OsStr>(odd), "its name is no text").unwrap();
    File::create(path("large")).unwrap().set_len(1 << 40).unwrap();
    fs::write(path("old"), "x".repeat(10_000)).unwrap();
    fs::set_permissions(path("old"), Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(path("old"), path("hard")).unwrap();
    symlink("old", path("link")).unwrap();
    symlink("target", path("dangling")).unwrap();
    fs::create_dir(path("folder")).unwrap();
    mkfifo(&path("fifo"), Mode::from_bits_truncate(0o600)).unwrap();
}

fn check(row: &Row) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let logs = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let before = snapshot(folder.path());
    let log = |name: &str| logs.path().join(name);
    let create = |name: &str| Stdio::from(File::create(log(name)).unwrap());
    let socket = folder.path().join("sock");
    let mut server = (!row.server.is_empty()).then(|| {
        let script = format!("exec {}", row.server);
        Process::start(&script, folder.path(), create("server"), create("server.err"))
    });
    if let Some(server) = &mut server {
        let is_up = |_: &Process| fs::metadata(log("server")).is_ok_and(|meta| meta.len() > 0);
        server.wait_until(is_up)?;
    }
    let stdout = if row.is_closed { Stdio::piped() } else { create("stdout") };
    let mut program = Process::start(&row.script, folder.path(), stdout, create("stderr"));
    drop(program.0.stdout.take());
    if !row.signals.is_empty() {
        let is_first = server.is_none();
        program.wait_until(|program| {
            is_first && socket.exists() || program.ticks() >= RUNNING_TICKS
        })?;
        thread::sleep(SURVIVAL);
    }
    for &signal in &row.signals {
        if program.has_ended() {
            return Err(format!("it has ended before {signal}"));
        }
        program.send(signal);
        if Some(&signal) != row.signals.last() {
            thread::sleep(SURVIVAL);
        } else if let Some(pause) = row.again {
            thread::sleep(pause);
            program.send(signal);
        }
    }
    let code = program.code()?;
    let stderr = fs::read(log("stderr")).unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    let errors: Vec<_> = stderr.lines().filter(|line| !line.starts_with(" WARN")).collect();
    if code != row.code {
        return Err(format!("status {code}: {errors:?}"));
    }
    // With JSON on standard output, the text is on standard error.
    let is_text = row.script.ends_with(" -") || row.script.ends_with("/dev/stdout");
    match (row.error, &errors[..]) {
        (None, []) => {}
        (None, _) if is_text => {}
        (Some(expected), [line]) if line.contains(expected) => {}
        _ => return Err(format!("standard error: {errors:?}")),
    }
    if row.prints_json {
        check_json(&fs::read(log("stdout")).unwrap())?;
    }
    // A reader of the named pipe may be a moment late.
    let is_read = || snapshot(folder.path()).get("read").is_none_or(|read| !read.3.is_empty());
    let start = Instant::now();
    while !is_read() && start.elapsed() < TIMEOUT {
        thread::sleep(Duration::from_millis(5));
    }
    compare(&before, &snapshot(folder.path()), &row.changes)
}

/// Compares the files: the ones of `changes` are created or have other contents, all others are as
/// they were.
fn compare(before: &Snapshot, after: &Snapshot, changes: &[&str]) -> Result<(), String> {
    for (name, (mode, uid, ino, contents)) in after {
        let is_expected = changes.contains(&name.as_str());
        match before.get(name) {
            None if !is_expected => return Err(format!("{name} was created")),
            Some(old) if (old.0, old.1, old.2) != (*mode, *uid, *ino) => {
                return Err(format!("{name} was replaced"));
            }
            Some(old) if (old.3 != *contents) != is_expected => {
                return Err(format!("{name}: changed is not {is_expected}"));
            }
            _ => {}
        }
        if is_expected && contents.first().is_none_or(|first| b"{[".contains(first)) {
            check_json(contents)?;
        }
    }
    let absent = before.keys().map(String::as_str).chain(changes.iter().copied());
    match absent.into_iter().find(|name| !after.contains_key(*name)) {
        Some(name) => Err(format!("no {name}")),
        None => Ok(()),
    }
}

/// A report has a rate for the messages that it counts.
fn check_json(text: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(text);
    let report: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    for result in report["results"].as_array().into_iter().flatten() {
        let is_empty = result["iterations"] == 0;
        if !is_empty && result["bw_gbit_s"].as_f64().is_none_or(|rate| rate <= 0.0) {
            return Err(format!("no rate: {result}"));
        }
        if is_empty && report["failure"] == "interrupted" {
            return Err(format!("nothing of an interrupted run: {result}"));
        }
    }
    Ok(())
}
