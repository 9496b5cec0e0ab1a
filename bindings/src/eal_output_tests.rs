//! Output of a program while EAL starts.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio, exit};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::*;

/// Set in a process that runs one test alone.
const ALONE: &str = "FERROWARP_EAL_ALONE";

/// Runs a test of this module in a process of its own; `None` in that process. Its runtime folder,
/// which it cannot remove if it aborts, is in one that is removed here.
fn alone(name: &str, stderr: Stdio) -> Option<Output> {
    if std::env::var_os(ALONE).is_some() {
        return None;
    }
    let module = module_path!().split_once("::").unwrap().1;
    let folder = std::env::temp_dir().join(format!("ferrowarp-eal-{}-{name}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("{module}::{name}"), "--nocapture"]);
    command.env(ALONE, "1").env("RUNTIME_DIRECTORY", &folder);
    let ended = command.stdout(Stdio::piped()).stderr(stderr).output();
    std::fs::remove_dir_all(&folder).unwrap();
    Some(ended.unwrap())
}

/// Lowers a limit of this process.
fn limit(resource: libc::__rlimit_resource_t, value: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: reads a structure.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

#[test]
fn eal_starts_although_nothing_can_be_printed() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    if let Some(ended) = alone("eal_starts_although_nothing_can_be_printed", full.into()) {
        return assert!(ended.status.success(), "{ended:?}");
    }
    let config = EalConfig { log_level: LogLevel::Info, ..EalConfig::default() };
    exit(i32::from(Eal::init(&config).is_err()));
}

#[test]
fn text_of_other_threads_goes_where_they_print_it() {
    static DONE: AtomicBool = AtomicBool::new(false);
    static LINES: AtomicUsize = AtomicUsize::new(0);
    if let Some(ended) = alone("text_of_other_threads_goes_where_they_print_it", Stdio::piped()) {
        assert!(ended.status.success(), "{ended:?}");
        let text = String::from_utf8_lossy(&ended.stdout);
        let total = text.lines().find_map(|line| line.strip_prefix("total ")).unwrap();
        assert_eq!(text.matches("other line").count().to_string(), total);
        return assert!(!String::from_utf8_lossy(&ended.stderr).contains("other line"));
    }
    let printer = thread::spawn(|| {
        while !DONE.load(Ordering::Relaxed) {
            // SAFETY: a string.
            unsafe { libc::puts(c"other line".as_ptr()) };
            LINES.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(1));
        }
    });
    while LINES.load(Ordering::Relaxed) == 0 {
        thread::yield_now();
    }
    let has_failed = Eal::init(&EalConfig::default()).is_err();
    DONE.store(true, Ordering::Relaxed);
    printer.join().unwrap();
    // SAFETY: writes the buffers of all streams.
    unsafe { libc::fflush(core::ptr::null_mut()) };
    println!("\ntotal {}", LINES.load(Ordering::Relaxed));
    exit(i32::from(has_failed));
}

#[test]
fn refused_plugins_are_named() {
    if let Some(ended) = alone("refused_plugins_are_named", Stdio::piped()) {
        return assert!(ended.status.success(), "{ended:?}");
    }
    // Removed with the folder.
    let folder = std::env::var("RUNTIME_DIRECTORY").unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(format!("{folder}/librte_net_broken.so"), "no library").unwrap();
    let config = EalConfig { extra: vec!["-d".to_owned(), folder], ..EalConfig::default() };
    let error = Eal::init(&config).unwrap_err().to_string();
    assert!(error.contains("everybody may write to ") && error.ends_with(')'), "{error}");
}

/// EAL aborts the process if it cannot create the pipes of a worker thread.
#[test]
fn panic_of_eal_is_printed() {
    if let Some(ended) = alone("panic_of_eal_is_printed", Stdio::piped()) {
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{ended:?}");
        let text = String::from_utf8_lossy(&ended.stderr);
        return assert!(text.contains("PANIC in "), "{text}");
    }
    limit(libc::RLIMIT_CORE, 0);
    limit(libc::RLIMIT_NOFILE, 64);
    let lcores = format!("--lcores=(0-60)@{}", first_allowed_cpu());
    let config = EalConfig { extra: vec![lcores], ..EalConfig::default() };
    let outcome = Eal::init(&config);
    panic!("{:?}", outcome.err());
}
