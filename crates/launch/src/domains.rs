//! The failure domains of a run whose owner names none, by what the source of its machines
//! knows: nodes under one leaf switch may fail together.
//!
//! Invariants: what the owner says is never changed; whatever is not known or not of use leaves
//! each node a domain of its own, and the job runs.

use std::collections::BTreeMap;

use outlive_base::level::Survives;
use outlive_base::{Error, Level};
use outlive_control::supervisor::Settings;
use outlive_vault::groups;

use crate::nodes::Nodes;
use crate::run::Run;
use crate::timeline::Timeline;

/// Most copies of others that a node is to keep because of switches that nobody asked for.
const COPIES_MAX: usize = 2;

/// What came of it.
#[derive(PartialEq, Eq, Debug)]
enum Found {
    /// Nothing is known of nodes that share a domain.
    Nothing,
    /// The domain of each node, and how many there are with more than one node.
    Domains(Vec<u32>, usize),
    /// Known, and not of use: why.
    Useless(String),
}

/// Asks the source of the machines, unless the owner has said it, or there is nothing to tell
/// apart; an error that the owner should see.
pub(crate) fn ask(run: &mut Run) -> Option<Error> {
    let set = &run.settings;
    let machines = run.hosts.as_mut()?;
    if !set.domains.is_empty() || set.nodes == 1 {
        return None;
    }
    machines.source.find_domains().err()
}

/// Decides on the domains of the run, when it is known which node lives where.
pub(crate) fn settle(set: &mut Settings, nodes: &mut dyn Nodes, timeline: &Timeline) {
    if !set.domains.is_empty() {
        return;
    }
    let levels: Vec<Level> = set.levels.iter().map(|setting| setting.level).collect();
    match find(&nodes.domains(), &levels) {
        Found::Nothing => {}
        Found::Domains(domains, shared) => {
            timeline.note(&format!(
                "failure domains: switches with several of the {} nodes: {shared}",
                set.nodes
            ));
            set.domains = domains;
        }
        Found::Useless(why) => {
            timeline.say(&why);
            nodes.forget_domains();
        }
    }
}

fn find(names: &[Option<String>], levels: &[Level]) -> Found {
    let mut known: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (node, name) in (0..).zip(names) {
        if let Some(name) = name {
            known.entry(name).or_default().push(node);
        }
    }
    known.retain(|_, members| members.len() > 1);
    let Some((largest, members)) = known.iter().max_by_key(|(_, members)| members.len()) else {
        return Found::Nothing;
    };
    // A domain has the number of its first node: no other can have that.
    let mut domains: Vec<u32> = (0..).zip(names).map(|(node, _)| node).collect();
    for members in known.values() {
        for node in members {
            domains[*node as usize] = members[0];
        }
    }
    let alone = "each node counts as a failure domain of its own";
    let (inside, outside) = (members.len(), names.len() - members.len());
    if outside == 0 {
        // Levels that need no second node lose nothing by that.
        return match levels
            .iter()
            .any(|level| level.survives() == Survives::Domain)
        {
            false => Found::Nothing,
            true => Found::Useless(format!(
                "all {inside} nodes are under one switch, {largest}: no copy can be kept \
                 elsewhere, so {alone}, and only the level shared survives the loss of the switch"
            )),
        };
    }
    let copied = levels.iter().any(|level| level.has_partner());
    if copied && inside > COPIES_MAX * outside {
        return Found::Useless(format!(
            "{inside} of {} nodes are under switch {largest}: too few are elsewhere to keep \
             their copies, so {alone} (--domains names others)",
            names.len()
        ));
    }
    let refused = levels
        .iter()
        .find_map(|level| groups(*level, &domains).err());
    match refused {
        Some(error) => Found::Useless(format!(
            "the nodes' switches do not suit the levels ({}), so {alone}",
            error.reason()
        )),
        None => Found::Domains(domains, known.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &str, levels: &[Level]) -> Found {
        let name = |name: &str| (name != "-").then(|| name.to_owned());
        find(&names.split(' ').map(name).collect::<Vec<_>>(), levels)
    }

    const USUAL: [Level; 3] = [Level::MEMORY, Level::DISK, Level::PARTNER];

    #[test]
    fn nodes_under_one_switch_are_one_domain_and_others_their_own() {
        let domains = |names: &str| match found(names, &USUAL) {
            Found::Domains(domains, shared) => (domains, shared),
            other => panic!("{names}: {other:?}"),
        };
        assert_eq!(domains("a a b b"), (vec![0, 0, 2, 2], 2));
        assert_eq!(domains("a b a - b -"), (vec![0, 1, 0, 3, 1, 5], 2));
        assert_eq!(domains("a a b"), (vec![0, 0, 2], 1));
        // Nothing to tell apart: emulated nodes, no topology, one of each.
        assert_eq!(find(&[], &USUAL), Found::Nothing);
        assert_eq!(found("- - -", &USUAL), Found::Nothing);
        assert_eq!(found("a b -", &USUAL), Found::Nothing);
    }

    #[test]
    fn switches_that_leave_no_room_elsewhere_are_told_of_and_not_used() {
        let why = |names: &str, levels: &[Level]| match found(names, levels) {
            Found::Useless(why) => why,
            other => panic!("{names}: {other:?}"),
        };
        let one = why("s1 s1 s1", &USUAL);
        assert!(
            one.starts_with("all 3 nodes are under one switch, s1: no copy"),
            "{one}"
        );
        let crowded = why("s1 s1 s1 s2", &USUAL);
        assert!(
            crowded.starts_with("3 of 4 nodes are under switch s1"),
            "{crowded}"
        );
        let xor = Level::xor(4).unwrap();
        let groups = why("a a b b", &[Level::DISK, xor]);
        assert!(groups.contains("a failure domain has 2 nodes"), "{groups}");
        let one = why("a a a a", &[Level::DISK, xor]);
        assert!(one.contains("one switch, a"), "{one}");
        // Nobody counts on another node.
        let local = [Level::MEMORY, Level::DISK, Level::SHARED];
        assert_eq!(found("a a a", &local), Found::Nothing);
        assert!(matches!(found("a a a b", &local), Found::Domains(_, 1)));
    }
}
