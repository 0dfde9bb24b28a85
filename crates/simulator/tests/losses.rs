//! All ways to lose up to four of ten nodes at once, at each protection, from a job whose nodes and
//! supervisor are those that run: what is restored afterwards, or refused, is what the mathematics
//! says of what was stable; the judge compares the bytes.
//!
//! `OUTLIVE_LOSSES=all` takes every way; else all of one node, and some of more.

use std::collections::BTreeSet;

use outlive_base::rng::Sequence;
use outlive_base::{Level, Levels, NodeId};
use outlive_control::node::Planted;
use outlive_ledger::scheme::{Group, Piece, groups};
use outlive_simulator::job::{AfterLoss, Key, Loss, lose};

const NODES: u32 = 10;
const LOST_MAX: usize = 4;
/// Of a container here: one rank's word.
const RANK_BYTES: u64 = 12;
/// Ways to lose two nodes or more that are tried at each protection.
const SAMPLE: u64 = 8;

type Lost = BTreeSet<u32>;

/// Each protection, alone and with others.
const PROTECTIONS: [&[&str]; 14] = [
    &["memory"],
    &["disk"],
    &["partner"],
    &["xor:3"],
    &["xor:5"],
    &["rs:2+2"],
    &["rs:3+2"],
    &["rs:4+3"],
    &["rs:6+4"],
    &["shared"],
    &["memory", "disk", "partner"],
    &["memory", "xor:4"],
    &["disk", "partner", "xor:5"],
    &["memory", "disk", "rs:3+2", "shared"],
];

/// Written down once more, and not asked of the code: whether the loss of these nodes leaves a
/// version whole that is kept at this level. What is in memory, the launcher takes along.
fn survives(level: Level, loss: &Loss) -> bool {
    let lost = &loss.lost;
    let of_groups = |members: u32, tolerated: usize| {
        let groups = NODES / members;
        let gone = |group| lost.iter().filter(|node| *node % groups == group).count();
        (0..groups).all(|group| gone(group) <= tolerated)
    };
    match level.name().split_once(':') {
        None if level == Level::MEMORY => lost.is_empty() && !loss.launcher,
        None if level == Level::DISK => lost.is_empty(),
        None if level == Level::PARTNER => lost
            .iter()
            .all(|node| !lost.contains(&((node + 1) % NODES))),
        None => true,
        Some(("xor", members)) => of_groups(members.parse().expect("a number"), 1),
        Some((_, numbers)) => {
            let (k, m) = numbers.split_once('+').expect("two numbers");
            let (k, m): (u32, u32) = (k.parse().expect("one"), m.parse().expect("two"));
            of_groups(k + m, m as usize)
        }
    }
}

/// How much a level survives in the worst case, the least first: what may take whose place.
fn strength(level: Level) -> u32 {
    match level.name().split_once(':') {
        None if level == Level::MEMORY => 0,
        None if level == Level::DISK => 1,
        None if level == Level::SHARED => 100,
        Some(("rs", numbers)) => {
            let (_, m) = numbers.split_once('+').expect("two numbers");
            1 + m.parse::<u32>().expect("a number")
        }
        _ => 2,
    }
}

/// The newest version that must be restored: stable at a level that survives the loss, and not
/// replaced by a newer one at a level that promises as much.
fn must(found: &AfterLoss, loss: &Loss) -> Option<Key> {
    let newer = |key: Key, level: Level| {
        let better = |(other, at): &&(Key, Level)| *other > key && strength(*at) >= strength(level);
        found.stable.iter().any(|it| better(&it))
    };
    let kept = found.stable.iter();
    // A level promises to survive so many nodes and writes down what was decided at one more. Where
    // more are lost and the bytes are left, by luck, the decision need not be.
    let kept = kept.filter(|it| found.recorded.contains(it));
    let kept = kept.filter(|(key, level)| survives(*level, loss) && !newer(*key, *level));
    kept.map(|(key, _)| *key).max()
}

/// A version may be restored if the records that are left say that it is committed at any level: of
/// its parts each by its own way, also by a copy of a level that was still on its way.
fn may(found: &AfterLoss, loss: &Loss, key: Key) -> bool {
    let by_one = |node: &u32| {
        let mut levels = loss.levels.iter();
        levels.any(|level| survives_of(level, loss, *node))
    };
    let in_memory = || loss.levels.iter().any(|level| survives(level, loss));
    let committed = found.recorded.iter().any(|(other, _)| *other == key);
    committed && (loss.lost.iter().all(by_one) || in_memory())
}

/// Whether the part of one lost node comes back, by the schemes' own statement: of containers as
/// short as these more comes back than is promised, for zeroes behind their ends are known.
fn survives_of(level: Level, loss: &Loss, node: u32) -> bool {
    if level == Level::PARTNER {
        return !loss.lost.contains(&((node + 1) % NODES));
    }
    let domains: Vec<u32> = (0..NODES).collect();
    let laid = groups(level, &domains).expect("nodes enough");
    let Some(members) = laid.iter().find(|group| group.contains(&NodeId(node))) else {
        return level == Level::SHARED;
    };
    let group = Group {
        level,
        members: members.clone(),
        lengths: vec![RANK_BYTES; members.len()],
    };
    let have = |piece: Piece| !loss.lost.contains(&piece.node().0);
    group.terms(Piece::Whole(NodeId(node)), have).is_some()
}

/// The numbers behind each "node " of a text.
fn nodes_named(text: &str) -> Lost {
    let words = text.split("node ").skip(1);
    let number = |word: &str| {
        let digits: String = word.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    words.filter_map(number).collect()
}

/// What is wrong with what came of a loss; `None`: nothing.
fn wrong(found: &AfterLoss, loss: &Loss) -> Option<String> {
    if let Some(first) = found.violations.first() {
        return Some(first.clone());
    }
    let must = must(found, loss);
    match (&found.refused, found.restored) {
        (Some(_), _) if must.is_some() => Some(format!("{must:?} was to be restored")),
        (Some(reason), _) => {
            // With the launcher all memory goes, that of other nodes too.
            let named = nodes_named(reason);
            let all = loss.launcher && loss.levels.contains(Level::MEMORY);
            let true_cause = !named.is_empty() && (all || named.is_subset(&loss.lost));
            (!true_cause).then(|| format!("not the cause: {reason}"))
        }
        (None, Some(key)) if must > Some(key) => Some(format!("{must:?} was to be restored")),
        (None, Some(key)) => (!may(found, loss, key)).then(|| format!("{key:?} by no mathematics")),
        (None, None) => Some("neither restored nor refused".to_owned()),
    }
}

fn judge(found: &AfterLoss, loss: &Loss, seed: u64) {
    let wrong = wrong(found, loss);
    assert!(
        wrong.is_none(),
        "{wrong:?}, seed {seed}: {loss:?}: {found:?}"
    );
    assert!(!found.stable.is_empty(), "{loss:?}: {found:?}");
}

/// Nodes that think that no group survives the loss of two members.
#[test]
fn planted_tolerance_of_one_lost_member_is_caught() {
    let first = outlive_base::seed!();
    let loss = |planted| Loss {
        nodes: NODES,
        levels: [Level::rs(3, 2).expect("of five")].into_iter().collect(),
        lost: [0, 2].into(),
        launcher: false,
        planted,
    };
    for seed in first..first + 5 {
        assert_eq!(wrong(&lose(seed, &loss(None)), &loss(None)), None, "{seed}");
        let planted = loss(Some(Planted::TolerateOneLost));
        assert!(wrong(&lose(seed, &planted), &planted).is_some(), "{seed}");
    }
}

fn subsets() -> Vec<Lost> {
    let sets = (0..1u32 << NODES).map(|bits| {
        let nodes = (0..NODES).filter(move |node| bits >> node & 1 == 1);
        nodes.collect::<Lost>()
    });
    sets.filter(|set| set.len() <= LOST_MAX).collect()
}

#[test]
fn what_the_mathematics_allows_is_restored_after_each_loss() {
    let first = outlive_base::seed!();
    let mut random = Sequence::new(first, 0);
    let all = std::env::var("OUTLIVE_LOSSES").is_ok_and(|it| it == "all");
    let mut losses = Vec::new();
    for names in PROTECTIONS {
        let parsed = names.iter().map(|name| name.parse::<Level>());
        let levels: Levels = parsed.map(|level| level.expect("a level")).collect();
        let mut ways = subsets();
        if !all {
            let large: Vec<Lost> = ways.extract_if(.., |set| set.len() > 1).collect();
            let some = |_| large[random.below(large.len() as u64) as usize].clone();
            ways.extend((0..SAMPLE).map(some));
        }
        losses.extend(ways.into_iter().map(|lost| Loss {
            nodes: NODES,
            levels,
            lost,
            launcher: random.chance(300_000),
            planted: None,
        }));
    }
    let threads = 2;
    let tried = std::thread::scope(|scope| {
        let losses = &losses;
        let one = move |thread: usize| {
            let mut refused = 0;
            for (nth, loss) in losses.iter().enumerate().skip(thread).step_by(threads) {
                let seed = first + nth as u64;
                let found = lose(seed, loss);
                judge(&found, loss, seed);
                refused += usize::from(found.refused.is_some());
            }
            refused
        };
        let running: Vec<_> = (0..threads)
            .map(|at| scope.spawn(move || one(at)))
            .collect();
        let refused = running.into_iter().map(|it| match it.join() {
            Ok(refused) => refused,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        refused.sum::<usize>()
    });
    println!("{} losses, {tried} refused", losses.len());
    assert!(
        tried * 20 > losses.len() && tried * 2 < losses.len(),
        "{tried}"
    );
}
