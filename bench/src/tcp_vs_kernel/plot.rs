//! Plot of goodput by loss, a panel for each RTT, as SVG.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use plotters::prelude::*;

use super::goodput::GoodputResult;
use super::plan::{Pairing, Plan};
use super::report::rtts;

/// Width of a panel and height of the plot, in points.
const PANEL: (u32, u32) = (420, 400);

/// Plots a panel for each RTT: a line for each pairing over the losses of the plan, which are
/// equidistant, with bars from the minimum to the maximum of all runs.
///
/// # Errors
/// If the file cannot be written, or there is nothing to draw.
pub fn draw(path: &Path, plan: &Plan, results: &[GoodputResult]) -> Result<()> {
    let rtts = rtts(plan);
    let width = PANEL.0 * u32::try_from(rtts.len()).unwrap_or(1);
    ensure!(width > 0, "nothing to draw");
    let draw_error =
        |error: &dyn std::fmt::Display| anyhow!("cannot draw {}: {error}", path.display());
    let area = SVGBackend::new(path, (width, PANEL.1)).into_drawing_area();
    area.fill(&WHITE).map_err(|error| draw_error(&error))?;
    let panels = area.split_evenly((1, rtts.len()));
    for (panel, rtt_ms) in panels.iter().zip(rtts) {
        let losses: Vec<f64> = plan
            .links
            .iter()
            .filter(|link| link.rtt_ms == rtt_ms)
            .map(|link| link.loss_percent)
            .collect();
        let last = losses.len().saturating_sub(1) as f64;
        let highest = results
            .iter()
            .flat_map(|result| &result.samples)
            .map(|sample| sample.gbit_s)
            .fold(0.1, f64::max);
        let mut chart = ChartBuilder::on(panel)
            .caption(format!("round trip {rtt_ms} ms"), ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(48)
            .build_cartesian_2d(-0.2..last + 0.2, 0.0..highest * 1.08)
            .map_err(|error| draw_error(&error))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_desc("loss each way, %")
            .y_desc("goodput, Gb/s")
            .x_labels(losses.len().max(2) * 2)
            .x_label_formatter(&|at| label(&losses, *at))
            .draw()
            .map_err(|error| draw_error(&error))?;
        for (index, pairing) in Pairing::ONE_WAY.into_iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let positioned: Vec<(f64, &GoodputResult)> = results
                .iter()
                .filter(|result| result.pairing == pairing && result.link.rtt_ms == rtt_ms)
                .filter_map(|result| {
                    let at = losses.iter().position(|loss| *loss == result.link.loss_percent)?;
                    // Offset by pairing, so that bars do not overlap.
                    Some((at as f64 + (index as f64 - 1.0) * 0.06, result))
                })
                .collect();
            let points = positioned.iter().filter_map(|&(at, result)| Some((at, result.median()?)));
            let line = LineSeries::new(points, color.stroke_width(2)).point_size(3);
            chart
                .draw_series(line)
                .map_err(|error| draw_error(&error))?
                .label(pairing.title())
                .legend(move |(x, y)| {
                    PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2))
                });
            let bars = positioned.iter().map(|&(at, result)| {
                let all = || result.samples.iter().map(|sample| sample.gbit_s);
                let least = all().fold(f64::INFINITY, f64::min).min(highest);
                let most = all().fold(0.0, f64::max).max(least);
                PathElement::new(vec![(at, least), (at, most)], color.stroke_width(1))
            });
            chart.draw_series(bars).map_err(|error| draw_error(&error))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .draw()
            .map_err(|error| draw_error(&error))?;
    }
    area.present().map_err(|error| draw_error(&error))
}

/// Returns the label of the loss at a position of the axis; empty between two.
fn label(losses: &[f64], at: f64) -> String {
    let index = losses.iter().enumerate().find(|(index, _)| (*index as f64 - at).abs() < 0.01);
    index.map_or_else(String::new, |(_, loss)| loss.to_string())
}
