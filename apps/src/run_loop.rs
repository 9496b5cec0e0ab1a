//! Cooperative tasks: one thread runs client and server, or two threads run one each.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::Context as _;
use core_affinity::CoreId;

use crate::stop;

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The task continues.
    Running,
    /// The task is finished and need not be stepped again.
    Finished,
}

/// A cooperative task: a client or a server.
pub trait Task {
    /// Runs one step without blocking: polls for completions once and handles them.
    ///
    /// # Errors
    /// If the task has failed; one line that names a remedy.
    fn step(&mut self) -> anyhow::Result<Step>;

    /// Called repeatedly once the task is finished, while others of the same program run: polls the
    /// device, so that their connections hear of the end. A device that is not polled keeps the
    /// FINs that did not fit into its transmit queue.
    fn linger(&mut self) {}
}

/// Cores that client and server run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorePlacement {
    /// Both on one thread, pinned to this core.
    OneCore(usize),
    /// Each on a thread of its own, pinned to these cores.
    TwoCores(usize, usize),
}

impl CorePlacement {
    /// Returns the placement for `--cores`; by default the first two cores of the affinity mask.
    ///
    /// # Errors
    /// If a core is not available, or more than two are named.
    pub fn from_cores(cores: &[usize]) -> anyhow::Result<Self> {
        let available = available_cores();
        check_cores(cores, &available)?;
        Ok(match (cores, &available[..]) {
            (&[one], _) | (&[], &[one]) => Self::OneCore(one),
            (&[a, b], _) if a == b => Self::OneCore(a),
            (&[a, b], _) | (&[], &[a, b, ..]) => Self::TwoCores(a, b),
            (&[], &[]) => anyhow::bail!("cannot tell the cores of this task: use --cores"),
            _ => anyhow::bail!("--cores takes one core for both ends, or two"),
        })
    }

    /// Returns the cores.
    #[must_use]
    pub fn cores(self) -> Vec<usize> {
        match self {
            Self::OneCore(core) => vec![core],
            Self::TwoCores(a, b) => vec![a, b],
        }
    }
}

/// Returns the core of each of `shards` shards: given by `--cores`; by default the first ones of
/// the affinity mask.
///
/// # Errors
/// If a core is not available, or there are not as many cores as shards.
pub fn shard_cores(shards: usize, cores: &[usize]) -> anyhow::Result<Vec<usize>> {
    let available = available_cores();
    check_cores(cores, &available)?;
    if !cores.is_empty() {
        anyhow::ensure!(
            cores.len() == shards,
            "--cores names {} for {shards} shards: name one for each shard, or give --shards {}",
            counted(cores.len(), "core"),
            cores.len()
        );
        return Ok(cores.to_vec());
    }
    anyhow::ensure!(
        available.len() >= shards,
        "{} for {shards} shards: give fewer --shards, or have some share a core with --cores",
        counted(available.len(), "core"),
    );
    Ok(available[..shards].to_vec())
}

/// Returns a number with its noun.
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Pins the calling thread to a core that was asked for.
///
/// # Errors
/// If the core is not available.
pub fn pin_checked(core: usize) -> anyhow::Result<()> {
    check_cores(&[core], &available_cores())?;
    pin(core);
    Ok(())
}

fn check_cores(cores: &[usize], available: &[usize]) -> anyhow::Result<()> {
    for core in cores {
        anyhow::ensure!(
            available.contains(core),
            "core {core} cannot be used: choose from {}",
            available.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        );
    }
    Ok(())
}

/// Returns the cores that this program may use, as the kernel numbers them.
fn available_cores() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// Pins the calling thread. Failure is ignored: results only vary more.
pub fn pin(core: usize) {
    core_affinity::set_for_current(CoreId { id: core });
}

/// Exponential back-off of an idle server: after many idle steps it sleeps between steps, first
/// briefly, then longer, so that it uses little CPU time.
#[derive(Debug, Default)]
pub struct IdleBackoff {
    /// Idle steps since the last busy one.
    count: u32,
}

impl IdleBackoff {
    /// Idle steps before the first sleep.
    const SPIN_STEPS: u32 = 20_000;
    /// Shortest sleep.
    const SLEEP_MIN: Duration = Duration::from_micros(50);
    /// Longest sleep: short compared with the startup time of a client.
    const SLEEP_MAX: Duration = Duration::from_millis(2);
    /// Sleeps of one length before it doubles.
    const SLEEPS_PER_DOUBLING: u32 = 1000;

    /// Sleeps if idle for long enough. To be called at each step; `busy` if it found work.
    pub fn step(&mut self, busy: bool) {
        if busy {
            self.count = 0;
            return;
        }
        if let Some(duration) = self.sleep_time() {
            thread::sleep(duration);
        }
        self.count = self.count.saturating_add(1);
    }

    /// Returns the duration of the next sleep.
    fn sleep_time(&self) -> Option<Duration> {
        let naps = self.count.checked_sub(Self::SPIN_STEPS)?;
        let doublings = (naps / Self::SLEEPS_PER_DOUBLING).min(16);
        Some((Self::SLEEP_MIN * (1 << doublings)).min(Self::SLEEP_MAX))
    }
}

/// Runs one task until it is finished.
///
/// # Errors
/// Errors of the task, and interruption.
pub fn run(task: &mut impl Task) -> anyhow::Result<()> {
    while task.step()? == Step::Running {
        stop::check_tasks()?;
    }
    Ok(())
}

/// Runs two tasks until both are finished. If one fails, the other is stopped and the error is
/// returned.
///
/// # Errors
/// Errors of the tasks, and interruption.
pub fn run_both<A, B>(a: &mut A, b: &mut B, placement: CorePlacement) -> anyhow::Result<()>
where
    A: Task + Send,
    B: Task + Send,
{
    match placement {
        CorePlacement::OneCore(core) => run_on_cores(&mut [Pair::new(a, b)], &[core]),
        CorePlacement::TwoCores(a_core, b_core) => {
            let group = Group::new(2);
            thread::scope(|scope| {
                let b_thread = group.spawn(scope, || run_pinned(b, b_core, &group));
                let a_thread = group.spawn(scope, || run_pinned(a, a_core, &group));
                let results = [a_thread, b_thread].map(|thread| thread.and_then(join));
                results.into_iter().collect()
            })
        }
    }
}

/// Runs tasks until all are finished, each on a thread of its own, pinned to the core at the same
/// place of `cores`; the caller keeps its affinity. If one fails, the others are stopped and the
/// error is returned.
///
/// # Errors
/// Errors of the tasks, and interruption.
pub fn run_on_cores<T: Task + Send>(tasks: &mut [T], cores: &[usize]) -> anyhow::Result<()> {
    assert_eq!(tasks.len(), cores.len(), "a core for each task");
    let group = &Group::new(tasks.len());
    thread::scope(|scope| {
        let threads: Vec<_> = tasks
            .iter_mut()
            .zip(cores)
            .map(|(task, &core)| group.spawn(scope, move || run_pinned(task, core, group)))
            .collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.and_then(join)).collect();
        results.into_iter().collect()
    })
}

/// Runs the workers of one end: a single one on this thread, several as [`run_on_cores`].
///
/// # Errors
/// As [`run_on_cores`].
pub fn run_workers<T: Task + Send>(workers: &mut [T], cores: &[usize]) -> anyhow::Result<()> {
    match workers {
        [worker] => run(worker),
        workers => run_on_cores(workers, cores),
    }
}

/// Two tasks on one thread, which steps them in turn.
pub struct Pair<A, B> {
    a: A,
    b: B,
    a_step: Step,
    b_step: Step,
}

impl<A, B> Pair<A, B> {
    /// A pair of tasks.
    pub const fn new(a: A, b: B) -> Self {
        Self { a, b, a_step: Step::Running, b_step: Step::Running }
    }
}

impl<A: Task, B: Task> Task for Pair<A, B> {
    #[inline]
    fn step(&mut self) -> anyhow::Result<Step> {
        match self.a_step {
            Step::Running => self.a_step = self.a.step()?,
            Step::Finished => self.a.linger(),
        }
        match self.b_step {
            Step::Running => self.b_step = self.b.step()?,
            Step::Finished => self.b.linger(),
        }
        let both = self.a_step == Step::Finished && self.b_step == Step::Finished;
        Ok(if both { Step::Finished } else { Step::Running })
    }

    fn linger(&mut self) {
        self.a.linger();
        self.b.linger();
    }
}

impl<T: Task + ?Sized> Task for &mut T {
    #[inline]
    fn step(&mut self) -> anyhow::Result<Step> {
        (**self).step()
    }

    fn linger(&mut self) {
        (**self).linger();
    }
}

/// Tasks on threads of their own.
struct Group {
    /// Number of tasks that are not finished.
    running: AtomicUsize,
    /// One has failed.
    stop: AtomicBool,
}

impl Group {
    const fn new(tasks: usize) -> Self {
        Self { running: AtomicUsize::new(tasks), stop: AtomicBool::new(false) }
    }

    /// Starts the thread of a task. Stops the group if there can be none: the others would wait for
    /// this task for ever.
    fn spawn<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> anyhow::Result<()> + Send + 'scope,
    ) -> anyhow::Result<ScopedJoinHandle<'scope, anyhow::Result<()>>> {
        let started = thread::Builder::new().spawn_scoped(scope, work);
        if started.is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
        started.context("no thread can be started (raise ulimit -u, or the container's limit)")
    }
}

/// Runs one task until all of its group are finished or another one has failed.
fn run_pinned(task: &mut impl Task, core: usize, group: &Group) -> anyhow::Result<()> {
    pin(core);
    let _guard = StopOnPanic(group);
    let mut is_finished = false;
    while !group.stop.load(Ordering::Relaxed) {
        let outcome = if is_finished {
            if group.running.load(Ordering::Relaxed) == 0 {
                return Ok(());
            }
            task.linger();
            Ok(Step::Running)
        } else {
            task.step()
        };
        match outcome.and_then(|step| Ok(stop::check_tasks().map(|()| step)?)) {
            Ok(Step::Running) => {}
            Ok(Step::Finished) => {
                is_finished = true;
                group.running.fetch_sub(1, Ordering::Relaxed);
            }
            Err(error) => {
                group.stop.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Stops the group if its task panics: the others would wait for it for ever.
struct StopOnPanic<'a>(&'a Group);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn join(thread: ScopedJoinHandle<'_, anyhow::Result<()>>) -> anyhow::Result<()> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter {
        left: u32,
        fails: bool,
    }

    /// Is finished at once, and counts how often it lingers; the other waits for that.
    struct Awaited<'a>(&'a AtomicUsize);
    struct Awaiting<'a>(&'a AtomicUsize);

    impl Task for Awaited<'_> {
        fn step(&mut self) -> anyhow::Result<Step> {
            Ok(Step::Finished)
        }

        fn linger(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Task for Awaiting<'_> {
        fn step(&mut self) -> anyhow::Result<Step> {
            std::thread::yield_now();
            let is_over = self.0.load(Ordering::Relaxed) >= 3;
            Ok(if is_over { Step::Finished } else { Step::Running })
        }
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
    fn finished_task_lingers_while_the_other_runs() {
        for placement in placements() {
            let count = AtomicUsize::new(0);
            run_both(&mut Awaited(&count), &mut Awaiting(&count), placement).unwrap();
            assert!(count.load(Ordering::Relaxed) >= 3);
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
    #[should_panic = "a defect"]
    fn run_both_stops_when_one_task_panics() {
        struct Panics;
        impl Task for Panics {
            fn step(&mut self) -> anyhow::Result<Step> {
                panic!("a defect");
            }
        }
        let cores = available_cores();
        let placement = CorePlacement::TwoCores(cores[0], cores[0]);
        let _ = run_both(&mut Counter { left: u32::MAX, fails: false }, &mut Panics, placement);
    }

    #[test]
    fn tasks_run_on_as_many_threads() {
        let first = available_cores()[0];
        let counter = |left| Counter { left, fails: false };
        let mut tasks = [1000, 10, 1].map(counter);
        run_on_cores(&mut tasks, &[first; 3]).unwrap();
        assert!(tasks.iter().all(|task| task.left == 0));
        let mut tasks = [counter(u32::MAX), Counter { left: 10, fails: true }];
        assert_eq!(run_on_cores(&mut tasks, &[first; 2]).unwrap_err().to_string(), "failed");
    }

    #[test]
    fn each_shard_has_a_core() {
        let available = available_cores();
        let first = available[0];
        assert_eq!(shard_cores(2, &[first, first]).unwrap(), [first, first]);
        assert_eq!(shard_cores(available.len(), &[]).unwrap(), available);
        let error = |shards, cores: &[usize]| shard_cores(shards, cores).unwrap_err().to_string();
        assert_eq!(
            error(2, &[first]),
            "--cores names 1 core for 2 shards: name one for each shard, or give --shards 1"
        );
        assert!(error(1, &[first, first]).contains("2 cores for 1 shards"));
        assert!(error(1, &[usize::MAX]).contains("cannot be used"));
        let more = available.len() + 1;
        assert!(error(more, &[]).contains("give fewer --shards"));
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
