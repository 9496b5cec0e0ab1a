//! Rules that can be drawn for mutation, and why the others cannot.

use std::collections::BTreeMap;

use ferrowarp_tests::compliance::cargo::Target;
use ferrowarp_tests::compliance::catalogue::CATALOGUES;
use ferrowarp_tests::compliance::report::{RuleStatus, TraceReport};
use ferrowarp_tests::compliance::scan::{Kind, Tag};
use ferrowarp_tests::workspace::root;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

/// Targets that take too long to run for each mutant.
const SLOW: [&str; 1] = ["sim"];

/// Package that needs libdpdk, but no device.
const RUNTIME: &str = "ferrowarp";

/// Rules, and the capabilities of the machine.
#[derive(Clone, Copy)]
pub(crate) struct Pool<'a> {
    /// Rules and their tags.
    pub(crate) report: &'a TraceReport,
    /// libdpdk is available.
    pub(crate) dpdk: bool,
}

impl<'a> Pool<'a> {
    fn is_usable(self, target: &Target) -> bool {
        let can_run = !target.device || (self.dpdk && target.package == RUNTIME);
        can_run && !SLOW.contains(&target.name.as_str())
    }

    /// Returns the fast tests that are tagged with a rule.
    pub(crate) fn guards(self, id: &'a str) -> impl Iterator<Item = &'a Tag> {
        self.tagged(id, Kind::Test)
    }

    /// Returns the tags of a rule in code that such tests run.
    pub(crate) fn places(self, id: &'a str) -> impl Iterator<Item = &'a Tag> {
        self.tagged(id, Kind::Code)
    }

    fn tagged(self, id: &'a str, kind: Kind) -> impl Iterator<Item = &'a Tag> {
        self.report.tagged(id, kind).filter(move |tag| {
            Target::of(root(), &tag.file).is_some_and(|target| self.is_usable(&target))
        })
    }

    /// Returns the reason why a rule is never drawn; `None` if it may be.
    fn exclusion_reason(self, id: &'a str) -> Option<&'static str> {
        let report = self.report;
        match report.status(id) {
            RuleStatus::Excepted => return Some("excepted, each with its reason"),
            RuleStatus::Open => return Some("without a test yet"),
            RuleStatus::Tested => {}
        }
        if report.tagged(id, Kind::Code).next().is_none() {
            Some("without a tagged line: their tests check the overall behavior")
        } else if self.places(id).next().is_none() {
            Some("tagged in code that needs libdpdk or a device")
        } else if self.guards(id).next().is_none() {
            Some("tested only over devices or by slow tests")
        } else {
            None
        }
    }

    /// Counts the rules that bind the stack and begin with one of `only`, by the reason of their
    /// exclusion.
    pub(crate) fn count_by_exclusion(self, only: &[String]) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for row in self.report.rules.iter().filter(|row| row.is_binding() && begins(&row.id, only))
        {
            *counts.entry(self.exclusion_reason(&row.id).unwrap_or_default()).or_default() += 1;
        }
        counts
    }

    /// Draws `count` rules at random, as evenly as possible over the catalogues.
    pub(crate) fn draw(self, count: usize, only: &[String], rng: &mut SmallRng) -> Vec<&'a str> {
        let mut by_catalogue: Vec<Vec<&str>> = CATALOGUES
            .iter()
            .map(|(document, _)| {
                let mut ids: Vec<_> = self
                    .report
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
        while drawn.len() < count && by_catalogue.iter().any(|ids| !ids.is_empty()) {
            for ids in &mut by_catalogue {
                drawn.extend(ids.pop().filter(|_| drawn.len() < count));
            }
        }
        drawn
    }
}

/// True if an ID begins with one of these prefixes, or if there are none.
fn begins(id: &str, with: &[String]) -> bool {
    with.is_empty() || with.iter().any(|prefix| id.starts_with(prefix.as_str()))
}
