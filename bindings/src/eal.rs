//! Startup of EAL (environment abstraction layer): once per process, on a thread of its own.

use std::ffi::{CStr, CString};
use std::io::Write as _;
use std::sync::OnceLock;

use crate::eal_needs;
use crate::error::{EAL_REASON, Errno, Error};
use crate::lock_order::{Rank, RankedGuard, RankedMutex};
use crate::{eal_plugins, fork, sys, version};

/// Serializes the control path: DPDK's hotplug and port configuration are not thread-safe.
static CONTROL_LOCK: RankedMutex<()> = RankedMutex::new(Rank::Control, ());

/// Result of `rte_eal_init`, which is called at most once in this process.
static STATE: OnceLock<Result<State, Error>> = OnceLock::new();

/// Address space, in MiB, of EAL's heap without hugepages. Only touched pages use memory.
const NO_HUGE_HEAP_MIB: u32 = 1024;

pub(crate) fn control_lock() -> RankedGuard<'static, ()> {
    CONTROL_LOCK.lock()
}

struct State {
    memory: Memory,
    extra: Vec<String>,
    external: bool,
}

/// Placeholder PCI address that no machine has: the last function of the last device of the last
/// bus. It keeps EAL's allow list non-empty: with an empty list every PCI device would be probed,
/// and with `--no-pci` none could be hotplugged later.
const DUMMY_PCI_ADDRESS: &str = "ffff:ff:1f.7";

/// Use of hugepages by EAL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hugepages {
    /// Hugepages if [`EalConfig::memory_mib`] of them are free, else ordinary memory.
    #[default]
    Auto,
    /// Ordinary memory.
    Never,
    /// Hugepages, or [`Error::NoHugepages`].
    Always,
}

/// Kind of memory that EAL uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Hugepages.
    Hugepages,
    /// Ordinary pages: more TLB misses, and unusable with physical NICs.
    Ordinary,
    /// Chosen by the extra arguments.
    ByArguments,
}

/// Startup configuration of EAL.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EalConfig {
    /// Use of hugepages.
    pub hugepages: Hugepages,
    /// Memory the process needs, in MiB; hugepages are used only if that much is free.
    pub memory_mib: u32,
    /// Addresses (`0000:01:00.0`) of the PCI devices that EAL probes at start; their requirements
    /// decide the IOVA mode (physical or virtual addresses). Others can be hotplugged later
    /// ([`Eal::hotplug_add`]); a device that is not named is not touched.
    pub pci: Vec<String>,
    /// Further EAL arguments, passed verbatim; they override the choices of this type.
    pub extra: Vec<String>,
    /// DPDK's log level: messages of this level and more severe ones go to standard error.
    pub log_level: LogLevel,
}

/// Log levels of DPDK; each includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Critical messages only. Errors are returned to the caller, so this is the default.
    #[default]
    Critical,
    /// Errors.
    Error,
    /// Warnings.
    Warning,
    /// Informational messages.
    Info,
    /// Debug messages.
    Debug,
}

impl LogLevel {
    fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

impl Default for EalConfig {
    fn default() -> Self {
        Self {
            hugepages: Hugepages::Auto,
            memory_mib: 128,
            pci: Vec::new(),
            extra: Vec::new(),
            log_level: LogLevel::default(),
        }
    }
}

impl EalConfig {
    fn has_argument(&self, names: &[&str]) -> bool {
        self.extra.iter().any(|argument| {
            names.iter().any(|name| {
                argument == name
                    || argument.strip_prefix(name).is_some_and(|rest| {
                        // `--name=value`, or `-lvalue` in one word.
                        rest.starts_with('=') || !name.starts_with("--")
                    })
            })
        })
    }

    /// Returns the argument vector for `rte_eal_init`.
    fn arguments(&self, memory: Memory) -> Vec<String> {
        let mut arguments = vec!["ferrowarp".to_owned()];
        if !self.has_argument(&["-l", "-c", "--lcores"]) {
            // One lcore, for the thread that runs the initialization; the stack's threads register
            // themselves.
            arguments.push(format!("--lcores=0@{}", first_allowed_cpu()));
        }
        match memory {
            Memory::Hugepages => {
                arguments.push("--in-memory".to_owned());
                // Such memory needs no hugetlbfs, but EAL would open and lock a mounted one, and
                // fail where it may not. None is mounted at this folder.
                arguments.push("--huge-dir=/".to_owned());
                // One file for all pages of a size: a vhost peer maps at most 8.
                arguments.push("--single-file-segments".to_owned());
            }
            Memory::Ordinary => {
                arguments.push("--no-huge".to_owned());
                arguments.push("--no-shconf".to_owned());
                arguments.push("-m".to_owned());
                arguments.push(self.memory_mib.max(NO_HUGE_HEAP_MIB).to_string());
            }
            Memory::ByArguments => {
                // No files for secondary processes unless an argument requests them.
                const FILES: [&str; 4] =
                    ["--in-memory", "--no-shconf", "--proc-type", "--file-prefix"];
                if !self.has_argument(&FILES) {
                    arguments.push("--no-shconf".to_owned());
                }
            }
        }
        if self.pci.is_empty() && !self.has_argument(&["--iova-mode"]) {
            // As root EAL would choose physical addresses, which virtual devices never need.
            arguments.push("--iova-mode=va".to_owned());
        }
        if !self.has_argument(&["--telemetry", "--no-telemetry"]) {
            arguments.push("--no-telemetry".to_owned());
        }
        if !self.has_argument(&["--file-prefix"]) {
            arguments.push(format!("--file-prefix=ferrowarp-{}", std::process::id()));
        }
        if !self.has_argument(&["--log-level"]) {
            arguments.push(format!("--log-level={}", self.log_level.name()));
        }
        const CARDS: [&str; 5] = ["-a", "-b", "--allow", "--block", "--no-pci"];
        if self.pci.is_empty() && !self.has_argument(&CARDS) {
            // Without it EAL probes every PCI device that the kernel does not use, and some that it
            // does.
            arguments.push("-a".to_owned());
            arguments.push(DUMMY_PCI_ADDRESS.to_owned());
        }
        for address in &self.pci {
            arguments.push("-a".to_owned());
            arguments.push(address.clone());
        }
        arguments.extend(self.extra.iter().cloned());
        arguments
    }
}

/// Proof that EAL runs. EAL runs until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Eal {
    _private: (),
}

impl Eal {
    /// Starts EAL, or returns the running one. An EAL that the program started itself is used as
    /// it is: the memory, PCI and log settings of `config` have no effect. The program's own call
    /// of `rte_eal_init` must have returned successfully before.
    ///
    /// Runs on a thread of its own, because `rte_eal_init` pins its caller to one CPU. Takes 0.1
    /// to 0.2 s, most of it for loading driver plug-ins. Leaves no files.
    ///
    /// Meanwhile C's `stdout` and `stderr` are streams of this function's, because EAL prints its
    /// options to them when it fails. They pass on what other threads print, and have no
    /// descriptor (`fileno`).
    ///
    /// # Errors
    /// [`Error::EalInit`], [`Error::EalNeeds`], [`Error::NoHugepages`] and [`Error::OtherRelease`]
    /// are permanent: DPDK cannot be initialized twice. [`Error::EalArgumentsDiffer`] if EAL runs
    /// and `config` has other extra arguments. [`Error::Forked`] in a child of the process in which
    /// EAL runs.
    pub fn init(config: &EalConfig) -> Result<Self, Error> {
        if fork::is_child() {
            return Err(Error::Forked);
        }
        fork::install_atfork();
        let outcome = STATE.get_or_init(|| {
            let config = config.clone();
            std::thread::Builder::new()
                .name("eal-init".to_owned())
                .spawn(move || start(config))
                .map_err(|_| Error::EalInit(Errno(libc::EAGAIN)))?
                .join()
                .unwrap_or(Err(Error::EalInit(Errno(libc::EFAULT))))
        });
        let state = outcome.as_ref().map_err(|error| *error)?;
        if !(config.extra.is_empty() || config.extra == state.extra) {
            return Err(Error::EalArgumentsDiffer);
        }
        Ok(Self { _private: () })
    }

    /// Returns the running EAL, if it was started in this process.
    #[must_use]
    pub fn running() -> Option<Self> {
        let runs = matches!(STATE.get(), Some(Ok(_))) && !fork::is_child();
        runs.then_some(Self { _private: () })
    }

    /// True if EAL was started with these extra arguments.
    pub fn was_started_with<'a>(self, extra: impl IntoIterator<Item = &'a str>) -> bool {
        matches!(STATE.get(), Some(Ok(state)) if extra.into_iter().eq(state.extra.iter()))
    }

    /// True if the program had started EAL before [`Eal::init`] was called.
    #[must_use]
    pub fn is_external(self) -> bool {
        matches!(STATE.get(), Some(Ok(State { external: true, .. })))
    }

    /// Returns the number of files that hold EAL's memory, at most `max` and 64; `None` if some of
    /// it is in none, so that no other process can map it. Walks all pages: some milliseconds
    /// without hugepages.
    #[must_use]
    pub fn memory_files(self, max: u32) -> Option<u32> {
        // SAFETY: EAL runs (`self`), and the walk locks what it reads.
        let count = unsafe { sys::fw_memory_files(max) };
        u32::try_from(count).ok()
    }

    /// Returns the kind of memory EAL uses.
    #[must_use]
    pub fn memory(self) -> Memory {
        match STATE.get() {
            Some(Ok(state)) => state.memory,
            _ => Memory::Ordinary,
        }
    }
}

fn start(config: EalConfig) -> Result<State, Error> {
    if !version::is_of_headers() {
        return Err(Error::OtherRelease);
    }
    // The lcore count is 0 until EAL is initialized.
    // SAFETY: reads a number.
    if unsafe { sys::rte_lcore_count() } != 0 {
        return Ok(attach_running());
    }
    eal_needs::check(first_allowed_cpu()).map_err(Error::EalNeeds)?;
    let memory = choose_memory(&config)?;
    let arguments = config
        .arguments(memory)
        .into_iter()
        .map(|argument| CString::new(argument).map_err(|_| Error::BadName))
        .collect::<Result<Vec<_>, _>>()?;
    let mut pointers: Vec<*mut libc::c_char> =
        arguments.into_iter().map(CString::into_raw).collect();
    let count = i32::try_from(pointers.len()).map_err(|_| Error::BadName)?;
    pointers.push(core::ptr::null_mut());
    // EAL keeps pointers into its arguments, so they live as long as the process.
    let vector = Vec::leak(pointers);
    let mut text = core::ptr::null_mut();
    let mut len = 0;
    // SAFETY: `count` valid strings followed by NULL, leaked above, and two places to write to;
    // called once per process, because only `STATE`'s initializer calls this function.
    let parsed =
        unsafe { sys::fw_eal_init(count, vector.as_mut_ptr(), &raw mut text, &raw mut len) };
    let outcome = if parsed < 0 { Err(Error::EalInit(Errno::last())) } else { Ok(()) };
    if !text.is_null() {
        // SAFETY: the shim's, which it leaves to this process.
        let printed = unsafe { core::slice::from_raw_parts(text.cast::<u8>(), len) };
        report_output(&String::from_utf8_lossy(printed), outcome.is_ok(), &config);
    }
    remove_runtime_folder();
    outcome?;
    Ok(State { memory, extra: config.extra, external: false })
}

/// The reason that EAL gives when it loads no plug-ins.
const NO_PLUGINS: &str = "Cannot init plugins";

/// Handles what EAL printed: of a failure the reason becomes part of the error, so that it is one
/// line and not all of EAL's options. What a higher log level asks for is printed.
fn report_output(printed: &str, has_started: bool, config: &EalConfig) {
    let is_verbose = config.log_level > LogLevel::Critical || config.has_argument(&["--log-level"]);
    if has_started || is_verbose {
        // A standard error without a reader is no failure of EAL.
        let _ = std::io::stderr().write_all(printed.as_bytes());
    }
    if !has_started && let Some(reason) = failure_reason(printed) {
        let refused = (reason == NO_PLUGINS).then(|| eal_plugins::refusal(&config.extra)).flatten();
        let _ = EAL_REASON.set(refused.unwrap_or(reason));
    }
}

/// Finds the reason of a failure: the last line that EAL marks as fatal, or else its last error.
fn failure_reason(printed: &str) -> Option<String> {
    let last = |mark: &str| printed.lines().rev().find_map(|line| Some(line.split_once(mark)?.1));
    let reason = last("FATAL: ").or_else(|| last("EAL: "))?.trim();
    (!reason.is_empty()).then(|| reason.to_owned())
}

/// Returns the state of the EAL that the program started. Its runtime directory is left alone.
fn attach_running() -> State {
    // SAFETY: reads a setting of the EAL that runs.
    let memory = match unsafe { sys::rte_eal_has_hugepages() } {
        0 => Memory::Ordinary,
        _ => Memory::Hugepages,
    };
    State { memory, extra: Vec::new(), external: true }
}

/// Removes EAL's runtime directory. With shared configuration off EAL creates it and puts nothing
/// into it; removed at once, it is not left behind however the process ends.
fn remove_runtime_folder() {
    // SAFETY: returns a static buffer, filled or still empty: EAL's initialization has returned.
    let folder = unsafe { sys::rte_eal_get_runtime_dir() };
    if folder.is_null() {
        return;
    }
    // SAFETY: a NUL-terminated string that EAL keeps and no longer changes.
    let folder = unsafe { CStr::from_ptr(folder) };
    if let Ok(folder) = folder.to_str() {
        let folder = std::path::Path::new(folder);
        // Fails harmlessly if extra arguments made EAL keep files there.
        if std::fs::remove_dir(folder).is_ok()
            && let Some(parent) = folder.parent()
        {
            let _ = std::fs::remove_dir(parent);
        }
    }
}

fn choose_memory(config: &EalConfig) -> Result<Memory, Error> {
    const DECIDING: [&str; 6] =
        ["--no-huge", "--in-memory", "--huge-dir", "--legacy-mem", "-m", "--proc-type"];
    if config.has_argument(&DECIDING) {
        return Ok(Memory::ByArguments);
    }
    match config.hugepages {
        Hugepages::Never => Ok(Memory::Ordinary),
        Hugepages::Auto | Hugepages::Always
            if eal_needs::has_hugepage_sizes()
                && eal_needs::tells_numa_nodes()
                && can_map_hugepages(config.memory_mib) =>
        {
            Ok(Memory::Hugepages)
        }
        Hugepages::Auto => Ok(Memory::Ordinary),
        Hugepages::Always => Err(Error::NoHugepages),
    }
}

/// True if `mib` MiB of hugepages are available. Reserves them, touches all and unmaps them, which
/// takes some 20 ms: this also detects limits and permissions that the counters in /sys do not
/// show. Under the limit of a control group hugepages can be reserved, but access to more than it
/// grants raises SIGBUS.
fn can_map_hugepages(mib: u32) -> bool {
    const PAGE_LOG2: [u32; 2] = [21, 30];
    PAGE_LOG2.into_iter().any(|log2| {
        let page = 1_usize << log2;
        let len = (mib as usize * (1 << 20)).next_multiple_of(page);
        let size_flag = i32::try_from(log2 << 26).unwrap_or(0);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size_flag;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing
        // memory.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), len, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return false;
        }
        // SAFETY: the mapping made above, which holds no data.
        let touched = unsafe { libc::madvise(at, len, libc::MADV_POPULATE_WRITE) } == 0;
        // Kernels before 5.14 do not support MADV_POPULATE_WRITE.
        let touched =
            touched || std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
        // SAFETY: exactly the mapping made above, to which nothing refers.
        unsafe { libc::munmap(at, len) };
        touched
    })
}

/// Returns the lowest CPU in this thread's affinity mask.
fn first_allowed_cpu() -> usize {
    let mut set = core::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: `set` is writable for `size` bytes; 0 is the calling thread.
    let status = unsafe { libc::sched_getaffinity(0, size, set.as_mut_ptr()) };
    if status != 0 {
        return 0;
    }
    // SAFETY: all-zero is a valid set, and the kernel filled it.
    let set = unsafe { set.assume_init() };
    (0..libc::CPU_SETSIZE as usize)
        // SAFETY: `cpu` is below the size of the set.
        .find(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_of_a_failure_is_one_line() {
        let usage = "\nUsage: x [options]\n\nEAL common options:\n  -c COREMASK\n";
        let printed = format!("{usage}EAL: FATAL: Invalid 'command line' arguments.\n");
        let printed = format!("{printed}EAL: Invalid 'command line' arguments.\n");
        assert_eq!(failure_reason(&printed).unwrap(), "Invalid 'command line' arguments.");
        assert_eq!(failure_reason("EAL: Cannot init\n").unwrap(), "Cannot init");
        assert_eq!(failure_reason("x: invalid option\n"), None);
    }

    #[test]
    fn extra_arguments_override_defaults() {
        let config = EalConfig {
            extra: vec!["-l2".into(), "--file-prefix=x".into(), "--log-level".into()],
            ..EalConfig::default()
        };
        let arguments = config.arguments(Memory::Hugepages);
        assert!(!arguments.iter().any(|argument| argument.starts_with("--lcores")));
        assert_eq!(arguments.iter().filter(|a| a.starts_with("--file-prefix")).count(), 1);
        assert_eq!(arguments.iter().filter(|a| a.starts_with("--log-level")).count(), 1);
    }

    #[test]
    fn pci_devices_are_probed_only_if_named() {
        let allowed = |config: &EalConfig| {
            let arguments = config.arguments(Memory::Ordinary);
            // A PCI device can be hotplugged later only if EAL has the bus.
            assert!(!arguments.contains(&"--no-pci".to_owned()));
            let pairs = arguments.windows(2).filter(|pair| pair[0] == "-a");
            pairs.map(|pair| pair[1].clone()).collect::<Vec<_>>()
        };
        assert_eq!(allowed(&EalConfig::default()), [DUMMY_PCI_ADDRESS]);
        let one = EalConfig { pci: vec!["0000:01:00.0".into()], ..EalConfig::default() };
        assert_eq!(allowed(&one), ["0000:01:00.0"]);
        let device = std::path::Path::new("/sys/bus/pci/devices").join(DUMMY_PCI_ADDRESS);
        assert!(!device.exists());
    }

    /// Runs in a child process, in which the program itself has called `rte_eal_init`.
    #[test]
    fn eal_started_by_the_program_is_used() {
        const CHILD: &str = "FERROWARP_TEST_HOST_EAL";
        let name = "eal::tests::eal_started_by_the_program_is_used";
        if std::env::var_os(CHILD).is_none() {
            let output = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .env(CHILD, "1")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        assert!(Eal::running().is_none());
        let prefix = format!("--file-prefix=host-{}", std::process::id());
        let arguments = [
            "host",
            "--no-huge",
            "-m",
            "64",
            "--no-shconf",
            "--no-telemetry",
            "--no-pci",
            "--iova-mode=va",
            "--log-level=critical",
            &prefix,
            "--vdev=net_null0",
        ];
        let mut arguments: Vec<*mut libc::c_char> =
            arguments.iter().map(|text| CString::new(*text).unwrap().into_raw()).collect();
        let count = i32::try_from(arguments.len()).unwrap();
        arguments.push(core::ptr::null_mut());
        // SAFETY: `count` strings and NULL, leaked; nothing has started EAL in this process.
        let status = unsafe { sys::rte_eal_init(count, Vec::leak(arguments).as_mut_ptr()) };
        assert!(status >= 0);
        remove_runtime_folder();

        let config = EalConfig { hugepages: Hugepages::Always, ..EalConfig::default() };
        let eal = Eal::init(&config).unwrap();
        assert!(eal.is_external());
        assert_eq!(eal.memory(), Memory::Ordinary);
        let extra = EalConfig { extra: vec!["--vdev=net_null1".into()], ..EalConfig::default() };
        assert_eq!(Eal::init(&extra).unwrap_err(), Error::EalArgumentsDiffer);
        // A hotplugged device can be attached again after it is closed. The program's port is found
        // by name and has one owner.
        for _ in 0..2 {
            let own = eal.hotplug_add(crate::Bus::Virtual, "net_null_own", "").unwrap();
            drop(own);
        }
        let host = eal.own_port("net_null0").unwrap();
        assert_eq!(host.info().unwrap().driver, "net_null");
        assert_eq!(eal.own_port("net_null0").unwrap_err(), Error::NoPort);
        drop(host);
    }
}

#[cfg(test)]
#[path = "eal_output_tests.rs"]
mod output_tests;
