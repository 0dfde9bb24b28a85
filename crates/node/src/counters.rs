//! What the kernel counts, as text of `/proc`: read before and after a measurement, the
//! difference says how often something came, not which sample it hit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Sources that are kept.
const SOURCES_MAX: usize = 40;

/// Counts of one core by name: `interrupt LOC Local timer interrupts`, `softirq TIMER`.
pub type Counts = BTreeMap<String, u64>;

/// The counts of `core` in `/proc/interrupts` or `/proc/softirqs`, each name with `kind`
/// ahead. Without a column for the core: none.
pub fn table(text: &str, kind: &str, core: u32) -> Counts {
    let mut lines = text.lines();
    let head: Vec<&str> = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let wanted = format!("CPU{core}");
    let Some(column) = head.iter().position(|name| *name == wanted) else {
        return Counts::new();
    };
    let row = |line: &str| {
        let (name, rest) = line.trim().split_once(':')?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        let count = words.get(column)?.parse().ok()?;
        let told = words.get(head.len()..).unwrap_or_default().join(" ");
        Some((format!("{kind} {name} {told}").trim().to_owned(), count))
    };
    lines.filter_map(row).collect()
}

/// Time stolen from `core` by the hypervisor, in the clock ticks of `/proc/stat`.
pub fn steal_ticks(stat: &str, core: u32) -> Option<u64> {
    let name = format!("cpu{core}");
    let mut words = stat.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(&name)).then_some(words)
    })?;
    words.nth(7)?.parse().ok()
}

/// Time on the core and time spent waiting for it, ns, from a thread's `schedstat`.
pub fn schedstat(text: &str) -> Option<(u64, u64)> {
    let mut words = text.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// What was counted on a core and for the measuring thread while it measured.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Counted {
    /// Seconds between the two readings.
    pub seconds: f64,
    /// Names and how often each came, most frequent first.
    pub sources: Vec<(String, u64)>,
    /// How often another thread took the core.
    pub involuntary_switches: u64,
    /// How often the thread gave it up.
    pub voluntary_switches: u64,
    /// Page faults of the thread.
    pub page_faults: u64,
    /// Time in which the thread could run and did not, ns; null if the kernel does not say.
    pub waited_ns: Option<u64>,
    /// Time that the hypervisor took from the core, ns, in steps of a clock tick; null if the
    /// kernel does not say.
    pub stolen_ns: Option<u64>,
}

/// What was counted at one moment.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The moment, seconds.
    pub at_s: f64,
    /// Interrupts and softirqs of the core.
    pub counts: Counts,
    /// Switches of the thread: involuntary, voluntary.
    pub switches: (u64, u64),
    /// Page faults of the thread.
    pub faults: u64,
    /// Time that the thread waited, ns.
    pub waited_ns: Option<u64>,
    /// Time stolen from the core, ns.
    pub stolen_ns: Option<u64>,
}

/// The difference of two readings.
pub fn difference(before: &Reading, after: &Reading) -> Counted {
    let since = |a: Option<u64>, b: Option<u64>| Some(b?.saturating_sub(a?));
    let grown = after.counts.iter().filter_map(|(name, &count)| {
        let more = count.saturating_sub(before.counts.get(name).copied().unwrap_or(0));
        (more > 0).then(|| (name.clone(), more))
    });
    let mut sources: Vec<(String, u64)> = grown.collect();
    sources.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    sources.truncate(SOURCES_MAX);
    Counted {
        seconds: after.at_s - before.at_s,
        sources,
        involuntary_switches: after.switches.0.saturating_sub(before.switches.0),
        voluntary_switches: after.switches.1.saturating_sub(before.switches.1),
        page_faults: after.faults.saturating_sub(before.faults),
        waited_ns: since(before.waited_ns, after.waited_ns),
        stolen_ns: since(before.stolen_ns, after.stolen_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERRUPTS: &str = "           CPU0       CPU3\n 24:  1  7  IO-APIC  5-edge  virtio0\n\
                              LOC:  63  80  Local timer interrupts\nERR:  0\n";

    #[test]
    fn the_column_is_found_by_its_name_and_differences_are_sorted() {
        let before = Reading {
            counts: table(INTERRUPTS, "interrupt", 3),
            waited_ns: Some(5),
            ..Reading::default()
        };
        assert_eq!(before.counts["interrupt 24 IO-APIC 5-edge virtio0"], 7);
        assert_eq!(table(INTERRUPTS, "interrupt", 1), Counts::new());
        let later = INTERRUPTS.replace("80", "91").replace(" 7 ", " 9 ");
        let after = Reading {
            counts: table(&later, "interrupt", 3),
            switches: (4, 0),
            waited_ns: Some(12),
            ..Reading::default()
        };
        let counted = difference(&before, &after);
        assert_eq!(
            counted.sources,
            [
                ("interrupt LOC Local timer interrupts".to_owned(), 11),
                ("interrupt 24 IO-APIC 5-edge virtio0".to_owned(), 2)
            ]
        );
        assert_eq!(
            (counted.involuntary_switches, counted.waited_ns),
            (4, Some(7))
        );
        assert_eq!(counted.stolen_ns, None);
    }

    #[test]
    fn steal_and_waiting_are_read_where_they_stand() {
        let stat = "cpu  1 2 3 4 5 6 7 8 9 0\ncpu0 1 2 3 4 5 6 7 80 9 0\ncpu1 1 2\n";
        assert_eq!(steal_ticks(stat, 0), Some(80));
        assert_eq!((steal_ticks(stat, 1), steal_ticks(stat, 2)), (None, None));
        assert_eq!(schedstat("379142 17 1\n"), Some((379_142, 17)));
        assert_eq!(schedstat(""), None);
    }
}
