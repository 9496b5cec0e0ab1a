//! Cores of threads.

/// Returns the cores that the process may use.
pub(crate) fn available() -> Vec<usize> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.into_iter().map(|core| core.id).collect()
}

/// Returns the number of cores that the process may keep busy: by its affinity mask, and by the CPU
/// quota of its control groups. At least 1.
pub(crate) fn usable() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Pins the calling thread. False if there is no such core, or the thread may not run on it.
pub(crate) fn pin(core: usize) -> bool {
    // `set_for_current` panics for an index beyond the CPU set.
    core < usize::try_from(libc::CPU_SETSIZE).unwrap_or(0)
        && core_affinity::set_for_current(core_affinity::CoreId { id: core })
}
