//! The results as Markdown.

use std::fmt::Write as _;

use hdrhistogram::Histogram;

use super::control::{self, Latencies};
use super::many::Many;
use super::memory::{Memory, Share};
use super::results::{BYTES_LIMIT, Control, IDLE_LIMIT, RATE_LIMIT, Results, kept, us};
use super::setup_rate::Rates;
use super::soak::{GROWTH_MAX, Line, Soak};
use crate::baseline::report::host_table;
use crate::paired::interval::MedianInterval;
use crate::paired::pairs::Paired;
use crate::paired::rows::Wanted;

const fn yes_no(is_kept: bool) -> &'static str {
    if is_kept { "yes" } else { "no" }
}

const METHOD: &str = "# What connections cost\n\n\
    Written by `bench/connections`. Two contexts in one process, over `ring`, MTU 1500. *Idle* is \
    a connection that is established and on which nothing is posted. Paired figures come from \
    rounds that measure both kinds one after the other, in an order that is reversed from round to \
    round; given is the median of their ratios with its interval by order statistics (95 % from 6 \
    rounds on). A limit is kept (yes) or not (no) if the whole interval says so, and otherwise \
    open.\n";

/// Formats method, machine and results, with the plot of this name beside it.
#[must_use]
pub fn markdown(results: &Results, plot: Option<&str>) -> String {
    let mut text = METHOD.to_owned();
    text.push_str(
        "\nTo repeat: `bench/connections`; in some minutes: `bench/connections --quick`; one part: \
         `bench/connections --only memory`.\n\n",
    );
    text.push_str(&host_table());
    text.push_str(&tables(results));
    if let Some(plot) = plot {
        let _ = writeln!(text, "\n![Resident memory during the soak]({plot})");
    }
    text
}

/// Formats the results.
#[must_use]
pub fn tables(results: &Results) -> String {
    let mut text = String::new();
    if let Some((count, rows)) = &results.idle {
        text.push_str(&idle_table(*count, rows));
    }
    if let Some(memory) = &results.memory {
        text.push_str(&memory_table(memory));
    }
    if let Some(many) = &results.many {
        text.push_str(&many_table(many));
    }
    if let Some((count, open, rates)) = &results.setup_rate {
        text.push_str(&rate_table(*count, *open, rates));
    }
    if let Some(control) = &results.control {
        text.push_str(&control_table(control));
    }
    if let Some(soak) = &results.soak {
        text.push_str(&soak_table(soak));
    }
    for failure in &results.failures {
        let _ = writeln!(text, "\nFailed: {failure}");
    }
    text
}

fn idle_table(count: usize, rows: &[(&str, Paired)]) -> String {
    let mut text = format!(
        "\n## A busy queue pair beside idle ones\n\n\
         RDMA Writes of one queue pair, always with the same number outstanding, alone and beside \
         {count} idle connections of the same contexts. One thread polls both ends; the contexts \
         and the busy queue pair stay the same. The limit: 3 % more time per Write.\n\n\
         | Writes | ns per Write alone | beside {count} | ratio | kept | rounds |\n\
         |---|---:|---:|---|---|---:|\n"
    );
    for (name, pairs) in rows {
        let _ = writeln!(text, "| {name} | {}", paired_cells(pairs, 0, 3, IDLE_LIMIT));
    }
    text
}

/// Formats the cells of a pair of figures from the first figure on.
fn paired_cells(pairs: &Paired, decimals: usize, of_ratio: usize, limit: Wanted) -> String {
    let (Some(without), Some(with), Some(ratio)) =
        (pairs.figure(0), pairs.figure(1), pairs.ratio())
    else {
        return "failed | | | | 0 |".to_owned();
    };
    let [without, with] = [without, with].map(|it| it.describe(decimals));
    let (kept, rounds) = (kept(&ratio, limit), pairs.pairs.len());
    format!("{without} | {with} | {} | {kept} | {rounds} |", ratio.describe(of_ratio))
}

fn memory_table(memory: &Memory) -> String {
    let Memory { count, rows, .. } = memory;
    let slots = memory.slots_len;
    let mut text = format!(
        "\n## Memory of an idle queue pair\n\n\
         Each of {count} connections more, beside as many that are open already, when they have \
         been idle for 1.5 s. *Resident*: difference of the anonymous resident memory of the \
         process, by both ends. *Allocated*: what calls and polls of each end have allocated and \
         not freed, as asked for, and the handle, which the application holds; not the places in \
         tables that were reserved at opening, such as that of the connections, whose pages are \
         resident as they are used. The slots of a request in both work queues are {slots:.0} \
         bytes: the difference between queues of 1 and of 64 requests, in whole slots. Tables that \
         double, and what the allocator adds, are in it. The limit: {BYTES_LIMIT} bytes beside the \
         slots.\n\n\
         | requests per queue | resident | beside the slots | kept | allocated left | beside the \
         slots | kept | allocated right | beside the slots | kept |\n\
         |---:|---:|---:|---|---:|---:|---|---:|---:|---|\n"
    );
    for row in rows {
        let _ = write!(text, "| {} | {:.0}", row.depth, row.resident);
        let mut cells = |bytes: f64| {
            let _ = write!(text, " | {bytes:.0} | {}", yes_no(bytes <= BYTES_LIMIT));
        };
        cells(memory.beside_slots(row));
        for end in 0..2 {
            let _ = write!(text, " | {:.0}", row.allocated(end));
            let bytes = memory.allocated_beside_slots(row, end);
            let _ = write!(text, " | {bytes:.0} | {}", yes_no(bytes <= BYTES_LIMIT));
        }
        text.push_str(" |\n");
    }
    text.push_str(
        "\nWhere they are:\n\n\
         | requests per queue | end | slots | by creation, beside them | allocations | by \
         connection | allocations | handle |\n|---:|---|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in rows {
        for (end, name) in ["left", "right"].into_iter().enumerate() {
            let Share { bytes, count } = row.created[end];
            let connected = row.connected[end];
            let slots = slots * row.depth as f64;
            let _ = writeln!(
                text,
                "| {} | {name} | {slots:.0} | {:.0} | {count:.1} | {:.0} | {:.1} | {} |",
                row.depth,
                bytes - slots,
                connected.bytes,
                connected.count,
                row.handle
            );
        }
    }
    text
}

fn many_table(many: &Many) -> String {
    let mut text = format!(
        "\n## {} connections\n\n\
         Set up between the two contexts, to {} ports; used for messages of 16 bytes, each \
         compared at the receiver; ended; nothing was left. Resident before the first: {:.1} \
         MiB.\n\n\
         | phase | s | connections per second | resident, MiB |\n|---|---:|---:|---:|\n",
        many.count,
        many.ports,
        mib(many.resident_before)
    );
    for (name, seconds, resident) in &many.phases {
        let rate = many.count as f64 / seconds;
        let _ = writeln!(text, "| {name} | {seconds:.2} | {rate:.0} | {:.1} |", mib(*resident));
    }
    text
}

fn rate_table(count: usize, open: usize, rates: &Rates) -> String {
    let mut text = format!(
        "\n## Rate of set-ups and ends\n\n\
         {count} connections are set up, queue pairs of both ends included, and ended, their \
         destruction included: with no others, and with {open} others open. The limit: 10 % \
         fewer.\n\n\
         | | per second with none | with {open} | ratio | kept | rounds |\n\
         |---|---:|---:|---|---|---:|\n"
    );
    for (name, pairs) in [("set-ups", &rates.set_ups), ("ends", &rates.ends)] {
        let _ = writeln!(text, "| {name} | {}", paired_cells(pairs, 0, 3, RATE_LIMIT));
    }
    text
}

fn control_table(control: &Control) -> String {
    let Control { shards, drivers, rounds } = control;
    let (size, depth) = control::LOAD;
    let mut text = format!(
        "\n## Control calls beside traffic\n\n\
         All shards of both contexts have Writes of {size} bytes under way, {depth} on each. \
         Another thread connects a queue pair and accepts it at the other end, and deregisters a \
         region of {} bytes, again and again; it drives no shard in between. *Connect* is the time \
         from the call to the event. {}\n\n\
         | call | shards | threads that drive them | p50, us | p99, us | max, us | calls |\n\
         |---|---:|---:|---:|---:|---:|---:|\n",
        control::REGION_LEN,
        if drivers[1] < shards[1] {
            "There are fewer cores than shards: each thread drives several in turn, so that a pass \
             over them takes as many times as long; the figures are not those of a core for each."
        } else {
            "Each shard has a core, whose thread drives it at both ends."
        }
    );
    for (name, of) in CALLS {
        for which in 0..2 {
            let all = rounds.iter().map(|round| of(&round[which]));
            let Some(sum) = sum(all) else { continue };
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {:.2} | {:.2} | {:.2} | {} |",
                shards[which],
                drivers[which],
                us(&sum, 0.5),
                us(&sum, 0.99),
                sum.max() as f64 / 1e3,
                sum.len()
            );
        }
    }
    for which in 0..2 {
        text.push_str(&core_line(shards[which], rounds.iter().map(|round| &round[which])));
    }
    let _ = write!(
        text,
        "\n| call | p50 with {} shards by that with {} | p99 |\n|---|---|---|\n",
        shards[1], shards[0]
    );
    for (name, of) in CALLS {
        let ratio = |quantile| {
            let ratio =
                |round: &[Latencies; 2]| us(of(&round[1]), quantile) / us(of(&round[0]), quantile);
            let interval = MedianInterval::of(rounds.iter().map(ratio).collect());
            interval.map_or_else(|| "failed".to_owned(), |it| it.describe(2))
        };
        let _ = writeln!(text, "| {name} | {} | {} |", ratio(0.5), ratio(0.99));
    }
    text
}

/// A call, and where its latencies are.
/// What the threads of `control-latency` had of their cores.
fn core_line<'a>(shards: usize, rounds: impl Iterator<Item = &'a Latencies> + Clone) -> String {
    let drive_round = MedianInterval::of(rounds.clone().map(|it| it.drive_round / 1e3).collect());
    let drive_round = drive_round.map_or_else(|| "failed".to_owned(), |it| it.describe(1));
    let waits = rounds.map(|it| it.core_waits).collect::<Option<Vec<_>>>().map(|waits| {
        [0, 1].map(|of| waits.iter().map(|waits| waits[of]).sum::<u64>() as f64 / 1e6)
    });
    let waits = waits.map_or_else(
        || "The kernel does not count how long threads waited for a core.".to_owned(),
        |[calling, driving]| {
            format!(
                "The calling thread waited {calling:.1} ms in all for its core, the others \
                 {driving:.1} ms: each wait is a time slice of another task, and shows as a \
                 latency of milliseconds."
            )
        },
    );
    format!(
        "\nShards: {shards}. A thread drives each of its own once in {drive_round} us; connecting \
         takes at least two of these rounds. {waits}\n"
    )
}

type Call = (&'static str, fn(&Latencies) -> &Histogram<u64>);
const CALLS: [Call; 2] = [("connect", |it| &it.connect), ("deregister", |it| &it.deregister)];

fn sum<'a>(all: impl Iterator<Item = &'a Histogram<u64>>) -> Option<Histogram<u64>> {
    all.fold(None, |sum, latencies| {
        let mut sum = sum.unwrap_or_else(|| Histogram::new_from(latencies));
        sum.add(latencies).ok()?;
        Some(sum)
    })
}

fn soak_table(soak: &Soak) -> String {
    let (share, bytes) = GROWTH_MAX;
    let mut text = format!(
        "\n## Soak\n\n\
         Connections are made on all shards of two contexts, used for RDMA Writes, Sends and RDMA \
         Reads, which are compared, and ended in different ways: closed by either end or both; \
         *broken*: disconnected, terminated, dropped with requests outstanding, or by a Write to a \
         region that does not exist. Attempts are rejected or abandoned (*refused*), and contexts \
         disappear while their peers write (*lost*). Each request completes once. In the end \
         nothing may be left, as many queue pairs and regions as at the start have to fit, and \
         resident memory may not have grown by more than {:.0} % or {} MiB, whichever is more, \
         from the second to the last tenth of the time after a warm-up of {} s.\n\n\
         | s | made | ended | broken | refused | lost | verified, MiB | resident, MiB | \
         connections | frames free | frames dropped | CRC errors | out of order, dropped | \
         shortages | overruns |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        100.0 * share,
        bytes >> 20,
        soak.warm_up.as_secs()
    );
    for line in &soak.lines {
        let Line { seconds, counts, verified, resident, connections, frames_free, losses } = line;
        let counts = counts.map(|count| count.to_string()).join(" | ");
        let losses = losses.map(|count| count.to_string()).join(" | ");
        let (verified, resident) = (mib(*verified), mib(*resident));
        let _ = writeln!(
            text,
            "| {seconds:.0} | {counts} | {verified:.1} | {resident:.1} | {connections} | \
             {frames_free} | {losses} |"
        );
    }
    if let Some((second, last)) = soak.residents() {
        let flat = soak.is_flat().map_or("open", yes_no);
        let [second, last] = [second, last].map(|bytes| bytes / f64::from(1 << 20));
        let _ = writeln!(
            text,
            "\nResident memory, median of the second tenth of the time {second:.1} MiB, of the \
             last {last:.1}; flat: {flat}. Nothing lost, nothing left: {}.",
            yes_no(soak.failures.is_empty())
        );
    }
    text
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::connections::memory::Row;

    fn paired(ratio: f64) -> Paired {
        Paired { pairs: vec![[100.0, 100.0 * ratio]; 6] }
    }

    #[test]
    fn limits_are_kept_by_whole_intervals() {
        let of = |ratio, limit| kept(&paired(ratio).ratio().unwrap(), limit);
        assert_eq!((of(1.02, IDLE_LIMIT), of(1.04, IDLE_LIMIT)), ("yes", "no"));
        assert_eq!((of(0.91, RATE_LIMIT), of(0.89, RATE_LIMIT)), ("yes", "no"));
        let mut few = paired(1.0);
        few.pairs.truncate(5);
        assert_eq!(kept(&few.ratio().unwrap(), IDLE_LIMIT), "open");
        few.pairs.extend([[100.0, 104.0]; 5]);
        assert_eq!(kept(&few.ratio().unwrap(), IDLE_LIMIT), "open");
    }

    #[test]
    fn slots_are_subtracted_from_memory() {
        let share = |bytes| Share { bytes, count: 3.0 };
        let row = |depth, slots: f64, resident| Row {
            depth,
            created: [share(500.0 + slots), share(500.0 + slots)],
            connected: [share(1000.0), share(1548.0)],
            handle: 100,
            resident,
        };
        let rows = vec![row(1, 192.0, 2000.0), row(64, 64.0 * 192.0, 14_500.0)];
        let text = memory_table(&Memory { count: 10, slots_len: 192.0, rows });
        let first = "| 1 | 2000 | 1808 | yes | 1792 | 1600 | yes | 2340 | 2148 | no |";
        assert!(text.contains(first), "{text}");
        let second = "| 64 | 14500 | 2212 | no | 13888 | 1600 | yes |";
        assert!(text.contains(second), "{text}");
        assert!(text.contains("| 64 | right | 12288 | 500 | 3.0 | 1548 | 3.0 | 100 |"), "{text}");
    }

    #[test]
    fn memory_that_grows_is_not_flat() {
        let soak = |last| {
            let mut resident = vec![50 << 20; 90];
            // The first tenth does not count.
            resident[..10].fill(1 << 20);
            resident.extend([last; 10]);
            Soak { warm_up: Duration::ZERO, lines: vec![], resident, failures: vec![] }
        };
        assert_eq!(soak(52 << 20).is_flat(), Some(true));
        assert_eq!(soak(53 << 20).is_flat(), Some(false));
        assert!(soak_table(&soak(53 << 20)).contains("flat: no"));
        let few = Soak { resident: vec![1; 9], ..soak(1) };
        assert_eq!(few.is_flat(), None);
    }
}
