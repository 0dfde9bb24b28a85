//! The expected overhead over the interval, and its parts, as SVG text.
//!
//! Invariants: nothing from outside is written but numbers and escaped names; the text is
//! bounded by [`POINTS`] points a curve.

use std::fmt::Write as _;

use outlive_base::Result;
use outlive_planner::lifetime::{Lifetime, Pattern, lifetime};
use outlive_planner::units::duration;

use super::Found;

/// Points of a curve.
const POINTS: i32 = 41;
/// From a fifth to five times the interval of the plan.
const SPREAD: f64 = 5.0;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;

/// A part of the overhead: name, colour, share of the work.
type Part = (&'static str, &'static str, fn(&Lifetime) -> f64);

const PARTS: [Part; 4] = [
    ("overhead", "#1b1b1b", |of| of.total / of.work - 1.0),
    ("checkpoints", "#2b7bba", |of| of.checkpoint / of.work),
    ("lost computing", "#c0392b", |of| of.lost / of.work),
    ("restarts", "#e0a030", |of| of.restart / of.work),
];

/// The picture of a plan.
pub(super) fn draw(found: &Found) -> Result<String> {
    let best = found.plan.pattern.interval;
    let mut curve = Vec::new();
    for point in 0..POINTS {
        let share = f64::from(point) / f64::from(POINTS - 1);
        let interval = best * SPREAD.powf(2.0 * share - 1.0);
        let pattern = Pattern {
            interval,
            ..found.plan.pattern.clone()
        };
        let of = lifetime(&found.question, &pattern)?;
        curve.push((share, of));
    }
    let finite = curve.iter().filter(|(_, of)| of.total.is_finite());
    let most = finite.map(|(_, of)| of.overhead()).fold(0.0, f64::max);
    // A curve that runs away would flatten all that matters.
    let top = most.min(6.0 * found.plan.lifetime.overhead()).max(1e-6);
    let x = |share: f64| LEFT + share * WIDTH;
    let y = |value: f64| TOP + HEIGHT * (1.0 - (value / top).min(1.0));
    let mut out = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {}' font-family='sans-serif' font-size='11'>\n\
         <rect width='100%' height='100%' fill='white'/>\n\
         <text x='{LEFT}' y='18' font-size='13'>{}: overhead over the interval of computing</text>\n",
        LEFT + WIDTH + 20.0,
        TOP + HEIGHT + 40.0,
        escaped(&found.job.name),
    );
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        let _ = writeln!(
            out,
            "<line x1='{LEFT}' x2='{:.1}' y1='{1:.1}' y2='{1:.1}' stroke='#e4e4e4'/>\
             <text x='{2:.1}' y='{3:.1}' text-anchor='end'>{4:.1} %</text>",
            LEFT + WIDTH,
            y(value),
            LEFT - 6.0,
            y(value) + 4.0,
            100.0 * value
        );
    }
    for (share, factor) in [(0.0, 1.0 / SPREAD), (0.5, 1.0), (1.0, SPREAD)] {
        let _ = writeln!(
            out,
            "<text x='{:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
            x(share),
            TOP + HEIGHT + 18.0,
            duration(best * factor)
        );
    }
    for (place, (name, colour, of)) in PARTS.iter().enumerate() {
        let points = curve.iter().filter(|(_, one)| one.total.is_finite());
        let points: Vec<String> = points
            .map(|(share, one)| format!("{:.1},{:.1}", x(*share), y(of(one))))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points='{}' fill='none' stroke='{colour}' stroke-width='1.6'/>\
             <text x='{:.1}' y='32' fill='{colour}'>{name}</text>",
            points.join(" "),
            LEFT + 120.0 * place as f64
        );
    }
    let (at, now) = (x(0.5), y(found.plan.lifetime.overhead()));
    let _ = writeln!(out, "<circle cx='{at:.1}' cy='{now:.1}' r='3.5'/>\n</svg>");
    Ok(out)
}

fn escaped(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    short
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
