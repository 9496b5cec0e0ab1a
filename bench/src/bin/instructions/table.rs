//! The committed table of counts, and the check against it.

use anyhow::{Context, Result};

use crate::cases::{CROWDED_POLL, IDLE_POLL};
use crate::measure::{Measured, Program};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) measure: &'static str,
    pub(crate) case: String,
    pub(crate) value: f64,
}

impl Figure {
    fn line(&self) -> String {
        let digits = usize::from(self.measure.starts_with(LINES));
        format!("{}\t{}\t{:.digits$}\n", self.measure, self.case, self.value)
    }
}

/// Beginning of the measures that are lines of state.
const LINES: &str = "state lines";

/// Percent by which lines of state may exceed the recorded ones at least: they depend on where the
/// allocator of the machine's C library places an object within its cache lines.
const MIN_LINES_RISE: f64 = 10.0;

/// Returns the name of a program's instructions in the tables.
pub(crate) const fn measure(program: Program) -> &'static str {
    match program {
        Program::Core => "core",
        Program::Verbs => "post to completion",
    }
}

/// Returns the counts that are recorded and checked.
pub(crate) fn figures(measured: &[Measured]) -> Vec<Figure> {
    let figure = |measure, case: &Measured, value| {
        let case = case.case.name.clone();
        Figure { measure, case, value }
    };
    let mut figures = Vec::new();
    for program in Program::ALL {
        for case in measured {
            let cost = case.costs[program as usize].as_ref();
            figures.extend(cost.map(|cost| figure(measure(program), case, cost.stack())));
        }
    }
    for (end, measure) in ["state lines, source", "state lines, sink"].into_iter().enumerate() {
        for case in measured.iter().filter(|case| case.case.turn.is_none()) {
            let lines = case.lines.as_ref();
            figures.extend(lines.map(|lines| figure(measure, case, lines.ends[end].touched())));
        }
    }
    for (end, measure) in
        ["state lines of a queue pair, source", "state lines of a queue pair, sink"]
            .into_iter()
            .enumerate()
    {
        for case in measured {
            let of_turn = case.lines.as_ref().zip(case.case.turn);
            figures.extend(
                of_turn.map(|(lines, turn)| figure(measure, case, lines.own_per_turn(turn)[end])),
            );
        }
    }
    figures
}

pub(crate) fn format(figures: &[Figure]) -> String {
    let head = "# Instructions of both ends per segment or per Write, and cache lines of state per \
                train. Written by bench/instructions --write.\n";
    head.to_owned() + &figures.iter().map(Figure::line).collect::<String>()
}

/// Cost of a poll without work with many queues, at most, as a multiple of the cost without them.
const CROWDED_RATIO_MAX: f64 = 1.5;

/// Percent by which a figure may be below that in the table: one that fell further is to be
/// recorded, or most of it was not counted.
const FALL_MAX: f64 = 30.0;

/// Returns a line for each figure that exceeds that in `table` by more than `percent`, lines of
/// state by more than `MIN_LINES_RISE` at least, or that is below it by more than `FALL_MAX`; and
/// one if many queues make polls longer.
pub(crate) fn deviations(table: &str, figures: &[Figure], percent: f64) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for figure in figures {
        let (recorded, rise) = recorded(table, figure)?;
        let is_lines = figure.measure.starts_with(LINES);
        let rise_max = if is_lines { percent.max(MIN_LINES_RISE) } else { percent };
        if !(-FALL_MAX..=rise_max).contains(&rise) {
            let Figure { measure, case, value } = figure;
            found.push(format!("{measure}: {case}: {value:.1}, recorded {recorded}"));
        }
    }
    let value = |name| figures.iter().find(|figure| figure.case == name).map(|found| found.value);
    if let (Some(idle), Some(crowded)) = (value(IDLE_POLL), value(CROWDED_POLL))
        && crowded > CROWDED_RATIO_MAX * idle
    {
        found.push(format!(
            "{CROWDED_POLL}: {crowded:.1}, more than {CROWDED_RATIO_MAX} times {idle:.1}"
        ));
    }
    Ok(found)
}

/// Prints each figure beside that in `table`.
pub(crate) fn print_deviations(table: &str, figures: &[Figure]) -> Result<()> {
    for figure in figures {
        let (recorded, rise) = recorded(table, figure)?;
        let Figure { measure, case, value } = figure;
        println!("{measure}: {case}: {value:.1}, recorded {recorded}, {rise:+.1} %");
    }
    Ok(())
}

/// Returns the value that `table` has for the figure, and by how many percent it is exceeded.
fn recorded(table: &str, Figure { measure, case, value }: &Figure) -> Result<(f64, f64)> {
    let name = format!("{measure}\t{case}\t");
    let recorded = table.lines().find_map(|line| line.strip_prefix(&name));
    let name = format!("{measure}: {case}");
    let recorded = recorded.with_context(|| format!("the table has no line for {name}"))?;
    let recorded: f64 = recorded.parse().with_context(|| format!("{name}: {recorded}"))?;
    Ok((recorded, (value / recorded - 1.0) * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(measure: &'static str, case: &str, value: f64) -> Figure {
        Figure { measure, case: case.to_owned(), value }
    }

    #[test]
    fn rises_and_falls_beyond_the_limits_are_found() {
        let figures =
            |value| vec![figure("core", "bulk", 100.0), figure("core", "bulk, ECN", value)];
        let recorded = format(&figures(100.0));
        assert!(deviations(&recorded, &figures(102.0), 3.0).unwrap().is_empty());
        let found = deviations(&recorded, &figures(104.0), 3.0).unwrap();
        assert_eq!(found, ["core: bulk, ECN: 104.0, recorded 100"]);
        let unknown = [figure("post to completion", "bulk", 1.0)];
        assert!(deviations(&recorded, &unknown, 3.0).is_err());
        assert!(deviations(&recorded, &figures(71.0), 3.0).unwrap().is_empty());
        assert!(!deviations(&recorded, &figures(69.0), 3.0).unwrap().is_empty());
    }

    #[test]
    fn polls_that_grow_with_the_queues_are_found() {
        for (crowded, count) in [(149.0, 0), (151.0, 1)] {
            let figures = [figure("core", IDLE_POLL, 100.0), figure("core", CROWDED_POLL, crowded)];
            assert_eq!(deviations(&format(&figures), &figures, 3.0).unwrap().len(), count);
        }
    }

    #[test]
    fn lines_of_state_have_a_digit_and_may_vary_by_more() {
        let figures = |value| vec![figure("state lines, sink", "bulk", value)];
        let recorded = format(&figures(100.04));
        assert!(recorded.ends_with("state lines, sink\tbulk\t100.0\n"), "{recorded}");
        assert!(deviations(&recorded, &figures(109.0), 3.0).unwrap().is_empty());
        assert!(!deviations(&recorded, &figures(111.0), 3.0).unwrap().is_empty());
    }
}
