//! The attribution of the counts, printed on demand: instructions by layer and end, and source
//! lines that touch each line of state.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::callgrind::{HARNESS, Profile, layer_of};
use crate::measure::{Measured, Program};

/// Prints the instructions by layer and end, of the cases that are no variants.
pub(crate) fn print_layers(measured: &[Measured], program: Program) {
    let cases: Vec<(&Measured, &Profile)> = measured
        .iter()
        .filter(|case| !case.case.is_variant)
        .filter_map(|case| Some((case, case.costs[program as usize].as_ref()?)))
        .collect();
    if cases.is_empty() {
        return;
    }
    let row = |name: &str, value: &dyn Fn(&Profile) -> f64| {
        let values = cases.iter().map(|(_, cost)| format!(" {:.0} |", value(cost)));
        println!("| {name} |{}", values.collect::<String>());
    };
    let heads = cases.iter().map(|(of, _)| format!(" {} per {} |", of.case.name, of.case.unit));
    println!("| {} by layer |{}", program.measure(), heads.collect::<String>());
    println!("|---|{}", "---:|".repeat(cases.len()));
    row("both ends, all", &|cost| cost.total);
    row(&format!("both ends, {}", program.measure()), &Profile::stack);
    let names: BTreeSet<&String> = cases.iter().flat_map(|(_, cost)| cost.sums.keys()).collect();
    for name in names {
        row(name, &|cost| cost.sum(name));
    }
    println!();
}

/// Prints each line of state with the source lines of `program` that access it.
pub(crate) fn print_lines(measured: &[Measured], program: &Path) -> Result<()> {
    for Measured { case, lines, .. } in measured {
        for (end, name) in lines.iter().flat_map(|lines| lines.ends.iter().zip(["source", "sink"]))
        {
            println!("{}, {name}: lines of state by address, percent of trains", case.name);
            let code: BTreeSet<u64> =
                end.lines.values().flat_map(|line| line.code.clone()).collect();
            let places = source_lines(program, &code)?;
            for (number, line) in &end.lines {
                let of_line: BTreeSet<&str> =
                    line.code.iter().filter_map(|code| places.get(code)).map(|it| &**it).collect();
                let of_line = of_line.into_iter().collect::<Vec<_>>().join(" ");
                println!("{:12x} {:3} % {of_line}", number * 64, line.trains * 100 / end.trains);
            }
            println!();
        }
    }
    Ok(())
}

/// Returns the source lines of addresses in the image of `program`, by `addr2line` of binutils: the
/// innermost of the stack. Code without any, such as the C library's, has none.
fn source_lines(program: &Path, addresses: &BTreeSet<u64>) -> Result<BTreeMap<u64, String>> {
    let mut command = Command::new("addr2line");
    command.args(["--addresses", "--inlines", "--exe"]).arg(program);
    command.args(addresses.iter().map(|address| format!("{address:#x}")));
    let out = command.output().context("cannot start addr2line: apt-get install binutils")?;
    ensure!(out.status.success(), "addr2line failed: {}", out.status);
    // An address per line, each followed by its source lines from the innermost inlined function
    // outwards.
    let mut places = BTreeMap::new();
    let mut address = None;
    for line in String::from_utf8(out.stdout)?.lines() {
        if let Some(hex) = line.strip_prefix("0x") {
            address = u64::from_str_radix(hex, 16).ok();
        } else if let Some(address) = address
            && layer_of(line).is_some_and(|layer| layer != HARNESS)
        {
            let end = line.split(" (discriminator").next().unwrap_or(line);
            let place = end.rsplit_once("/src/").map_or(end, |(_, file)| file);
            places.entry(address).or_insert_with(|| place.to_owned());
        }
    }
    Ok(places)
}
