//! The tables that are printed, in Markdown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use crate::callgrind::{CHECKSUM, COPY, CRC, Cost, HARNESS};
use crate::instructions::measure::{Measured, Program};
use crate::instructions::places::{self, Place};
use crate::instructions::table::measure;
use crate::state_lines::EndLines;

/// Layers that have a row, beside total, stack and the two ends.
const LAYERS: [&str; 19] = [
    "wire", "net", "tcp", "mpa", "ddp", "rdmap", "verbs", "conn", "engine", "timers", "hash",
    "queues", "shard", "memory", "other", COPY, CRC, CHECKSUM, HARNESS,
];

/// Prints all tables.
pub fn print(measured: &[Measured]) {
    print_summary(measured);
    print_lines(measured);
    for program in Program::ALL {
        print_layers(measured, program);
    }
}

/// Prints the instructions of the stack by case, and how they differ from those of the plain case.
fn print_summary(measured: &[Measured]) {
    println!("| instructions, both ends | per | core | post to completion |");
    println!("|---|---|---:|---:|");
    for case in measured {
        let stack =
            |case: &Measured, program| case.costs[program as usize].as_ref().map(Cost::stack);
        let plain =
            case.case.plain.and_then(|name| measured.iter().find(|other| other.case.name == name));
        let column = |program| match (stack(case, program), plain.and_then(|c| stack(c, program))) {
            (Some(cost), Some(plain)) => {
                format!("{cost:.0} ({:+.1} %)", (cost / plain - 1.0) * 100.0)
            }
            (Some(cost), None) => format!("{cost:.0}"),
            (None, _) => "-".to_owned(),
        };
        let [core, verbs] = Program::ALL.map(column);
        println!("| {} | {} | {core} | {verbs} |", case.case.name, case.case.unit());
    }
    println!();
}

/// Prints the lines of state that a train touches.
fn print_lines(measured: &[Measured]) {
    if measured.iter().all(|case| case.lines.is_none()) {
        return;
    }
    println!(
        "| lines of state per train | segments | Writes | source | written | sink | written |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for Measured { case, lines, .. } in measured {
        if let Some(lines) = lines {
            let [segments, writes] = [lines.segments, lines.writes]
                .map(|count| count as f64 / lines.ends[0].trains.max(1) as f64);
            let [source, sink] = lines
                .ends
                .each_ref()
                .map(|end| format!("{:.1} | {:.1}", end.touched(), end.written()));
            println!("| {} | {segments:.1} | {writes:.1} | {source} | {sink} |", case.name);
        }
    }
    println!();
    for Measured { case, lines, .. } in measured {
        if let (Some(lines), Some(turn)) = (lines, case.turn) {
            let [source, sink] = lines.own_per_turn(turn);
            println!(
                "{}: a queue pair touches {source:.1} lines of its own at the source and \
                 {sink:.1} at the sink for {turn} messages\n",
                case.name
            );
        }
    }
}

/// Prints the instructions by layer, of the cases that are no variants.
fn print_layers(measured: &[Measured], program: Program) {
    let cases: Vec<(&Measured, &Cost)> = measured
        .iter()
        .filter(|case| case.case.plain.is_none())
        .filter_map(|case| Some((case, case.costs[program as usize].as_ref()?)))
        .collect();
    if cases.is_empty() {
        return;
    }
    print!("| {} by layer |", measure(program));
    for (case, _) in &cases {
        print!(" {} per {} |", case.case.name, case.case.unit());
    }
    println!();
    println!("|---|{}", "---:|".repeat(cases.len()));
    let row = |name: &str, value: &dyn Fn(&Cost) -> f64| {
        print!("| {name} |");
        for (_, cost) in &cases {
            print!(" {:.0} |", value(cost));
        }
        println!();
    };
    row("both ends, all", &|cost| cost.total);
    row(&format!("both ends, {}", measure(program)), &Cost::stack);
    row("source with its application", &|cost| cost.inclusive[0]);
    row("sink", &|cost| cost.inclusive[1]);
    for layer in LAYERS {
        if cases.iter().any(|(_, cost)| cost.layers.contains_key(layer)) {
            row(layer, &|cost| cost.layer(layer));
        }
    }
    println!();
}

/// Prints each line of state with the source lines that access it.
///
/// # Errors
/// If these cannot be found out.
pub fn print_places(measured: &[Measured], program: &Path) -> Result<()> {
    for Measured { case, lines, .. } in measured {
        let Some(lines) = lines else { continue };
        for (end, name) in lines.ends.iter().zip(["source", "sink"]) {
            println!("{}, {name}: lines of state by address, percent of trains", case.name);
            print_end_places(end, program)?;
        }
    }
    Ok(())
}

fn print_end_places(end: &EndLines, program: &Path) -> Result<()> {
    let code: BTreeSet<u64> = end.lines.values().flat_map(|line| line.code.clone()).collect();
    let places = places::resolve(program, &code)?;
    let mut by_layers: BTreeMap<String, u64> = BTreeMap::new();
    let percent = |trains: u64| trains * 100 / end.trains.max(1);
    for (number, line) in &end.lines {
        let accesses: BTreeSet<&Place> =
            line.code.iter().filter_map(|address| places.get(address)).collect();
        let layers: BTreeSet<&str> = accesses.iter().map(|place| place.layer).collect();
        let layers = layers.into_iter().collect::<Vec<_>>().join("+");
        // Code of the C library and the like has no line of the stack.
        let layers = if layers.is_empty() { "other".to_owned() } else { layers };
        let lines: Vec<&str> = accesses.iter().map(|place| place.line.as_str()).collect();
        println!(
            "{:12x} read {:3} % written {:3} %  {layers}: {}",
            number * 64,
            percent(line.trains),
            percent(line.written),
            lines.join(" ")
        );
        *by_layers.entry(layers).or_default() += line.trains;
    }
    println!("lines per train by the layers that access them:");
    for (layers, trains) in by_layers {
        println!("{:6.1} {layers}", trains as f64 / end.trains.max(1) as f64);
    }
    println!();
    Ok(())
}
