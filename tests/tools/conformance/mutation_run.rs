//! Mutation testing: mutates lines tagged with rules, and runs the tests tagged with these rules.
//!
//! Nearly all mutants are compiled into one build (mutant schemata) and activated one at a time;
//! mutants of constant expressions are built alone. A mutant that does not compile is dropped. One
//! that also fails the sanity test is coarse: it breaks more than its rule, and counts only where a
//! rule has no other mutant.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferrowarp_tests::compliance::cargo::{self, Target};
use ferrowarp_tests::compliance::mutation_results::{MutantResult, Outcome};
use ferrowarp_tests::compliance::schemata::{self, MetaMutant};
use ferrowarp_tests::compliance::survivors::{self, NamedMutant, Survivors};
use ferrowarp_tests::workspace::{self, root};
use indicatif::ProgressBar;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::mutant_tree::{BUILD_TIMEOUT, CompileError, Guards, MutantTree, TestResult};
use crate::pool::Pool;

/// Maximum number of mutants of a rule that are tried until one compiles and is not coarse.
const TRIES_MAX: usize = 12;
/// Maximum number of builds that exclude mutants which do not compile.
const ROUNDS_MAX: usize = 60;
/// Timeout of tests with a mutant, as a multiple of their time without: a mutant may loop forever.
const SLOWDOWN_MAX: u32 = 10;
/// Minimum timeout of tests with a mutant.
const TIMEOUT_MIN: Duration = Duration::from_secs(10);
/// File of the sanity test, which a mutant must pass unless it is coarse.
const SANITY_FILE: &str = "tests/tests/engine/sanity.rs";
/// Path of the sanity test in its target.
const SANITY: &str = "sanity::send_is_delivered_each_way";

/// A rule, and the mutants of the lines tagged with it.
pub(crate) struct Case<'a> {
    /// The rule.
    pub(crate) id: &'a str,
    /// Numbers of mutants, in the order in which they are tried.
    numbers: Vec<u32>,
}

/// State of a mutation run.
pub(crate) struct MutationRun<'a> {
    pool: Pool<'a>,
    survivors: &'a Survivors,
    /// Mutants by number, which counts from 1.
    sites: Vec<NamedMutant>,
    schemata_tree: MutantTree,
    /// Also the sources as they were when the run began: a run takes hours.
    standalone_tree: MutantTree,
    /// Mutants compiled into `programs`.
    in_schemata: BTreeSet<u32>,
    /// Mutants that must be built alone.
    standalone: BTreeSet<u32>,
    programs: BTreeMap<Target, PathBuf>,
    timeout: BTreeMap<(Target, String), Duration>,
    is_coarse: RefCell<BTreeMap<u32, bool>>,
    sanity: Target,
}

impl<'a> MutationRun<'a> {
    /// Creates a run without building anything.
    pub(crate) fn new(pool: Pool<'a>, survivors: &'a Survivors, folder: &Path) -> io::Result<Self> {
        let sanity = Target::of(root(), SANITY_FILE)
            .ok_or_else(|| io::Error::other("there are no sanity tests"))?;
        Ok(Self {
            pool,
            survivors,
            sites: Vec::new(),
            schemata_tree: MutantTree::new(folder, "asleep")?,
            standalone_tree: MutantTree::new(folder, "alone")?,
            in_schemata: BTreeSet::new(),
            standalone: BTreeSet::new(),
            programs: BTreeMap::new(),
            timeout: BTreeMap::new(),
            is_coarse: RefCell::default(),
            sanity,
        })
    }

    /// Generates the mutants of a rule that its tests can notice: all of them, or a few at random.
    pub(crate) fn case(
        &mut self,
        id: &'a str,
        all: bool,
        rng: &mut SmallRng,
    ) -> io::Result<Case<'a>> {
        let mut tags: Vec<_> = self.pool.places(id).collect();
        tags.shuffle(rng);
        let (mut numbers, mut fallback) = (Vec::new(), Vec::new());
        for tag in tags {
            let mut mutants = survivors::named_mutants(&self.standalone_tree.tree, tag)?;
            mutants.retain(|mutant| !self.survivors.is_equivalent(id, &mutant.name));
            mutants.shuffle(rng);
            for mutant in mutants {
                let existing = self.sites.iter().position(|site| *site == mutant);
                let index = existing.unwrap_or_else(|| {
                    self.sites.push(mutant);
                    self.sites.len() - 1
                });
                let number = u32::try_from(index + 1).expect("there are not that many");
                let is_fallback = self.sites[index].mutant.is_fallback;
                if is_fallback { fallback.push(number) } else { numbers.push(number) }
            }
        }
        if !all {
            numbers.truncate(TRIES_MAX);
            fallback.truncate(TRIES_MAX);
        }
        numbers.append(&mut fallback);
        Ok(Case { id, numbers })
    }

    fn site(&self, number: u32) -> &NamedMutant {
        &self.sites[number as usize - 1]
    }

    /// Builds the tests of the rules of `cases` with all mutants, and runs them without an active
    /// one.
    pub(crate) fn prepare(&mut self, cases: &[Case<'_>], bar: &ProgressBar) -> io::Result<()> {
        let mut targets = BTreeSet::from([self.sanity.clone()]);
        for case in cases {
            targets.extend(self.guards(case.id).into_keys());
        }
        let (mut dropped, mut kept_const) = (BTreeSet::new(), BTreeSet::new());
        for round in 1..=ROUNDS_MAX {
            bar.set_message(format!(
                "building {} mutants, round {round}",
                self.sites.len() - dropped.len()
            ));
            let sources = self.write_schemata(&dropped, &kept_const)?;
            match self.schemata_tree.build(&targets)? {
                Ok(programs) => {
                    self.programs = programs;
                    break;
                }
                Err(errors) => exclude(&errors, &sources, &mut dropped, &mut kept_const)?,
            }
        }
        if self.programs.is_empty() {
            return Err(io::Error::other("the mutants cannot be built together"));
        }
        let numbers = 1..=u32::try_from(self.sites.len()).expect("there are not that many");
        self.in_schemata = numbers
            .filter(|number| !dropped.contains(number) && !self.standalone.contains(number))
            .collect();
        bar.set_message("the tests as they are");
        for case in cases {
            for (target, names) in self.guards(case.id) {
                self.measure(&target, &names)?;
            }
        }
        self.measure(&self.sanity.clone(), &sanity_names())
    }

    /// Writes the sources with the mutants that are not `dropped`.
    fn write_schemata(
        &mut self,
        dropped: &BTreeSet<u32>,
        kept_const: &BTreeSet<String>,
    ) -> io::Result<BTreeMap<String, MetaMutant>> {
        let mut by_file: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let mut libraries = BTreeMap::new();
        for (number, site) in (1..).zip(&self.sites) {
            libraries.extend(cargo::library(&site.file));
            if !dropped.contains(&number) {
                by_file.entry(site.file.clone()).or_default().push(number);
            }
        }
        let mut sources = BTreeMap::new();
        let unchanged = &self.standalone_tree.tree;
        for (folder, library) in libraries {
            for file in workspace::files(&unchanged.join(folder).join("src"), Some("rs"))? {
                let file =
                    file.strip_prefix(unchanged).unwrap_or(&file).to_string_lossy().into_owned();
                let text = fs::read_to_string(unchanged.join(&file))?;
                let text = schemata::without_const(&text, kept_const);
                let numbers = by_file.remove(&file).unwrap_or_default();
                let mutants: Vec<_> =
                    numbers.iter().map(|&number| (number, &self.site(number).mutant)).collect();
                let mut source = MetaMutant::new(&text, &mutants);
                if file == library {
                    source.text.push_str(schemata::PRELUDE);
                }
                self.standalone.extend(&source.standalone);
                self.schemata_tree.write_if_changed(&file, source.text.as_bytes())?;
                sources.insert(file, source);
            }
        }
        self.standalone.extend(by_file.into_values().flatten());
        Ok(sources)
    }

    fn guards(&self, id: &'a str) -> Guards {
        cargo::by_target(root(), self.pool.guards(id))
    }

    /// Measures the time of these tests without a mutant, which sets their timeout.
    fn measure(&mut self, target: &Target, names: &BTreeSet<String>) -> io::Result<()> {
        let key = (target.clone(), key(names));
        if self.timeout.contains_key(&key) {
            return Ok(());
        }
        let start = Instant::now();
        let program = &self.programs[target];
        if !self.schemata_tree.run(target, program, names, 0, BUILD_TIMEOUT)?.passed() {
            let what = format!("{} {} {names:?} fails as it is", target.package, target.name);
            return Err(io::Error::other(what));
        }
        self.timeout.insert(key, TIMEOUT_MIN + start.elapsed() * SLOWDOWN_MAX);
        Ok(())
    }

    /// Runs the mutants of a rule: all, or until one is not coarse.
    pub(crate) fn run_mutants(&self, case: &Case<'a>, all: bool) -> io::Result<Vec<MutantResult>> {
        let guards = self.guards(case.id);
        let decides = |result: &MutantResult| result.outcome != Outcome::Coarse;
        let mut found: Vec<MutantResult> = Vec::new();
        // Fallbacks only after all others, and in each group those built alone last.
        for (fallback, alone) in [(false, false), (false, true), (true, false), (true, true)] {
            if found.iter().any(decides) || (fallback && !found.is_empty()) {
                break;
            }
            let group = if alone { &self.standalone } else { &self.in_schemata };
            let is_next = |&number: &u32| {
                group.contains(&number) && self.site(number).mutant.is_fallback == fallback
            };
            for number in case.numbers.iter().copied().filter(is_next) {
                let result = if alone {
                    self.run_standalone(&guards, number)?
                } else {
                    Some(self.run_in_schemata(&guards, number)?)
                };
                let Some((outcome, failed)) = result else { continue };
                let name = self.site(number).name.clone();
                found.push(MutantResult { outcome, name, failed });
                if !all && outcome != Outcome::Coarse {
                    break;
                }
            }
        }
        if !all && found.iter().any(decides) {
            found.retain(decides);
        }
        Ok(found)
    }

    /// Returns the outcome, and the tests that failed.
    fn run_in_schemata(&self, guards: &Guards, number: u32) -> io::Result<(Outcome, Vec<String>)> {
        Ok(match self.failed_guards(guards, number)? {
            None => (Outcome::Survived, Vec::new()),
            Some(failed) if self.is_coarse(number)? => (Outcome::Coarse, failed),
            Some(failed) => (Outcome::Caught, failed),
        })
    }

    /// Returns the tests that failed in the first target with such; `None` if all passed.
    fn failed_guards(&self, guards: &Guards, number: u32) -> io::Result<Option<Vec<String>>> {
        let mut guards: Vec<_> = guards
            .iter()
            .map(|(target, names)| (self.timeout[&(target.clone(), key(names))], target, names))
            .collect();
        guards.sort_unstable();
        for (timeout, target, names) in guards {
            let program = &self.programs[target];
            let result = self.schemata_tree.run(target, program, names, number, timeout)?;
            if let TestResult::Failed(failed) = result {
                return Ok(Some(failed));
            }
        }
        Ok(None)
    }

    fn is_coarse(&self, number: u32) -> io::Result<bool> {
        if let Some(&cached) = self.is_coarse.borrow().get(&number) {
            return Ok(cached);
        }
        let names = sanity_names();
        let timeout = self.timeout[&(self.sanity.clone(), key(&names))];
        let program = &self.programs[&self.sanity];
        let result = self.schemata_tree.run(&self.sanity, program, &names, number, timeout)?;
        let is_coarse = !result.passed();
        self.is_coarse.borrow_mut().insert(number, is_coarse);
        Ok(is_coarse)
    }

    /// Runs a mutant in a build of its own; `None` if it does not compile.
    fn run_standalone(
        &self,
        guards: &Guards,
        number: u32,
    ) -> io::Result<Option<(Outcome, Vec<String>)>> {
        let NamedMutant { file, mutant, .. } = self.site(number);
        let text = fs::read_to_string(self.standalone_tree.tree.join(file))?;
        self.standalone_tree.write_if_changed(file, mutant.text(&text).as_bytes())?;
        let outcome = self.standalone_outcome(guards);
        self.standalone_tree.write_if_changed(file, text.as_bytes())?;
        outcome
    }

    fn standalone_outcome(&self, guards: &Guards) -> io::Result<Option<(Outcome, Vec<String>)>> {
        let run = |target: &Target, names: &BTreeSet<String>| {
            let Ok(programs) = self.standalone_tree.build(&BTreeSet::from([target.clone()]))?
            else {
                return Ok::<_, io::Error>(None);
            };
            let timeout = self.timeout[&(target.clone(), key(names))];
            self.standalone_tree.run(target, &programs[target], names, 0, timeout).map(Some)
        };
        for (target, names) in guards {
            match run(target, names)? {
                None => return Ok(None),
                Some(TestResult::Passed) => {}
                Some(TestResult::Failed(failed)) => {
                    let sanity = run(&self.sanity, &sanity_names())?;
                    let is_sane = sanity.is_some_and(|result| result.passed());
                    let outcome = if is_sane { Outcome::Caught } else { Outcome::Coarse };
                    return Ok(Some((outcome, failed)));
                }
            }
        }
        Ok(Some((Outcome::Survived, Vec::new())))
    }
}

fn key(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// Handles compiler errors: adds the mutant of the line to `dropped`, or a function that must stay
/// `const` to `kept_const`.
fn exclude(
    errors: &[CompileError],
    sources: &BTreeMap<String, MetaMutant>,
    dropped: &mut BTreeSet<u32>,
    kept_const: &mut BTreeSet<String>,
) -> io::Result<()> {
    let mut is_new = false;
    for error in errors {
        if error.text.contains("error[E0015]")
            && let Some(name) = error.text.split('`').nth(1)
        {
            let name = name.rsplit("::").next().unwrap_or(name);
            is_new |= kept_const.insert(name.to_owned());
        } else if let Some(number) =
            sources.get(&error.file).and_then(|source| source.mutant_at(error.line))
        {
            is_new |= dropped.insert(number);
        }
    }
    if is_new {
        return Ok(());
    }
    let texts: Vec<_> = errors.iter().map(|error| error.text.as_str()).collect();
    Err(io::Error::other(format!("the mutants cannot be built together:\n{}", texts.join("\n"))))
}

fn sanity_names() -> BTreeSet<String> {
    BTreeSet::from([SANITY.to_owned()])
}
