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
pub trait Machine {
    /// Advances a little and never waits: one pass over the completions that are there.
    ///
    /// # Errors
    /// If the end cannot go on; one line that says what to do.
    fn step(&mut self) -> anyhow::Result<Step>;
}

/// Where ends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Both on one thread, pinned to this core.
    Together(usize),
    /// Each on a thread of its own, pinned to these cores.
    Apart(usize, usize),
}

impl Placement {
    /// From `--cores`; by default the first two cores that this program may use.
    ///
    /// # Errors
    /// If a core is not there, or more than two are named.
    pub fn from_cores(cores: &[usize]) -> anyhow::Result<Self> {
        let available = available();
        for core in cores {
            anyhow::ensure!(
                available.contains(core),
                "core {core} cannot be used: choose from {}",
                available.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
            );
        }
        Ok(match (cores, &available[..]) {
            (&[one], _) | (&[], &[one]) => Self::Together(one),
            (&[a, b], _) if a == b => Self::Together(a),
            (&[a, b], _) | (&[], &[a, b, ..]) => Self::Apart(a, b),
            (&[], &[]) => anyhow::bail!("the cores of this machine are unknown: use --cores"),
            _ => anyhow::bail!("--cores takes one core for both ends, or two"),
        })
    }

    /// The cores.
    #[must_use]
    pub fn cores(self) -> Vec<usize> {
        match self {
            Self::Together(core) => vec![core],
            Self::Apart(a, b) => vec![a, b],
        }
    }
}

/// Cores that this program may use, as the kernel numbers them.
fn available() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// Pins the calling thread; without success nothing changes but the steadiness of figures.
pub fn pin(core: usize) {
    core_affinity::set_for_current(CoreId { id: core });
}

/// Lets an end that waits for its first peer sleep a little, once nothing has come for a while, and
/// longer the longer nothing comes: a server that nobody uses costs next to nothing.
#[derive(Debug, Default)]
pub struct Idle {
    /// Steps and naps since the last that found something.
    count: u32,
}

impl Idle {
    /// Steps without anything to do before the first nap.
    const PATIENCE: u32 = 20_000;
    /// The first naps.
    const NAP_MIN: Duration = Duration::from_micros(50);
    /// The last: short against the time that a client takes to start.
    const NAP_MAX: Duration = Duration::from_millis(2);
    /// Naps of one length before they double.
    const NAPS: u32 = 1000;

    /// To be called at each step that found nothing (`busy` is false) or something to do.
    pub fn step(&mut self, busy: bool) {
        if busy {
            self.count = 0;
            return;
        }
        if let Some(nap) = self.nap() {
            std::thread::sleep(nap);
        }
        self.count = self.count.saturating_add(1);
    }

    /// How long to sleep now.
    fn nap(&self) -> Option<Duration> {
        let naps = self.count.checked_sub(Self::PATIENCE)?;
        let doublings = (naps / Self::NAPS).min(16);
        Some((Self::NAP_MIN * (1 << doublings)).min(Self::NAP_MAX))
    }
}

/// Set when the user or the system asks the program to end.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From here on a signal to end (SIGINT, SIGTERM, SIGHUP) ends the machines with an error, so that
/// devices are closed, peers are told and reports are written. A second one kills at once.
pub fn mind_signals() {
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
pub fn run_until_interrupted(machine: &mut impl Machine) -> anyhow::Result<()> {
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
pub fn run(machine: &mut impl Machine) -> anyhow::Result<()> {
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
pub fn run_both<A, B>(a: &mut A, b: &mut B, placement: Placement) -> anyhow::Result<()>
where
    A: Machine + Send,
    B: Machine + Send,
{
    match placement {
        Placement::Together(core) => std::thread::scope(|scope| {
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
        Placement::Apart(a_core, b_core) => {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let b_thread = scope.spawn(|| alone(b, b_core, &stop));
                let a_thread = scope.spawn(|| alone(a, a_core, &stop));
                let results = [join(a_thread), join(b_thread)];
                results.into_iter().collect()
            })
        }
    }
}

/// Runs one end until it is finished or the other has failed.
fn alone(machine: &mut impl Machine, core: usize, stop: &AtomicBool) -> anyhow::Result<()> {
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

    impl Machine for Counter {
        fn step(&mut self) -> anyhow::Result<Step> {
            match (self.left, self.fails) {
                (0, true) => anyhow::bail!("failed"),
                (0, false) => return Ok(Step::Finished),
                _ => self.left -= 1,
            }
            Ok(Step::Running)
        }
    }

    fn placements() -> [Placement; 2] {
        let cores = available();
        [Placement::Together(cores[0]), Placement::Apart(cores[0], *cores.last().unwrap())]
    }

    #[test]
    fn naps_grow_while_nothing_comes_and_end_with_the_first_that_does() {
        let mut idle = Idle { count: Idle::PATIENCE - 1 };
        assert_eq!(idle.nap(), None);
        idle.step(false);
        assert_eq!(idle.nap(), Some(Idle::NAP_MIN));
        let at = |naps| Idle { count: Idle::PATIENCE.saturating_add(naps) }.nap().unwrap();
        assert_eq!(at(Idle::NAPS), 2 * Idle::NAP_MIN);
        assert_eq!((at(Idle::NAPS * 20), at(u32::MAX)), (Idle::NAP_MAX, Idle::NAP_MAX));
        idle.step(true);
        assert_eq!(idle.nap(), None);
    }

    #[test]
    fn both_ends_run_to_their_end() {
        for placement in placements() {
            let mut a = Counter { left: 1000, fails: false };
            let mut b = Counter { left: 10, fails: false };
            run_both(&mut a, &mut b, placement).unwrap();
            assert_eq!((a.left, b.left), (0, 0));
        }
    }

    #[test]
    fn an_end_that_fails_stops_the_other() {
        for placement in placements() {
            let mut a = Counter { left: u32::MAX, fails: false };
            let mut b = Counter { left: 10, fails: true };
            let error = run_both(&mut a, &mut b, placement).unwrap_err();
            assert_eq!(error.to_string(), "failed");
        }
    }

    #[test]
    fn cores_are_checked() {
        let first = available()[0];
        assert_eq!(Placement::from_cores(&[first]).unwrap(), Placement::Together(first));
        assert_eq!(Placement::from_cores(&[first, first]).unwrap(), Placement::Together(first));
        assert!(Placement::from_cores(&[usize::MAX]).is_err());
        assert!(Placement::from_cores(&[first, first, first]).is_err());
        assert!(Placement::from_cores(&[]).is_ok());
    }
}
