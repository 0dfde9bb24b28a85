//! Pictures of a run as SVG text.
//!
//! Invariants: nothing from outside is written but numbers; the text is bounded by the
//! messages of [`DRAWN_MAX`] processes or the points of a curve.

use std::fmt::Write as _;

use outlive_base::machine::Peer;

/// The most processes whose messages are drawn one by one.
pub const DRAWN_MAX: u32 = 64;
const WIDTH: f64 = 760.0;
const ROW: f64 = 14.0;
const LEFT: f64 = 40.0;
const TOP: f64 = 40.0;
const POINTS_MAX: usize = 400;

/// A message that is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrow {
    pub from: Peer,
    pub to: Peer,
    /// Its place in the legend.
    pub kind: usize,
    pub start: u64,
    /// End of the reception, if there was one.
    pub end: Option<u64>,
}

/// Arrows as they are seen: a reception ends the oldest of the same kind on its way.
pub(crate) fn received(arrows: &mut [Arrow], from: Peer, to: Peer, kind: usize, now: u64) {
    let same = |a: &&mut Arrow| (a.from, a.to, a.kind, a.end) == (from, to, kind, None);
    if let Some(arrow) = arrows.iter_mut().find(same) {
        arrow.end = Some(now);
    }
}

/// A run to be drawn.
pub(crate) struct Picture<'a> {
    /// Words about the run.
    pub title: String,
    /// Colour and meaning of each kind of message; those that occur are explained.
    pub legend: &'a [(&'static str, &'static str)],
    /// Ascending.
    pub dead: &'a [Peer],
    /// The end of time.
    pub quiescence: u64,
    /// When each process had what it waited for; 2^64 - 1: never.
    pub reached: &'a [u64],
}

fn head(height: f64, of: &Picture) -> String {
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {height}' \
         font-family='sans-serif' font-size='10'>\n\
         <rect width='100%' height='100%' fill='white'/>\n\
         <text x='4' y='14' font-size='13'>{}</text>\n",
        WIDTH + LEFT + 20.0,
        of.title
    )
}

/// Ranks from top to bottom, time to the right, an arrow for each message, a dot where a
/// process is reached. Those to the dead end in nothing.
pub(crate) fn space_time(of: &Picture, arrows: &[Arrow]) -> String {
    let rows = of.reached.len() as f64;
    let mut out = head(TOP + rows * ROW + 30.0, of);
    let scale = WIDTH / (of.quiescence.max(1) as f64);
    let x = |time: u64| LEFT + time as f64 * scale;
    let y = |rank: Peer| TOP + f64::from(rank) * ROW;
    let occurs = |kind: usize| arrows.iter().any(|arrow| arrow.kind == kind);
    let named = of.legend.iter().enumerate();
    let legend = named
        .filter(|&(kind, _)| occurs(kind))
        .map(|(_, (colour, meaning))| format!("<tspan fill='{colour}'>{meaning}</tspan>"));
    let _ = writeln!(
        out,
        "<text x='4' y='28'>{}</text>",
        legend.collect::<Vec<_>>().join(", ")
    );
    for rank in 0..of.reached.len() as Peer {
        let dead = of.dead.binary_search(&rank).is_ok();
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
        let stroke = of.legend.get(arrow.kind).map_or("#888888", |kind| kind.0);
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
    let reached = of.reached.iter().enumerate();
    for (rank, &at) in reached.filter(|(_, at)| **at != u64::MAX) {
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
        of.quiescence
    );
    out
}

/// How many are reached, over time.
pub(crate) fn curve(of: &Picture) -> String {
    let height = 300.0;
    let mut out = head(TOP + height + 30.0, of);
    let reached = of.reached.iter().copied();
    let mut times: Vec<u64> = reached.filter(|&at| at != u64::MAX).collect();
    times.sort_unstable();
    let end = of.quiescence.max(1);
    let mut points = String::new();
    let steps = (end.min(POINTS_MAX as u64)).max(1);
    for step in 0..=steps {
        let time = (u128::from(end) * u128::from(step) / u128::from(steps)) as u64;
        let reached = times.partition_point(|&at| at <= time);
        let _ = write!(
            points,
            "{:.1},{:.1} ",
            LEFT + time as f64 / end as f64 * WIDTH,
            TOP + height * (1.0 - reached as f64 / of.reached.len() as f64)
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
        of.reached.len(),
        TOP + height + 14.0,
        of.quiescence
    );
    out
}
