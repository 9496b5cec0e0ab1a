//! Plot of bandwidth by message size beside the frozen bound, as SVG.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::plan::{Plan, Topology};
use super::result::{CellResult, Table};
use crate::median::median;

/// Plots RDMA Write bandwidth by message size: a line for each table over `ring` on one core, and a
/// dashed one for its bound.
///
/// # Errors
/// If the file cannot be written, or there is nothing to draw.
pub fn draw(path: &Path, plan: &Plan, tables: &[Table]) -> Result<()> {
    let tables: Vec<&Table> =
        tables.iter().filter(|table| matches!(table.topology, Topology::OneCore(_))).collect();
    let curves: Vec<_> = tables.iter().map(|table| curve(plan, table)).collect();
    let highest = curves
        .iter()
        .flat_map(|(points, bound)| points.iter().map(|&(_, gbit_s)| gbit_s).chain(*bound));
    let highest = highest.fold(0.0, f64::max);
    let (Some(&first), Some(&last)) = (plan.sizes.first(), plan.sizes.last()) else {
        return Err(anyhow!("no sizes to draw"));
    };
    let (first, last) = (first as f64, last as f64);
    let area = SVGBackend::new(path, (760, 440)).into_drawing_area();
    let draw_error =
        |error: &dyn std::fmt::Display| anyhow!("cannot draw {}: {error}", path.display());
    area.fill(&WHITE).map_err(|error| draw_error(&error))?;
    let mut chart = ChartBuilder::on(&area)
        .caption("RDMA Write, both ends on one core over ring", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(52)
        .build_cartesian_2d((first..last * 1.01).log_scale(), 0.0..highest * 1.1)
        .map_err(|error| draw_error(&error))?;
    chart
        .configure_mesh()
        .x_desc("bytes per message")
        .y_desc("Gb/s")
        .x_label_formatter(&|size| format!("{size:.0}"))
        .draw()
        .map_err(|error| draw_error(&error))?;
    for (index, (table, (points, bound))) in tables.iter().zip(curves).enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let line = LineSeries::new(points, color.stroke_width(2)).point_size(3);
        let label = |text: String| {
            move |series: &mut plotters::chart::SeriesAnno<'_, _>, dashed: bool| {
                let width = if dashed { 1 } else { 2 };
                series.label(text).legend(move |(x, y)| {
                    PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(width))
                });
            }
        };
        let series = chart.draw_series(line).map_err(|error| draw_error(&error))?;
        label(format!("MTU {}", table.mtu))(series, false);
        if let Some(bound) = bound {
            let ends = [(first, bound), (last, bound)];
            let line = DashedLineSeries::new(ends, 6, 4, color.stroke_width(1));
            let series = chart.draw_series(line).map_err(|error| draw_error(&error))?;
            label(format!("frozen bound, MTU {}", table.mtu))(series, true);
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()
        .map_err(|error| draw_error(&error))?;
    area.present().map_err(|error| draw_error(&error))
}

/// Returns the points of a table's `write-bw`, and its bound.
fn curve(plan: &Plan, table: &Table) -> (Vec<(f64, f64)>, Option<f64>) {
    let cells = table.rows.iter().find(|(test, _)| *test == "write-bw");
    let cells = cells.map(|(_, cells)| cells.as_slice()).unwrap_or_default();
    let point =
        |(&size, cell): (&u64, &CellResult)| Some((size as f64, cell.median(|s| s.gbit_s)?));
    let points = plan.sizes.iter().zip(cells).filter_map(point).collect();
    (points, median(cells.iter().flat_map(|cell| cell.bound.clone()).collect()))
}
