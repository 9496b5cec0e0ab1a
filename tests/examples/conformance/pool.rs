//! Which rules can be drawn, and why the others cannot.

use std::collections::BTreeMap;

use ferrowarp_tests::compliance::cargo::Target;
use ferrowarp_tests::compliance::catalogue::CATALOGUES;
use ferrowarp_tests::compliance::report::{RuleStatus, TraceReport};
use ferrowarp_tests::compliance::root;
use ferrowarp_tests::compliance::scan::{Kind, Tag};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

/// Targets that take too long for a run over each mutant.
const SLOW: [&str; 1] = ["sim"];

/// The package that needs libdpdk and nothing else of a machine.
const RUNTIME: &str = "ferrowarp";

/// Rules, and the part of the machine that there is to try them on.
#[derive(Clone, Copy)]
pub(crate) struct Pool<'a> {
    /// The rules.
    pub(crate) ledger: &'a TraceReport,
    /// There is libdpdk.
    pub(crate) dpdk: bool,
}

impl<'a> Pool<'a> {
    fn is_usable(self, target: &Target) -> bool {
        let is_there = !target.device || (self.dpdk && target.package == RUNTIME);
        is_there && !SLOW.contains(&target.name.as_str())
    }

    /// The tests that guard a rule, and are soon done.
    pub(crate) fn guards(self, id: &'a str) -> impl Iterator<Item = &'a Tag> {
        self.tagged(id, Kind::Test)
    }

    /// The places that obey a rule, in code that such tests run.
    pub(crate) fn places(self, id: &'a str) -> impl Iterator<Item = &'a Tag> {
        self.tagged(id, Kind::Code)
    }

    fn tagged(self, id: &'a str, kind: Kind) -> impl Iterator<Item = &'a Tag> {
        self.ledger.tagged(id, kind).filter(move |tag| {
            Target::of(root(), &tag.file).is_some_and(|target| self.is_usable(&target))
        })
    }

    /// Why a rule is never drawn; `None` if it may be.
    fn exclusion_reason(self, id: &'a str) -> Option<&'static str> {
        let ledger = self.ledger;
        match ledger.status(id) {
            RuleStatus::Excepted => return Some("excepted, each with its reason"),
            RuleStatus::Open => return Some("without a test yet"),
            RuleStatus::Tested => {}
        }
        if ledger.tagged(id, Kind::Code).next().is_none() {
            Some("obeyed by no line in particular: their tests look at the whole")
        } else if self.places(id).next().is_none() {
            Some("obeyed by code that needs libdpdk, which is not there or not enough")
        } else if self.guards(id).next().is_none() {
            Some("guarded only by tests over devices or by long ones")
        } else {
            None
        }
    }

    /// The rules that bind the stack and begin with one of `only`, counted by what hinders them.
    pub(crate) fn count_by_exclusion(self, only: &[String]) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for row in self.ledger.rules.iter().filter(|row| row.is_binding() && begins(&row.id, only))
        {
            *counts.entry(self.exclusion_reason(&row.id).unwrap_or_default()).or_default() += 1;
        }
        counts
    }

    /// Rules that can be drawn, in the order of chance and as evenly as may be over the catalogues.
    pub(crate) fn draw(self, count: usize, only: &[String], rng: &mut SmallRng) -> Vec<&'a str> {
        let mut piles: Vec<Vec<&str>> = CATALOGUES
            .iter()
            .map(|(document, _)| {
                let mut ids: Vec<_> = self
                    .ledger
                    .rules
                    .iter()
                    .filter(|row| {
                        row.is_binding() && row.document == *document && begins(&row.id, only)
                    })
                    .map(|row| row.id.as_str())
                    .filter(|id| self.exclusion_reason(id).is_none())
                    .collect();
                ids.shuffle(rng);
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
}

/// Whether an ID begins with one of these; with none, any does.
fn begins(id: &str, with: &[String]) -> bool {
    with.is_empty() || with.iter().any(|prefix| id.starts_with(prefix.as_str()))
}
