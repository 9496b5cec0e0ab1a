//! The workloads that are counted.

use crate::measure::Program;

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Options of the programs (see [`Workload`](ferrowarp_bench::workload::Workload)).
    pub(crate) options: Vec<&'static str>,
    /// Messages of the shorter run; the longer has three times as many.
    pub(crate) count: u64,
    /// Unit of the cost: [`SEGMENT`] of the source, or a message, whatever it is called.
    pub(crate) unit: &'static str,
    /// Another case with something more to do.
    pub(crate) is_variant: bool,
    /// Programs that run it: each lacks some of the settings.
    pub(crate) programs: &'static [Program],
    /// Outstanding messages of each of many queue pairs, which take turns; the lines of a single
    /// one are counted per turn.
    pub(crate) turn: Option<u64>,
    /// Messages before and during a memory trace of it, which takes a second for a few hundred
    /// segments; `None`: not traced.
    pub(crate) traced: Option<[u64; 2]>,
}

pub(crate) const SEGMENT: &str = "segment";

/// Name of the case of polls that find nothing to do.
pub(crate) const IDLE_POLL: &str = "poll without work";

/// Name of the same with many queues that are idle or wait for a full completion queue.
pub(crate) const CROWDED_POLL: &str = "poll without work, 21,000 queues";

/// Returns all cases: bulk, packed and single Writes, plain and with ECN, IPv6 or software
/// checksums; for bulk and single ones Sends and Reads; for bulk alone a few links.
pub(crate) fn all() -> Vec<Case> {
    let case = |name: &str, options: &'static str, count| Case {
        name: name.to_owned(),
        options: options.split_whitespace().collect(),
        count,
        unit: SEGMENT,
        is_variant: false,
        programs: &[Program::Core, Program::Verbs],
        turn: None,
        traced: None,
    };
    let core = |name, options| Case { programs: &[Program::Core], ..case(name, options, 60) };
    let verbs = |name, options| Case { programs: &[Program::Verbs], ..case(name, options, 1000) };
    let single = |name, options| Case {
        programs: &[Program::Core, Program::VerbsSingle],
        ..case(name, options, 2000)
    };
    let write = |name, options, count| Case { unit: "Write", ..case(name, options, count) };
    // The longest traces begin.
    let mains = [
        Case { traced: Some([4, 8]), ..case("64 KiB, MTU 1500", "", 60) },
        Case {
            traced: Some([512, 2048]),
            ..write("64 bytes, 128 outstanding", "--size 64 --depth 128", 6000)
        },
        Case {
            traced: Some([50, 50]),
            ..write("64 bytes, one at a time", "--size 64 --depth 1", 2000)
        },
    ];
    let others = [
        // Enough queue pairs that a line that belongs to one is touched by few trains.
        Case {
            turn: Some(4),
            traced: Some([512, 512]),
            ..verbs("4 KiB, 4 outstanding, 64 queue pairs", "--size 4096 --depth 4 --qps 64")
        },
        Case { unit: "poll", ..verbs(IDLE_POLL, "--idle") },
        Case { unit: "poll", is_variant: true, ..verbs(CROWDED_POLL, "--idle --crowded") },
        core("64 KiB, MTU 1500, Sends", "--transfer send"),
        core("64 KiB, MTU 1500, Reads", "--transfer read"),
        core("64 KiB, MTU 1500, no timestamps", "--no-timestamps"),
        case("64 KiB, MTU 1500, no CRC", "--no-crc", 60),
        case("64 KiB, MTU 9000", "--mtu 9000", 60),
        Case {
            unit: "Send",
            ..single("64 bytes, ping-pong of Sends", "--size 64 --depth 1 --transfer ping-pong")
        },
        Case {
            unit: "Read",
            ..single("64 bytes, one Read at a time", "--size 64 --depth 1 --transfer read")
        },
    ];
    let variants = mains.iter().flat_map(|main| {
        [("ECN", "--ecn"), ("IPv6", "--ipv6"), ("checksums", "--software-checksums")].map(
            |(suffix, option)| Case {
                name: format!("{}, {suffix}", main.name),
                options: [&main.options[..], &[option]].concat(),
                is_variant: true,
                traced: None,
                ..main.clone()
            },
        )
    });
    mains.iter().cloned().chain(others).chain(variants).collect()
}
