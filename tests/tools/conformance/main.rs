//! Rules of the specifications: their coverage, the tests tagged with them, and mutation testing of
//! the lines tagged with them. `scripts/conformance` runs it.

mod mutant_tree;
mod mutation_run;
mod pool;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use ferrowarp_tests::compliance::cargo;
use ferrowarp_tests::compliance::mutation_results::{MutantResult, Outcome, Results};
use ferrowarp_tests::compliance::report::TraceReport;
use ferrowarp_tests::compliance::survivors::Survivors;
use ferrowarp_tests::process;
use ferrowarp_tests::workspace::root;
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::mutation_run::MutationRun;
use crate::pool::Pool;

/// Timeout of the tests of a target.
const TEST_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Parser)]
struct ConformanceOptions {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Prints the coverage of the rules.
    Table,
    /// Runs every test that is tagged with a rule.
    Test {
        /// Includes tests over devices.
        #[arg(long)]
        device: bool,
    },
    /// Mutates lines tagged with rules, and runs the tests tagged with the same rules.
    Mutate(Mutate),
}

#[derive(Args)]
struct Mutate {
    /// Seed of the selection of rules and mutants; without it, every mutant of every rule is run.
    seed: Option<u64>,
    /// File of the results of all mutants: rules in it are not run again.
    #[arg(long)]
    results: Option<PathBuf>,
    /// Number of rules to draw.
    #[arg(long, default_value_t = 60)]
    count: usize,
    /// Folder of the copies of the sources and their builds.
    #[arg(long)]
    folder: PathBuf,
    /// Includes rules of the runtime, which needs libdpdk.
    #[arg(long)]
    dpdk: bool,
    /// Only rules whose ID begins with one of these, separated by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

fn main() -> ExitCode {
    let options = ConformanceOptions::parse();
    let result = match options.what {
        What::Table => table(),
        What::Test { device } => test(device),
        What::Mutate(what) => mutate(&what),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn table() -> io::Result<bool> {
    print!("{}", TraceReport::read(root())?.summary());
    Ok(true)
}

fn progress(len: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {elapsed} {wide_msg}");
    ProgressBar::new(len as u64).with_style(style.expect("the template is valid"))
}

fn test(device: bool) -> io::Result<bool> {
    let report = TraceReport::read(root())?;
    let targets = cargo::by_target(root(), report.tags.iter());
    let bar = progress(targets.len());
    let mut is_good = true;
    for (target, names) in &targets {
        bar.set_message(format!("{} {}", target.package, target.name));
        if target.device && !device {
            bar.suspend(|| println!("skipped: {} {} needs a device", target.package, target.name));
            continue;
        }
        let mut command = target.command(root());
        let result = process::run(command.args(["--", "--exact"]).args(names), TEST_TIMEOUT)?;
        let passed = cargo::passed(&result.output);
        let all_passed = result.success() && passed >= names.len();
        is_good &= all_passed;
        bar.suspend(|| {
            let word = if all_passed { "ok" } else { "FAILED" };
            let count = names.len();
            println!("{word}: {} {}: {passed} for {count} tags", target.package, target.name);
            if !all_passed {
                println!("{}", result.output);
            }
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(is_good)
}

fn mutate(what: &Mutate) -> io::Result<bool> {
    // Another run would replace the copies of the sources, and lose the results of this one.
    let lock = File::create(what.folder.join("lock"))?;
    if lock.try_lock().is_err() {
        return Err(io::Error::other(format!("another run uses {}", what.folder.display())));
    }
    let report = TraceReport::read(root())?;
    let survivors = Survivors::read(root())?;
    let (seed, all) = (what.seed.unwrap_or(0), what.seed.is_none());
    let count = if all { usize::MAX } else { what.count };
    let mut results = what.results.as_deref().filter(|_| all).map(Results::open).transpose()?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let pool = Pool { report: &report, dpdk: what.dpdk };
    let drawn = pool.draw(count, &what.only, &mut rng);
    let mut tally = Tally::default();
    let mut cases = Vec::new();
    let mut run = MutationRun::new(pool, &survivors, &what.folder)?;
    for id in &drawn {
        match results.as_ref().and_then(|results| results.of(id)) {
            Some(known) => tally.record(id, known),
            None => cases.push(run.case(id, all, &mut rng)?),
        }
    }
    let bar = progress(cases.len());
    bar.enable_steady_tick(Duration::from_secs(1));
    if !cases.is_empty() {
        run.prepare(&cases, &bar)?;
    }
    for case in &cases {
        bar.set_message(case.id.to_owned());
        let result = run.run_mutants(case, all)?;
        if let Some(results) = &mut results {
            results.add(case.id, &result)?;
        }
        bar.suspend(|| tally.record(case.id, &result));
        bar.inc(1);
    }
    bar.finish_and_clear();
    for (reason, count) in pool.count_by_exclusion(&what.only) {
        match reason {
            "" => println!("{count} rules can be drawn, {} were", drawn.len()),
            _ => println!("{count} cannot: {reason}"),
        }
    }
    let Tally { caught, coarse, survived, none, mutants } = tally;
    println!(
        "{}: {caught} caught, {coarse} only by mutants that break more than the rule, \
         {survived} survived, {none} without a mutant that compiles; {mutants} mutants run",
        if all { "all".to_owned() } else { format!("seed {seed}") },
    );
    Ok(survived == 0 && caught > 0)
}

/// Counts of the outcomes of rules.
#[derive(Default)]
struct Tally {
    caught: usize,
    coarse: usize,
    survived: usize,
    none: usize,
    mutants: usize,
}

impl Tally {
    fn record(&mut self, id: &str, results: &[MutantResult]) {
        let with = |wanted| {
            results.iter().filter(move |result| result.outcome == wanted).map(|result| &result.name)
        };
        self.mutants += results.len();
        for name in with(Outcome::Survived) {
            println!("SURVIVED  {id}  {name}");
        }
        if with(Outcome::Survived).next().is_some() {
            self.survived += 1;
        } else if let Some(name) = with(Outcome::Caught).next() {
            self.caught += 1;
            let more = match with(Outcome::Caught).count() {
                1 => String::new(),
                count => format!(" (one of {count})"),
            };
            println!("caught    {id}  {name}{more}");
        } else if let Some(name) = with(Outcome::Coarse).next() {
            self.coarse += 1;
            println!("coarsely  {id}  {name}");
        } else {
            self.none += 1;
            println!("-         {id}  no mutant compiled");
        }
    }
}
