//! Ends as machines: one thread runs both, or two threads run one each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use core_affinity::CoreId;

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more to do.
    Running,
    /// The machine is done; it need not be stepped again.
    Finished,
}

/// One end.
pub trait Task {
    /// Advances a little and never waits: one pass over the completions that are there.
    ///
    /// # Errors
    /// If the end cannot go on; one line that says what to do.
    fn step(&mut self) -> anyhow::Result<Step>;
}

/// Where ends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorePlacement {
    /// Both on one thread, pinned to this core.
    OneCore(usize),
    /// Each on a thread of its own, pinned to these cores.
    TwoCores(usize, usize),
}

impl CorePlacement {
    /// From `--cores`; by default the first two cores that this program may use.
    ///
    /// # Errors
    /// If a core is not there, or more than two are named.
    pub fn from_cores(cores: &[usize]) -> anyhow::Result<Self> {
        let available = available_cores();
        for core in cores {
            anyhow::ensure!(
                available.contains(core),
                "core {core} cannot be used: choose from {}",
                available.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
            );
        }
        Ok(match (cores, &available[..]) {
            (&[one], _) | (&[], &[one]) => Self::OneCore(one),
            (&[a, b], _) if a == b => Self::OneCore(a),
            (&[a, b], _) | (&[], &[a, b, ..]) => Self::TwoCores(a, b),
            (&[], &[]) => anyhow::bail!("the cores of this machine are unknown: use --cores"),
            _ => anyhow::bail!("--cores takes one core for both ends, or two"),
        })
    }

    /// The cores.
    #[must_use]
    pub fn cores(self) -> Vec<usize> {
        match self {
            Self::OneCore(core) => vec![core],
            Self::TwoCores(a, b) => vec![a, b],
        }
    }
}

/// Cores that this program may use, as the kernel numbers them.
fn available_cores() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// Pins the calling thread; without success nothing changes but the steadiness of figures.
pub fn pin(core: usize) {
    core_affinity::set_for_current(CoreId { id: core });
}

/// Lets an end that waits for its first peer sleep a little, once nothing has come for a while, and
/// longer the longer nothing comes: a server that nobody uses costs next to nothing.
#[derive(Debug, Default)]
pub struct IdleBackoff {
    /// Steps and naps since the last that found something.
    count: u32,
}

impl IdleBackoff {
    /// Steps without anything to do before the first nap.
    const SPIN_STEPS: u32 = 20_000;
    /// The first naps.
    const SLEEP_MIN: Duration = Duration::from_micros(50);
    /// The last: short against the time that a client takes to start.
    const SLEEP_MAX: Duration = Duration::from_millis(2);
    /// Naps of one length before they double.
    const SLEEPS_PER_DOUBLING: u32 = 1000;

    /// To be called at each step that found nothing (`busy` is false) or something to do.
    pub fn step(&mut self, busy: bool) {
        if busy {
            self.count = 0;
            return;
        }
        if let Some(nap) = self.sleep_time() {
            std::thread::sleep(nap);
        }
        self.count = self.count.saturating_add(1);
    }

    /// How long to sleep now.
    fn sleep_time(&self) -> Option<Duration> {
        let naps = self.count.checked_sub(Self::SPIN_STEPS)?;
        let doublings = (naps / Self::SLEEPS_PER_DOUBLING).min(16);
        Some((Self::SLEEP_MIN * (1 << doublings)).min(Self::SLEEP_MAX))
    }
}

/// Set when the user or the system asks the program to end.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From here on a signal to end (SIGINT, SIGTERM, SIGHUP) ends the machines with an error, so that
/// devices are closed, peers are told and reports are written. A second one kills at once.
pub fn install_signal_handler() {
    let handler = || {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    };
    // Without a handler a signal ends the program as it always does.
    let _ = ctrlc::set_handler(handler);
}

/// True once the program was asked to end.
#[must_use]
pub fn was_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Runs an end that goes on until the program is asked to end, which is no error.
///
/// # Errors
/// Those of the machine.
pub fn run_until_interrupted(machine: &mut impl Task) -> anyhow::Result<()> {
    let outcome = run(machine);
    if was_interrupted() { Ok(()) } else { outcome }
}

#[inline]
fn check_signals() -> anyhow::Result<()> {
    if was_interrupted() {
        anyhow::bail!("interrupted");
    }
    Ok(())
}

/// Runs one end until it is finished.
///
/// # Errors
/// Those of the machine, and interruption.
pub fn run(machine: &mut impl Task) -> anyhow::Result<()> {
    while machine.step()? == Step::Running {
        check_signals()?;
    }
    Ok(())
}

/// Runs both ends until both are finished. If one fails the other is stopped, and the error of
/// the one that failed is returned.
///
/// # Errors
/// Those of the machines, and interruption.
pub fn run_both<A, B>(a: &mut A, b: &mut B, placement: CorePlacement) -> anyhow::Result<()>
where
    A: Task + Send,
    B: Task + Send,
{
    match placement {
        CorePlacement::OneCore(core) => std::thread::scope(|scope| {
            // A thread of its own: the caller keeps its affinity.
            join(scope.spawn(move || {
                pin(core);
                let (mut a_step, mut b_step) = (Step::Running, Step::Running);
                while a_step == Step::Running || b_step == Step::Running {
                    if a_step == Step::Running {
                        a_step = a.step()?;
                    }
                    if b_step == Step::Running {
                        b_step = b.step()?;
                    }
                    check_signals()?;
                }
                Ok(())
            }))
        }),
        CorePlacement::TwoCores(a_core, b_core) => {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let b_thread = scope.spawn(|| run_pinned(b, b_core, &stop));
                let a_thread = scope.spawn(|| run_pinned(a, a_core, &stop));
                let results = [join(a_thread), join(b_thread)];
                results.into_iter().collect()
            })
        }
    }
}

/// Runs one end until it is finished or the other has failed.
fn run_pinned(machine: &mut impl Task, core: usize, stop: &AtomicBool) -> anyhow::Result<()> {
    pin(core);
    while !stop.load(Ordering::Relaxed) {
        match machine.step().and_then(|step| check_signals().map(|()| step)) {
            Ok(Step::Running) => {}
            Ok(Step::Finished) => return Ok(()),
            Err(error) => {
                stop.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
    }
    Ok(())
}

fn join(thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<()>>) -> anyhow::Result<()> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter {
        left: u32,
        fails: bool,
    }

    impl Task for Counter {
        fn step(&mut self) -> anyhow::Result<Step> {
            match (self.left, self.fails) {
                (0, true) => anyhow::bail!("failed"),
                (0, false) => return Ok(Step::Finished),
                _ => self.left -= 1,
            }
            Ok(Step::Running)
        }
    }

    fn placements() -> [CorePlacement; 2] {
        let cores = available_cores();
        [
            CorePlacement::OneCore(cores[0]),
            CorePlacement::TwoCores(cores[0], *cores.last().unwrap()),
        ]
    }

    #[test]
    fn idle_backoff_grows_and_resets_on_activity() {
        let mut idle = IdleBackoff { count: IdleBackoff::SPIN_STEPS - 1 };
        assert_eq!(idle.sleep_time(), None);
        idle.step(false);
        assert_eq!(idle.sleep_time(), Some(IdleBackoff::SLEEP_MIN));
        let at = |naps| {
            IdleBackoff { count: IdleBackoff::SPIN_STEPS.saturating_add(naps) }
                .sleep_time()
                .unwrap()
        };
        assert_eq!(at(IdleBackoff::SLEEPS_PER_DOUBLING), 2 * IdleBackoff::SLEEP_MIN);
        assert_eq!(
            (at(IdleBackoff::SLEEPS_PER_DOUBLING * 20), at(u32::MAX)),
            (IdleBackoff::SLEEP_MAX, IdleBackoff::SLEEP_MAX)
        );
        idle.step(true);
        assert_eq!(idle.sleep_time(), None);
    }

    #[test]
    fn run_both_steps_tasks_until_finished() {
        for placement in placements() {
            let mut a = Counter { left: 1000, fails: false };
            let mut b = Counter { left: 10, fails: false };
            run_both(&mut a, &mut b, placement).unwrap();
            assert_eq!((a.left, b.left), (0, 0));
        }
    }

    #[test]
    fn run_both_stops_when_one_task_fails() {
        for placement in placements() {
            let mut a = Counter { left: u32::MAX, fails: false };
            let mut b = Counter { left: 10, fails: true };
            let error = run_both(&mut a, &mut b, placement).unwrap_err();
            assert_eq!(error.to_string(), "failed");
        }
    }

    #[test]
    fn unavailable_or_too_many_cores_are_rejected() {
        let first = available_cores()[0];
        assert_eq!(CorePlacement::from_cores(&[first]).unwrap(), CorePlacement::OneCore(first));
        assert_eq!(
            CorePlacement::from_cores(&[first, first]).unwrap(),
            CorePlacement::OneCore(first)
        );
        assert!(CorePlacement::from_cores(&[usize::MAX]).is_err());
        assert!(CorePlacement::from_cores(&[first, first, first]).is_err());
        assert!(CorePlacement::from_cores(&[]).is_ok());
    }
}
