//! The one runner: contenders that are measured one after another, round by round.
//!
//! The measurements of a round follow one another within seconds on the same cores, in an order
//! that is reversed from round to round. Their ratio is therefore free of whatever changes slowly
//! on a machine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};

use crate::model::{Kind, Limit, Row, Series, rounded};
use crate::page::digits;

/// Results of one measurement, by figure: unit, and what it is the unit of.
pub(crate) type Figures = BTreeMap<&'static str, f64>;

/// Returns a quantile of latencies, which are in nanoseconds, in microseconds.
pub(crate) fn us(latencies: &Histogram<u64>, quantile: f64) -> f64 {
    latencies.value_at_quantile(quantile) as f64 / 1e3
}

/// A command or a workload that is measured.
struct Contender {
    name: String,
    measure: Box<dyn FnMut(f64) -> Result<Figures>>,
    rounds: Vec<Option<Figures>>,
}

/// Contenders that are compared with each other.
pub(crate) struct Group {
    table: String,
    pub(crate) name: String,
    contenders: Vec<Contender>,
    /// Rows without samples yet, and the figure of the reference of each.
    rows: Vec<(Row, &'static str)>,
    /// Measured in the first round alone.
    is_single: bool,
    note: Option<Box<dyn Fn() -> String>>,
}

impl Group {
    pub(crate) fn new(table: impl Into<String>, name: impl Into<String>) -> Self {
        let (table, name, is_single, note) = (table.into(), name.into(), false, None);
        Self { table, name, contenders: vec![], rows: vec![], is_single, note }
    }

    /// Adds a contender; `measure` takes the seconds of a measurement.
    pub(crate) fn contender(
        mut self,
        name: impl Into<String>,
        measure: impl FnMut(f64) -> Result<Figures> + 'static,
    ) -> Self {
        let (name, measure) = (name.into(), Box::new(measure));
        self.contenders.push(Contender { name, measure, rounds: vec![] });
        self
    }

    /// Adds a row: the ratio of a figure of two contenders.
    pub(crate) fn compare(
        self,
        subject: &str,
        reference: &str,
        figure: &'static str,
        limit: Option<Limit>,
    ) -> Self {
        self.compare_figures((subject, figure), (reference, figure), limit)
    }

    /// Adds a row: the ratio of two figures, of two contenders or of one.
    pub(crate) fn compare_figures(
        self,
        subject: (&str, &'static str),
        (reference, of_reference): (&str, &'static str),
        limit: Option<Limit>,
    ) -> Self {
        self.row(subject, Some(Series::new(reference)), of_reference, limit)
    }

    /// Adds a row for each of these figures by itself.
    pub(crate) fn show(
        self,
        subject: &str,
        figures: &[&'static str],
        limit: Option<Limit>,
    ) -> Self {
        figures.iter().fold(self, |group, figure| group.row((subject, figure), None, "", limit))
    }

    fn row(
        mut self,
        (subject, figure): (&str, &'static str),
        reference: Option<Series>,
        of_reference: &'static str,
        limit: Option<Limit>,
    ) -> Self {
        let (table, name, figure) = (self.table.clone(), self.name.clone(), figure.to_owned());
        let (subject, kind) = (Series::new(subject), Kind::Ratio);
        self.rows
            .push((Row { table, name, figure, subject, reference, kind, limit }, of_reference));
        self
    }

    /// Makes the last row a difference.
    pub(crate) fn by_difference(mut self) -> Self {
        self.rows.last_mut().expect("a row").0.kind = Kind::Difference;
        self
    }

    /// Measures it once, whatever the number of rounds.
    pub(crate) fn once(mut self) -> Self {
        self.is_single = true;
        self
    }

    /// Adds a note that is known after the measurements.
    pub(crate) fn note(mut self, note: impl Fn() -> String + 'static) -> Self {
        self.note = Some(Box::new(note));
        self
    }

    fn samples(&self, contender: &str, figure: &str) -> Vec<Option<f64>> {
        let found = self.contenders.iter().find(|found| found.name == contender);
        let figure = |sample: &Option<Figures>| sample.as_ref()?.get(figure).copied();
        found.expect("a contender that was added").rounds.iter().map(figure).collect()
    }

    /// Returns the rows with their samples; a round in which either contender failed is left out.
    fn rows(&self) -> Vec<Row> {
        let with_samples = |(row, of_reference): &(Row, &'static str)| {
            let mut row = row.clone();
            let subjects = self.samples(&row.subject.name, &row.figure);
            let references = match &row.reference {
                Some(reference) => self.samples(&reference.name, of_reference),
                None => vec![Some(1.0); subjects.len()],
            };
            let both = subjects.into_iter().zip(references);
            let both = both.filter_map(|(value, reference)| Some((value?, reference?)));
            let (values, references) =
                both.map(|(value, reference)| (rounded(value), rounded(reference))).unzip();
            row.subject.values = values;
            if let Some(reference) = &mut row.reference {
                reference.values = references;
                if reference.name == row.subject.name {
                    reference.name = (*of_reference).to_owned();
                }
            }
            row
        };
        self.rows.iter().map(with_samples).collect()
    }
}

/// Retains the groups whose names begin with one of `wanted`; all if it is empty.
pub(crate) fn select(groups: &mut Vec<Group>, wanted: &[String]) -> Result<()> {
    for prefix in wanted {
        let mut names: Vec<&str> = groups.iter().map(|group| &*group.name).collect();
        names.dedup();
        let is_known = names.iter().any(|name| name.starts_with(prefix));
        ensure!(is_known, "--rows {prefix}: choose from {}", names.join(", "));
    }
    if !wanted.is_empty() {
        groups.retain(|group| wanted.iter().any(|prefix| group.name.starts_with(prefix)));
    }
    Ok(())
}

/// Results of the groups of a case.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<Row>,
    pub(crate) notes: Vec<String>,
    pub(crate) failures: Vec<String>,
}

/// Measures all groups in so many rounds. Begins no round that would probably end after `limit`.
pub(crate) fn run(
    groups: &mut [Group],
    rounds: usize,
    seconds: f64,
    limit: Option<Duration>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let of_group =
        |group: &Group| group.contenders.len() * if group.is_single { 1 } else { rounds };
    let count = groups.iter().map(of_group).sum::<usize>();
    let style = ProgressStyle::with_template("{bar:20} {pos}/{len}, {eta} left: {wide_msg}");
    // Shown on a terminal alone; elsewhere each measurement prints a line.
    let bar = ProgressBar::new(count as u64).with_style(style.expect("the template is a constant"));
    let started = Instant::now();
    for round in 0..rounds {
        let elapsed = started.elapsed();
        let longest = elapsed / u32::try_from(round.max(1)).unwrap_or(u32::MAX);
        if round > 0 && limit.is_some_and(|limit| elapsed + longest > limit) {
            outcome.notes.push(format!("{round} of {rounds} rounds: there was no time for more."));
            break;
        }
        for group in groups.iter_mut().filter(|group| round == 0 || !group.is_single) {
            let mut order: Vec<usize> = (0..group.contenders.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            let figure = group.rows.first().map_or_else(String::new, |(row, _)| row.figure.clone());
            for index in order {
                let contender = &mut group.contenders[index];
                let result = (contender.measure)(seconds).with_context(|| contender.name.clone());
                let label = format!("round {} of {rounds}, {}", round + 1, group.name);
                let said = match &result {
                    Ok(figures) => {
                        let value =
                            figures.get(&*figure).map_or_else(String::new, |it| digits(*it));
                        format!("{label}: {} {value} {figure}", contender.name)
                    }
                    Err(error) => {
                        outcome.failures.push(format!("{label}: {error:#}"));
                        format!("{label}: failed: {error:#}")
                    }
                };
                bar.inc(1);
                if bar.is_hidden() {
                    eprintln!("{}/{count}, {} s left: {said}", bar.position(), bar.eta().as_secs());
                } else {
                    bar.set_message(said);
                }
                contender.rounds.push(result.ok());
            }
        }
    }
    bar.finish_and_clear();
    outcome.rows = groups.iter().flat_map(Group::rows).collect();
    outcome.notes.extend(groups.iter().filter_map(|group| Some(group.note.as_ref()?())));
    outcome
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use anyhow::bail;

    use super::*;

    #[test]
    fn order_is_reversed_in_every_other_round() {
        let order = Rc::new(RefCell::new(String::new()));
        let group = |name: &str| {
            let mut group = Group::new("", name);
            for (index, contender) in ["x", "y"].into_iter().enumerate() {
                let (order, text) = (Rc::clone(&order), format!("{name}{contender} "));
                group = group.contender(contender, move |_| {
                    order.borrow_mut().push_str(&text);
                    Ok(Figures::from([("Gb/s", 2.0 + index as f64)]))
                });
            }
            group.compare("y", "x", "Gb/s", None).compare("y", "x", "Gb/s", None).by_difference()
        };
        let mut groups = [group("a"), group("b").once()];
        let outcome = run(&mut groups, 3, 0.0, None);
        assert_eq!(*order.borrow(), "ax ay bx by ay ax ax ay ");
        let judged: Vec<_> = outcome.rows.iter().map(Row::judged).collect();
        assert_eq!(judged, [vec![1.5; 3], vec![1.0; 3], vec![1.5], vec![1.0]]);
        assert_eq!(run(&mut [group("c")], 3, 0.0, Some(Duration::ZERO)).rows[0].judged().len(), 1);
    }

    #[test]
    fn failures_name_row_round_and_contender_and_leave_the_round_out() {
        let mut round = 0;
        let mut groups = [Group::new("", "row")
            .contender("fails", move |_| {
                round += 1;
                if round == 1 {
                    bail!("gone")
                } else {
                    Ok(Figures::from([("us", 3.0), ("bound", 6.0)]))
                }
            })
            .contender("works", |_| Ok(Figures::from([("us", 1.0)])))
            .compare("fails", "works", "us", None)
            .compare_figures(("fails", "us"), ("fails", "bound"), None)];
        let outcome = run(&mut groups, 2, 0.0, None);
        assert_eq!(outcome.failures, ["round 1 of 2, row: fails: gone"]);
        assert_eq!(outcome.rows[0].judged(), [3.0]);
        assert_eq!(
            (outcome.rows[1].judged(), &*outcome.rows[1].subject.name),
            (vec![0.5], "fails")
        );
    }
}
