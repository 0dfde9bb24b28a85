use outlive_base::{ContainerId, Rank};

use super::*;

const AT: Key = (Incarnation(1), Version(7), Level::PARTNER);

fn part(node: u32) -> Part {
    let (incarnation, version, _) = AT;
    let node = NodeId(node);
    Part {
        node,
        id: ContainerId {
            incarnation,
            version,
            node,
        },
        length: 4096,
        digest: 1,
        holder: node,
        ranks: vec![Rank(node.0)].into(),
        parity: None,
    }
}

fn commit_of(parts: Vec<Part>) -> Record {
    let (incarnation, version, level) = AT;
    Record::Commit {
        incarnation,
        version,
        level,
        ballot: 1,
        ranks: 3,
        parts: parts.into(),
        groups: Vec::new(),
    }
}

fn of_three() -> Contents {
    let mut contents = Contents::default();
    contents.set_job((0..3).map(NodeId).collect(), 3);
    contents
}

fn recorded(contents: &Contents) -> Option<usize> {
    let (source, version, level) = AT;
    match contents.commit(source, version, level, 1)? {
        Record::Commit { parts, .. } => Some(parts.len()),
        _ => None,
    }
}

#[test]
fn a_decision_is_not_recorded_before_all_its_parts_are_known() {
    let mut contents = of_three();
    let (source, version, level) = AT;
    contents.add_part(source, version, level, part(1));
    assert_eq!(recorded(&contents), None, "its own part alone");
    contents.learn(&commit_of(vec![part(1)]));
    assert_eq!(recorded(&contents), None, "and such a record is no help");
    contents.learn(&commit_of((0..3).map(part).collect()));
    assert_eq!(recorded(&contents), Some(3));
}

#[test]
fn what_a_peer_has_is_left_out_and_what_changes_is_encoded_anew() {
    let mut contents = of_three();
    contents.learn(&commit_of((0..3).map(part).collect()));
    let (source, version, level) = AT;
    let kind = MsgKind::Rebuild {
        source,
        version,
        level,
    };
    let by = (Incarnation(2), Ballot::default());
    let attached = |contents: &mut Contents, known: Option<&BTreeSet<Key>>| {
        let (records, left_out) = contents.attachments(&kind, (NodeId(0), known), by, 7);
        let read = |bytes: &Arc<[u8]>| match Record::decode(bytes, 7) {
            Ok(Record::Commit { parts, .. }) => parts[1].digest,
            other => panic!("{other:?}"),
        };
        (records.iter().map(read).collect::<Vec<u128>>(), left_out)
    };
    assert_eq!(attached(&mut contents, None), (vec![1], vec![]));
    let known = BTreeSet::from([AT]);
    assert_eq!(attached(&mut contents, Some(&known)), (vec![], vec![AT]));
    let mut parts: Vec<Part> = (0..3).map(part).collect();
    parts[1].digest = 2;
    contents.learn(&commit_of(parts));
    assert_eq!(attached(&mut contents, None), (vec![2], vec![]));
    assert_eq!(contents.whole(8), [AT]);
    contents.forget(source, version);
    assert_eq!(attached(&mut contents, None), (vec![], vec![]));
}

#[test]
fn the_newest_word_on_a_part_counts_whoever_says_it() {
    let mut contents = of_three();
    let (source, version, level) = AT;
    contents.learn(&commit_of((0..3).map(part).collect()));
    let mut newer = part(1);
    newer.digest = 9;
    contents.add_part(source, version, level, newer);
    let digest = |contents: &Contents| {
        let part = contents.part(source, version, level, NodeId(1));
        part.map(|part| part.digest)
    };
    assert_eq!(digest(&contents), Some(9));
    contents.learn(&commit_of(vec![part(1)]));
    assert_eq!(digest(&contents), Some(1), "said after that");
    // A level that ended without a decision: its parts are known still.
    contents.undecided(source, version, level);
    assert_eq!(digest(&contents), Some(1));
    assert!(contents.levels_of(source, version).is_empty());
}

/// An agent that is started anew and writes the rest of a version holds it against this.
#[test]
fn bytes_that_are_known_are_those_that_were_decided_at_whatever_level() {
    let mut contents = of_three();
    let (source, version, level) = AT;
    let digest = |contents: &Contents| {
        let part = contents.known_part(source, version, NodeId(1));
        part.map(|part| part.digest)
    };
    assert_eq!(digest(&contents), None);
    let mut newer = part(1);
    newer.digest = 9;
    contents.add_part(source, version, Level::MEMORY, newer.clone());
    assert_eq!(digest(&contents), Some(9), "said, and not decided");
    contents.learn(&commit_of((0..3).map(part).collect()));
    contents.add_part(source, version, level, newer);
    assert_eq!(digest(&contents), Some(1));
}

#[test]
fn a_record_that_lacks_parts_takes_none_away() {
    let mut contents = of_three();
    contents.learn(&commit_of((0..3).map(part).collect()));
    contents.learn(&commit_of(vec![part(1)]));
    assert_eq!(recorded(&contents), Some(3));
}

#[test]
fn a_node_without_ranks_has_its_nothing_though_it_missed_the_decision() {
    let mut contents = of_three();
    let (incarnation, version, level) = AT;
    let mut part = part(1);
    part.ranks = Vec::new().into();
    contents.learn(&Record::Prepared {
        incarnation,
        version,
        level,
        ballot: 1,
        part,
    });
    let at = (incarnation, version);
    assert_eq!(contents.empty_parts(NodeId(1)), BTreeSet::from([at]));
    assert_eq!(contents.empty_parts(NodeId(0)), BTreeSet::new());
}

/// Each version is protected in the groups of its turn, which its record names: another layout of the next
/// run changes nothing of it.
#[test]
fn groups_take_turns_and_what_is_recorded_counts() {
    use crate::node::still::one_of;

    let xor = Level::xor(3).unwrap();
    let (me, source) = (NodeId(4), Incarnation(1));
    let mut node = one_of(12, me.0, xor);
    let usual = node.core.group_at(xor, Version(1)).unwrap();
    let mut config = node.core.config().unwrap().clone();
    config.group_turns = 8;
    node.core.configure_alone(config.clone());
    let mut laid = BTreeSet::new();
    for version in 0..40 {
        let group = node.core.group_at(xor, Version(version)).unwrap();
        assert!(group.contains(&me) && group.len() == usual.len());
        laid.insert(group);
    }
    assert!(laid.len() > 3, "{laid:?}");

    // One that is not in the turn of the usual layout.
    let usual = Some(&usual);
    let turned = |it: &Version| node.core.group_at(xor, *it).ok().as_ref() != usual;
    let version = (0..40).map(Version).find(turned).unwrap();
    let mut contents = Contents::default();
    contents.set_job((0..12).map(NodeId).collect(), 12);
    contents.set_groups(xor, node.core.laid(xor).unwrap());
    for owner in 0..12 {
        contents.add_part(source, version, xor, part(owner));
    }
    let groups = |contents: &Contents| match contents.commit(source, version, xor, 1) {
        Some(Record::Commit { groups, .. }) => groups,
        other => panic!("{other:?}"),
    };
    let recorded = groups(&contents);
    let own = recorded.iter().find(|group| group.contains(&me));
    assert_eq!(own, node.core.group_at(xor, version).ok().as_ref());
    let record = contents.commit(source, version, xor, 1).unwrap();
    contents.learn(&record);
    config.group_turns = 1;
    node.core.configure_alone(config);
    contents.set_groups(xor, node.core.laid(xor).unwrap());
    assert_eq!(groups(&contents), recorded);
    assert_ne!(contents.groups_for(xor, version), Some(&recorded));
    let (group, _) = contents.group(source, version, xor, me).unwrap();
    assert_eq!(Some(&group.members), own);
}
