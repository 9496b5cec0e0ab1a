//! The results as Markdown and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::connect_rates::ConnectRates;
use super::goodput::GoodputResult;
use super::plan::{LinkParams, Pairing, Plan};
use super::{exchange, network};
use crate::median::median;

/// Returns the result of a link and a pairing.
fn find(results: &[GoodputResult], link: LinkParams, pairing: Pairing) -> Option<&GoodputResult> {
    results.iter().find(|result| result.link == link && result.pairing == pairing)
}

/// Returns the RTTs of the plan, in its order.
#[must_use]
pub fn rtts(plan: &Plan) -> Vec<f64> {
    let mut rtts: Vec<f64> = Vec::new();
    for link in &plan.links {
        if !rtts.contains(&link.rtt_ms) {
            rtts.push(link.rtt_ms);
        }
    }
    rtts
}

/// Formats a table for each RTT: medians, the range, and the ratio to kernel to kernel.
#[must_use]
pub fn tables(plan: &Plan, results: &[GoodputResult]) -> String {
    let mut text = String::new();
    for rtt_ms in rtts(plan) {
        let _ = writeln!(text, "### Round trip {rtt_ms} ms\n");
        let titles = Pairing::ONE_WAY.map(Pairing::title).join(" | ");
        let _ = writeln!(text, "| loss each way | {titles} |\n|---:|---:|---:|---:|");
        for link in plan.links.iter().filter(|link| link.rtt_ms == rtt_ms) {
            let kernel =
                find(results, *link, Pairing::KernelToKernel).and_then(GoodputResult::median);
            let _ = write!(text, "| {} % |", link.loss_percent);
            for pairing in Pairing::ONE_WAY {
                let share = if pairing == Pairing::KernelToKernel { None } else { kernel };
                let _ = write!(text, " {} |", format_result(find(results, *link, pairing), share));
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// Formats a result: `0.941 (0.93 to 0.95; 101 %)`.
fn format_result(result: Option<&GoodputResult>, kernel: Option<f64>) -> String {
    let Some((result, middle)) = result.and_then(|result| Some((result, result.median()?))) else {
        return "failed".to_owned();
    };
    let all = || result.samples.iter().map(|sample| sample.gbit_s);
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let share = kernel.map_or_else(String::new, |kernel| {
        format!("; {:.0} %", 100.0 * middle / kernel.max(f64::MIN_POSITIVE))
    });
    let invalid = result.samples.iter().filter(|sample| sample.is_invalid()).count();
    let mark = if invalid > 0 { format!(", {invalid} invalid") } else { String::new() };
    format!("{middle:.3} ({least:.3} to {most:.3}{share}{mark})")
}

/// Formats the errors of the emulator.
#[must_use]
pub fn emulator_summary(results: &[GoodputResult]) -> String {
    let samples = || results.iter().flat_map(|result| &result.samples);
    let late = samples().map(|sample| sample.late_fraction).fold(0.0, f64::max);
    let latest = samples().map(|sample| sample.latest_ms).fold(0.0, f64::max);
    let latest_median = median(samples().map(|sample| sample.latest_ms).collect()).unwrap_or(0.0);
    let dropped: u64 = samples().map(|sample| sample.dropped).sum();
    let repeated: usize = results.iter().map(|result| result.repeated).sum();
    format!(
        "Errors of the emulator: at most {:.2} % of a run's frames left more than 0.5 ms late; the \
         latest frame of a run was {latest_median:.2} ms late in the median and {latest:.2} ms at \
         worst; {dropped} frames were dropped by such errors. {repeated} runs were repeated for \
         such reasons.\n\n",
        late * 100.0
    )
}

/// Formats the rates of connection set-up.
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

/// Returns all results as JSON.
#[must_use]
pub fn json(
    plan: &Plan,
    results: &[GoodputResult],
    exchanges: &[exchange::ExchangeResult],
    set_ups: &[ConnectRates],
    machine: &[(String, String)],
) -> Value {
    let results: Vec<Value> = results
        .iter()
        .map(|result| {
            let samples: Vec<Value> = result
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
                "pairing": result.pairing.title(),
                "loss_percent": result.link.loss_percent,
                "rtt_ms": result.link.rtt_ms,
                "median_gbit_s": result.median(),
                "repeated": result.repeated,
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
        "goodput": results,
        "exchanges": exchanges.iter().map(exchange::ExchangeResult::json).collect::<Vec<_>>(),
        "connections": set_ups,
    })
}

/// Formats the method.
#[must_use]
pub fn method(plan: &Plan) -> String {
    format!(
        "Goodput: bytes of messages that reach the receiver in {} s after a warm-up, in Gb/s, \
         the median of {} runs (in brackets the minimum, the maximum, and the ratio to kernel \
         to kernel). The warm-up of each connection is {} s, and {} round trips where \
         those are longer: a CUBIC that left slow start early takes that long to find the \
         rate. One connection carries RDMA Sends of 65,504 bytes in full FPDUs with CRC. Our \
         ends are verbs programs; the kernel's ends are plain sockets that send and receive \
         the same bytes, after a startup exchange by an independent peer. Between the ends \
         is `iwlink`: {} with {} bytes of queue, the loss and half of the round trip each way, \
         the same seeds for all pairings. Our end is connected over memif, the kernel over a \
         tap in a namespace of its own (fresh for each run), so that each end uses one device. \
         {} The kernel's congestion control is CUBIC, set on its routes; its buffers and all \
         other settings are the machine's. Offloads of the kernel: {}.\n",
        plan.seconds,
        plan.rounds,
        plan.warm_up_s,
        plan.warm_up_rounds,
        plan.rate,
        plan.queue,
        if network::cores().is_some() {
            "iwlink has a core of its own and never sleeps; both ends share another, which ours \
             yields after each poll of its port."
        } else {
            "The scheduler distributes all programs over the machine's cores."
        },
        network::offload_description(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp_vs_kernel::plan::tests::plan;
    use crate::tcp_vs_kernel::sample::Sample;

    fn result(link: LinkParams, pairing: Pairing, all: &[f64]) -> GoodputResult {
        let sample = |&gbit_s: &f64| Sample {
            gbit_s,
            dropped: 0,
            late_fraction: 0.001,
            latest_ms: 0.4,
            wire: Value::Null,
        };
        GoodputResult { link, pairing, samples: all.iter().map(sample).collect(), repeated: 1 }
    }

    #[test]
    fn table_shows_median_range_and_kernel_ratio() {
        let plan = plan();
        let mut results = vec![
            result(plan.links[0], Pairing::KernelToKernel, &[0.8, 0.9, 0.7]),
            result(plan.links[0], Pairing::OursToKernel, &[0.88, 0.87, 0.89]),
        ];
        results[1].samples[0].dropped = 5;
        let text = tables(&plan, &results);
        for expected in [
            "### Round trip 1 ms",
            "### Round trip 20 ms",
            "| 0 % | 0.800 (0.700 to 0.900) | 0.880 (0.870 to 0.890; 110 %, 1 invalid) | failed |",
            "| 1 % | failed | failed | failed |",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        let summary = emulator_summary(&results);
        assert!(summary.contains("at most 0.10 %") && summary.contains("2 runs were repeated"));
        assert!(summary.contains("5 frames were dropped"), "{summary}");
        let json = json(&plan, &results, &[], &[], &[]);
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
