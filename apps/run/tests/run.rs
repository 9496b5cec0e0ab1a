//! `iwarp-run` with programs of the system.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ferrowarp_tests::{netns, skip};
use nix::libc;
use nix::unistd::{Uid, User, chown, geteuid};
use tempfile::TempDir;

const IWARP_RUN: &str = env!("CARGO_BIN_EXE_iwarp-run");

/// Options of a device that is never opened.
const DEVICE: [&str; 4] = ["--dev", "memif:/tmp/absent.sock", "--ip", "198.18.0.1/24"];

/// A folder with files of the libraries' names.
fn libraries() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    folder
}

/// `iwarp-run`, without variables of its own.
fn iwarp_run() -> Command {
    let mut command = Command::new(IWARP_RUN);
    let own = |name: &OsStr| name.to_string_lossy().starts_with("FERROWARP_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| own(name)) {
        command.env_remove(name);
    }
    command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
    command
}

/// `iwarp-run` with a device, an address and libraries.
fn with_device(libraries: &TempDir) -> Command {
    let mut command = iwarp_run();
    command.args(DEVICE).arg("--library").arg(libraries.path());
    command
}

/// Runs a script in a shell below `iwarp-run`.
fn shell(command: &mut Command, script: &str) -> Output {
    command.args(["sh", "-c", script]).output().unwrap()
}

/// Writes an executable file. Another process does: if this one did, a child that another test
/// starts meanwhile could still have the file open for writing, and it could not be started.
fn write_program(path: &Path, text: &str) {
    let script = "printf %s \"$1\" >\"$0\" && chmod 700 \"$0\"";
    let mut shell = Command::new("sh");
    assert!(shell.args(["-c", script]).arg(path).arg(text).status().unwrap().success());
}

/// Copies a program, likewise.
fn copy_program(from: &str, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

/// Returns what was printed.
fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the exit status and the only line of error.
fn failed(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let line = text.strip_suffix('\n').unwrap_or(&text);
    assert!(!line.contains('\n'), "one line: {text}");
    (output.status.code(), line.strip_prefix("iwarp-run: ").unwrap_or(line).to_owned())
}

#[test]
fn exit_status_signals_and_process_are_those_of_the_program() {
    let libraries = libraries();
    let status = |script: &str| shell(&mut with_device(&libraries), script).status;
    assert_eq!(status("exit 7").code(), Some(7));
    for (name, signal) in [("TERM", libc::SIGTERM), ("PIPE", libc::SIGPIPE)] {
        assert_eq!(status(&format!("kill -{name} $$")).signal(), Some(signal));
    }
    let mut command = with_device(&libraries);
    let child = command.args(["sh", "-c", "echo $$"]).stdout(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    assert_eq!(printed(&child.wait_with_output().unwrap()), format!("{id}\n"));
    // The name that was given, and a script without an interpreter's line.
    let named = shell(&mut with_device(&libraries), "cat /proc/$$/cmdline | tr '\\0' ' '");
    assert!(printed(&named).starts_with("sh -c cat"));
    let script = libraries.path().join("script");
    write_program(&script, "echo ran $1\n");
    assert_eq!(
        printed(&with_device(&libraries).arg(&script).arg("it").output().unwrap()),
        "ran it\n"
    );
}

#[test]
fn environment_has_options_file_and_libraries() {
    let libraries = libraries();
    let folder = libraries.path().display();
    let file = libraries.path().join("iwarp.toml");
    fs::write(&file, "device = \"memif:/tmp/x.sock\"\naddress = \"198.18.0.1/24\"\n").unwrap();
    let print = "printenv | grep -E '^(FERROWARP|LD)_' | sort";
    let mut command = iwarp_run();
    command.current_dir(libraries.path()).args(["--config", "iwarp.toml", "--library", "."]);
    command.args(["--ip", "198.18.0.7/24", "--ip", "2001:2::7/64", "--poller-cpu", "1"]);
    command.args(["--route", "default", "via", "198.18.0.254,mtu=1400", "--direct"]);
    command.env("LD_LIBRARY_PATH", "relative::/opt").env("FERROWARP_MTU", "9000");
    let expected = format!(
        "FERROWARP_ADDRESS=198.18.0.7/24,2001:2::7/64\nFERROWARP_CONFIG={folder}/iwarp.toml\n\
         FERROWARP_MTU=9000\nFERROWARP_POLLER_CPU=1\n\
         FERROWARP_ROUTE=default via 198.18.0.254,mtu=1400\n\
         LD_LIBRARY_PATH={folder}/.:relative::/opt\n"
    );
    assert_eq!(
        printed(&shell(&mut command, print)).replace("/.:", ":"),
        expected.replace("/.:", ":")
    );

    let mut command = with_device(&libraries);
    command.arg("--preload").env("LD_PRELOAD", "libm.so.6");
    let preloaded = printed(&shell(&mut command, "echo $LD_PRELOAD; echo ${LD_LIBRARY_PATH-none}"));
    assert_eq!(preloaded, format!("{folder}/libibverbs.so.1:libm.so.6\nnone\n"));
}

#[test]
fn printed_environment_can_be_evaluated() {
    let libraries = libraries();
    let text = printed(&with_device(&libraries).arg("--print").output().unwrap());
    let script = format!("{text}printenv FERROWARP_DEVICE FERROWARP_ADDRESS LD_LIBRARY_PATH");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let folder = libraries.path().display();
    assert_eq!(printed(&output), format!("memif:/tmp/absent.sock\n198.18.0.1/24\n{folder}\n"));
    for option in ["--help", "-h", "--version"] {
        let text = printed(&iwarp_run().arg(option).output().unwrap());
        assert!(text.contains("iwarp-run"), "{option}: {text}");
    }
}

#[test]
fn wrong_settings_are_refused_before_the_program_starts() {
    let libraries = libraries();
    let ran = libraries.path().join("ran");
    let touch = |command: &mut Command| {
        let ended = failed(command.arg("touch").arg(&ran));
        assert!(!ran.exists());
        assert_eq!(ended.0, Some(125), "{}", ended.1);
        ended.1
    };
    let about = touch(iwarp_run().arg("--library").arg(libraries.path()));
    assert!(
        about.starts_with("no device is configured: run the program with iwarp-run"),
        "{about}"
    );
    let about = touch(with_device(&libraries).args(["--mtu", "9K"]));
    assert_eq!(about, "--mtu: \"9K\": give 576 to 65280");
    let about = touch(with_device(&libraries).env("FERROWARP_POLLER", "fast"));
    assert_eq!(about, "FERROWARP_POLLER: \"fast\": give auto, hot, park or off");
    let about = touch(with_device(&libraries).args(["--config", "/absent.toml"]));
    assert!(about.starts_with("/absent.toml: the settings cannot be read: "), "{about}");
    let about = touch(iwarp_run().args(DEVICE).args(["--library", "/absent"]));
    assert_eq!(
        about,
        "no libibverbs.so.1 and librdmacm.so.1 in /absent: build them with scripts/verbs build, or \
         give their folder with --library"
    );
    let mut misspelled = with_device(&libraries);
    let output = misspelled.env("FERROWARP_MTUS", "1").arg("true").output().unwrap();
    let about = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success());
    assert_eq!(about, "iwarp-run: FERROWARP_MTUS is no setting: do you mean FERROWARP_MTU?\n");
}

#[test]
fn libraries_are_found_near_the_program() {
    let root = tempfile::tempdir().unwrap();
    let folder = |name: &str| {
        let folder = root.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    };
    let program = folder("bin").join("iwarp-run");
    copy_program(IWARP_RUN, &program);
    let run = || {
        let mut command = Command::new(&program);
        command.args(DEVICE).args(["printenv", "LD_LIBRARY_PATH"]).env_remove("LD_LIBRARY_PATH");
        command
    };
    let (status, about) = failed(&mut run());
    assert_eq!(status, Some(125));
    let expected = ["lib/ferrowarp", "bin/lib/ferrowarp"].map(|name| root.path().join(name));
    assert!(expected.iter().all(|path| about.contains(&path.display().to_string())), "{about}");
    for path in ["bin/lib/ferrowarp", "lib/ferrowarp"] {
        let path: PathBuf = folder(path);
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            fs::write(path.join(name), "").unwrap();
        }
        assert_eq!(printed(&run().output().unwrap()), format!("{}\n", path.display()));
    }
}

#[test]
fn programs_that_cannot_be_started_have_the_statuses_of_shells() {
    let libraries = libraries();
    let script = libraries.path().join("script");
    write_program(&script, "#!/absent/interpreter\n");
    let mode = |bits| fs::set_permissions(&script, fs::Permissions::from_mode(bits)).unwrap();
    mode(0o600);
    let run = |program: &Path| failed(with_device(&libraries).arg(program));
    let (status, about) = run(Path::new("iwarp-absent"));
    assert_eq!((status, about.as_str()), (Some(127), "iwarp-absent: no such program"));
    let (status, about) = run(&script);
    let expected = format!("{}: it is not executable", script.display());
    assert_eq!((status, about), (Some(126), expected));
    mode(0o700);
    let (status, about) = run(&script);
    assert_eq!(status, Some(127));
    assert!(about.ends_with("(or its interpreter)"), "{about}");
}

#[test]
fn programs_that_gain_rights_are_refused() {
    if !geteuid().is_root() {
        return skip("not root, and only root makes programs of other users");
    }
    let libraries = libraries();
    let program = libraries.path().join("true");
    copy_program("/bin/true", &program);
    let nobody = User::from_name("nobody").unwrap().map_or(Uid::from_raw(65_534), |it| it.uid);
    chown(&program, Some(nobody), None).unwrap();
    let mode = |bits| fs::set_permissions(&program, fs::Permissions::from_mode(bits)).unwrap();
    mode(0o4755);
    let (status, about) = failed(with_device(&libraries).arg(&program));
    assert_eq!(status, Some(126));
    assert!(
        about.contains("it has the setuid bit, for which the dynamic loader ignores"),
        "{about}"
    );
    mode(0o755);
    assert!(with_device(&libraries).arg(&program).status().unwrap().success());
    // Of its own user it gains nothing.
    chown(&program, Some(geteuid()), None).unwrap();
    mode(0o4755);
    assert!(with_device(&libraries).arg(&program).status().unwrap().success());
}

/// Lines of `ip -o`, without counters.
const ADDRESSES: &str = "ip -o addr show dev iw0 | awk '{print $4}'; ip -o link show dev iw0";

#[test]
fn interface_has_the_addresses_and_goes_with_the_program() {
    if let Some(missing) = netns::missing_prerequisite() {
        return skip(missing);
    }
    if !Path::new("/dev/net/tun").exists() {
        return skip("no /dev/net/tun");
    }
    let libraries = libraries();
    let mut command = with_device(&libraries);
    command.args(["--netns", "--iface", "iw0", "--ip", "198.18.1.1/16", "--ip", "2001:2::1/64"]);
    let text = printed(&shell(&mut command, &format!("{ADDRESSES}; ip route; ip -o link show lo")));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..3], ["198.18.0.1/32", "198.18.1.1/32", "2001:2::1/128"]);
    assert!(lines[3].contains("NOARP,UP,LOWER_UP>"), "{text}");
    // No route of the kernel to the peers.
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[4].contains("lo: <LOOPBACK,UP"), "{text}");

    // It goes with the last process that has the descriptor, and its name is then free.
    let run = format!("{IWARP_RUN} {} --library {}", DEVICE.join(" "), libraries.path().display());
    let script = format!(
        "set -e; {run} --iface iw0 true; ! ip link show iw0 2>/dev/null; \
         {run} --iface iw0 sh -c 'sleep 60 & echo $! >pid'; ip link show iw0 >/dev/null; \
         ! {run} --iface iw0 true; kill $(cat pid); \
         for _ in $(seq 100); do ip link show iw0 2>/dev/null || exit 0; sleep 0.1; done; exit 1"
    );
    let mut unshare = Command::new("unshare");
    let output = unshare.args(["-n", "sh", "-c", &script]).current_dir(libraries.path()).output();
    let output = output.unwrap();
    let about = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    assert!(about.contains("an interface of this name exists"), "{about}");
}

#[test]
fn interface_needs_a_capability() {
    if !geteuid().is_root() {
        return skip("not root, which can give up capabilities");
    }
    let libraries = libraries();
    for (option, capability) in [("--iface", "CAP_NET_ADMIN"), ("--netns", "CAP_SYS_ADMIN")] {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", IWARP_RUN]).args(DEVICE);
        command.arg("--library").arg(libraries.path()).arg(option);
        let name = if option == "--iface" { &["iw0"][..] } else { &[] };
        let (status, about) = failed(command.args(name).arg("true"));
        assert_eq!(status, Some(125), "{about}");
        assert!(about.contains(capability) && about.contains("--map-root-user"), "{about}");
    }
}
