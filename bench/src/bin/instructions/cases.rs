//! The workloads that are counted.

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Options of the programs (see [`Workload`](ferrowarp_bench::workload::Workload)).
    pub(crate) options: Vec<&'static str>,
    /// Messages of the shorter run; the longer has three times as many.
    pub(crate) count: u64,
    /// The cost is per message, or per poll; otherwise per segment of the source.
    pub(crate) per_write: bool,
    /// The case of which this one is a variant with something more to do.
    pub(crate) plain: Option<&'static str>,
    /// Counted for the protocol core.
    pub(crate) has_core: bool,
    /// Counted from post to completion: the runtime has the settings as well.
    pub(crate) has_verbs: bool,
    /// Outstanding messages of each of many queue pairs, which take turns; the lines of a single
    /// one are counted per turn.
    pub(crate) turn: Option<u64>,
    /// Messages before and during a memory trace of it, which takes a second for a few hundred
    /// segments; `None`: not traced.
    pub(crate) traced: Option<[u64; 2]>,
}

impl Case {
    /// Returns what the cost is of.
    pub(crate) fn unit(&self) -> &'static str {
        match (self.per_write, self.options.contains(&"--idle")) {
            (_, true) => "poll",
            (true, false) => "Write",
            (false, false) => "segment",
        }
    }
}

/// Returns all cases: bulk, packed and single Writes, plain and with ECN, IPv6 or software
/// checksums; for bulk alone Sends, Reads and a few links.
pub(crate) fn all() -> Vec<Case> {
    let bulk = Case {
        name: "64 KiB, MTU 1500".to_owned(),
        options: Vec::new(),
        count: 60,
        per_write: false,
        plain: None,
        has_core: true,
        has_verbs: true,
        turn: None,
        traced: Some([4, 8]),
    };
    let variant = |suffix: &str, options: &[&'static str]| Case {
        name: format!("{}, {suffix}", bulk.name),
        options: options.to_vec(),
        traced: None,
        ..bulk.clone()
    };
    let transfers = [("Sends", "send"), ("Reads", "read")].map(|(suffix, transfer)| Case {
        has_verbs: false,
        ..variant(suffix, &["--transfer", transfer])
    });
    let links = [
        Case { has_verbs: false, ..variant("no timestamps", &["--no-timestamps"]) },
        variant("no CRC", &["--no-crc"]),
        Case { name: "64 KiB, MTU 9000".to_owned(), count: 200, ..variant("", &["--mtu", "9000"]) },
    ];
    let small = |name: &str, depth, count, traced| Case {
        name: name.to_owned(),
        options: vec!["--size", "64", "--depth", depth],
        count,
        per_write: true,
        traced: Some(traced),
        ..bulk.clone()
    };
    let mains = [
        (PLAIN[0], bulk.clone()),
        (PLAIN[1], small(PLAIN[1], "128", 6000, [512, 2048])),
        (PLAIN[2], small(PLAIN[2], "1", 2000, [50, 50])),
    ];
    let mut cases: Vec<Case> = mains.iter().map(|(_, case)| case.clone()).collect();
    cases.push(Case {
        name: format!("4 KiB, 4 outstanding, {QPS} queue pairs"),
        options: vec!["--size", "4096", "--depth", "4", "--qps", QPS],
        count: 1000,
        has_core: false,
        turn: Some(4),
        traced: Some([1024, 1024]),
        ..bulk.clone()
    });
    cases.extend([(IDLE_POLL, &["--idle"][..]), (CROWDED_POLL, &["--idle", "--crowded"])].map(
        |(name, options)| Case {
            name: name.to_owned(),
            options: options.to_vec(),
            count: 1000,
            per_write: true,
            plain: (name != IDLE_POLL).then_some(IDLE_POLL),
            has_core: false,
            traced: None,
            ..bulk.clone()
        },
    ));
    cases.extend(transfers);
    cases.extend(links);
    for (plain, case) in &mains {
        for (suffix, option) in
            [("ECN", "--ecn"), ("IPv6", "--ipv6"), ("checksums", "--software-checksums")]
        {
            let mut options = case.options.clone();
            options.push(option);
            let name = format!("{}, {suffix}", case.name);
            cases.push(Case { name, options, plain: Some(plain), traced: None, ..case.clone() });
        }
    }
    cases
}

/// Queue pairs of the case with many: enough that a line that belongs to one is touched by few
/// trains.
const QPS: &str = "64";

/// Name of the case of polls that find nothing to do.
pub(crate) const IDLE_POLL: &str = "poll without work";

/// Name of the same with many queues that are idle or wait for a full completion queue.
pub(crate) const CROWDED_POLL: &str = "poll without work, 21,000 queues";

/// Names of the cases that have variants.
const PLAIN: [&str; 3] =
    ["64 KiB, MTU 1500", "64 bytes, 128 outstanding", "64 bytes, one at a time"];
