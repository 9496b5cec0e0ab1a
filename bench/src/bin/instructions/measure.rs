//! Runs the workloads under valgrind.

use std::fs;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::callgrind::{self, Profile};
use crate::cases::{Case, SEGMENT};
use crate::state_lines::{self, EndLines};

/// Program that runs a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Core,
    /// From post to polled completion.
    Verbs,
    /// The same with one message at a time, other than Writes.
    VerbsSingle,
}

impl Program {
    pub(crate) const ALL: [Self; 3] = [Self::Core, Self::Verbs, Self::VerbsSingle];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Core => "core-cost",
            Self::Verbs => "verbs-cost",
            Self::VerbsSingle => "verbs-single-cost",
        }
    }

    /// Returns the name of its instructions in the tables.
    pub(crate) const fn measure(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Verbs | Self::VerbsSingle => "post to completion",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) case: Case,
    /// Instructions, by program in the order of [`Program::ALL`].
    pub(crate) costs: [Option<Profile>; 3],
    pub(crate) lines: Option<Lines>,
}

/// Lines of state touched by the trains of a workload.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) ends: [EndLines; 2],
    /// Turns of the queue pairs, where many take turns.
    pub(crate) turns: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) programs: PathBuf,
    pub(crate) scratch: PathBuf,
    pub(crate) percent: u64,
}

impl Setup {
    /// Measures all cases, two at a time.
    pub(crate) fn measure_all(&self, cases: Vec<Case>) -> Result<Vec<Measured>> {
        let rest = Mutex::new(cases.into_iter().enumerate());
        let next = || rest.lock().expect("no measurement panics").next();
        let work = || -> Result<Vec<_>> {
            std::iter::from_fn(next)
                .map(|(index, case)| {
                    let name = case.name.clone();
                    Ok((index, self.measure(case).context(name)?))
                })
                .collect()
        };
        let results = thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(work));
            threads.map(|thread| thread.join().expect("no measurement panics"))
        });
        let mut measured = Vec::new();
        for result in results {
            measured.extend(result?);
        }
        measured.sort_by_key(|&(index, _)| index);
        Ok(measured.into_iter().map(|(_, measured)| measured).collect())
    }

    /// Measures a case; without the program for the verbs only the core.
    fn measure(&self, case: Case) -> Result<Measured> {
        let has_verbs = self.programs.join(Program::Verbs.name()).exists();
        let lines = (has_verbs && case.traced.is_some()).then(|| self.lines(&case)).transpose()?;
        let mut costs = [None, None, None];
        for &program in case.programs {
            if program == Program::Core || has_verbs {
                costs[program as usize] = Some(self.cost(program, &case)?);
            }
        }
        Ok(Measured { case, costs, lines })
    }

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
            let output = String::from_utf8(out.stdout)?;
            let segments = output.split_once(" segments").and_then(|(count, _)| count.parse().ok());
            let segments = segments.with_context(|| format!("{}: {output}", program.name()))?;
            Ok((Profile::parse(&fs::read_to_string(&file)?)?, segments))
        };
        let (fewer, few) = run(count, "fewer")?;
        let (more, many) = run(3 * count, "more")?;
        Ok(more.per_message(&fewer, if case.unit == SEGMENT { many - few } else { 2 * count }))
    }

    /// Returns the lines of state that trains touch, from post to completion.
    fn lines(&self, case: &Case) -> Result<Lines> {
        let [count, marked] = case.traced.context("a case that is traced")?;
        let writes = self.scaled(marked);
        let options = ["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"];
        let mut child = self
            .valgrind(Program::Verbs, case, &options, count)
            .args(["--marked", &writes.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let trace = child.stderr.take().context("a pipe")?;
        // It has the errors of the program too.
        let ends = state_lines::read(BufReader::with_capacity(1 << 20, trace))?;
        ensure!(child.wait()?.success(), "{} failed", Program::Verbs.name());
        Ok(Lines { ends, turns: case.turn.map(|turn| (writes / turn).max(1)) })
    }
}
