//! All ways to lose up to four of ten nodes, at each protection: what a rehearsal says before the
//! loss is what happens to the bytes after it, and both are what the mathematics says.
//!
//! `OUTLIVE_LOSSES=all` takes every way; else all of one and two nodes, and some of more.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "common/grouped.rs"]
mod grouped;

use std::collections::BTreeSet;
use std::path::Path;

use grouped::Job;
use outlive_base::rng::Sequence;
use outlive_base::{Level, NodeId};
use outlive_vault::{Catalogue, Rehearsal};

const NODES: u32 = 10;
const LOST_MAX: usize = 4;
const VERSION: u64 = 7;
/// Ways to lose three or four nodes that are tried for each protection.
const SAMPLE: u64 = 12;

type Lost = BTreeSet<u32>;

/// Each protection, alone and with others.
const PROTECTIONS: [&str; 14] = [
    "disk",
    "partner",
    "xor:3",
    "xor:4",
    "xor:5",
    "xor:10",
    "rs:2+2",
    "rs:3+2",
    "rs:4+3",
    "rs:6+4",
    "shared",
    "disk,partner,xor:4",
    "partner,rs:3+2",
    "disk,xor:5,rs:2+3,shared",
];

/// Written down once more, and not asked of the code: whether a node's bytes come back.
fn comes_back(level: &str, lost: &Lost, node: u32) -> bool {
    let is_lost = |node: u32| lost.contains(&(node % NODES));
    let of_group = |members: u32, tolerated: usize| {
        let groups = NODES / members;
        let gone = |other: &&u32| *other % groups == node % groups;
        lost.iter().filter(gone).count() <= tolerated
    };
    match level.split_once(':') {
        _ if !is_lost(node) && level != "shared" => true,
        None if level == "disk" => false,
        None if level == "partner" => !is_lost(node + 1),
        None => level == "shared",
        Some(("xor", members)) => of_group(members.parse().unwrap(), 1),
        Some((_, numbers)) => {
            let (k, m) = numbers.split_once('+').unwrap();
            let (k, m) = (k.parse::<u32>().unwrap(), m.parse::<u32>().unwrap());
            of_group(k + m, m as usize)
        }
    }
}

/// The nodes whose bytes are gone for good.
fn gone(levels: &[&str], lost: &Lost) -> Lost {
    let back = |node: &u32| levels.iter().any(|level| comes_back(level, lost, *node));
    (0..NODES).filter(|node| !back(node)).collect()
}

fn subsets(most: usize) -> Vec<Lost> {
    let sets = (0..1u32 << NODES).map(|bits| (0..NODES).filter(move |node| bits >> node & 1 == 1));
    let sets = sets.map(Iterator::collect::<Lost>);
    sets.filter(|set| set.len() <= most).collect()
}

/// What is tried: everything, or all that is small and some of the rest.
fn losses(random: &mut Sequence) -> Vec<Lost> {
    let mut all = subsets(LOST_MAX);
    assert_eq!(all.len(), 1 + 10 + 45 + 120 + 210);
    if std::env::var("OUTLIVE_LOSSES").is_ok_and(|it| it == "all") {
        return all;
    }
    let large: Vec<Lost> = all.extract_if(.., |set| set.len() > 1).collect();
    let some = |_| large[random.below(large.len() as u64) as usize].clone();
    all.extend((0..SAMPLE).map(some));
    all
}

/// Where syncs cost nothing, if there is such a place: each rehearsal makes ten.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

fn parse(levels: &[&str]) -> Vec<Level> {
    levels.iter().map(|level| level.parse().unwrap()).collect()
}

fn saved(levels: &[&str], uneven: bool) -> Job {
    let mut job = Job::new(NODES);
    job.uneven = uneven;
    job.save(VERSION, &parse(levels));
    job
}

fn rehearsed(catalogue: &Catalogue, lost: &Lost, scratch: &Path) -> Rehearsal {
    let lost = lost.iter().copied().map(NodeId).collect();
    catalogue.rehearse(&lost, scratch).unwrap()
}

/// A rehearsal that rebuilds has rebuilt what was captured; one that does not says what is missing.
fn judge_rehearsal(job: &Job, levels: &[&str], lost: &Lost, found: &Rehearsal) {
    let says = format!("{levels:?} without {lost:?}: {found:?}");
    assert!(found.damaged.is_empty(), "{says}");
    if found.rebuilt.is_some() {
        assert!(found.rejected.is_empty(), "{says}");
        assert_eq!(found.ranks.len() as u32, NODES, "{says}");
        for proof in &found.ranks {
            let captured = &job.captured[&(VERSION, proof.rank.0)][&proof.rank];
            assert_eq!(proof.digest, outlive_codec::digest(captured), "{says}");
        }
        return;
    }
    let [rejected] = &found.rejected[..] else {
        panic!("{says}");
    };
    let reason = &rejected.reason;
    let named = |node: &u32| reason.contains(&format!("no sound copy of node {node}:"));
    let gone = gone(levels, lost);
    assert!(gone.iter().any(named), "{says}");
    let first = *gone.iter().find(|node| named(node)).unwrap();
    for level in levels.iter().filter(|level| level.contains(':')) {
        let level: Level = level.parse().unwrap();
        let group = job.group(VERSION, level, first).unwrap();
        let lost_of = group.members.iter().filter(|it| lost.contains(&it.0));
        let lost_of: Vec<String> = lost_of.map(ToString::to_string).collect();
        let told = format!(
            "{} of the {} nodes of a group of {level} have lost what they stored ({}), and it \
             tolerates {}",
            lost_of.len(),
            group.members.len(),
            lost_of.join(", "),
            level.protection().m
        );
        assert!(reason.contains(&told), "{told}; {says}");
    }
}

/// Takes the nodes' stores away and brings everything back from what is left: the nodes that
/// could not be.
fn happens(job: &Job, lost: &Lost) -> Lost {
    let mut failed = Lost::new();
    for node in 0..NODES {
        match job.restore(VERSION, node) {
            Ok(restored) => {
                let captured = &job.captured[&(VERSION, node)];
                assert!(restored == *captured, "node {node} without {lost:?}");
            }
            Err(why) => {
                assert!(!why.is_empty());
                failed.insert(node);
            }
        }
    }
    failed
}

fn sweep(uneven: bool) {
    let mut random = Sequence::new(outlive_base::seed!(), 0);
    let scratch = scratch();
    let scratch = scratch.path().join("scratch");
    let (mut survived, mut refused) = (0, 0);
    for names in PROTECTIONS {
        let levels: Vec<&str> = names.split(',').collect();
        let kept = saved(&levels, uneven);
        let catalogue = kept.catalogue();
        for lost in losses(&mut random) {
            let expected = gone(&levels, &lost);
            let rehearsal = rehearsed(&catalogue, &lost, &scratch);
            let mut after = kept.clone();
            lost.iter().for_each(|node| after.lose(*node));
            let failed = happens(&after, &lost);
            let predicted = rehearsal.rebuilt.is_some();
            assert_eq!(predicted, failed.is_empty(), "{names} without {lost:?}");
            // Zeroes behind the ends of containers are known: more may come back than was promised,
            // and all of it only where some containers are much shorter.
            assert!(failed.is_subset(&expected), "{names} without {lost:?}");
            assert!(uneven || failed.is_empty() == expected.is_empty());
            if !uneven || predicted {
                judge_rehearsal(&kept, &levels, &lost, &rehearsal);
            }
            match predicted {
                true => survived += 1,
                false => refused += 1,
            }
        }
    }
    println!("{survived} losses were survived, {refused} refused");
    assert!(survived > 100 && refused > 50, "one side is hardly tried");
}

#[test]
fn what_is_rehearsed_is_what_happens_after_each_loss() {
    sweep(false);
}

#[test]
fn containers_of_all_lengths_come_back_as_well() {
    sweep(true);
}

/// Of several versions the newest that can be made is taken, each way of losing nodes by the
/// mathematics of its own protections; the newer ones are passed over with their reasons.
#[test]
fn of_several_versions_the_newest_that_survives_is_taken() {
    let mut random = Sequence::new(outlive_base::seed!(), 1);
    let scratch = scratch();
    let scratch = scratch.path().join("scratch");
    let versions: [(u64, &[&str]); 5] = [
        (10, &["shared"]),
        (20, &["rs:6+4"]),
        (30, &["disk", "rs:3+2"]),
        (40, &["partner"]),
        (50, &["disk", "xor:5"]),
    ];
    let mut job = Job::new(NODES);
    for (version, levels) in versions {
        job.save(version, &parse(levels));
    }
    let (catalogue, mut taken) = (job.catalogue(), BTreeSet::new());
    for lost in losses(&mut random) {
        let able = |(_, levels): &&(u64, &[&str])| gone(levels, &lost).is_empty();
        let expected = versions.iter().rev().find(able).unwrap().0;
        let newer = versions.iter().filter(|(version, _)| *version > expected);
        let found = rehearsed(&catalogue, &lost, &scratch);
        let says = format!("without {lost:?}: {found:?}");
        assert_eq!(found.rebuilt.unwrap().1.0, expected, "{says}");
        let passed: Vec<u64> = found.rejected.iter().map(|it| it.version.0).collect();
        let newer: Vec<u64> = newer.rev().map(|(version, _)| *version).collect();
        assert_eq!(passed, newer, "{says}");
        for proof in &found.ranks {
            let captured = &job.captured[&(expected, proof.rank.0)][&proof.rank];
            assert_eq!(proof.digest, outlive_codec::digest(captured), "{says}");
        }
        taken.insert(expected);
    }
    assert!(taken.len() >= 3, "only {taken:?} were ever taken");
}

/// Once the nodes that took the place of the lost ones have been given what they have to keep,
/// the next loss is survived as the first was.
#[test]
fn what_was_protected_again_survives_the_next_loss() {
    let mut random = Sequence::new(outlive_base::seed!(), 2);
    for names in PROTECTIONS {
        let levels: Vec<&str> = names.split(',').collect();
        let mut job = saved(&levels, true);
        for _ in 0..4 {
            let all = subsets(LOST_MAX);
            let lost = all[random.below(all.len() as u64) as usize].clone();
            if !gone(&levels, &lost).is_empty() {
                continue;
            }
            lost.iter().for_each(|node| job.lose(*node));
            assert!(happens(&job, &lost).is_empty(), "{names} without {lost:?}");
            job.protect_again(VERSION, &lost);
        }
        let whole = job.catalogue().verify(true);
        let bad: Vec<_> = whole.iter().filter(|it| it.error.is_some()).collect();
        assert!(bad.is_empty(), "{names}: {bad:?}");
    }
}
