//! Pictures as SVG text.
//!
//! Invariant: nothing but numbers and escaped words is written, and each picture is bounded
//! by what [`crate::stats`] and [`crate::spectrum`] leave, or by [`DRAWN_MAX`].

use std::fmt::Write as _;

use crate::model::{Core, Noise, Variation};
use crate::stats::Class;
use crate::text;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 60.0;
const PANEL: f64 = HEIGHT + 50.0;
/// The most points of a curve, bars or cores that are drawn.
pub const DRAWN_MAX: usize = 2_000;

/// Text that is safe between and inside of tags.
pub fn escape(text: &str) -> String {
    let escaped = text.chars().map(|letter| match letter {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        '\'' => "&#39;".to_owned(),
        letter if letter.is_control() => " ".to_owned(),
        letter => letter.to_string(),
    });
    escaped.collect()
}

/// A picture with a frame.
pub(crate) struct Panel<'a> {
    /// What it shows.
    pub title: String,
    /// Words at the begin and end of both axes: left, right, bottom, top.
    pub axes: [String; 4],
    /// What is drawn.
    pub points: &'a [(f64, f64)],
    /// As bars, else as a curve.
    pub bars: bool,
}

/// A panel below the last one.
pub(crate) fn add(body: &mut String, top: &mut f64, of: &Panel) {
    panel(body, *top, of);
    *top += PANEL;
}

/// Draws points into a frame from the origin to the largest of both.
fn panel(out: &mut String, top: f64, of: &Panel) {
    let largest = |value: fn(&(f64, f64)) -> f64| {
        of.points
            .iter()
            .map(value)
            .filter(|v| v.is_finite())
            .fold(f64::MIN_POSITIVE, f64::max)
    };
    let (right, high) = (largest(|p| p.0), largest(|p| p.1));
    let bottom = top + 20.0 + HEIGHT;
    let x = |value: f64| LEFT + WIDTH * (value / right).clamp(0.0, 1.0);
    let y = |value: f64| bottom - HEIGHT * (value / high).clamp(0.0, 1.0);
    let _ = writeln!(
        out,
        "<text x='4' y='{}' font-size='12'>{}</text>",
        top + 12.0,
        escape(&of.title)
    );
    let _ = writeln!(
        out,
        "<rect x='{LEFT}' y='{}' width='{WIDTH}' height='{HEIGHT}' fill='none' stroke='#999'/>",
        top + 20.0
    );
    for (at, (left, below)) in [
        (LEFT, bottom + 14.0),
        (LEFT + WIDTH - 60.0, bottom + 14.0),
        (2.0, bottom),
        (2.0, top + 30.0),
    ]
    .into_iter()
    .enumerate()
    {
        let _ = writeln!(
            out,
            "<text x='{left}' y='{below}'>{}</text>",
            escape(&of.axes[at])
        );
    }
    let drawn = of.points.iter().take(DRAWN_MAX);
    if of.bars {
        let wide = (WIDTH / of.points.len().max(1) as f64 * 0.8).min(40.0);
        for point in drawn {
            let (x, y) = (x(point.0) - wide, y(point.1));
            let high = bottom - y;
            let _ = writeln!(
                out,
                "<rect x='{x:.1}' y='{y:.1}' width='{wide:.1}' height='{high:.1}' fill='#36c'/>"
            );
        }
    } else {
        let points = drawn.map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1)));
        let points = points.collect::<Vec<_>>().join(" ");
        let _ = writeln!(
            out,
            "<polyline points='{points}' fill='none' stroke='#36c'/>"
        );
    }
}

/// A document of a title and the panels below it.
pub(crate) fn whole(title: &str, height: f64, body: &str) -> String {
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {}' font-family='sans-serif' \
         font-size='10'>\n<rect width='100%' height='100%' fill='white'/>\n\
         <text x='4' y='14' font-size='13'>{}</text>\n{body}</svg>\n",
        WIDTH + LEFT + 20.0,
        height + 30.0,
        escape(title)
    )
}

/// Series, histogram, and, for fixed time, the spectrum of each core.
pub fn noise(of: &Noise) -> String {
    let (mut body, mut top) = (String::new(), 24.0);
    for core in of.cores.iter().take(DRAWN_MAX / 3) {
        for (title, axes, points, bars) in panels(core) {
            let points = &points;
            add(
                &mut body,
                &mut top,
                &Panel {
                    title,
                    axes,
                    points,
                    bars,
                },
            );
        }
    }
    let quantum = text::time(of.quantum_ns as f64);
    whole(&format!("{} quanta of {quantum}", of.samples), top, &body)
}

type Drawn = (String, [String; 4], Vec<(f64, f64)>, bool);

fn panels(of: &Core) -> Vec<Drawn> {
    let least = of.summary.min;
    let over = |value: f64| crate::stats::over_percent(value, least);
    let series: Vec<(f64, f64)> = of
        .series
        .iter()
        .map(|(at, value)| (*at as f64, over(*value)))
        .collect();
    let last = series.last().map_or(0.0, |point| point.0);
    let percent = |value: f64| format!("{value:.3} %");
    let mut all = vec![(
        format!("core {}: time over the least, by sample", of.core),
        [
            "0".into(),
            format!("{last}"),
            "0".into(),
            percent(over(of.summary.max)),
        ],
        series,
        false,
    )];
    let (axes, bars) = bars_of(&of.histogram);
    all.push((
        format!(
            "core {}: samples by time over the least (both axes logarithmic)",
            of.core
        ),
        axes,
        bars,
        true,
    ));
    if let Some(spectrum) = &of.spectrum {
        let end = spectrum.points.last().map_or(0.0, |point| point.0);
        let most = spectrum
            .points
            .iter()
            .map(|point| point.1)
            .fold(0.0, f64::max);
        all.push((
            format!("core {}: power by frequency", of.core),
            [
                "0 Hz".into(),
                format!("{end:.0} Hz"),
                "0".into(),
                format!("{most:.0} x mean"),
            ],
            spectrum.points.clone(),
            false,
        ));
    }
    all
}

/// The axes and bars of a histogram. Counts span many orders: heights are logarithms of them.
pub(crate) fn bars_of(classes: &[Class]) -> ([String; 4], Vec<(f64, f64)>) {
    let height = |count: u64| (count as f64 + 1.0).log10();
    let bars = classes.iter().enumerate();
    let bars = bars.map(|(at, class)| (at as f64 + 1.0, height(class.count)));
    let most = classes.iter().map(|class| class.count).max().unwrap_or(0);
    let end = classes.last().map_or(0.0, |class| class.from_percent);
    let axes = [
        "0 %".into(),
        format!("{end} %"),
        "0".into(),
        most.to_string(),
    ];
    (axes, bars.collect())
}

/// The variation of each kernel by core.
pub fn variation(of: &Variation) -> String {
    let (mut body, mut top) = (String::new(), 24.0);
    for kernel in of.kernels.iter().take(DRAWN_MAX / 10) {
        let cores = kernel.cores.iter().enumerate();
        let points: Vec<(f64, f64)> = cores
            .map(|(at, runs)| (at as f64 + 1.0, runs.variation_percent))
            .collect();
        let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
        let core = |at: Option<&crate::model::Runs>| {
            at.map_or(String::new(), |runs| format!("core {}", runs.core))
        };
        let axes = [
            core(kernel.cores.first()),
            core(kernel.cores.last()),
            "0".into(),
            format!("{most:.3} %"),
        ];
        let title = format!("{}: most over least run time", kernel.name);
        let (points, bars) = (&points[..], true);
        add(
            &mut body,
            &mut top,
            &Panel {
                title,
                axes,
                points,
                bars,
            },
        );
    }
    let title = format!(
        "working sets of {} % of level {}",
        of.fill_percent, of.level
    );
    whole(&title, top, &body)
}
