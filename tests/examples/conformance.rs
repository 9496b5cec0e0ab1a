//! The rules of the specifications: how they stand, the tests that guard them, and whether these
//! notice when a line that obeys is broken. `scripts/conformance` runs it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, Subcommand};
use ferrowarp_tests::compliance::cargo::{self, Target};
use ferrowarp_tests::compliance::catalogue::CATALOGUES;
use ferrowarp_tests::compliance::ledger::Ledger;
use ferrowarp_tests::compliance::mutate::{self, Mutant};
use ferrowarp_tests::compliance::root;
use ferrowarp_tests::compliance::scan::{Kind, Tag};
use ferrowarp_tests::process;
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

/// How long a build, and how long the tests of a target, may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long the tests of a target may take over a mutant, which may not end.
const MUTANT_PATIENCE: Duration = Duration::from_secs(120);
/// Targets that take too long for a run over each mutant.
const SLOW: [&str; 2] = ["simulation", "smoltcp"];
/// Mutants of a place that are tried until one compiles.
const TRIES_MAX: usize = 12;

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
    Mutate {
        /// Decides which rules and how.
        seed: u64,
        /// Rules to draw.
        #[arg(long, default_value_t = 60)]
        count: usize,
        /// Where the copy of the sources and what is built of it are kept.
        #[arg(long)]
        folder: PathBuf,
        /// Only rules whose ID begins so.
        #[arg(long, default_value = "")]
        only: String,
    },
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match options.what {
        What::Table => table(),
        What::Test { device } => test(device),
        What::Mutate { seed, count, folder, only } => mutate(seed, count, &folder, &only),
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
    print!("{}", Ledger::read(root())?.summary());
    Ok(true)
}

fn progress(len: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {elapsed} {wide_msg}");
    ProgressBar::new(len as u64).with_style(style.expect("the template is right"))
}

fn test(device: bool) -> io::Result<bool> {
    let ledger = Ledger::read(root())?;
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
        let ended = process::run(command.arg("--").args(names), PATIENCE)?;
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

/// What became of a rule.
enum Verdict {
    Caught(Mutant),
    Survived(Mutant),
    NoMutant,
}

/// The copy of the sources that is broken and mended.
struct Copy {
    tree: PathBuf,
    built: PathBuf,
}

impl Copy {
    fn new(folder: &Path) -> io::Result<Self> {
        let copy = Self { tree: folder.join("tree"), built: folder.join("target") };
        let mut kept = BTreeSet::new();
        copy.take(Path::new(""), &mut kept)?;
        copy.prune(&copy.tree, &kept)?;
        Ok(copy)
    }

    /// Copies what differs, so that what has been built stays good.
    fn take(&self, folder: &Path, kept: &mut BTreeSet<PathBuf>) -> io::Result<()> {
        fs::create_dir_all(self.tree.join(folder))?;
        for entry in fs::read_dir(root().join(folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let name = entry.file_name();
            if [".git", "target", "corpus", "artifacts"].iter().any(|skipped| name == *skipped) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                self.take(&path, kept)?;
            } else if entry.file_type()?.is_file() {
                let (from, to) = (root().join(&path), self.tree.join(&path));
                let octets = fs::read(&from)?;
                if fs::read(&to).ok().as_deref() != Some(&octets) {
                    fs::write(&to, octets)?;
                }
                kept.insert(to);
            }
        }
        Ok(())
    }

    /// Removes sources that are no more.
    fn prune(&self, folder: &Path, kept: &BTreeSet<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                self.prune(&path, kept)?;
            } else if !kept.contains(&path) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// `cargo test` in the copy: not optimised, since it is built over and over.
    fn command(&self, target: &Target) -> Command {
        let mut command = target.command(&self.tree);
        command
            .env("CARGO_TARGET_DIR", &self.built)
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_TEST_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_TEST_DEBUG", "0")
            .env("RUSTFLAGS", "-Awarnings");
        command
    }

    fn builds(&self, target: &Target) -> io::Result<bool> {
        Ok(process::run(self.command(target).arg("--no-run"), PATIENCE)?.success())
    }

    /// All tests of `names` pass.
    fn passes(&self, target: &Target, names: &BTreeSet<&str>) -> io::Result<bool> {
        let mut command = self.command(target);
        let ended = process::run(command.arg("--").args(names), MUTANT_PATIENCE)?;
        Ok(ended.success() && cargo::passed(&ended.output) >= names.len())
    }
}

fn mutate(seed: u64, count: usize, folder: &Path, only: &str) -> io::Result<bool> {
    let ledger = Ledger::read(root())?;
    let mut chance = SmallRng::seed_from_u64(seed);
    let drawn = draw(&ledger, count, only, &mut chance);
    let copy = Copy::new(folder)?;
    let bar = progress(drawn.len());
    bar.set_message("the tests as they are");
    let all = drawn.iter().flat_map(|id| guards(&ledger, id));
    for (target, names) in cargo::by_target(root(), all) {
        if !copy.builds(&target)? || !copy.passes(&target, &names)? {
            let what = format!("{} {} fails as it is", target.package, target.name);
            return Err(io::Error::other(what));
        }
    }
    let (mut caught, mut survived, mut none) = (0, 0, 0);
    for id in &drawn {
        bar.set_message((*id).to_owned());
        let verdict = try_rule(&ledger, id, &copy, &mut chance)?;
        bar.suspend(|| match verdict {
            Verdict::Caught(mutant) => {
                caught += 1;
                println!("caught    {id}  {}", mutant.what);
            }
            Verdict::Survived(mutant) => {
                survived += 1;
                println!("SURVIVED  {id}  {}", mutant.what);
            }
            Verdict::NoMutant => {
                none += 1;
                println!("-         {id}  no mutation compiled");
            }
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    println!("seed {seed}: {caught} caught, {survived} survived, {none} without a mutation");
    Ok(survived == 0 && caught > 0)
}

/// The tests that guard a rule, need no device and are soon done.
fn guards<'a>(ledger: &'a Ledger, id: &'a str) -> impl Iterator<Item = &'a Tag> {
    ledger.tagged(id, Kind::Test).filter(|tag| {
        Target::of(root(), &tag.file)
            .is_some_and(|target| !target.device && !SLOW.contains(&target.name.as_str()))
    })
}

/// The places that obey a rule, in code that such tests run.
fn places<'a>(ledger: &'a Ledger, id: &'a str) -> impl Iterator<Item = &'a Tag> {
    ledger
        .tagged(id, Kind::Code)
        .filter(|tag| Target::of(root(), &tag.file).is_some_and(|target| !target.device))
}

/// Rules with both tags, as evenly as may be over the catalogues.
fn draw<'a>(ledger: &'a Ledger, count: usize, only: &str, chance: &mut SmallRng) -> Vec<&'a str> {
    let mut piles: Vec<Vec<&str>> = CATALOGUES
        .iter()
        .map(|(document, _)| {
            let mut ids: Vec<_> = ledger
                .rows
                .iter()
                .filter(|row| row.document == *document && row.id.starts_with(only))
                .map(|row| row.id.as_str())
                .filter(|id| places(ledger, id).next().is_some())
                .filter(|id| guards(ledger, id).next().is_some())
                .collect();
            ids.shuffle(chance);
            ids
        })
        .collect();
    let mut drawn = Vec::new();
    while drawn.len() < count && piles.iter().any(|pile| !pile.is_empty()) {
        for pile in &mut piles {
            drawn.extend(pile.pop().filter(|_| drawn.len() < count));
        }
    }
    drawn
}

fn try_rule(ledger: &Ledger, id: &str, copy: &Copy, chance: &mut SmallRng) -> io::Result<Verdict> {
    let mut places: Vec<_> = places(ledger, id).collect();
    places.shuffle(chance);
    let targets = cargo::by_target(root(), guards(ledger, id));
    for place in places {
        let file = copy.tree.join(&place.file);
        let text = fs::read_to_string(&file)?;
        let mut mutants = mutate::mutants(&text, place.line);
        mutants.shuffle(chance);
        for mutant in mutants.into_iter().take(TRIES_MAX) {
            fs::write(&file, &mutant.text)?;
            let verdict = judge(copy, &targets);
            fs::write(&file, &text)?;
            match verdict? {
                Some(true) => return Ok(Verdict::Survived(mutant)),
                Some(false) => return Ok(Verdict::Caught(mutant)),
                None => {}
            }
        }
    }
    Ok(Verdict::NoMutant)
}

/// Whether the broken copy passes; `None` if it cannot be built.
fn judge(
    copy: &Copy,
    targets: &std::collections::BTreeMap<Target, BTreeSet<&str>>,
) -> io::Result<Option<bool>> {
    for (target, names) in targets {
        if !copy.builds(target)? {
            return Ok(None);
        }
        if !copy.passes(target, names)? {
            return Ok(Some(false));
        }
    }
    Ok(Some(true))
}
