//! What is compared with what, and the shares that are wanted.

use crate::baseline::plan::Topology;
use crate::baseline::report::row_name;
use crate::baseline::runner::Sample;
use crate::bound::transfer::WorkingSet;

/// What is measured in each pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// The frozen bound: two passes at each end.
    Frozen,
    /// The best bound known.
    Best,
    /// The frozen bound on the first core alone.
    FrozenOnOne,
    /// Bare ping-pong with the passes of the frozen bound.
    PingPong,
    /// A test of `iwperf`.
    Iwperf(&'static str),
    /// A test of `iwperf` with one shard, on the first core alone.
    IwperfOnOne(&'static str),
    /// The same test of the other `iwperf`.
    Before(&'static str),
}

impl Contender {
    /// Returns the same on the first core alone, for those that can use several.
    #[must_use]
    pub const fn on_one(self) -> Option<Self> {
        match self {
            Self::Frozen => Some(Self::FrozenOnOne),
            Self::Iwperf(test) => Some(Self::IwperfOnOne(test)),
            _ => None,
        }
    }

    /// Returns the name for reports.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Frozen => "frozen bound".to_owned(),
            Self::Best => "best bound".to_owned(),
            Self::PingPong => "bare ping-pong".to_owned(),
            Self::FrozenOnOne => "frozen bound on one core".to_owned(),
            Self::Iwperf(test) => test.to_owned(),
            Self::IwperfOnOne(test) => format!("{test} on one core"),
            Self::Before(test) => format!("{test} of the other iwperf"),
        }
    }
}

/// Figure of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Bandwidth in Gb/s.
    Bandwidth,
    /// Messages in millions per second.
    MessageRate,
    /// Median latency in microseconds.
    Median,
    /// 99th percentile of the latency less its median, in microseconds.
    Tail,
}

impl Figure {
    /// Returns the figure of a sample.
    #[must_use]
    pub fn of(self, sample: &Sample) -> f64 {
        match self {
            Self::Bandwidth => sample.gbit_s,
            Self::MessageRate => sample.rate_mops,
            Self::Median => sample.p50_us,
            Self::Tail => sample.p99_us - sample.p50_us,
        }
    }

    /// Returns the unit, and what it is the unit of.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "Gb/s",
            Self::MessageRate => "M/s",
            Self::Median => "us, p50",
            Self::Tail => "us, p99 - p50",
        }
    }
}

/// How two figures of a pair are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Subject divided by reference.
    Ratio,
    /// Subject less reference.
    Difference,
    /// What the subject gains from all cores over the first one alone, divided by what the
    /// reference gains.
    Gain,
}

/// A limit of the ratio or difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// Lower limit.
    AtLeast(f64),
    /// Upper limit.
    AtMost(f64),
}

/// Two contenders of a row, compared pair by pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// What is judged.
    pub subject: Contender,
    /// What it is compared with.
    pub reference: Contender,
    /// The figure compared.
    pub figure: Figure,
    /// Ratio or difference.
    pub kind: Kind,
    /// The limit, if there is one.
    pub wanted: Option<Wanted>,
}

/// Queue pairs of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Number of queue pairs.
    pub qps: u32,
    /// Outstanding requests per queue pair.
    pub depth: u32,
    /// They use one buffer at each end, in place of one each.
    pub is_buffer_shared: bool,
}

impl Load {
    /// The default of `iwperf`.
    const SINGLE: Self = Self { qps: 1, depth: 128, is_buffer_shared: false };

    /// Returns the options of `iwperf`.
    #[must_use]
    pub fn options(self) -> Vec<String> {
        let mut options = Vec::new();
        if self != Self::SINGLE {
            options.extend(["-q".to_owned(), self.qps.to_string()]);
            options.extend(["-t".to_owned(), self.depth.to_string()]);
        }
        if self.is_buffer_shared {
            options.push("--shared-buffer".to_owned());
        }
        options
    }

    /// Returns what each of so many bounds works on.
    #[must_use]
    pub fn working_set(self, bounds: usize) -> WorkingSet {
        let qps = if self.is_buffer_shared { 1 } else { self.qps as usize };
        WorkingSet { slots: qps.div_ceil(bounds), depth: self.depth as usize }
    }
}

/// A row: measurements of one message size, MTU and placement.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name, by which `--rows` selects it.
    pub name: String,
    /// Cores of both ends, over `ring`.
    pub topology: Topology,
    /// MTU in bytes.
    pub mtu: u16,
    /// Bytes per message.
    pub size: u64,
    /// Its queue pairs.
    pub load: Load,
    /// What is measured, in order.
    pub contenders: Vec<Contender>,
    /// What is compared.
    pub comparisons: Vec<Comparison>,
}

impl Row {
    fn new(test: &'static str, size: u64, mtu: u16, topology: &Topology) -> Self {
        let place = match topology {
            Topology::Shards(_) => "shards",
            _ if topology.cores().len() > 1 => "two",
            _ => "one",
        };
        Self {
            name: format!("{}-{place}", row_name(test, size, mtu)),
            topology: topology.clone(),
            mtu,
            size,
            load: Load::SINGLE,
            contenders: Vec::new(),
            comparisons: Vec::new(),
        }
    }

    /// Sets the queue pairs, and adds their number to the name.
    fn with_load(mut self, load: Load) -> Self {
        let shared = if load.is_buffer_shared { "-shared" } else { "" };
        self.name = format!("{}-q{}{shared}", self.name, load.qps);
        self.load = load;
        self
    }

    /// Adds a comparison, and its contenders if they are new.
    fn compare(
        mut self,
        subject: Contender,
        reference: Contender,
        (figure, kind): (Figure, Kind),
        wanted: Option<Wanted>,
    ) -> Self {
        let of_gain = |contender: Contender| contender.on_one().filter(|_| kind == Kind::Gain);
        let compared = [of_gain(reference), of_gain(subject), Some(reference), Some(subject)];
        for contender in compared.into_iter().flatten() {
            if !self.contenders.contains(&contender) {
                self.contenders.push(contender);
            }
        }
        self.comparisons.push(Comparison { subject, reference, figure, kind, wanted });
        self
    }
}

const BANDWIDTH: (Figure, Kind) = (Figure::Bandwidth, Kind::Ratio);
const MEDIAN: (Figure, Kind) = (Figure::Median, Kind::Ratio);

/// Returns the rows for one core, and for two if there are; `before`: those that need another
/// `iwperf`, too, and its figures beside all others.
#[must_use]
pub fn all(one: usize, two: Option<[usize; 2]>, before: bool) -> Vec<Row> {
    let one = Topology::OneCore(one);
    let mut rows = vec![
        write_bw(65_536, 1500, &one, 0.70),
        write_bw(65_536, 9000, &one, 0.85),
        write_bw(4096, 1500, &one, 0.60),
        write_bw(4096, 9000, &one, 0.75),
    ];
    for mtu in [1500, 9000] {
        for test in ["read-bw", "send-bw"] {
            let (subject, reference) = (Contender::Iwperf(test), Contender::Iwperf("write-bw"));
            let wanted = Some(Wanted::AtLeast(0.97));
            let row = Row::new(test, 65_536, mtu, &one);
            rows.push(row.compare(subject, reference, BANDWIDTH, wanted));
        }
    }
    for mtu in [1500, 9000] {
        let shares = [(1, None), (16, Some(0.95)), (256, Some(0.9)), (10_000, Some(0.8))];
        rows.extend(shares.map(|(qps, share)| {
            let load = Load { qps, depth: QPS_DEPTH, is_buffer_shared: false };
            many_qps(mtu, &one, load, share)
        }));
        let load = Load { qps: 10_000, depth: QPS_DEPTH, is_buffer_shared: true };
        rows.push(many_qps(mtu, &one, load, Some(0.5)));
    }
    if let Some(two) = two {
        let shards = Topology::Shards(two.into());
        rows.push(gain(65_536, &shards, (Figure::Bandwidth, Kind::Gain)));
        rows.push(gain(64, &shards, (Figure::MessageRate, Kind::Gain)));
        let two = Topology::TwoCores(two);
        rows.push(write_bw(1 << 20, 1500, &two, 0.90));
        rows.push(write_bw(1 << 20, 9000, &two, 0.95));
        let ping_pong = Contender::PingPong;
        let write = Contender::Iwperf("write-lat");
        let tail = (Figure::Tail, Kind::Difference);
        rows.push(
            Row::new("write-lat", 64, 1500, &two)
                .compare(write, ping_pong, MEDIAN, Some(Wanted::AtMost(3.0)))
                .compare(write, ping_pong, tail, Some(Wanted::AtMost(0.3))),
        );
        let read = Contender::Iwperf("read-lat");
        rows.push(Row::new("read-lat", 64, 1500, &two).compare(
            read,
            ping_pong,
            MEDIAN,
            Some(Wanted::AtMost(5.0)),
        ));
    }
    if before {
        rows.iter_mut().for_each(add_before);
        rows.push(Row::new("write-bw", 64, 1500, &one).compare(
            Contender::Iwperf("write-bw"),
            Contender::Before("write-bw"),
            (Figure::MessageRate, Kind::Ratio),
            Some(Wanted::AtLeast(2.3)),
        ));
    }
    rows
}

/// Bandwidth of RDMA Writes as a share of the bounds.
fn write_bw(size: u64, mtu: u16, topology: &Topology, share: f64) -> Row {
    let subject = Contender::Iwperf("write-bw");
    Row::new("write-bw", size, mtu, topology)
        .compare(subject, Contender::Frozen, BANDWIDTH, Some(Wanted::AtLeast(share)))
        .compare(subject, Contender::Best, BANDWIDTH, None)
}

/// Requests outstanding per queue pair where there are many of them.
const QPS_DEPTH: u32 = 4;

/// Bandwidth of RDMA Writes of 4 KiB over many queue pairs as a share of the bound with as many
/// messages.
fn many_qps(mtu: u16, topology: &Topology, load: Load, share: Option<f64>) -> Row {
    Row::new("write-bw", 4096, mtu, topology).with_load(load).compare(
        Contender::Iwperf("write-bw"),
        Contender::Frozen,
        BANDWIDTH,
        share.map(Wanted::AtLeast),
    )
}

/// What RDMA Writes gain from a second core, with a shard on each, as a share of what the bound
/// gains.
fn gain(size: u64, topology: &Topology, (figure, kind): (Figure, Kind)) -> Row {
    let (subject, reference) = (Contender::Iwperf("write-bw"), Contender::Frozen);
    let load = Load { qps: 8, ..Load::SINGLE };
    let mut row = Row::new("write-bw", size, 1500, topology).with_load(load).compare(
        subject,
        reference,
        (figure, kind),
        Some(Wanted::AtLeast(0.95)),
    );
    for contender in [subject, reference] {
        if let Some(on_one) = contender.on_one() {
            row = row.compare(contender, on_one, (figure, Kind::Ratio), None);
        }
    }
    row
}

/// Adds the other `iwperf` to a row, for its first comparison's subject.
fn add_before(row: &mut Row) {
    let Some(&Comparison { subject: Contender::Iwperf(test), figure, kind, .. }) =
        row.comparisons.first()
    else {
        return;
    };
    if kind == Kind::Gain {
        return;
    }
    let compared = (figure, kind);
    *row = row.clone().compare(Contender::Iwperf(test), Contender::Before(test), compared, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_comparison_is_of_contenders_measured_once() {
        for before in [false, true] {
            for row in all(0, Some([0, 1]), before) {
                for comparison in &row.comparisons {
                    for contender in [comparison.subject, comparison.reference] {
                        let count = row.contenders.iter().filter(|&&c| c == contender).count();
                        assert_eq!(count, 1, "{row:?}");
                    }
                }
                let other = row.contenders.iter().any(|c| matches!(c, Contender::Before(_)));
                let is_gain = matches!(row.topology, Topology::Shards(_));
                assert_eq!(other, before && !is_gain, "{row:?}");
            }
        }
    }

    #[test]
    fn names_are_distinct_and_tell_size_mtu_and_cores() {
        let mut names: Vec<String> =
            all(0, Some([0, 1]), true).into_iter().map(|row| row.name).collect();
        for name in [
            "write-bw-64K-1500-one",
            "write-bw-1M-9000-two",
            "write-lat-64-1500-two",
            "write-bw-4K-9000-one-q10000-shared",
            "write-bw-64K-1500-shards-q8",
        ] {
            assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(all(0, None, true).iter().all(|row| row.topology == Topology::OneCore(0)));
    }
}
