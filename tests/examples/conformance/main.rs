//! The rules of the specifications: how they stand, the tests that guard them, and whether these
//! notice when a line that obeys is broken. `scripts/conformance` runs it.

mod mutant_tree;
mod mutation_run;
mod pool;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use ferrowarp_tests::compliance::cargo;
use ferrowarp_tests::compliance::mutate::Mutant;
use ferrowarp_tests::compliance::report::TraceReport;
use ferrowarp_tests::compliance::root;
use ferrowarp_tests::process;
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::mutation_run::{MutationRun, Outcome, RuleResult};
use crate::pool::Pool;

/// How long the tests of a target may take.
const TEST_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Prints how the rules stand.
    Table,
    /// Runs every test that guards a rule.
    Test {
        /// Those over devices, too.
        #[arg(long)]
        device: bool,
    },
    /// Breaks lines that obey rules, and looks whether a test notices.
    Mutate(Mutate),
}

#[derive(Args)]
struct Mutate {
    /// Decides which rules and how; without it, every mutant of every rule is tried.
    seed: Option<u64>,
    /// Rules to draw.
    #[arg(long, default_value_t = 60)]
    count: usize,
    /// Where the copies of the sources and what is built of them are kept.
    #[arg(long)]
    folder: PathBuf,
    /// Also rules of the runtime, which needs libdpdk.
    #[arg(long)]
    dpdk: bool,
    /// Only rules whose ID begins with one of these, separated by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match options.what {
        What::Table => table(),
        What::Test { device } => test(device),
        What::Mutate(what) => mutate(&what),
    };
    match done {
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
    ProgressBar::new(len as u64).with_style(style.expect("the template is right"))
}

fn test(device: bool) -> io::Result<bool> {
    let ledger = TraceReport::read(root())?;
    let targets = cargo::by_target(root(), ledger.tags.iter());
    let bar = progress(targets.len());
    let mut is_good = true;
    for (target, names) in &targets {
        bar.set_message(format!("{} {}", target.package, target.name));
        if target.device && !device {
            bar.suspend(|| println!("skipped: {} {} needs a device", target.package, target.name));
            continue;
        }
        let mut command = target.command(root());
        let ended = process::run(command.args(["--", "--exact"]).args(names), TEST_TIMEOUT)?;
        let passed = cargo::passed(&ended.output);
        let is_whole = ended.success() && passed >= names.len();
        is_good &= is_whole;
        bar.suspend(|| {
            let word = if is_whole { "ok" } else { "FAILED" };
            let count = names.len();
            println!("{word}: {} {}: {passed} for {count} tags", target.package, target.name);
            if !is_whole {
                println!("{}", ended.output);
            }
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(is_good)
}

fn mutate(what: &Mutate) -> io::Result<bool> {
    let ledger = TraceReport::read(root())?;
    let (seed, all) = (what.seed.unwrap_or(0), what.seed.is_none());
    let count = if all { usize::MAX } else { what.count };
    let mut rng = SmallRng::seed_from_u64(seed);
    let pool = Pool { ledger: &ledger, dpdk: what.dpdk };
    let drawn = pool.draw(count, &what.only, &mut rng);
    let mut campaign = MutationRun::new(pool, &what.folder)?;
    let cases =
        drawn.iter().map(|id| campaign.case(id, all, &mut rng)).collect::<io::Result<Vec<_>>>()?;
    let bar = progress(cases.len());
    bar.enable_steady_tick(Duration::from_secs(1));
    campaign.prepare(&cases, &bar)?;
    let mut tally = Tally::default();
    for case in &cases {
        bar.set_message(case.id.to_owned());
        let result = campaign.judge(case, all)?;
        bar.suspend(|| tally.tell(case.id, &result));
        bar.inc(1);
    }
    bar.finish_and_clear();
    for (hindrance, count) in pool.count_by_exclusion(&what.only) {
        match hindrance {
            "" => println!("{count} rules can be drawn, {} were", drawn.len()),
            _ => println!("{count} cannot: {hindrance}"),
        }
    }
    let Tally { caught, coarse, survived, none, mutants } = tally;
    println!(
        "{}: {caught} caught, {coarse} only by mutants that break more than the rule, \
         {survived} survived, {none} without a mutant that compiles; {mutants} mutants judged",
        if all { "all".to_owned() } else { format!("seed {seed}") },
    );
    Ok(survived == 0 && caught > 0)
}

/// How the rules fared.
#[derive(Default)]
struct Tally {
    caught: usize,
    coarse: usize,
    survived: usize,
    none: usize,
    mutants: usize,
}

impl Tally {
    fn tell(&mut self, id: &str, result: &RuleResult<'_>) {
        let with = |wanted| {
            result.outcomes.iter().filter(move |(outcome, _)| *outcome == wanted).map(|(_, m)| m)
        };
        self.mutants += result.outcomes.len();
        let place = |mutant: &Mutant| format!("line {}: {}", mutant.start + 1, mutant.description);
        for mutant in with(Outcome::Survived) {
            println!("SURVIVED  {id}  {}", place(mutant));
        }
        if with(Outcome::Survived).next().is_some() {
            self.survived += 1;
        } else if let Some(mutant) = with(Outcome::Caught).next() {
            self.caught += 1;
            let more = match with(Outcome::Caught).count() {
                1 => String::new(),
                count => format!(" (one of {count})"),
            };
            println!("caught    {id}  {}{more}", place(mutant));
        } else if let Some(mutant) = with(Outcome::Coarse).next() {
            self.coarse += 1;
            println!("coarsely  {id}  {}", place(mutant));
        } else {
            self.none += 1;
            println!("-         {id}  no mutant compiled");
        }
    }
}
