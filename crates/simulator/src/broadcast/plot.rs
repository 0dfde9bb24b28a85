//! Pictures of a run as SVG text.
//!
//! Invariants: nothing from outside is written but numbers; the text is bounded by the
//! messages of [`Broadcasts::DRAWN_MAX`] processes or the points of a curve.

use std::fmt::Write as _;

use outlive_base::machine::Peer;
use outlive_protocols::broadcast::Msg;

use super::{Arrow, Broadcasts, Run};

const WIDTH: f64 = 760.0;
const ROW: f64 = 14.0;
const LEFT: f64 = 40.0;
const TOP: f64 = 40.0;
const POINTS_MAX: usize = 400;

fn head(height: f64, of: &Broadcasts, run: &Run) -> String {
    let ring = of.parameters().ring;
    let dead = run.dead.len();
    let mut out = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {height}' \
         font-family='sans-serif' font-size='10'>\n\
         <rect width='100%' height='100%' fill='white'/>\n",
        WIDTH + LEFT + 20.0
    );
    let _ = writeln!(
        out,
        "<text x='4' y='14' font-size='13'>{} processes, {dead} dead: coloured at {}, quiescent \
         at {}, {} messages</text>",
        ring.processes, run.colouring_time, run.quiescence, run.messages
    );
    out
}

fn colour(msg: Msg) -> &'static str {
    match msg {
        Msg::Spread => "#1f6fb4",
        Msg::Leftward => "#d1610d",
        Msg::Rightward => "#2a8f3c",
        Msg::Acknowledge => "#888888",
    }
}

/// Ranks from top to bottom, time to the right, an arrow for each message, a dot where a
/// process gets the message. Those to the dead end in nothing.
pub(super) fn space_time(of: &Broadcasts, run: &Run, coloured: &[u64], arrows: &[Arrow]) -> String {
    let rows = coloured.len() as f64;
    let mut out = head(TOP + rows * ROW + 30.0, of, run);
    let scale = WIDTH / (run.quiescence.max(1) as f64);
    let x = |time: u64| LEFT + time as f64 * scale;
    let y = |rank: Peer| TOP + f64::from(rank) * ROW;
    let _ = writeln!(
        out,
        "<text x='4' y='28'><tspan fill='#1f6fb4'>dissemination</tspan> <tspan \
         fill='#d1610d'>correction to the left</tspan> <tspan fill='#2a8f3c'>correction to the \
         right</tspan></text>"
    );
    for rank in 0..coloured.len() as Peer {
        let dead = run.dead.binary_search(&rank).is_ok();
        let (stroke, name) = if dead {
            ("#f3b6b6", " &#8224;")
        } else {
            ("#e4e4e4", "")
        };
        let _ = writeln!(
            out,
            "<text x='4' y='{:.1}'>{rank}{name}</text><line x1='{LEFT}' x2='{:.1}' y1='{:.1}' \
             y2='{:.1}' stroke='{stroke}'/>",
            y(rank) + 3.5,
            LEFT + WIDTH,
            y(rank),
            y(rank)
        );
    }
    for arrow in arrows {
        let stroke = colour(arrow.msg);
        let (end, dash) = match arrow.end {
            Some(end) => (end, ""),
            None => (arrow.start + 1, " stroke-dasharray='2'"),
        };
        let part = if arrow.end.is_some() { 1.0 } else { 0.3 };
        let _ = writeln!(
            out,
            "<line x1='{:.1}' y1='{:.1}' x2='{:.1}' y2='{:.1}' stroke='{stroke}' \
             stroke-width='0.8'{dash}/>",
            x(arrow.start),
            y(arrow.from),
            x(end),
            y(arrow.from) + (y(arrow.to) - y(arrow.from)) * part
        );
    }
    for (rank, &at) in coloured
        .iter()
        .enumerate()
        .filter(|(_, at)| **at != u64::MAX)
    {
        let _ = writeln!(
            out,
            "<circle cx='{:.1}' cy='{:.1}' r='2.5'/>",
            x(at),
            y(rank as Peer)
        );
    }
    let _ = writeln!(
        out,
        "<text x='{LEFT}' y='{0:.1}'>0</text><text x='{1:.1}' y='{0:.1}' \
         text-anchor='end'>time {2}</text>\n</svg>",
        TOP + rows * ROW + 12.0,
        LEFT + WIDTH,
        run.quiescence
    );
    out
}

/// How many have the message, over time.
pub(super) fn curve(of: &Broadcasts, run: &Run, coloured: &[u64]) -> String {
    let height = 300.0;
    let mut out = head(TOP + height + 30.0, of, run);
    let mut times: Vec<u64> = coloured
        .iter()
        .copied()
        .filter(|&at| at != u64::MAX)
        .collect();
    times.sort_unstable();
    let end = run.quiescence.max(1);
    let mut points = String::new();
    let steps = (end.min(POINTS_MAX as u64)).max(1);
    for step in 0..=steps {
        let time = (u128::from(end) * u128::from(step) / u128::from(steps)) as u64;
        let reached = times.partition_point(|&at| at <= time);
        let _ = write!(
            points,
            "{:.1},{:.1} ",
            LEFT + time as f64 / end as f64 * WIDTH,
            TOP + height * (1.0 - reached as f64 / coloured.len() as f64)
        );
    }
    let _ = writeln!(
        out,
        "<polyline points='{points}' fill='none' stroke='#1f6fb4' stroke-width='1.5'/>\n\
         <line x1='{LEFT}' x2='{LEFT}' y1='{TOP}' y2='{0}' stroke='#888'/>\n\
         <line x1='{LEFT}' x2='{1}' y1='{0}' y2='{0}' stroke='#888'/>\n\
         <text x='4' y='{TOP}'>{2}</text><text x='4' y='{0}'>0</text>\n\
         <text x='{1}' y='{3}' text-anchor='end'>time {4}</text>\n</svg>",
        TOP + height,
        LEFT + WIDTH,
        coloured.len(),
        TOP + height + 14.0,
        run.quiescence
    );
    out
}
