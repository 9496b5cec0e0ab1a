//! Runs the workloads under valgrind.

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context, Result, anyhow, ensure};

use crate::callgrind::{self, Profile};
use crate::cases::Case;
use crate::state_lines::{self, EndLines};

/// Program that runs a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Core,
    /// From post to polled completion.
    Verbs,
}

impl Program {
    /// Both, in the order of their columns.
    pub(crate) const ALL: [Self; 2] = [Self::Core, Self::Verbs];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Core => "core-cost",
            Self::Verbs => "verbs-cost",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) case: Case,
    /// Instructions, by program in the order of [`Program::ALL`].
    pub(crate) costs: [Option<Profile>; 2],
    pub(crate) lines: Option<Lines>,
}

/// Lines of state touched by the trains of a workload.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    pub(crate) ends: [EndLines; 2],
    pub(crate) writes: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) programs: PathBuf,
    pub(crate) scratch: PathBuf,
    pub(crate) percent: u64,
}

enum Outcome {
    Cost(Program, Profile),
    Lines(Lines),
}

/// Measures all cases, two at a time. Without the program for the verbs only the core.
pub(crate) fn all(setup: &Setup, cases: Vec<Case>) -> Result<Vec<Measured>> {
    let has_verbs = setup.programs.join(Program::Verbs.name()).exists();
    // The traces take longest, so they begin.
    let mut jobs: Vec<(usize, Option<Program>)> = Vec::new();
    let of = |wanted: fn(&Case) -> bool, kind: Option<Program>| {
        let matching = cases.iter().enumerate().filter(move |(_, case)| wanted(case));
        matching.map(move |(index, _)| (index, kind))
    };
    if has_verbs {
        jobs.extend(of(|case| case.traced.is_some(), None));
        jobs.extend(of(|case| case.has_verbs, Some(Program::Verbs)));
    }
    jobs.extend(of(|case| case.has_core, Some(Program::Core)));
    let outcomes = in_parallel(&jobs, |&(index, kind)| {
        let case = &cases[index];
        let outcome = match kind {
            Some(program) => setup.cost(program, case).map(|cost| Outcome::Cost(program, cost)),
            None => setup.lines(case).map(Outcome::Lines),
        };
        outcome.with_context(|| case.name.clone())
    });
    let unmeasured = |case| Measured { case, costs: [None, None], lines: None };
    let mut measured: Vec<_> = cases.into_iter().map(unmeasured).collect();
    for ((index, _), outcome) in jobs.into_iter().zip(outcomes) {
        match outcome? {
            Outcome::Cost(program, cost) => measured[index].costs[program as usize] = Some(cost),
            Outcome::Lines(lines) => measured[index].lines = Some(lines),
        }
    }
    Ok(measured)
}

/// Calls `work` for each job on two threads; returns the results in the order of the jobs.
fn in_parallel<J: Sync, R: Send>(jobs: &[J], work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let index = next.fetch_add(1, Ordering::Relaxed);
        jobs.get(index).map(|job| (index, work(job)))
    };
    let mut results: Vec<_> = thread::scope(|scope| {
        let threads =
            [(); 2].map(|()| scope.spawn(|| std::iter::from_fn(take).collect::<Vec<_>>()));
        let join = |thread: ScopedJoinHandle<'_, _>| thread.join().expect("no job panics");
        threads.into_iter().flat_map(join).collect()
    });
    results.sort_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A line that at most one train in so many touches belongs to one queue pair of many.
const ONE_IN: u64 = 8;

impl Lines {
    /// Returns how many lines of its own a queue pair touches in a turn of `turn` messages, by end.
    pub(crate) fn own_per_turn(&self, turn: u64) -> [f64; 2] {
        let turns = (self.writes / turn).max(1) as f64;
        self.ends.each_ref().map(|end| end.touched_by_few(ONE_IN) as f64 / turns)
    }
}

impl Setup {
    /// Runs the program by a relative path: its copy on the heap has the same length everywhere, so
    /// that what follows lies alike in the cache lines.
    fn valgrind(&self, program: Program, case: &Case, options: &[&str], count: u64) -> Command {
        let mut command = Command::new("valgrind");
        command
            .current_dir(&self.programs)
            .args(options)
            .arg(format!("./{}", program.name()))
            .args(&case.options)
            .args(["--count", &count.to_string()]);
        command
    }

    fn scaled(&self, count: u64) -> u64 {
        (count * self.percent / 100).max(1)
    }

    /// Returns the cost of a message or segment: the difference of two runs over the difference of
    /// their counts, so that neither establishment nor the last ACKs are in it.
    fn cost(&self, program: Program, case: &Case) -> Result<Profile> {
        let count = self.scaled(case.count);
        let file = self.scratch.join(format!("{}, {}", program.name(), case.name));
        let run = |count: u64, extension: &str| -> Result<(Profile, u64)> {
            let file = file.with_extension(extension);
            let out_file = format!("--callgrind-out-file={}", file.display());
            // Establishment waits in real time: it is not collected. The name of a method has
            // `<..Pair>::` from Rust 1.97 on, and valgrind 3.27 takes the first pattern alone.
            let collect = ["--toggle-collect=*Pair*::poll_s*"];
            let options = [&callgrind::OPTIONS[..], &collect[..], &["-q", &out_file][..]].concat();
            let out = self.valgrind(program, case, &options, count).output()?;
            ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            let text = fs::read_to_string(&file)?;
            let profile = Profile::parse(&text, &["::poll_source", "::poll_sink"])?;
            let output = String::from_utf8_lossy(&out.stdout);
            Ok((
                profile,
                segments(&output).with_context(|| format!("{}: {output}", program.name()))?,
            ))
        };
        let (fewer, few) = run(count, "fewer")?;
        let (more, many) = run(3 * count, "more")?;
        Ok(more.per_message(&fewer, if case.per_write { 2 * count } else { many - few }))
    }

    /// Returns the lines of state that trains touch, from post to completion.
    fn lines(&self, case: &Case) -> Result<Lines> {
        let [count, marked] = case.traced.context("a case that is traced")?;
        let marked = self.scaled(marked);
        let options = ["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"];
        let mut child = self
            .valgrind(Program::Verbs, case, &options, count)
            .args(["--marked", &marked.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let trace = child.stderr.take().context("a pipe")?;
        // Read to its end, also after an error of the program.
        let ends = state_lines::read(BufReader::with_capacity(1 << 20, trace));
        ensure!(
            child.wait()?.success(),
            "{}: {}",
            Program::Verbs.name(),
            ends.err().unwrap_or_else(|| anyhow!("failed")),
        );
        Ok(Lines { ends: ends?, writes: marked })
    }
}

/// Parses the number before "segments" in the output of the programs.
fn segments(output: &str) -> Option<u64> {
    let (before, _) = output.split_once(" segments")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Checks that valgrind and the program for the core are there.
pub(crate) fn check_tools(programs: &Path) -> Result<()> {
    ensure!(
        Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success()),
        "valgrind is absent: apt-get install valgrind"
    );
    let program = programs.join(Program::Core.name());
    ensure!(program.exists(), "{} is absent: build this package whole", program.display());
    Ok(())
}
