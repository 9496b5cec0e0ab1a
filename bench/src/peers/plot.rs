//! Plots of a comparison, as SVG: bandwidth by message size, rate by connections, latency
//! percentiles; a line for each peer, with bars from the lowest to the highest round.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::Test;
use super::results::{Comparison, Entry, Figure, Metric};
use crate::baseline::report::size_name;

/// Width and height of a panel, and of a line of the legend below them, in points.
const PANEL: (u32, u32) = (400, 380);
const LEGEND_LINE: u32 = 22;
/// Width of an entry of the legend, in points.
const LEGEND_WIDTH: u32 = 190;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A panel: labels along the x axis, equidistant, and a line for each entry.
struct Panel {
    title: String,
    x_title: &'static str,
    labels: Vec<String>,
    /// Figures by entry and label.
    lines: Vec<Vec<Option<Figure>>>,
}

/// Plots the panels that have data, side by side, with one legend.
///
/// # Errors
/// If the file cannot be written, or there is nothing to draw.
pub fn draw(path: &Path, comparison: &Comparison) -> Result<()> {
    let panels: Vec<Panel> = [bandwidth(comparison), rate(comparison), latency(comparison)]
        .into_iter()
        .flatten()
        .filter(|panel| panel.lines.iter().flatten().flatten().next().is_some())
        .collect();
    ensure!(!panels.is_empty(), "nothing to draw");
    let draw_error =
        |error: &dyn std::fmt::Display| anyhow!("cannot draw {}: {error}", path.display());
    // Without those that report none of the figures.
    let has_line =
        |&index: &usize| panels.iter().any(|panel| panel.lines[index].iter().any(Option::is_some));
    let drawn: Vec<usize> = (0..comparison.entries.len()).filter(has_line).collect();
    let width = PANEL.0 * u32::try_from(panels.len())?;
    let per_line = (width / LEGEND_WIDTH) as usize;
    let lines = u32::try_from(drawn.len().div_ceil(per_line))?;
    let size = (width, PANEL.1 + lines * LEGEND_LINE + 8);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE).map_err(|error| draw_error(&error))?;
    let (top, legend) = area.split_vertically(PANEL.1);
    for (panel, area) in panels.iter().zip(top.split_evenly((1, panels.len()))) {
        draw_panel(panel, &area, &comparison.entries).map_err(|error| draw_error(&error))?;
    }
    draw_legend(&legend, &comparison.entries, &drawn, per_line)
        .map_err(|error| draw_error(&error))?;
    area.present().map_err(|error| draw_error(&error))
}

fn figures(comparison: &Comparison, tests: &[(Test, Metric)]) -> Vec<Vec<Option<Figure>>> {
    let of_entry = |entry: &Entry| {
        let figure =
            |&(test, metric): &(Test, Metric)| comparison.cell(entry, test)?.figure(metric);
        tests.iter().map(figure).collect()
    };
    comparison.entries.iter().map(of_entry).collect()
}

fn bandwidth(comparison: &Comparison) -> Option<Panel> {
    let sizes = comparison.sizes();
    let test = |&size: &u64| (Test::Stream { size, connections: 1 }, Metric::Bandwidth);
    (!sizes.is_empty()).then(|| Panel {
        title: "Bandwidth, Gb/s".to_owned(),
        x_title: "bytes per message",
        labels: sizes.iter().map(|&size| size_name(size)).collect(),
        lines: figures(comparison, &sizes.iter().map(test).collect::<Vec<_>>()),
    })
}

fn rate(comparison: &Comparison) -> Option<Panel> {
    let (counts, size) = (comparison.connection_counts(), *comparison.sizes().first()?);
    let test = |&connections: &u16| (Test::Stream { size, connections }, Metric::Rate);
    (!counts.is_empty()).then(|| Panel {
        title: format!("Messages of {size} bytes, M/s"),
        x_title: "queue pairs or connections",
        labels: counts.iter().map(ToString::to_string).collect(),
        lines: figures(comparison, &counts.iter().map(test).collect::<Vec<_>>()),
    })
}

fn latency(comparison: &Comparison) -> Option<Panel> {
    let size = comparison.ping_pong_size()?;
    let tests = Metric::PERCENTILES.map(|metric| (Test::PingPong { size }, metric));
    Some(Panel {
        title: format!("Latency of {size} bytes, us"),
        x_title: "percentile",
        labels: Metric::PERCENTILES.map(|metric| metric.title().to_owned()).to_vec(),
        lines: figures(comparison, &tests),
    })
}

/// Returns the color of an entry: ours black and gray, the others of a palette.
fn color(entries: &[Entry], index: usize) -> RGBAColor {
    let before = entries[..index]
        .iter()
        .filter(|entry| entry.peer.is_ours() == entries[index].peer.is_ours());
    match (entries[index].peer.is_ours(), before.count()) {
        (true, 0) => BLACK.to_rgba(),
        (true, _) => RGBColor(130, 130, 130).to_rgba(),
        (false, position) => Palette99::pick(position).to_rgba(),
    }
}

/// Ours is drawn with thicker lines.
fn stroke_width(entry: &Entry) -> u32 {
    if entry.peer.is_ours() { 3 } else { 2 }
}

fn draw_panel(
    panel: &Panel,
    area: &Area<'_>,
    entries: &[Entry],
) -> Result<(), Box<dyn std::error::Error>> {
    let all = || panel.lines.iter().flatten().flatten();
    let lowest = all().map(|figure| figure.min).fold(f64::INFINITY, f64::min).max(1e-4);
    let highest = all().map(|figure| figure.max).fold(lowest * 1.1, f64::max);
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
    for (index, figures) in panel.lines.iter().enumerate().rev() {
        let color = color(entries, index);
        // Apart from each other, so that bars do not cover each other.
        let offset = (index as f64 - panel.lines.len() as f64 / 2.0) * 0.03;
        let points: Vec<(f64, Figure)> = figures
            .iter()
            .enumerate()
            .filter_map(|(at, figure)| Some((at as f64 + offset, (*figure)?)))
            .collect();
        let line = points.iter().map(|(at, figure)| (*at, figure.median));
        let style = color.stroke_width(stroke_width(&entries[index]));
        chart.draw_series(LineSeries::new(line, style).point_size(3))?;
        chart.draw_series(points.iter().map(|&(at, Figure { min, max, .. })| {
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
    entries: &[Entry],
    drawn: &[usize],
    per_line: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    for (position, &index) in drawn.iter().enumerate() {
        let entry = &entries[index];
        let x = i32::try_from(position % per_line * LEGEND_WIDTH as usize)? + 16;
        let y = i32::try_from(position / per_line * LEGEND_LINE as usize)? + 12;
        let style = color(entries, index).stroke_width(stroke_width(entry));
        area.draw(&PathElement::new(vec![(x, y), (x + 20, y)], style))?;
        area.draw(&Text::new(entry.peer.name(), (x + 26, y - 7), ("sans-serif", 14)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{results, rounds};

    #[test]
    fn plot_has_all_panels_and_peers() {
        let mut comparisons = [results::tests::comparison()];
        rounds::run(&mut comparisons, 2, 0.0, None, &mut vec![]);
        let folder = ferrowarp_tests::process::temp_dir().unwrap();
        let path = folder.path().join("plot.svg");
        draw(&path, &comparisons[0]).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["Bandwidth, Gb/s", "Messages of 64 bytes", "p99.9", "64 KiB", "other"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(draw(&path, &results::tests::comparison()).is_err(), "nothing was measured");
    }
}
