//! Results of a comparison: samples by test, peer and round, and figures of them.

use super::sample::Sample;
use super::{Peer, Setting, Test};
use crate::median::median;

/// Peers that are compared with each other, ours first, and their results.
pub struct Comparison {
    /// Setting.
    pub setting: Setting,
    /// Tests, in the order of the tables.
    pub tests: Vec<Test>,
    /// Peers that can run here.
    pub entries: Vec<Entry>,
    /// Peers that cannot: name and reason.
    pub missing: Vec<(String, String)>,
}

/// A peer and its results.
pub struct Entry {
    /// The peer.
    pub peer: Box<dyn Peer>,
    /// Its version.
    pub version: String,
    /// Results, one for each test of the comparison.
    pub cells: Vec<Cell>,
}

/// Results of a peer and a test: one per round, none where it failed.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// One for each round.
    pub rounds: Vec<Option<Sample>>,
}

/// Median, lowest and highest value over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Median.
    pub median: f64,
    /// Lowest.
    pub min: f64,
    /// Highest.
    pub max: f64,
}

/// A figure of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Gb/s.
    Bandwidth,
    /// Millions of messages per second.
    Rate,
    /// Mean of half a round trip, microseconds.
    Mean,
    /// Median of half a round trip, microseconds.
    P50,
    /// 90th percentile.
    P90,
    /// 99th percentile.
    P99,
    /// 99.9th percentile.
    P999,
}

impl Metric {
    /// The percentiles.
    pub const PERCENTILES: [Self; 4] = [Self::P50, Self::P90, Self::P99, Self::P999];

    /// Returns the title of a column.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Bandwidth => "Gb/s",
            Self::Rate => "M/s",
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
        }
    }

    fn of(self, sample: &Sample) -> Option<f64> {
        match self {
            Self::Bandwidth => sample.gbit_s,
            Self::Rate => sample.rate_mops,
            Self::Mean => sample.latency?.mean,
            Self::P50 => sample.latency?.p50,
            Self::P90 => sample.latency?.p90,
            Self::P99 => sample.latency?.p99,
            Self::P999 => sample.latency?.p999,
        }
    }
}

impl Figure {
    fn of(values: Vec<f64>) -> Option<Self> {
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { median: median(values)?, min, max })
    }
}

impl Cell {
    /// Returns a figure over all rounds that have it.
    #[must_use]
    pub fn figure(&self, metric: Metric) -> Option<Figure> {
        Figure::of(self.rounds.iter().flatten().filter_map(|sample| metric.of(sample)).collect())
    }

    /// Returns the ratio of this to `other`, round by round.
    #[must_use]
    pub fn ratio(&self, other: &Self, metric: Metric) -> Option<Figure> {
        let both = self.rounds.iter().zip(&other.rounds);
        let ratio = |(own, other): (&Option<Sample>, &Option<Sample>)| {
            let (own, other) = (metric.of(own.as_ref()?)?, metric.of(other.as_ref()?)?);
            (other > 0.0).then_some(own / other)
        };
        Figure::of(both.filter_map(ratio).collect())
    }
}

impl Comparison {
    /// Creates a comparison without results; peers that cannot run are only listed.
    #[must_use]
    pub fn new(setting: Setting, tests: Vec<Test>, peers: Vec<Box<dyn Peer>>) -> Self {
        let mut comparison = Self { setting, tests, entries: vec![], missing: vec![] };
        for peer in peers {
            match peer.version() {
                Ok(version) => {
                    let cells = vec![Cell::default(); comparison.tests.len()];
                    comparison.entries.push(Entry { peer, version, cells });
                }
                Err(reason) => comparison.missing.push((peer.name().to_owned(), reason)),
            }
        }
        comparison
    }

    /// Returns the number of runs of a round.
    #[must_use]
    pub fn run_count(&self) -> usize {
        let of_entry =
            |entry: &Entry| self.tests.iter().filter(|test| entry.peer.supports(**test)).count();
        self.entries.iter().map(of_entry).sum()
    }

    /// Returns the cell of a test; none if it was not measured.
    #[must_use]
    pub fn cell<'a>(&self, entry: &'a Entry, test: Test) -> Option<&'a Cell> {
        entry.cells.get(self.tests.iter().position(|found| *found == test)?)
    }

    /// Returns the sizes streamed by one connection.
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        let size = |test: &Test| match *test {
            Test::Stream { size, connections: 1 } => Some(size),
            _ => None,
        };
        self.tests.iter().filter_map(size).collect()
    }

    /// Returns the numbers of connections of the shortest message, if more than one.
    #[must_use]
    pub fn connection_counts(&self) -> Vec<u16> {
        let least = self.sizes().first().copied();
        let count = |test: &Test| match *test {
            Test::Stream { size, connections } if Some(size) == least => Some(connections),
            _ => None,
        };
        let mut counts: Vec<u16> = self.tests.iter().filter_map(count).collect();
        counts.sort_unstable();
        if counts.len() > 1 { counts } else { vec![] }
    }

    /// Returns the size of the ping-pong.
    #[must_use]
    pub fn ping_pong_size(&self) -> Option<u64> {
        self.tests.iter().find_map(|test| match *test {
            Test::PingPong { size } => Some(size),
            Test::Stream { .. } => None,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use anyhow::Result;

    use super::*;
    use crate::peers::sample::Latency;

    /// A peer that is not run.
    pub(in crate::peers) struct Named(pub(in crate::peers) &'static str, pub bool);

    impl Peer for Named {
        fn name(&self) -> &'static str {
            self.0
        }
        fn description(&self) -> String {
            format!("description of {}", self.0)
        }
        fn is_ours(&self) -> bool {
            self.1
        }
        fn version(&self) -> Result<String, String> {
            if self.0 == "absent" { Err("apt-get install it".into()) } else { Ok("1.0".into()) }
        }
        fn supports(&self, _: Test) -> bool {
            true
        }
        fn run(&mut self, test: Test, _: f64) -> Result<Sample> {
            let factor = if self.1 { 2.0 } else { 1.0 };
            let time = |us: f64| Some(us / factor);
            Ok(match test {
                Test::Stream { size, .. } => Sample::of_rate(factor * 1e6, size),
                Test::PingPong { .. } => Sample::of_latency(Latency {
                    mean: time(5.0),
                    p50: time(4.0),
                    p90: time(6.0),
                    p99: time(8.0),
                    p999: time(16.0),
                }),
            })
        }
    }

    pub(in crate::peers) fn comparison() -> Comparison {
        let stream = |size, connections| Test::Stream { size, connections };
        let tests =
            vec![stream(64, 1), stream(65_536, 1), stream(64, 16), Test::PingPong { size: 64 }];
        let peers: Vec<Box<dyn Peer>> = vec![
            Box::new(Named("ferrowarp", true)),
            Box::new(Named("other", false)),
            Box::new(Named("absent", false)),
        ];
        Comparison::new(Setting::TwoProcesses, tests, peers)
    }

    fn cell(rates: &[Option<f64>]) -> Cell {
        let sample = |rate: &Option<f64>| rate.map(|rate| Sample::of_rate(rate * 1e6, 125));
        Cell { rounds: rates.iter().map(sample).collect() }
    }

    #[test]
    fn figure_is_of_the_successful_rounds() {
        let cell = cell(&[Some(3.0), None, Some(1.0), Some(2.0)]);
        let expected = Figure { median: 2.0, min: 1.0, max: 3.0 };
        assert_eq!(cell.figure(Metric::Rate), Some(expected));
        assert_eq!(cell.figure(Metric::Bandwidth).map(|figure| figure.max), Some(3.0));
        assert_eq!(cell.figure(Metric::P50), None);
        assert_eq!(Cell::default().figure(Metric::Rate), None);
    }

    #[test]
    fn ratio_is_of_pairs_of_the_same_round() {
        // The machine was twice as fast in the second round: the ratio is that of the others.
        let ours = cell(&[Some(2.0), Some(4.0), None, Some(2.0)]);
        let other = cell(&[Some(1.0), Some(2.0), Some(1.0), None]);
        let expected = Figure { median: 2.0, min: 2.0, max: 2.0 };
        assert_eq!(ours.ratio(&other, Metric::Rate), Some(expected));
        assert_eq!(ours.ratio(&cell(&[None]), Metric::Rate), None);
    }

    #[test]
    fn absent_peer_is_listed_and_not_run() {
        let comparison = comparison();
        assert_eq!(comparison.entries.len(), 2);
        assert_eq!(comparison.missing[0].1, "apt-get install it");
        assert_eq!(comparison.run_count(), 8);
        assert_eq!(comparison.sizes(), [64, 65_536]);
        assert_eq!(comparison.connection_counts(), [1, 16]);
        assert_eq!(comparison.ping_pong_size(), Some(64));
    }
}
