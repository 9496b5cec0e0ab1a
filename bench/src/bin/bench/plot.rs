//! Plot of a case, as SVG: panels side by side, a line for each contender, with bars from the
//! lowest to the highest round.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::interval::MedianInterval;
use crate::model::{Row, Series};

/// Width and height of a panel, and of a line of the legend below them, in points.
const PANEL: (u32, u32) = (400, 380);
const LEGEND_LINE: u32 = 22;
/// Width of an entry of the legend, in points.
const LEGEND_WIDTH: u32 = 190;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A point of a line: median, lowest and highest value.
#[derive(Clone, Copy)]
struct Point {
    median: f64,
    min: f64,
    max: f64,
}

/// A panel: labels along the x axis, equidistant, and a line for each contender.
pub(crate) struct Panel {
    title: String,
    x_title: &'static str,
    pub(crate) labels: Vec<String>,
    pub(crate) lines: Vec<Line>,
}

/// Name of a contender, whether it is ours, and its points.
pub(crate) struct Line {
    name: String,
    is_ours: bool,
    points: Vec<Option<Point>>,
}

impl Panel {
    /// Collects the lines of all subjects, which are ours, and references in `rows`. A point has a
    /// label, and the name and figure of its rows.
    pub(crate) fn new(
        title: &str,
        x_title: &'static str,
        points: Vec<(String, String, String)>,
        rows: &[&Row],
    ) -> Self {
        let mut lines: Vec<Line> = Vec::new();
        for (index, (_, name, figure)) in points.iter().enumerate() {
            let found = rows.iter().filter(|row| row.name == *name && row.figure == *figure);
            for row in found {
                let subject = [(&row.subject, true)];
                let both = subject.into_iter().chain(row.reference.iter().map(|it| (it, false)));
                for (series, is_ours) in both {
                    let line = lines.iter().position(|line| line.name == series.name);
                    let line = line.unwrap_or_else(|| {
                        let (name, points) = (series.name.clone(), vec![None; points.len()]);
                        lines.push(Line { name, is_ours, points });
                        lines.len() - 1
                    });
                    lines[line].points[index] = point(series);
                }
            }
        }
        // Ours first, as in the tables.
        lines.sort_by_key(|line| !line.is_ours);
        let labels = points.into_iter().map(|(label, ..)| label).collect();
        Self { title: title.to_owned(), x_title, labels, lines }
    }
}

fn point(series: &Series) -> Option<Point> {
    let median = MedianInterval::of(&series.values)?.median;
    let min = series.values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = series.values.iter().copied().fold(0.0, f64::max);
    Some(Point { median, min, max })
}

/// Plots the panels side by side, with one legend.
pub(crate) fn draw(path: &Path, panels: &[Panel]) -> Result<()> {
    ensure!(!panels.is_empty(), "nothing to draw");
    let mut names: Vec<(&str, bool)> = Vec::new();
    for line in panels.iter().flat_map(|panel| &panel.lines) {
        if !names.contains(&(&line.name, line.is_ours)) {
            names.push((&line.name, line.is_ours));
        }
    }
    names.sort_by_key(|(_, is_ours)| !is_ours);
    let draw_error =
        |error: &dyn std::fmt::Display| anyhow!("cannot draw {}: {error}", path.display());
    let width = PANEL.0 * u32::try_from(panels.len())?;
    let per_line = (width / LEGEND_WIDTH) as usize;
    let lines = u32::try_from(names.len().div_ceil(per_line))?;
    let size = (width, PANEL.1 + lines * LEGEND_LINE + 8);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE).map_err(|error| draw_error(&error))?;
    let (top, legend) = area.split_vertically(PANEL.1);
    for (panel, area) in panels.iter().zip(top.split_evenly((1, panels.len()))) {
        draw_panel(panel, &area, &names).map_err(|error| draw_error(&error))?;
    }
    draw_legend(&legend, &names, per_line).map_err(|error| draw_error(&error))?;
    area.present().map_err(|error| draw_error(&error))
}

/// Returns the color of a contender: ours black and gray, the others of a palette.
fn color(names: &[(&str, bool)], index: usize) -> RGBAColor {
    let is_ours = names[index].1;
    let before = names[..index].iter().filter(|name| name.1 == is_ours).count();
    match (is_ours, before) {
        (true, 0) => BLACK.to_rgba(),
        (true, 1) => RGBColor(110, 110, 110).to_rgba(),
        (true, _) => RGBColor(170, 170, 170).to_rgba(),
        (false, position) => Palette99::pick(position).to_rgba(),
    }
}

/// Ours is drawn with thicker lines.
const fn stroke_width(is_ours: bool) -> u32 {
    if is_ours { 3 } else { 2 }
}

fn draw_panel(
    panel: &Panel,
    area: &Area<'_>,
    names: &[(&str, bool)],
) -> Result<(), Box<dyn std::error::Error>> {
    let all = || panel.lines.iter().flat_map(|line| &line.points).flatten();
    let lowest = all().map(|point| point.min).fold(f64::INFINITY, f64::min).max(1e-4);
    let highest = all().map(|point| point.max).fold(lowest * 1.1, f64::max);
    let last = panel.labels.len().saturating_sub(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(40)
        .y_label_area_size(48)
        .build_cartesian_2d(-0.3..last + 0.3, (lowest / 1.3..highest * 1.3).log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_desc(panel.x_title)
        .x_labels(panel.labels.len() * 4)
        .x_label_formatter(&|at| label(&panel.labels, *at))
        .y_labels(8)
        // The shortest text of the value, which is a power of ten times a digit.
        .y_label_formatter(&|value| {
            format!("{value:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()
        })
        .draw()?;
    for (index, line) in panel.lines.iter().enumerate().rev() {
        let of_name = names.iter().position(|(name, _)| *name == line.name);
        let color = color(names, of_name.unwrap_or(index));
        // Apart from each other, so that bars do not cover each other.
        let offset = (index as f64 - panel.lines.len() as f64 / 2.0) * 0.03;
        let points: Vec<(f64, Point)> = line
            .points
            .iter()
            .enumerate()
            .filter_map(|(at, point)| Some((at as f64 + offset, (*point)?)))
            .collect();
        let medians = points.iter().map(|(at, point)| (*at, point.median));
        let style = color.stroke_width(stroke_width(line.is_ours));
        chart.draw_series(LineSeries::new(medians, style).point_size(3))?;
        chart.draw_series(points.iter().map(|&(at, Point { min, max, .. })| {
            PathElement::new(vec![(at, min.max(lowest)), (at, max)], color.stroke_width(1))
        }))?;
    }
    Ok(())
}

/// Returns the label at a position of the axis; empty between two.
fn label(labels: &[String], at: f64) -> String {
    let found = labels.iter().enumerate().find(|(index, _)| (*index as f64 - at).abs() < 0.01);
    found.map_or_else(String::new, |(_, label)| label.clone())
}

fn draw_legend(
    area: &Area<'_>,
    names: &[(&str, bool)],
    per_line: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    for (position, &(name, is_ours)) in names.iter().enumerate() {
        let x = i32::try_from(position % per_line * LEGEND_WIDTH as usize)? + 16;
        let y = i32::try_from(position / per_line * LEGEND_LINE as usize)? + 12;
        let style = color(names, position).stroke_width(stroke_width(is_ours));
        area.draw(&PathElement::new(vec![(x, y), (x + 20, y)], style))?;
        area.draw(&Text::new(name, (x + 26, y - 7), ("sans-serif", 14)))?;
    }
    Ok(())
}
