//! The committed table of counts, and the check against it.

use std::collections::HashMap;

use anyhow::{Context, Result};

use crate::callgrind::Profile;
use crate::cases::{CROWDED_POLL, IDLE_POLL};
use crate::measure::{Measured, Program};

/// Name in the table, of measure and case with a tab in between, and value.
pub(crate) type Figure = (String, f64);

/// Beginning of the names of lines of state.
const LINES: &str = "state lines";

/// Percent by which lines of state may exceed the recorded ones at least: they depend on where the
/// allocator of the machine's C library places an object within its cache lines.
const MIN_LINES_RISE: f64 = 10.0;

/// Percent by which a figure may be below that in the table: one that fell further is to be
/// recorded, or most of it was not counted.
const FALL_MAX: f64 = 30.0;

/// Cost of a poll without work with many queues, at most, as a multiple of the cost without them.
const CROWDED_RATIO_MAX: f64 = 1.5;

/// Returns the counts that are recorded and checked.
pub(crate) fn figures(measured: &[Measured]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |measure: &str, value: &dyn Fn(&Measured) -> Option<f64>| {
        let figure = |of: &Measured| Some((format!("{measure}\t{}", of.case.name), value(of)?));
        figures.extend(measured.iter().filter_map(figure));
    };
    for program in Program::ALL {
        add(program.measure(), &|of| of.costs[program as usize].as_ref().map(Profile::stack));
    }
    for (measure, in_turns) in [(LINES, false), ("state lines of a queue pair", true)] {
        for (end, name) in ["source", "sink"].into_iter().enumerate() {
            add(&format!("{measure}, {name}"), &|of| {
                let lines = of.lines.as_ref().filter(|lines| lines.turns.is_some() == in_turns)?;
                Some(lines.ends[end].touched(lines.turns))
            });
        }
    }
    figures
}

pub(crate) fn format(figures: &[Figure]) -> String {
    let head = "# Instructions of both ends per segment or per message, and cache lines of state \
                per train. Written by bench/instructions --write.\n";
    let line = |(name, value): &Figure| {
        let digits = usize::from(name.starts_with(LINES));
        format!("{name}\t{value:.digits$}\n")
    };
    head.to_owned() + &figures.iter().map(line).collect::<String>()
}

/// Prints each figure next to the one in `table`. Returns a line for each that exceeds that one
/// by more than `percent`, lines of state by more than `MIN_LINES_RISE` at least, or that is below
/// it by more than `FALL_MAX`; and one if many queues make polls longer.
pub(crate) fn compare(table: &str, figures: &[Figure], percent: f64) -> Result<Vec<String>> {
    let recorded: HashMap<&str, &str> =
        table.lines().filter_map(|line| line.rsplit_once('\t')).collect();
    let mut found = Vec::new();
    for (name, value) in figures {
        let recorded = recorded.get(&**name).with_context(|| format!("no {name} in the table"))?;
        let recorded: f64 = recorded.parse().with_context(|| format!("{name}: {recorded}"))?;
        let rise = (value / recorded - 1.0) * 100.0;
        let line =
            format!("{name}: {value:.1}, recorded {recorded}, {rise:+.1} %").replace('\t', ": ");
        println!("{line}");
        let is_lines = name.starts_with(LINES);
        let rise_max = if is_lines { percent.max(MIN_LINES_RISE) } else { percent };
        if !(-FALL_MAX..=rise_max).contains(&rise) {
            found.push(line);
        }
    }
    let value = |case| figures.iter().find(|(name, _)| name.ends_with(case)).map(|found| found.1);
    if let (Some(idle), Some(crowded)) = (value(IDLE_POLL), value(CROWDED_POLL))
        && crowded > CROWDED_RATIO_MAX * idle
    {
        found.push(format!(
            "{CROWDED_POLL}: {crowded:.1}, more than {CROWDED_RATIO_MAX} times {idle:.1}"
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(name: &str, value: f64) -> Figure {
        (name.to_owned(), value)
    }

    #[test]
    fn rises_and_falls_beyond_the_limits_are_found() {
        for (name, highest) in [("core\tbulk, ECN", 103.0), ("state lines, sink\tbulk", 110.0)] {
            let table = format(&[figure("core\tbulk", 50.0), figure(name, 100.04)]);
            let found = |value| compare(&table, &[figure(name, value)], 3.0).unwrap().len();
            let values = [69.0, 71.0, highest - 0.5, highest + 0.5];
            assert_eq!(values.map(found), [1, 0, 0, 1], "{name}");
        }
        let line = "state lines, sink\tbulk\t100.0\n";
        assert!(format(&[figure("state lines, sink\tbulk", 100.04)]).ends_with(line));
        assert!(
            compare("core\tbulk\t1\n", &[figure("post to completion\tbulk", 1.0)], 3.0).is_err()
        );
    }

    #[test]
    fn polls_that_grow_with_the_queues_are_found() {
        for (crowded, count) in [(149.0, 0), (151.0, 1)] {
            let name = |case| format!("post to completion\t{case}");
            let figures = [(name(IDLE_POLL), 100.0), (name(CROWDED_POLL), crowded)];
            assert_eq!(compare(&format(&figures), &figures, 3.0).unwrap().len(), count);
        }
    }
}
