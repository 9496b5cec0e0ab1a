//! Programs without rights, and ways in which the dynamic loader gets our libraries.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::Command;

use crate::interop::case::failure;
use crate::process;
use crate::verbs::case::{CASE_TIMEOUT, Case};
use crate::verbs::testbed::{End, Testbed, expect_success, expect_text, one_line};

/// Of Debian.
const NOBODY: u32 = 65534;
/// Runs a command as nobody, without any capability.
const AS_NOBODY: &str = "setpriv --reuid nobody --regid nogroup --clear-groups --inh-caps -all \
                         --bounding-set -all --no-new-privs";

const SERVER: &str = "rping -s -a {server} -V -C 10";
const CLIENT: &str = "rping -c -a {server} -V -C 10";

/// Returns the cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("user/nobody/ibv_devinfo", nobody_devinfo).quick(true),
        Case::new("user/nobody/rping", nobody_rping).quick(true),
        Case::new("loader/ld-library-path", relative_path).quick(true),
        Case::new("loader/preload", preload).quick(true),
        Case::new("loader/preload-over-stock", preload_over_stock).quick(true),
        Case::new("loader/setuid", setuid).quick(true),
        Case::new("loader/print", print),
        Case::new("limits/no-membarrier", no_membarrier).quick(true),
        Case::new("limits/address-space", address_space).quick(true),
        Case::new("limits/descriptors", descriptors),
    ]
}

/// Builds a command line with words of its own before `iwarp-run`.
fn before(testbed: &Testbed, first: &str, options: &[&str], end: End, line: &str) -> Command {
    let mut words = first.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).arg(testbed.iwarp_run()).args(testbed.device_options(end));
    command.args(options).arg("--").args(testbed.words(line));
    command
}

fn as_nobody(testbed: &Testbed, end: End, line: &str) -> Command {
    let mut command = before(testbed, AS_NOBODY, &[], end, line);
    // For DPDK's sockets and locks.
    command.env("RUNTIME_DIRECTORY", testbed.shared_folder());
    command
}

fn nobody_devinfo(testbed: &mut Testbed) -> io::Result<String> {
    let mut command = as_nobody(testbed, End::Server, "ibv_devinfo");
    let result = testbed.start_command(End::Server, &mut command)?.finish(CASE_TIMEOUT)?;
    expect_text(&expect_success("ibv_devinfo", result)?, "iWARP (1)")?;
    Ok("without capabilities".into())
}

fn nobody_rping(testbed: &mut Testbed) -> io::Result<String> {
    let mut server = as_nobody(testbed, End::Server, SERVER);
    let mut client = as_nobody(testbed, End::Client, CLIENT);
    pair(testbed, &mut server, &mut client)?;
    Ok("both ends without capabilities".into())
}

/// Runs both ends of rping.
fn pair(testbed: &mut Testbed, server: &mut Command, client: &mut Command) -> io::Result<()> {
    let server = testbed.serve_command(server)?;
    let client = testbed.start_command(End::Client, client)?.finish(CASE_TIMEOUT)?;
    expect_success("rping", client)?;
    expect_success("rping", server.finish(CASE_TIMEOUT)?)?;
    Ok(())
}

/// Without `iwarp-run`: variables of the environment, and a relative path.
fn relative_path(testbed: &mut Testbed) -> io::Result<String> {
    let command = |testbed: &Testbed, end: End, line: &str| {
        let words = testbed.words(line);
        let options = testbed.device_options(end);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(testbed.library().join(".."));
        command.env("LD_LIBRARY_PATH", "ferrowarp");
        command.env("FERROWARP_DEVICE", &options[1]);
        command.env("FERROWARP_ADDRESS", format!("{},{}", options[3], options[5]));
        command
    };
    let mut server = command(testbed, End::Server, SERVER);
    let mut client = command(testbed, End::Client, CLIENT);
    pair(testbed, &mut server, &mut client)?;
    Ok("LD_LIBRARY_PATH=ferrowarp and two variables".into())
}

fn preload(testbed: &mut Testbed) -> io::Result<String> {
    let mut server = before(testbed, "env", &["--preload"], End::Server, SERVER);
    let mut client = before(testbed, "env", &["--preload"], End::Client, CLIENT);
    pair(testbed, &mut server, &mut client)?;
    Ok("iwarp-run --preload at both ends".into())
}

/// A program with an RPATH to the stock libraries maps them. With `--preload` it uses ours.
fn preload_over_stock(testbed: &mut Testbed) -> io::Result<String> {
    let source = crate::workspace::root().join("tests/verbs/bad_input_cm.c");
    let program = testbed.shared_folder().join("with_rpath");
    let mut compile = Command::new("cc");
    compile.arg("-o").args([&program, &source]).args(["-lrdmacm", "-libverbs", "-lpthread"]);
    let stock = stock_folder()?;
    compile.arg(format!("-Wl,--disable-new-dtags,-rpath,{}", stock.display()));
    expect_success("cc", process::run(&mut compile, CASE_TIMEOUT)?)?;
    let line = program.to_string_lossy().into_owned();
    let mut command = before(testbed, "env", &["--preload"], End::Server, &line);
    let result = testbed.start_command(End::Server, &mut command)?.finish(CASE_TIMEOUT)?;
    let last = result.output.lines().last().unwrap_or_default().to_owned();
    expect_success(&line, result)?;
    Ok(format!("RPATH to {}: {last}", stock.display()))
}

/// Folder of the stock librdmacm.
fn stock_folder() -> io::Result<PathBuf> {
    let folders =
        fs::read_dir("/usr/lib")?.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut found = folders.filter(|folder| folder.join("librdmacm.so.1").exists());
    found.next().ok_or_else(|| failure("no librdmacm.so.1 below /usr/lib"))
}

/// The loader ignores `LD_LIBRARY_PATH` for such a program: `iwarp-run` refuses in one line.
fn setuid(testbed: &mut Testbed) -> io::Result<String> {
    let program = testbed.shared_folder().join("rping-setuid");
    fs::copy("/usr/bin/rping", &program)?;
    chown(&program, Some(NOBODY), None)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755))?;
    let line = format!("{} -s -C 1", program.display());
    let result = testbed.run(End::Server, &line, CASE_TIMEOUT)?;
    let code = result.status.and_then(|status| status.code());
    if code != Some(126) || result.output.lines().count() != 1 {
        return Err(failure(format!("{code:?}: {}", one_line(&result.output))));
    }
    expect_text(&result.output, "setuid")?;
    Ok(result.output.trim().rsplit(": ").next().unwrap_or_default().to_owned())
}

/// `iwarp-run --print` for a shell.
fn print(testbed: &mut Testbed) -> io::Result<String> {
    let mut command = Command::new(testbed.iwarp_run());
    command.args(testbed.device_options(End::Server)).arg("--print");
    let printed = testbed.start_command(End::Server, &mut command)?.finish(CASE_TIMEOUT)?;
    let printed = expect_success("iwarp-run --print", printed)?;
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{printed}\nibv_devinfo")]);
    let result = testbed.start_command(End::Server, &mut shell)?.finish(CASE_TIMEOUT)?;
    expect_text(&expect_success("ibv_devinfo", result)?, "iWARP (1)")?;
    Ok("a shell evaluates the variables".into())
}

fn no_membarrier(testbed: &mut Testbed) -> io::Result<String> {
    let prefix = "{bin}/no_membarrier";
    testbed.run_pair_ok(
        &format!("{prefix} {SERVER}"),
        &format!("{prefix} {CLIENT}"),
        CASE_TIMEOUT,
    )?;
    Ok("both ends without the system call membarrier".into())
}

/// The environment of DPDK reserves address space: a limit is reported in one line.
fn address_space(testbed: &mut Testbed) -> io::Result<String> {
    let mut command = before(testbed, "prlimit --as=2000000000", &[], End::Server, "ibv_devinfo");
    let result = testbed.start_command(End::Server, &mut command)?.finish(CASE_TIMEOUT)?;
    if result.success() {
        return Ok("opens the device with 2 GB of address space".into());
    }
    let about = result.output.lines().find(|line| line.starts_with("ferrowarp:"));
    let about = about.filter(|line| line.contains("ulimit -v"));
    about.map(str::to_owned).ok_or_else(|| failure(one_line(&result.output)))
}

/// Few descriptors: a line, and no crash.
fn descriptors(testbed: &mut Testbed) -> io::Result<String> {
    let mut command = before(testbed, "prlimit --nofile=8", &[], End::Server, "ibv_devinfo");
    let result = testbed.start_command(End::Server, &mut command)?.finish(CASE_TIMEOUT)?;
    if result.status.and_then(|status| status.code()).is_none() {
        return Err(failure(format!("{:?}: {}", result.status, one_line(&result.output))));
    }
    let about = result.output.lines().find(|line| line.starts_with("ferrowarp:"));
    about.map(str::to_owned).ok_or_else(|| failure(one_line(&result.output)))
}
