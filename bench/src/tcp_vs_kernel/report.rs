//! The figures as Markdown and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::connect_rates::ConnectRates;
use super::goodput::GoodputResult;
use super::plan::{LinkParams, Pairing, Plan};
use super::{exchange, network};
use crate::median::median;

/// The figure of a wire and a pairing.
fn find(figures: &[GoodputResult], cell: LinkParams, pairing: Pairing) -> Option<&GoodputResult> {
    figures.iter().find(|figure| figure.link == cell && figure.pairing == pairing)
}

/// Round trips of the plan, in its order.
#[must_use]
pub fn rtts(plan: &Plan) -> Vec<f64> {
    let mut rtts: Vec<f64> = Vec::new();
    for cell in &plan.links {
        if !rtts.contains(&cell.rtt_ms) {
            rtts.push(cell.rtt_ms);
        }
    }
    rtts
}

/// A table for each round trip: medians, the spread, and the share of what kernel to kernel gave.
#[must_use]
pub fn tables(plan: &Plan, figures: &[GoodputResult]) -> String {
    let mut text = String::new();
    for rtt_ms in rtts(plan) {
        let _ = writeln!(text, "### Round trip {rtt_ms} ms\n");
        let titles = Pairing::ONE_WAY.map(Pairing::title).join(" | ");
        let _ = writeln!(text, "| loss each way | {titles} |\n|---:|---:|---:|---:|");
        for cell in plan.links.iter().filter(|cell| cell.rtt_ms == rtt_ms) {
            let kernel =
                find(figures, *cell, Pairing::KernelToKernel).and_then(GoodputResult::median);
            let _ = write!(text, "| {} % |", cell.loss_percent);
            for pairing in Pairing::ONE_WAY {
                let share = if pairing == Pairing::KernelToKernel { None } else { kernel };
                let _ = write!(text, " {} |", format_result(find(figures, *cell, pairing), share));
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// `0.941 (0.93 to 0.95; 101 %)`.
fn format_result(figure: Option<&GoodputResult>, kernel: Option<f64>) -> String {
    let Some((figure, middle)) = figure.and_then(|figure| Some((figure, figure.median()?))) else {
        return "failed".to_owned();
    };
    let all = || figure.samples.iter().map(|sample| sample.gbit_s);
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let share = kernel.map_or_else(String::new, |kernel| {
        format!("; {:.0} %", 100.0 * middle / kernel.max(f64::MIN_POSITIVE))
    });
    let invalid = figure.samples.iter().filter(|sample| sample.is_invalid()).count();
    let mark = if invalid > 0 { format!(", {invalid} invalid") } else { String::new() };
    format!("{middle:.3} ({least:.3} to {most:.3}{share}{mark})")
}

/// How the wire itself behaved.
#[must_use]
pub fn emulator_summary(figures: &[GoodputResult]) -> String {
    let samples = || figures.iter().flat_map(|figure| &figure.samples);
    let late = samples().map(|sample| sample.late_fraction).fold(0.0, f64::max);
    let latest = samples().map(|sample| sample.latest_ms).fold(0.0, f64::max);
    let latest_median = median(samples().map(|sample| sample.latest_ms).collect()).unwrap_or(0.0);
    let dropped: u64 = samples().map(|sample| sample.dropped).sum();
    let repeated: usize = figures.iter().map(|figure| figure.repeated).sum();
    format!(
        "Errors of the emulator: at most {:.2} % of a run's frames left more than 0.5 ms late; the \
         latest frame of a run was {latest_median:.2} ms late in the median and {latest:.2} ms at \
         worst; {dropped} frames were dropped that should not have been. {repeated} runs were \
         done again for such reasons.\n\n",
        late * 100.0
    )
}

/// Connections set up per second.
#[must_use]
pub fn connections(set_ups: &[ConnectRates]) -> String {
    if set_ups.is_empty() {
        return String::new();
    }
    let mut text = "| between | one at a time | 64 at a time |\n|---|---:|---:|\n".to_owned();
    let mut rest = set_ups;
    while let Some(first) = rest.first() {
        let (same, others) =
            rest.split_at(rest.iter().take_while(|set_up| set_up.between == first.between).count());
        rest = others;
        let name = match first.between {
            "kernel" => "kernel and kernel over loopback, two threads",
            "ring" => "ours and ours over `ring`, one thread",
            "ours-to-kernel" => "ours connects, the kernel accepts, over a tap",
            _ => "the kernel connects, ours accepts, over a tap",
        };
        let _ = write!(text, "| {name} |");
        for set_up in same {
            let rate = median(set_up.rates.clone());
            let rate_text = rate.map_or_else(|| "failed".to_owned(), |rate| format!("{rate:.0}"));
            let _ = write!(text, " {rate_text} |");
        }
        text.push('\n');
    }
    text
}

/// Everything, for programs.
#[must_use]
pub fn json(
    plan: &Plan,
    figures: &[GoodputResult],
    exchanges: &[exchange::ExchangeResult],
    set_ups: &[ConnectRates],
    machine: &[(String, String)],
) -> Value {
    let figures: Vec<Value> = figures
        .iter()
        .map(|figure| {
            let samples: Vec<Value> = figure
                .samples
                .iter()
                .map(|sample| {
                    json!({
                        "gbit_s": sample.gbit_s,
                        "late_share": sample.late_fraction,
                        "latest_ms": sample.latest_ms,
                        "wire_dropped": sample.dropped,
                        "wire": sample.wire,
                    })
                })
                .collect();
            json!({
                "pairing": figure.pairing.title(),
                "loss_percent": figure.link.loss_percent,
                "rtt_ms": figure.link.rtt_ms,
                "median_gbit_s": figure.median(),
                "repeated": figure.repeated,
                "samples": samples,
            })
        })
        .collect();
    let set_ups: Vec<Value> = set_ups
        .iter()
        .map(|set_up| {
            json!({"between": set_up.between, "batch": set_up.batch, "per_second": set_up.rates})
        })
        .collect();
    json!({
        "machine": machine.iter().map(|(name, value)| json!([name, value])).collect::<Vec<_>>(),
        "rate": plan.rate,
        "queue": plan.queue,
        "seed": plan.seed,
        "rounds": plan.rounds,
        "warm_up_s": plan.warm_up_s,
        "warm_up_rounds": plan.warm_up_rounds,
        "seconds": plan.seconds,
        "goodput": figures,
        "exchanges": exchanges.iter().map(exchange::ExchangeResult::json).collect::<Vec<_>>(),
        "connections": set_ups,
    })
}

/// How it was measured.
#[must_use]
pub fn method(plan: &Plan) -> String {
    format!(
        "Goodput: bytes of messages that reach the receiver in {} s after a warm-up, in Gb/s, \
         the median of {} runs (in brackets the least, the most, and the share of what kernel \
         to kernel gave). The warm-up of each connection is {} s, and {} round trips where \
         those are longer: a CUBIC that left slow start early takes that long to find the \
         rate. One connection carries RDMA Sends of 65,504 bytes in full FPDUs with CRC. Our \
         ends are verbs programs; the kernel's ends are plain sockets that send and take the \
         same bytes, after a start-up exchange that an independent peer makes. Between the \
         ends stands `iwlink`: {} with {} bytes of queue, the loss and half of the round trip \
         each way, the same seeds for all pairings. Our end meets it over memif, the kernel \
         over a tap in a namespace of its own (fresh for each run), so that each end crosses \
         one device. {} The kernel's congestion control is CUBIC, by a setting of its routes; \
         its buffers and all else are the machine's. Offloads of the kernel: {}.\n",
        plan.seconds,
        plan.rounds,
        plan.warm_up_s,
        plan.warm_up_rounds,
        plan.rate,
        plan.queue,
        if network::cores().is_some() {
            "iwlink has a core to itself and never sleeps; both ends share another, which ours \
             offers to the other after each look at its port."
        } else {
            "All programs share the machine's cores as its scheduler has it."
        },
        network::offload_description(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp_vs_kernel::plan::tests::plan;
    use crate::tcp_vs_kernel::sample::Sample;

    fn figure(cell: LinkParams, pairing: Pairing, all: &[f64]) -> GoodputResult {
        let sample = |&gbit_s: &f64| Sample {
            gbit_s,
            dropped: 0,
            late_fraction: 0.001,
            latest_ms: 0.4,
            wire: Value::Null,
        };
        GoodputResult {
            link: cell,
            pairing,
            samples: all.iter().map(sample).collect(),
            repeated: 1,
        }
    }

    #[test]
    fn table_shows_median_range_and_kernel_ratio() {
        let plan = plan();
        let mut figures = vec![
            figure(plan.links[0], Pairing::KernelToKernel, &[0.8, 0.9, 0.7]),
            figure(plan.links[0], Pairing::OursToKernel, &[0.88, 0.87, 0.89]),
        ];
        figures[1].samples[0].dropped = 5;
        let text = tables(&plan, &figures);
        for expected in [
            "### Round trip 1 ms",
            "### Round trip 20 ms",
            "| 0 % | 0.800 (0.700 to 0.900) | 0.880 (0.870 to 0.890; 110 %, 1 invalid) | failed |",
            "| 1 % | failed | failed | failed |",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        let wire = emulator_summary(&figures);
        assert!(wire.contains("at most 0.10 %") && wire.contains("2 runs were done again"));
        assert!(wire.contains("5 frames were dropped"), "{wire}");
        let json = json(&plan, &figures, &[], &[], &[]);
        assert_eq!(json["goodput"][1]["median_gbit_s"], 0.88);
    }

    #[test]
    fn connect_rates_have_one_row_per_pairing() {
        let set_up =
            |between, batch, rates: &[f64]| ConnectRates { between, batch, rates: rates.into() };
        let text = connections(&[
            set_up("kernel", 1, &[10.0, 30.0, 20.0]),
            set_up("kernel", 64, &[40.0]),
            set_up("ring", 1, &[50.0]),
            set_up("ring", 64, &[]),
        ]);
        assert!(text.contains("over loopback, two threads | 20 | 40 |"), "{text}");
        assert!(text.contains("over `ring`, one thread | 50 | failed |"), "{text}");
        assert_eq!(connections(&[]), "");
    }
}
