//! Where the ranks of a job that stands still are, in words: those at one place together, the
//! few before the many, for who is alone is often who the others wait for.

use std::collections::BTreeMap;
use std::fmt::Write;

use outlive_base::{NodeId, Rank, count};
use serde::{Deserialize, Serialize};

use crate::orders::{Place, RankStacks, Stacks};

/// Bytes of the words for a place that travel.
const WORDS_BYTES: usize = 160;
/// Bytes that a rank takes in a message beside its words.
const RANK_BYTES: usize = 32;
/// Places that a line names.
const PLACES_SHOWN: usize = 4;
/// Runs of ranks that a line names for each.
const RUNS_SHOWN: usize = 6;

/// Ranks that are at the same place.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Group {
    /// Which, for example `0-2,5`.
    pub ranks: String,
    /// How many.
    pub count: u32,
    /// What they do, and in which function.
    pub does: String,
    /// Its file; empty if it is not known.
    pub file: String,
    /// The line of the first of them; 0 if it is not known.
    pub line: u32,
}

impl core::fmt::Display for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write_place(f, &self.does, &self.file, self.line)
    }
}

fn write_place(to: &mut impl Write, does: &str, file: &str, line: u32) -> core::fmt::Result {
    to.write_str(does)?;
    match (file, line) {
        ("", _) => Ok(()),
        (file, 0) => write!(to, " ({file})"),
        (file, line) => write!(to, " ({file}:{line})"),
    }
}

/// What was found of `ranks` ranks in at most `bytes_max` bytes: long texts are cut, each saying
/// by how much, and ranks for which there is no room at all are counted.
pub fn fit(mut found: Vec<RankStacks>, ranks: usize, bytes_max: usize) -> Stacks {
    for one in &mut found {
        cut(&mut one.place.does, WORDS_BYTES);
        cut(&mut one.place.file, WORDS_BYTES);
    }
    let words = |one: &RankStacks| RANK_BYTES + one.place.does.len() + one.place.file.len();
    let mut left = bytes_max;
    let fits = found.iter().take_while(|one| {
        let rest = left.checked_sub(words(one));
        left = rest.unwrap_or(left);
        rest.is_some()
    });
    let kept = fits.count();
    found.truncate(kept);
    let lengths = found.iter().map(|one| one.text.len()).collect();
    let most = water_level(lengths, left);
    for one in &mut found {
        let before = one.text.len();
        if before > most {
            // As long as it is said for the longest.
            let said = "\n  cut here: 0000000000 bytes more\n".len();
            cut(&mut one.text, most.saturating_sub(said));
            let more = before - one.text.len();
            if most > said {
                let _ = write!(one.text, "\n  cut here: {more} bytes more\n");
            }
        }
    }
    Stacks {
        left_out: ranks.saturating_sub(found.len()) as u32,
        ranks: found,
    }
}

/// The length to which texts are cut, so that they have `room` together.
fn water_level(mut lengths: Vec<usize>, mut room: usize) -> usize {
    lengths.sort_unstable();
    let number = lengths.len();
    for (at, length) in lengths.into_iter().enumerate() {
        let share = room / (number - at);
        if length > share {
            return share;
        }
        room -= length;
    }
    usize::MAX
}

fn cut(text: &mut String, most: usize) {
    text.truncate(text.floor_char_boundary(most));
}

/// Ranks by place: the few before the many, then by number.
pub fn groups(nodes: &BTreeMap<NodeId, Stacks>) -> Vec<Group> {
    let mut ranks: Vec<&RankStacks> = nodes.values().flat_map(|it| &it.ranks).collect();
    ranks.sort_by_key(|one| one.rank);
    let mut places: BTreeMap<(&str, &str), Vec<&RankStacks>> = BTreeMap::new();
    for one in ranks {
        let place = (&*one.place.does, &*one.place.file);
        places.entry(place).or_default().push(one);
    }
    let mut groups: Vec<Vec<&RankStacks>> = places.into_values().collect();
    groups.sort_by_key(|group| (group.len(), group[0].rank));
    let named = groups.into_iter().map(|group| {
        let first = &group[0].place;
        Group {
            ranks: runs(group.iter().map(|one| one.rank), usize::MAX),
            count: group.len() as u32,
            does: first.does.clone(),
            file: first.file.clone(),
            line: first.line,
        }
    });
    named.collect()
}

/// Ascending numbers as people write them: `0-2,5`. After so many runs: how many more.
fn runs(ranks: impl Iterator<Item = Rank>, most: usize) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank.0 => *last = rank.0,
            Some((_, last)) if *last == rank.0 => {}
            _ => runs.push((rank.0, rank.0)),
        }
    }
    let mut words: Vec<String> = runs
        .iter()
        .take(most)
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    let more: u32 = runs.iter().skip(most).map(|(a, b)| b - a + 1).sum();
    if more > 0 {
        words.push(format!("and {more} more"));
    }
    words.join(",")
}

impl core::fmt::Display for Group {
    /// As in a line: `rank 3 running in solve (heat.c:88)`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(if self.count == 1 { "rank " } else { "ranks " })?;
        let mut words = self.ranks.split(',');
        let shown: Vec<&str> = words.by_ref().take(RUNS_SHOWN).collect();
        f.write_str(&shown.join(", "))?;
        match words.count() {
            0 => f.write_str(" ")?,
            _ => write!(f, ", ... ({}) ", count(self.count, "rank"))?,
        }
        write_place(f, &self.does, &self.file, self.line)
    }
}

/// Places in a line, some of them if there are many.
pub fn line(groups: &[Group]) -> String {
    let shown = groups.iter().take(PLACES_SHOWN).map(ToString::to_string);
    let mut words: Vec<String> = shown.collect();
    let rest = &groups[words.len()..];
    if !rest.is_empty() {
        let ranks: u32 = rest.iter().map(|group| group.count).sum();
        let places = count(rest.len() as u64, "other place");
        words.push(format!("{} at {places}", count(ranks, "rank")));
    }
    words.join("; ")
}

/// What is written of a standstill: `head`, the places, then each rank's stacks.
pub fn text(
    head: &str,
    groups: &[Group],
    nodes: &BTreeMap<NodeId, Stacks>,
    silent: &[NodeId],
) -> String {
    let mut text = format!("{head}\n\n");
    for group in groups {
        let _ = writeln!(text, "  {group}");
    }
    for node in silent {
        let _ = writeln!(text, "  {node} has not said where its ranks are");
    }
    for (node, stacks) in nodes.iter().filter(|(_, it)| it.left_out > 0) {
        let more = count(stacks.left_out, "rank");
        let _ = writeln!(text, "  {node} has {more} more, not looked at");
    }
    for (node, stacks) in nodes {
        for one in &stacks.ranks {
            let _ = write!(text, "\n{} on {node}: {}", one.rank, one.text);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rank: u32, does: &str, line: u32) -> RankStacks {
        RankStacks {
            rank: Rank(rank),
            place: Place {
                does: does.to_owned(),
                file: "heat.c".to_owned(),
                line,
            },
            text: format!("process {rank}\n"),
        }
    }

    fn node(ranks: Vec<RankStacks>) -> Stacks {
        Stacks { ranks, left_out: 0 }
    }

    #[test]
    fn the_one_that_the_others_wait_for_comes_first() {
        let waits = "waiting in MPI_Recv, called by exchange";
        let all = (0..8).map(|rank| match rank {
            3 => at(3, "running in solve", 88),
            // Who runs is seen at one line or another.
            _ => at(rank, waits, 120 + rank),
        });
        let (low, high): (Vec<_>, Vec<_>) = all.partition(|one| one.rank.0 < 4);
        let nodes = BTreeMap::from([(NodeId(1), node(high)), (NodeId(0), node(low))]);
        let groups = groups(&nodes);
        assert_eq!(
            line(&groups),
            "rank 3 running in solve (heat.c:88); \
             ranks 0-2, 4-7 waiting in MPI_Recv, called by exchange (heat.c:120)"
        );
        let text = text("No progress.", &groups, &nodes, &[NodeId(2)]);
        assert!(
            text.starts_with("No progress.\n\n  rank 3 running"),
            "{text}"
        );
        assert!(text.contains("node 2 has not said"), "{text}");
        assert!(text.ends_with("rank 7 on node 1: process 7\n"), "{text}");
    }

    #[test]
    fn many_places_and_many_runs_are_counted() {
        let each = |rank| at(rank, &format!("running in f{rank}"), 1);
        let nodes = BTreeMap::from([(NodeId(0), node((0..10).map(each).collect()))]);
        let said = line(&groups(&nodes));
        assert!(said.ends_with("; 6 ranks at 6 other places"), "{said}");
        let even = (0..40).map(|rank| at(2 * rank, "running in f", 1));
        let nodes = BTreeMap::from([(NodeId(0), node(even.collect()))]);
        let said = line(&groups(&nodes));
        assert_eq!(
            said,
            "ranks 0, 2, 4, 6, 8, 10, ... (40 ranks) running in f (heat.c:1)"
        );
    }

    #[test]
    fn what_is_found_fits_and_says_what_is_cut() {
        let mut found: Vec<RankStacks> = (0..4).map(|rank| at(rank, "x", 1)).collect();
        found[2].text = "ä".repeat(5_000);
        found[3].place.does = "y".repeat(100_000);
        let fitted = fit(found.clone(), 4, 2_000);
        let bytes: usize = fitted.ranks.iter().map(|one| one.text.len()).sum();
        assert!(bytes <= 2_000 && bytes > 1_000, "{bytes}");
        assert_eq!(
            fitted.ranks[0].text, "process 0\n",
            "the short ones are whole"
        );
        assert!(fitted.ranks[2].text.contains("cut here: "), "{fitted:?}");
        assert_eq!(fitted.ranks[3].place.does.len(), WORDS_BYTES);
        assert_eq!(fitted.left_out, 0);
        // Without room for all of them, the rest is counted.
        let none = fit(found.clone(), 6, 100);
        assert_eq!((none.ranks.len(), none.left_out), (2, 4));
        assert_eq!(fit(found, 4, 0).left_out, 4);
        assert_eq!(fit(Vec::new(), 0, 0), Stacks::default());
    }
}
