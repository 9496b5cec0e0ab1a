//! Instructions per segment and per short message, of the protocol core and from post to polled
//! completion, by callgrind: each workload runs twice with different counts, and the difference
//! over the difference of the counts is the cost. Cache lines of state per train, by lackey.

mod callgrind;
mod cases;
mod measure;
mod report;
mod state_lines;
mod table;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::measure::{Program, Setup};

#[derive(Parser)]
#[command(about = "Instructions per segment and per short message, and lines of state per train")]
struct Options {
    /// Keeps callgrind's files in this folder
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Number of messages, in percent of a workload's default
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    percent: u64,
    /// Only the workloads whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Attributes the instructions to the layers of the stack
    #[arg(long)]
    layers: bool,
    /// Lists the lines of state with the source lines that access them (addr2line)
    #[arg(long)]
    lines: bool,
    /// Table to compare with; exit status 1 if a count rose by more than --rise, or fell by 30 %
    #[arg(long, value_name = "TABLE", conflicts_with = "percent")]
    check: Option<PathBuf>,
    /// Percent by which a count may exceed that of the table (lines of state: at least 10)
    #[arg(long, default_value_t = 3.0, value_name = "PERCENT", requires = "check")]
    rise: f64,
    /// Table to write the counts to
    #[arg(long, value_name = "TABLE", conflicts_with_all = ["percent", "only"])]
    write: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let programs = std::env::current_exe()?.with_file_name("");
    ensure!(
        Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success()),
        "valgrind is absent: apt-get install valgrind"
    );
    let verbs = programs.join(Program::Verbs.name());
    if !verbs.exists() {
        eprintln!("note: no {}, which needs libdpdk: the core alone", Program::Verbs.name());
        ensure!(options.write.is_none(), "the table is not written without it");
    }
    let mut cases = cases::all();
    if let Some(text) = &options.only {
        cases.retain(|case| case.name.contains(text));
        ensure!(!cases.is_empty(), "--only {text}: no workload has such a name");
    }
    let temporary = || std::env::temp_dir().join(format!("ferrowarp-{}", std::process::id()));
    let scratch = options.keep.clone().unwrap_or_else(temporary);
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let scratch = scratch.canonicalize()?;
    let setup = Setup { programs, scratch, percent: options.percent };
    let measured = setup.measure_all(cases);
    if options.keep.is_none() {
        fs::remove_dir_all(&setup.scratch)?;
    }
    let measured = measured?;
    if options.layers {
        Program::ALL.into_iter().for_each(|program| report::print_layers(&measured, program));
    }
    if options.lines {
        report::print_lines(&measured, &verbs)?;
    }
    let figures = table::figures(&measured);
    if options.check.is_none() {
        print!("{}", table::format(&figures));
    }
    if let Some(file) = &options.write {
        let file = file.display().to_string();
        fs::write(&file, table::format(&figures)).context(file)?;
    }
    if let Some(file) = &options.check {
        let file = file.display().to_string();
        let table = fs::read_to_string(&file).with_context(|| file.clone())?;
        let found = table::compare(&table, &figures, options.rise)?.join("\n");
        let remedy = format!("if that is meant, bench/instructions --write {file}");
        ensure!(found.is_empty(), "not as in {file}:\n{found}\n{remedy}");
    }
    Ok(())
}
