//! Plot of resident memory during the soak, as SVG.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::soak::Soak;

/// Fewest samples that are worth a plot.
const SAMPLES_MIN: usize = 10;

/// Plots resident memory by time after the warm-up; returns false, with nothing drawn, if there are
/// few samples.
///
/// # Errors
/// If the file cannot be written.
pub fn draw(path: &Path, soak: &Soak) -> Result<bool> {
    let count = soak.resident.len();
    let whole = soak.lines.last().map_or(0.0, |line| line.seconds);
    let first = soak.warm_up.as_secs_f64();
    if count < SAMPLES_MIN {
        return Ok(false);
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let highest = soak.resident.iter().copied().max().map_or(0.0, mib);
    let area = SVGBackend::new(path, (760, 360)).into_drawing_area();
    let draw_error =
        |error: &dyn std::fmt::Display| anyhow!("cannot draw {}: {error}", path.display());
    area.fill(&WHITE).map_err(|error| draw_error(&error))?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Resident memory during the soak", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(52)
        .build_cartesian_2d(first..whole, 0.0..highest * 1.1)
        .map_err(|error| draw_error(&error))?;
    chart.configure_mesh().x_desc("s").y_desc("MiB").draw().map_err(|error| draw_error(&error))?;
    let at = |index: usize| first + (whole - first) * index as f64 / count as f64;
    let points = soak.resident.iter().enumerate().map(|(index, &bytes)| (at(index), mib(bytes)));
    let line = LineSeries::new(points, Palette99::pick(0).to_rgba().stroke_width(2));
    chart.draw_series(line).map_err(|error| draw_error(&error))?;
    area.present().map_err(|error| draw_error(&error))?;
    Ok(true)
}
