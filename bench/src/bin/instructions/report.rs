//! The attribution of the counts, printed on demand: instructions by layer, and source lines that
//! touch each line of state.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use crate::callgrind::Profile;
use crate::measure::{Measured, Program};
use crate::places::{self, Place};
use crate::state_lines::EndLines;
use crate::table::measure;

/// Prints the instructions by layer, of the cases that are no variants.
pub(crate) fn print_layers(measured: &[Measured], program: Program) {
    let cases: Vec<(&Measured, &Profile)> = measured
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
    let row = |name: &str, value: &dyn Fn(&Profile) -> f64| {
        print!("| {name} |");
        for (_, cost) in &cases {
            print!(" {:.0} |", value(cost));
        }
        println!();
    };
    row("both ends, all", &|cost| cost.total);
    row(&format!("both ends, {}", measure(program)), &Profile::stack);
    row("source with its application", &|cost| cost.inclusive[0]);
    row("sink", &|cost| cost.inclusive[1]);
    let layers: BTreeSet<&String> = cases.iter().flat_map(|(_, cost)| cost.layers.keys()).collect();
    for layer in layers {
        row(layer, &|cost| cost.layer(layer));
    }
    println!();
}

/// Prints each line of state with the source lines that access it.
pub(crate) fn print_places(measured: &[Measured], program: &Path) -> Result<()> {
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
        let layers: BTreeSet<&str> = accesses.iter().map(|place| &*place.layer).collect();
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
