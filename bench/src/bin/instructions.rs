//! Instructions per segment and per RDMA Write of the protocol core, by callgrind: each workload
//! runs twice with different counts, and the difference over the difference counts is the cost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use ferrowarp_bench::callgrind::{COPY, CRC, Cost, HARNESS, Profile};

#[derive(Parser)]
#[command(about = "Instructions per segment and per RDMA Write, by callgrind")]
struct Options {
    /// Keeps callgrind's files in this folder
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Number of messages, in percent of a workload's default
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    percent: u64,
    /// Table to compare the protocol core with; exit status 1 if a count rose by more than --rise
    #[arg(long, value_name = "TABLE", conflicts_with = "percent")]
    check: Option<PathBuf>,
    /// Percent by which a count may exceed that of the table
    #[arg(long, default_value_t = 3.0, value_name = "PERCENT", requires = "check")]
    rise: f64,
    /// Table to write the counts of the protocol core to
    #[arg(long, value_name = "TABLE", conflicts_with = "percent")]
    write: Option<PathBuf>,
}

/// A workload, a column of the table.
struct Case {
    name: &'static str,
    options: &'static [&'static str],
    /// Messages of the shorter run; the longer has three times as many.
    count: u64,
    /// Report the cost per message; otherwise per segment of the source.
    per_write: bool,
}

const CASES: [Case; 6] = [
    Case { name: "64 KiB, MTU 1500", options: &[], count: 60, per_write: false },
    Case {
        name: "same, no timestamps",
        options: &["--no-timestamps"],
        count: 60,
        per_write: false,
    },
    Case { name: "64 KiB, MTU 9000", options: &["--mtu", "9000"], count: 200, per_write: false },
    Case { name: "64 KiB, MTU 1500, no CRC", options: &["--no-crc"], count: 60, per_write: false },
    Case {
        name: "64 bytes, 128 outstanding",
        options: &["--size", "64", "--depth", "128"],
        count: 20_000,
        per_write: true,
    },
    Case {
        name: "64 bytes, one at a time",
        options: &["--size", "64", "--depth", "1"],
        count: 2000,
        per_write: true,
    },
];

/// Layers that have a row in the table, beside total, core and the two ends.
const LAYERS: [&str; 15] = [
    "wire", "net", "tcp", "mpa", "ddp", "rdmap", "verbs", "cm", "engine", "timers", "hash",
    "other", COPY, CRC, HARNESS,
];

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(
        Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success()),
        "valgrind is absent: apt-get install valgrind"
    );
    let program = std::env::current_exe()?.with_file_name("core-cost");
    ensure!(program.exists(), "{} is absent: build this package whole", program.display());
    let scratch = match &options.keep {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("ferrowarp-callgrind-{}", std::process::id())),
    };
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let costs = CASES.iter().enumerate().map(|(index, case)| {
        let file = scratch.join(format!("{index}"));
        cost(&program, case, &file, options.percent)
    });
    let costs = costs.collect::<Result<Vec<_>>>();
    if options.keep.is_none() {
        fs::remove_dir_all(&scratch)?;
    }
    let costs = costs?;
    print_table(&costs);
    if let Some(file) = &options.write {
        fs::write(file, core_table(&costs))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(file) = &options.check {
        let table =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let rises = rises(&table, &costs, options.rise)?;
        ensure!(
            rises.is_empty(),
            "more instructions than in {}:\n{}\nif that is meant, bench/instructions --write {}",
            file.display(),
            rises.join("\n"),
            file.display()
        );
    }
    Ok(())
}

/// Formats the counts of the protocol core, both ends, one line per case.
fn core_table(costs: &[Cost]) -> String {
    let mut table = "# Instructions of the protocol core, both ends, per segment or per Write. \
                     Written by bench/instructions --write.\n"
        .to_owned();
    for (case, cost) in CASES.iter().zip(costs) {
        table += &format!("{}\t{:.0}\n", case.name, cost.core());
    }
    table
}

/// Returns the cases whose count exceeds the one in `table` by more than `percent`.
fn rises(table: &str, costs: &[Cost], percent: f64) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (case, cost) in CASES.iter().zip(costs) {
        let recorded =
            table.lines().find_map(|line| line.strip_prefix(case.name)?.strip_prefix('\t'));
        let recorded = recorded.with_context(|| format!("the table has no line {}", case.name))?;
        let recorded: f64 =
            recorded.parse().with_context(|| format!("{}: {recorded}", case.name))?;
        let rise = (cost.core() / recorded - 1.0) * 100.0;
        println!("{}: {:.0}, recorded {recorded:.0}, {rise:+.1} %", case.name, cost.core());
        if rise > percent {
            found.push(format!("{}: {:.0}, recorded {recorded:.0}", case.name, cost.core()));
        }
    }
    Ok(found)
}

fn cost(program: &Path, case: &Case, file: &Path, percent: u64) -> Result<Cost> {
    let count = (case.count * percent / 100).max(1);
    let run = |count: u64, extension: &str| -> Result<(Profile, u64)> {
        let file = file.with_extension(extension);
        let out = Command::new("valgrind")
            .args(["--tool=callgrind", "-q"])
            .arg(format!("--callgrind-out-file={}", file.display()))
            .arg(program)
            .args(case.options)
            .args(["--count", &count.to_string()])
            .output()?;
        if !out.status.success() {
            bail!("{}: {}", case.name, String::from_utf8_lossy(&out.stderr));
        }
        let stdout = String::from_utf8_lossy(&out.stdout);
        let text = fs::read_to_string(&file)?;
        let profile = Profile::parse(&text, &["EnginePair::poll_source", "EnginePair::poll_sink"])?;
        Ok((profile, segments(&stdout).with_context(|| format!("output of core-cost: {stdout}"))?))
    };
    let (fewer, few) = run(count, "fewer")?;
    let (more, many) = run(3 * count, "more")?;
    let divisor = if case.per_write { 2 * count } else { many - few };
    Ok(more.per_message(&fewer, divisor))
}

/// Parses the number before "segments" in the output of `core-cost`.
fn segments(stdout: &str) -> Option<u64> {
    let (before, _) = stdout.split_once(" segments")?;
    before.rsplit(' ').next()?.parse().ok()
}

fn print_table(costs: &[Cost]) {
    print!("| instructions |");
    for case in &CASES {
        print!(" {} per {} |", case.name, if case.per_write { "Write" } else { "segment" });
    }
    println!();
    println!("|---|{}", "---:|".repeat(CASES.len()));
    row("both ends, all", costs, |cost| cost.total);
    row("both ends, the core alone", costs, Cost::core);
    row("source with its application", costs, |cost| cost.inclusive[0]);
    row("sink", costs, |cost| cost.inclusive[1]);
    for layer in LAYERS {
        row(layer, costs, |cost| cost.layer(layer));
    }
}

fn row(name: &str, costs: &[Cost], value: impl Fn(&Cost) -> f64) {
    print!("| {name} |");
    for cost in costs {
        print!(" {:.0} |", value(cost));
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rise_above_the_limit_is_found() {
        let costs = vec![Cost::default(); CASES.len()];
        let recorded: String = CASES.iter().map(|case| format!("{}\t100\n", case.name)).collect();
        assert!(rises(&recorded, &costs, 3.0).unwrap().is_empty());
        let table = |count: f64| recorded.replace("\t100", &format!("\t{count}"));
        let mut above = costs;
        above[2].total = 104.0;
        let found = rises(&table(100.0), &above, 3.0).unwrap();
        assert_eq!(found, ["64 KiB, MTU 9000: 104, recorded 100"]);
        assert!(rises(&table(101.0), &above, 3.0).unwrap().is_empty());
        assert!(rises("", &above, 3.0).is_err());
    }
}
