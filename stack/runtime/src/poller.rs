//! Policy of the thread that polls a shard: decided once, when the context is opened.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::config::{Config, DriveMode};
use crate::cores;
use ferrowarp_proto::time::nanos;

/// Thread that polls a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poller {
    /// The application alone.
    Application,
    /// A thread on a core of its own, never the application.
    Pinned,
    /// The application while it is active, and a helper otherwise.
    Helper(HelperPolicy),
}

/// Times by which a helper takes over, and parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HelperPolicy {
    /// It takes over when the application has not polled for this long.
    pub(crate) takeover_ns: u64,
    /// It spins for this long after traffic; 0: it parks as soon as a response is not imminent.
    pub(crate) hot_ns: u64,
}

impl HelperPolicy {
    /// A helper that parks.
    pub(crate) const PARKING: Self = Self { takeover_ns: 20_000, hot_ns: 0 };

    /// A helper that spins for `hot_time` after traffic.
    pub(crate) fn hot(hot_time: Duration) -> Self {
        // Longer than a poll, so that it does not compete with an application that polls.
        Self { takeover_ns: 1_500, hot_ns: nanos(hot_time) }
    }
}

impl Poller {
    /// Returns the policy of a mode that is not [`DriveMode::Auto`].
    pub(crate) fn of(mode: DriveMode, hot_time: Duration) -> Self {
        match mode {
            DriveMode::Inline => Self::Application,
            DriveMode::Dedicated => Self::Pinned,
            DriveMode::Helper | DriveMode::Auto => Self::Helper(HelperPolicy::PARKING),
            DriveMode::Hot => Self::Helper(HelperPolicy::hot(hot_time)),
        }
    }

    /// True if a thread of the stack polls while the application does not.
    pub(crate) const fn has_thread(self) -> bool {
        !matches!(self, Self::Application)
    }

    /// True if that thread keeps a core busy, always or after traffic.
    const fn spins(self) -> bool {
        match self {
            Self::Application => false,
            Self::Pinned => true,
            Self::Helper(policy) => policy.hot_ns > 0,
        }
    }

    /// True if the thread that polls may sleep until the port has something; also one of the
    /// application, in a call that waits.
    pub(crate) const fn may_sleep(self) -> bool {
        !matches!(self, Self::Pinned)
    }
}

/// Number of [`SpinningThread`]s.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// A thread of any context of the process that keeps a core busy; counted until this is dropped.
#[derive(Debug)]
pub(crate) struct SpinningThread(());

impl SpinningThread {
    /// `None` if the thread that `poller` requires does not spin.
    pub(crate) fn new(poller: Poller) -> Option<Self> {
        poller.spins().then(|| {
            SPINNING.fetch_add(1, Ordering::Relaxed);
            Self(())
        })
    }
}

impl Drop for SpinningThread {
    fn drop(&mut self) {
        SPINNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the mode that [`DriveMode::Auto`] stands for: helpers may spin only if they, and those
/// of other contexts, leave a core to the application.
pub(crate) fn resolve(config: &Config) -> DriveMode {
    if config.drive != DriveMode::Auto {
        return config.drive;
    }
    let (cores, spinning) = (cores::usable(), SPINNING.load(Ordering::Relaxed));
    let mode = auto(cores, spinning, config.shards);
    tracing::info!(
        "{}: drive mode {mode:?} for {} shard(s), as the process may use {cores} core(s), of which \
         other contexts keep {spinning} busy",
        config.device,
        config.shards
    );
    mode
}

/// `spinning`: threads of other contexts that keep a core busy.
const fn auto(cores: usize, spinning: usize, shards: usize) -> DriveMode {
    if cores > spinning + shards { DriveMode::Hot } else { DriveMode::Helper }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_hot_if_the_helpers_leave_a_core_free() {
        for (cores, spinning, shards, mode) in [
            (1, 0, 1, DriveMode::Helper),
            (2, 0, 1, DriveMode::Hot),
            (2, 0, 2, DriveMode::Helper),
            (2, 1, 1, DriveMode::Helper),
            (4, 0, 3, DriveMode::Hot),
            (4, 0, 4, DriveMode::Helper),
            (4, 2, 1, DriveMode::Hot),
            (4, 2, 2, DriveMode::Helper),
        ] {
            let case = (cores, spinning, shards);
            assert_eq!(auto(cores, spinning, shards), mode, "cores, busy, shards: {case:?}");
        }
    }

    #[test]
    fn pinned_and_hot_threads_spin() {
        for (mode, spins) in [
            (DriveMode::Inline, false),
            (DriveMode::Dedicated, true),
            (DriveMode::Helper, false),
            (DriveMode::Hot, true),
        ] {
            let poller = Poller::of(mode, Duration::from_millis(50));
            assert_eq!(SpinningThread::new(poller).is_some(), spins, "{mode:?}");
        }
        assert!(!Poller::of(DriveMode::Hot, Duration::ZERO).spins());
    }

    #[test]
    fn chosen_mode_is_kept() {
        let config = |mode| {
            Config::new("ring".parse().unwrap(), "198.18.0.1".parse().unwrap(), 24).drive(mode)
        };
        for mode in [DriveMode::Inline, DriveMode::Dedicated, DriveMode::Helper, DriveMode::Hot] {
            assert_eq!(resolve(&config(mode)), mode);
        }
        assert_ne!(resolve(&config(DriveMode::Auto)), DriveMode::Auto);
    }
}
