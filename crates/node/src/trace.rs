//! What the kernel's event trace says ran on a core, as intervals.
//!
//! Input is the text of a tracefs `trace` file; lines that are not understood are counted,
//! never guessed at. Times are those of the trace's clock, in nanoseconds.

use serde::{Deserialize, Serialize};

/// What runs in an interval.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    /// A device's interrupt.
    Interrupt,
    /// An interrupt of the processor itself: its timer, a call from another core.
    Vector,
    /// A softirq.
    Softirq,
    /// A timer that expired.
    Timer,
    /// Another thread, in the place of the one that is measured.
    Thread,
}

/// Something ran on the measured core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interval {
    /// What it was.
    pub kind: Activity,
    /// The name of the device, vector, softirq, function or thread.
    pub name: String,
    /// Its begin, ns.
    pub start_ns: u64,
    /// Its end, ns.
    pub end_ns: u64,
}

/// What a trace says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// Intervals in the order of their ends.
    pub intervals: Vec<Interval>,
    /// Lines that were not understood.
    pub unknown: u64,
}

struct Line<'a> {
    core: u32,
    time_ns: u64,
    event: &'a str,
    words: &'a str,
}

/// The intervals on `core` during which the thread `tid` did not run as it should.
pub fn parse(text: &str, core: u32, tid: u32) -> Trace {
    let mut trace = Trace::default();
    // What has begun and not ended: interrupts nest.
    let mut open: Vec<(Activity, String, u64)> = Vec::new();
    // Who runs in the measured thread's place, and since when.
    let mut other: Option<(String, u64)> = None;
    for line in text.lines() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let Some(line) = split(line) else {
            trace.unknown += 1;
            continue;
        };
        if line.core != core {
            continue;
        }
        if line.event == "sched_switch" {
            let Some((from, to, name)) = switch(line.words) else {
                trace.unknown += 1;
                continue;
            };
            let waits = other.take();
            let waited = waits.is_some() || from == tid;
            if let Some((name, start_ns)) = waits {
                trace.push(Activity::Thread, name, start_ns, line.time_ns);
            }
            if to != tid && waited {
                other = Some((name.to_owned(), line.time_ns));
            }
        } else if let Some((kind, name, begins)) = event(line.event, line.words) {
            if begins {
                open.push((kind, name, line.time_ns));
            } else if let Some(at) = open.iter().rposition(|one| one.0 == kind) {
                // An exit names less than its entry; what nests inside has ended too.
                let (kind, name, start_ns) = open.swap_remove(at);
                open.truncate(at);
                trace.push(kind, name, start_ns, line.time_ns);
            }
        } else {
            trace.unknown += 1;
        }
    }
    trace
}

impl Trace {
    fn push(&mut self, kind: Activity, name: String, start_ns: u64, end_ns: u64) {
        self.intervals.push(Interval {
            kind,
            name,
            start_ns,
            end_ns: end_ns.max(start_ns),
        });
    }
}

/// `comm-pid [001] d.h1. 12.345678: event: words`. A thread's name may hold anything, so
/// each bracket is tried.
fn split(line: &str) -> Option<Line<'_>> {
    line.match_indices('[').find_map(|(at, _)| {
        let (core, rest) = line[at + 1..].split_once("] ")?;
        let core = core.parse().ok()?;
        // The flags between core and time can be left out of a trace.
        let mut words = rest.split_whitespace().take(2);
        let (time_ns, word) = words.find_map(|word| Some((nanoseconds(word)?, word)))?;
        let tail = &rest[rest.find(word)? + word.len()..];
        let (event, words) = tail.split_once(':')?;
        Some(Line {
            core,
            time_ns,
            event: event.trim(),
            words: words.trim(),
        })
    })
}

/// `12.345678:` in nanoseconds.
fn nanoseconds(word: &str) -> Option<u64> {
    let (seconds, micros) = word.strip_suffix(':')?.split_once('.')?;
    if micros.len() != 6 {
        return None;
    }
    let (seconds, micros): (u64, u64) = (seconds.parse().ok()?, micros.parse().ok()?);
    seconds
        .checked_mul(1_000_000_000)?
        .checked_add(micros * 1_000)
}

/// From, to, and the name of the thread that runs next.
fn switch(words: &str) -> Option<(u32, u32, &str)> {
    let (before, after) = words.split_once(" ==> ")?;
    let number = |text: &str, key: &str| {
        let (_, rest) = text.rsplit_once(key)?;
        rest.split(' ').next()?.parse().ok()
    };
    let from = number(before, "prev_pid=")?;
    let to = number(after, "next_pid=")?;
    let name = after
        .strip_prefix("next_comm=")?
        .rsplit_once(" next_pid=")?
        .0;
    Some((from, to, name))
}

/// Activity, name, and whether it begins.
fn event(event: &str, words: &str) -> Option<(Activity, String, bool)> {
    let (what, begins) = match event.strip_suffix("_entry") {
        Some(what) => (what, true),
        None => (event.strip_suffix("_exit")?, false),
    };
    let value = |key: &str| {
        let rest = words.split_once(key)?.1;
        Some(rest.split([' ', ']']).next()?.to_owned())
    };
    let named = |key: &str| value(key).unwrap_or_else(|| what.to_owned());
    Some(match what {
        "irq_handler" => (Activity::Interrupt, named("name="), begins),
        "softirq" => (Activity::Softirq, named("[action="), begins),
        "hrtimer_expire" | "timer_expire" => (Activity::Timer, named("function="), begins),
        _ => (Activity::Vector, what.to_owned(), begins),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
# tracer: nop
             fwq-77      [001] d.h1.    10.000100: local_timer_entry: vector=236
             fwq-77      [001] d.h2.    10.000101: hrtimer_expire_entry: hrtimer=00 function=tick_nohz_handler now=1
             fwq-77      [001] d.h2.    10.000103: hrtimer_expire_exit: hrtimer=00
             fwq-77      [001] d.h1.    10.000104: local_timer_exit: vector=236
             fwq-77      [000] d.h1.    10.000104: irq_handler_entry: irq=9 name=other
             fwq-77      [001] ..s1.    10.000105: softirq_entry: vec=1 [action=TIMER]
             fwq-77      [001] ..s1.    10.000107: softirq_exit: vec=1 [action=TIMER]
             fwq-77      [001] d..2.    10.000200: sched_switch: prev_comm=fwq prev_pid=77 prev_prio=120 prev_state=R ==> next_comm=a [b] c next_pid=5 next_prio=120
          a [b] c-5      [001] d..2.    10.000300: sched_switch: prev_comm=a [b] c prev_pid=5 prev_prio=120 prev_state=S ==> next_comm=k next_pid=6 next_prio=120
                k-6      [001] d..2.    10.000350: sched_switch: prev_comm=k prev_pid=6 prev_prio=120 prev_state=S ==> next_comm=fwq next_pid=77 next_prio=120
garbage
";

    #[test]
    fn intervals_of_the_core_are_found_and_nothing_else() {
        let trace = parse(TRACE, 1, 77);
        assert_eq!(trace.unknown, 1);
        let seen: Vec<_> = trace
            .intervals
            .iter()
            .map(|i| {
                (
                    i.kind,
                    i.name.as_str(),
                    i.start_ns - 10_000_000_000,
                    i.end_ns - i.start_ns,
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                (Activity::Timer, "tick_nohz_handler", 101_000, 2_000),
                (Activity::Vector, "local_timer", 100_000, 4_000),
                (Activity::Softirq, "TIMER", 105_000, 2_000),
                (Activity::Thread, "a [b] c", 200_000, 100_000),
                (Activity::Thread, "k", 300_000, 50_000),
            ]
        );
    }

    #[test]
    fn damaged_lines_do_no_harm() {
        for end in 0..TRACE.len() {
            let _ = parse(&TRACE[..end], 1, 77);
            let _ = parse(&TRACE[end..], 1, 77);
        }
    }
}
