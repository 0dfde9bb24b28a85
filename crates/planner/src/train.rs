//! A machine whose failures are those of a record.
//!
//! What a record says of each kind of stop replaces what the machine said: single nodes that
//! were lost, single nodes with light faults, and several nodes at once. The last become one
//! group of all nodes that is hit by bursts: racks are not in a record, only what fell
//! together.

use crate::machine::{Group, Life, Machine, Members};

/// A stop: one failure, or several that came together.
#[derive(Clone, PartialEq, Debug)]
pub struct Stop {
    /// Seconds since the beginning of the record.
    pub at: f64,
    /// Nodes that were lost, ascending; none: a light fault.
    pub lost: Vec<u32>,
    /// How many nodes were hit, lost or not.
    pub hit: u32,
}

/// Failures (seconds, ascending; node; whether it was lost) that begin within `together`
/// seconds of the first of them are one stop.
pub fn stops(failures: impl IntoIterator<Item = (f64, u32, bool)>, together: f64) -> Vec<Stop> {
    let mut found: Vec<Stop> = Vec::new();
    for (at, node, fatal) in failures {
        let merge = found.last().is_some_and(|last| at - last.at <= together);
        if !merge {
            found.push(Stop {
                at,
                lost: Vec::new(),
                hit: 0,
            });
        }
        if let Some(last) = found.last_mut() {
            last.hit += 1;
            if let Err(place) = last.lost.binary_search(&node)
                && fatal
            {
                last.lost.insert(place, node);
            }
        }
    }
    found
}

/// The machine, failing as in these stops of so many seconds. Lives are exponential. A kind
/// of failure that the record lacks is not in the machine either; servers stay as they were.
pub fn trained(machine: &Machine, stops: &[Stop], seconds: f64) -> Machine {
    let mut trained = machine.clone();
    let light = stops.iter().filter(|stop| stop.lost.is_empty()).count();
    let single = stops.iter().filter(|stop| stop.lost.len() == 1).count();
    let several: Vec<&Stop> = stops.iter().filter(|stop| stop.lost.len() > 1).collect();
    let nodes = f64::from(machine.nodes.count);
    let life =
        |count: usize, of: f64| (count > 0).then(|| Life::exponential(of * seconds / count as f64));
    trained.nodes.light = life(light, nodes);
    trained.nodes.fatal = life(single, nodes);
    trained.groups.clear();
    if let Some(life) = life(several.len(), 1.0) {
        let lost: usize = several.iter().map(|stop| stop.lost.len()).sum();
        trained.groups.push(Group {
            name: "burst".into(),
            life,
            hits: (lost as f64 / several.len() as f64 / nodes).min(1.0),
            members: Members::These((0..machine.nodes.count).collect()),
        });
    }
    trained
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_together_is_one_stop() {
        let record = [
            (0.0, 3, true),
            (100.0, 4, false),
            (130.0, 7, true),
            (150.0, 2, true),
            (165.0, 1, true),
        ];
        let found = stops(record, 60.0);
        let lost: Vec<&[u32]> = found.iter().map(|stop| &stop.lost[..]).collect();
        assert_eq!(lost, [&[3][..], &[2, 7], &[1]]);
        assert_eq!((found[1].hit, found[1].at), (3, 100.0));
    }

    #[test]
    fn rates_are_those_of_the_record() {
        let text = "[nodes]\ncount = 10\nmtbf = \"1 h\"\n[[groups]]\nname = \"rack\"\nsize = 5\nmtbf = \"1 h\"\n\
            [[levels]]\nkind = \"partner\"\ncost = \"1 s\"\nrestart = \"1 s\"";
        let machine = crate::machine::machine(text, "m").expect("good");
        let record = [
            (0.0, 1, true),
            (10.0, 2, true),
            (20.0, 3, false),
            (30.0, 0, true),
            (30.0, 5, true),
        ];
        let found = trained(&machine, &stops(record, 0.0), 1_000.0);
        assert_eq!(found.nodes.fatal.map(|life| life.mtbf), Some(5_000.0));
        assert_eq!(found.nodes.light.map(|life| life.mtbf), Some(10_000.0));
        assert_eq!(found.groups.len(), 1);
        assert_eq!(
            (found.groups[0].life.mtbf, found.groups[0].hits),
            (1_000.0, 0.2)
        );
    }
}
