//! Pictures as SVG text: a slice of a partition, and a curve over the steps.
//!
//! Invariants: the text is bounded by the cells shown ([`SIDE_MAX`] a side) or
//! the points given; numbers only, so nothing from outside needs escaping but
//! the title, which is escaped.

use std::fmt::Write as _;

use outlive_base::rng;

use crate::graph::Graph;
use crate::replay::Figures;

/// Cells a side at most in a picture of a partition.
pub const SIDE_MAX: usize = 256;

/// The partition of the tasks with coordinates as coloured cells: the slice at
/// the middle of the third axis. Without coordinates: an arrangement in rows of
/// task numbers. Heavier than average tasks are darker.
pub fn partition(graph: &Graph, parts: &[u32], title: &str) -> String {
    let tasks = graph.tasks();
    let side = libm::ceil(libm::sqrt(tasks as f64)).max(1.0);
    let (mut low, mut high) = ([f64::INFINITY; 3], [f64::NEG_INFINITY; 3]);
    let all: Vec<[f64; 3]> = match graph.coordinates() {
        Some(all) => all.to_vec(),
        None => (0..tasks)
            .map(|t| [t as f64 % side, libm::floor(t as f64 / side), 0.0])
            .collect(),
    };
    for at in &all {
        for axis in 0..3 {
            low[axis] = low[axis].min(at[axis]);
            high[axis] = high[axis].max(at[axis]);
        }
    }
    let middle = libm::floor((low[2] + high[2]) / 2.0);
    let span = (high[0] - low[0]).max(high[1] - low[1]).max(1.0) + 1.0;
    let cells = (SIDE_MAX as f64).min(span);
    let pixel = 512.0 / cells;
    let mean = graph.weights().iter().sum::<f64>() / tasks.max(1) as f64;
    let mut out = head(512.0, 512.0, title);
    let mut drawn = std::collections::BTreeSet::new();
    for (task, at) in all.iter().enumerate() {
        if (at[2] - middle).abs() >= 0.5 {
            continue;
        }
        let cell = |axis: usize| ((at[axis] - low[axis]) / span * cells) as u32;
        let (x, y) = (cell(0), cell(1));
        if !drawn.insert((x, y)) {
            continue;
        }
        let hue = rng::below(rng::draw(11, u64::from(parts[task]), 0), 360);
        let light = if graph.weights()[task] > mean * 1.5 {
            35
        } else {
            70
        };
        let _ = writeln!(
            out,
            "<rect x='{:.1}' y='{:.1}' width='{pixel:.2}' height='{pixel:.2}' fill='hsl({hue},60%,{light}%)'/>",
            f64::from(x) * pixel,
            20.0 + f64::from(y) * pixel,
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Lines over steps: each series a name and its values; all share one axis from 0.
fn curves(series: &[(&str, Vec<f64>)], title: &str) -> String {
    let top = series
        .iter()
        .flat_map(|s| s.1.iter().copied())
        .filter(|v| v.is_finite());
    let top = top.fold(0.0, f64::max).max(1e-12);
    let mut out = head(640.0, 320.0, title);
    let _ = writeln!(
        out,
        "<path d='M40 30V310H630' fill='none' stroke='#444'/><text x='2' y='40' font-size='11'>{top:.3}</text>"
    );
    for (slot, (name, values)) in series.iter().enumerate() {
        let hue = slot * 97 % 360;
        let step = 590.0 / values.len().saturating_sub(1).max(1) as f64;
        let mut path = String::new();
        for (index, value) in values.iter().enumerate() {
            let y = 310.0 - 280.0 * value.clamp(0.0, top) / top;
            let letter = if index == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{:.1} {y:.1}", 40.0 + step * index as f64);
        }
        let _ = writeln!(
            out,
            "<path d='{path}' fill='none' stroke='hsl({hue},70%,40%)'/><text x='{}' y='44' font-size='11' fill='hsl({hue},70%,40%)'>{}</text>",
            60 + slot * 130,
            escape(name),
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Imbalance, migration and the largest edge-cut over the steps of a scenario.
pub fn steps(all: &[Figures], title: &str) -> String {
    let of = |field: fn(&Figures) -> f64| all.iter().map(field).collect::<Vec<f64>>();
    let series = [
        ("imbalance", of(|f| f.imbalance)),
        ("migration", of(|f| f.migration)),
        ("largest cut", of(|f| f.edge_cut_max)),
    ];
    curves(&series, title)
}

fn head(width: f64, height: f64, title: &str) -> String {
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {}' font-family='sans-serif'>\n<text x='4' y='14' font-size='13'>{}</text>\n",
        height + 24.0,
        escape(title)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_closed_escaped_and_bounded() {
        let graph = Graph::mesh(8, 4, 3);
        let svg = partition(&graph, &vec![1; 96], "a<b & c");
        assert!(svg.ends_with("</svg>\n") && svg.contains("a&lt;b &amp; c"));
        assert_eq!(svg.matches("<rect").count(), 32);
        let figures = Figures {
            migration: 0.5,
            ..Figures::default()
        };
        let drawn = steps(&[figures; 3], "t");
        assert!(drawn.contains("0.500") && drawn.contains("largest cut"));
        let lines = curves(&[("x", vec![0.0, f64::NAN, 2.0]), ("y", vec![])], "t");
        assert!(lines.contains("2.000"));
        let none = Graph::from_edges(0, &[], vec![]).unwrap();
        assert!(partition(&none, &[], "").ends_with("</svg>\n"));
    }
}
