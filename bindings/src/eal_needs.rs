//! System requirements of EAL, checked before it is started. Without them `rte_eal_init` prints all
//! of its options, or aborts the process.

use core::fmt;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A need of EAL that the system does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EalNeed {
    /// EAL finds processors in `/sys/devices/system/cpu`.
    Sysfs,
    /// EAL reads its own mappings in `/proc/self`.
    Procfs,
    /// EAL reads the size of hugepages in `/proc/meminfo`, also where it uses none.
    Meminfo,
    /// EAL creates a folder for its files, even if there are none: below `/var/run` as root, else
    /// below `$XDG_RUNTIME_DIR` or `/tmp`.
    RuntimeFolder,
    /// EAL opens files, sockets and event descriptors.
    Descriptors,
    /// EAL and its drivers allocate memory; the process aborts where there is none.
    Data,
}

impl fmt::Display for EalNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysfs => write!(
                f,
                "/sys/devices/system/cpu does not describe this processor (mount sysfs at /sys)"
            ),
            Self::Procfs => write!(f, "/proc/self cannot be read (mount proc at /proc)"),
            Self::Meminfo => write!(
                f,
                "/proc/meminfo tells no size of hugepages (mount proc at /proc without subset=pid)"
            ),
            Self::RuntimeFolder => write!(
                f,
                "no folder can be created in {} (set RUNTIME_DIRECTORY to a folder that can be \
                 written)",
                runtime_parent().display()
            ),
            Self::Descriptors => write!(
                f,
                "the process may open fewer than {DESCRIPTORS_MIN} more files (raise it with \
                 ulimit -n)"
            ),
            Self::Data => write!(
                f,
                "the process may have less than {DATA_MIN_MIB} MiB of data (raise it with ulimit \
                 -d)"
            ),
        }
    }
}

/// Descriptors that EAL and the first port open, about.
const DESCRIPTORS_MIN: usize = 24;

/// MiB of private memory that EAL and the first port need, about.
const DATA_MIN_MIB: libc::rlim_t = 96;

/// Checks the needs of EAL, started on this processor.
pub(crate) fn check(cpu: usize) -> Result<(), EalNeed> {
    if File::open("/proc/self/maps").is_err() {
        // The files are absent too if no descriptor is left.
        return Err(if can_open() { EalNeed::Procfs } else { EalNeed::Descriptors });
    }
    if !can_open() {
        return Err(EalNeed::Descriptors);
    }
    if limit(libc::RLIMIT_DATA) < DATA_MIN_MIB << 20 {
        return Err(EalNeed::Data);
    }
    if !tells_hugepage_size(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()) {
        return Err(EalNeed::Meminfo);
    }
    let core = format!("/sys/devices/system/cpu/cpu{cpu}/topology/core_id");
    if !Path::new(&core).exists() {
        return Err(EalNeed::Sysfs);
    }
    check_writable(&runtime_parent()).map_err(|_| EalNeed::RuntimeFolder)
}

/// Returns a soft limit of this process; `RLIM_INFINITY` if it has none.
fn limit(resource: libc::__rlimit_resource_t) -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to the structure.
    match unsafe { libc::getrlimit(resource, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => libc::RLIM_INFINITY,
    }
}

/// Returns the options of `ulimit` for the limits of this process that may have kept EAL from
/// starting, each with a blank before it. `of_threads`: it could not start a thread.
pub(crate) fn limits_in_the_way(of_threads: bool) -> String {
    let memory = [
        (libc::RLIMIT_AS, " -v"),
        (libc::RLIMIT_DATA, " -d"),
        // Memory is in files that have no name.
        (libc::RLIMIT_FSIZE, " -f"),
    ];
    let threads = [(libc::RLIMIT_NPROC, " -u")];
    let limits = if of_threads { &threads[..] } else { &memory };
    let finite = limits.iter().filter(|(resource, _)| limit(*resource) != libc::RLIM_INFINITY);
    finite.map(|(_, option)| *option).collect()
}

/// True if as many descriptors are left as EAL needs.
fn can_open() -> bool {
    let opened = (0..DESCRIPTORS_MIN).map_while(|_| File::open("/").ok());
    opened.collect::<Vec<_>>().len() == DESCRIPTORS_MIN
}

/// True if EAL finds a size in this text of `/proc/meminfo`; it aborts otherwise.
fn tells_hugepage_size(meminfo: &str) -> bool {
    let size = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"));
    let digits = size.and_then(|size| size.split_whitespace().next());
    digits.and_then(|digits| digits.parse::<u64>().ok()).is_some_and(|size| size != 0)
}

/// True if the kernel lists sizes of hugepages, with which EAL starts if it is to use them.
pub(crate) fn has_hugepage_sizes() -> bool {
    let sizes = std::fs::read_dir("/sys/kernel/mm/hugepages");
    sizes.is_ok_and(|mut sizes| sizes.next().is_some())
}

/// Folder in which EAL creates its own, as `eal_create_runtime_dir` chooses it.
fn runtime_parent() -> PathBuf {
    // SAFETY: returns a number.
    let is_root = unsafe { libc::getuid() } == 0;
    let named = |name| std::env::var_os(name).filter(|text| !text.is_empty()).map(PathBuf::from);
    let chosen = match named("RUNTIME_DIRECTORY") {
        Some(folder) => Some(folder),
        None if is_root => Some("/var/run".into()),
        None => named("XDG_RUNTIME_DIR"),
    };
    let parent = chosen.unwrap_or_else(|| "/tmp".into());
    let own = parent.join("dpdk");
    if own.is_dir() { own } else { parent }
}

/// Checks that this process may create files in a folder.
///
/// # Errors
/// The reason why not.
pub fn check_writable(folder: &Path) -> io::Result<()> {
    let path = CString::new(folder.as_os_str().to_owned().into_vec())?;
    // SAFETY: a string.
    match unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// True if EAL can learn on which NUMA node a page lies, or need not. A page whose node is not told
/// is no memory to it, so that none would be left. The filters of system calls of container
/// runtimes refuse that without CAP_SYS_NICE.
pub(crate) fn tells_numa_nodes() -> bool {
    /// `MPOL_F_NODE | MPOL_F_ADDR` (linux/mempolicy.h): the node of an address.
    const NODE_OF_ADDRESS: libc::c_ulong = 3;
    let mut node: libc::c_int = 0;
    let at = core::ptr::from_mut(&mut node);
    let none = core::ptr::null_mut::<libc::c_ulong>();
    // SAFETY: the call writes `node`, whose address it looks up, and no mask of nodes.
    let status =
        unsafe { libc::syscall(libc::SYS_get_mempolicy, at, none, 0_usize, at, NODE_OF_ADDRESS) };
    // Without NUMA in the kernel EAL asks for no nodes.
    status == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_that_is_absent_or_read_only_is_refused() {
        assert!(check_writable(Path::new("/tmp")).is_ok());
        for folder in ["/proc/self/absent", "/sys/devices/absent"] {
            assert!(check_writable(Path::new(folder)).is_err(), "{folder}");
        }
    }

    #[test]
    fn size_of_hugepages_is_found_in_meminfo() {
        assert!(tells_hugepage_size("MemTotal: 1 kB\nHugepagesize:       2048 kB\n"));
        for text in ["", "MemTotal: 1 kB\n", "Hugepagesize: 0 kB\n", "Hugepagesize:\n"] {
            assert!(!tells_hugepage_size(text), "{text}");
        }
    }

    /// The kernel gives some files of /proc to root then, as for a program with file capabilities.
    #[test]
    fn process_that_is_not_dumpable_has_its_proc() {
        let passed = crate::fork::run_in_child(|| {
            // SAFETY: sets the user of the child, which has one thread. Fails unless root calls it.
            unsafe { libc::setuid(65534) };
            // SAFETY: sets an attribute of the child.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
            check(0) != Err(EalNeed::Procfs)
        });
        assert!(passed.unwrap(), "/proc is mounted");
    }

    #[test]
    fn processor_without_an_entry_is_refused() {
        assert_eq!(check(1 << 20), Err(EalNeed::Sysfs));
    }

    #[test]
    fn needs_are_named_on_one_line_with_a_remedy() {
        for need in [
            EalNeed::Sysfs,
            EalNeed::Procfs,
            EalNeed::Meminfo,
            EalNeed::RuntimeFolder,
            EalNeed::Descriptors,
            EalNeed::Data,
        ] {
            let text = need.to_string();
            assert!(text.ends_with(')') && text.contains(" (") && !text.contains('\n'), "{text}");
        }
    }
}
