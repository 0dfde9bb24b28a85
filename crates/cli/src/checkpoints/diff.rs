//! `outlive checkpoints diff`: what changed from one version to another.

use outlive_base::{Code, Entity, Error, Incarnation, Rank, Result, Version, count};
use outlive_control::units::show_bytes;
use outlive_launch::versions;
use outlive_vault::{BLOCK, Diff, Entry, RegionDiff};
use serde::Serialize;

use crate::options::JobChoice;
use crate::{checkpoints, output};

/// Options of `outlive checkpoints diff`.
#[derive(clap::Args, Debug)]
pub struct DiffOptions {
    /// The older version
    older: u64,
    /// The newer version [default: the newest]
    newer: Option<u64>,
    /// Compare this rank only [default: all]
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
    #[command(flatten)]
    choice: JobChoice,
}

#[derive(Serialize)]
struct Side {
    version: Version,
    incarnation: Incarnation,
    ranks: u32,
}

#[derive(Serialize)]
struct Body<'a> {
    older: Side,
    newer: Side,
    block_bytes: usize,
    complete: bool,
    #[serde(flatten)]
    diff: &'a Diff,
}

/// Runs the subcommand.
///
/// # Errors
/// [`Code::NotFound`] if a version is not stored; [`Code::RankUnknown`]; those of finding the job.
pub fn run(options: &DiffOptions) -> Result<u8> {
    let (job, catalogue) = checkpoints::open(&options.choice)?;
    let older = stored(versions::find(&catalogue, Version(options.older))?)?;
    let newer = match options.newer {
        Some(version) => versions::find(&catalogue, Version(version))?,
        None => catalogue
            .newest(false)
            .ok_or_else(|| versions::no_record(Version(options.older)))?,
    };
    let newer = stored(newer)?;
    if let Some(rank) = options.rank {
        let known = |entry: &Entry| {
            entry
                .parts
                .iter()
                .any(|it| it.part.ranks.contains(Rank(rank)))
        };
        if !known(older) && !known(newer) {
            return Err(Error::new(
                Code::RankUnknown,
                Entity::Rank(rank),
                "neither version has it",
                "outlive checkpoints list says how many ranks a version has",
            ));
        }
    }
    let diff = catalogue.diff(older, newer, options.rank.map(Rank));
    for error in &diff.damaged {
        output::error(error);
    }
    let status = match diff.is_complete() {
        true => 0,
        false => Code::Corrupt.exit_status(),
    };
    if options.choice.json {
        let body = Body {
            older: side(older),
            newer: side(newer),
            block_bytes: BLOCK,
            complete: diff.is_complete(),
            diff: &diff,
        };
        checkpoints::answer(&job, "diff", body)?;
    } else {
        output::text(&describe(older, newer, &diff))?;
    }
    Ok(status)
}

fn side(entry: &Entry) -> Side {
    Side {
        version: entry.version,
        incarnation: entry.incarnation,
        ranks: entry.ranks,
    }
}

/// The version, if it is stored.
///
/// # Errors
/// [`Code::NotFound`].
pub(super) fn stored(entry: &Entry) -> Result<&Entry> {
    if entry.is_stored() {
        return Ok(entry);
    }
    let reason = match entry.committed().is_some() {
        true => "no copy of it is left, or it lies in memory alone",
        false => "it is not committed",
    };
    Err(Error::new(
        Code::NotFound,
        Entity::Version(entry.version.0),
        reason,
        "outlive checkpoints list shows what is stored",
    ))
}

fn describe(older: &Entry, newer: &Entry, diff: &Diff) -> String {
    let mut lines = vec![format!(
        "{} to {}: {} compared",
        older.version,
        newer.version,
        count(diff.ranks_compared, "rank")
    )];
    if !diff.regions.is_empty() {
        let heading = [
            "REGION",
            "RANKS",
            "CHANGED IN",
            "SIZE",
            "CHANGED",
            "SHARE",
            "BLOCKS",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(diff.regions.iter().map(row));
        rows.push(row(&total(diff)));
        lines.push(output::table(&rows));
    }
    for region in &diff.regions {
        lines.extend(notes(region));
    }
    for (ranks, version) in [
        (&diff.ranks_removed, older.version),
        (&diff.ranks_added, newer.version),
    ] {
        if !ranks.is_empty() {
            lines.push(format!("only in {version}: {}", spans(ranks)));
        }
    }
    for part in &diff.uncompared {
        lines.push(format!(
            "not compared: {}, because no copy of {} of {} can be read: {}",
            spans(&part.ranks),
            part.node,
            part.version,
            part.error.reason()
        ));
    }
    lines.join("\n")
}

fn row(region: &RegionDiff) -> Vec<String> {
    vec![
        region.name.clone(),
        region.ranks.to_string(),
        region.ranks_changed.to_string(),
        show_bytes(region.bytes_after),
        show_bytes(region.bytes_changed),
        share(region.bytes_changed, region.bytes_compared),
        format!("{} of {}", region.blocks_changed, region.blocks_compared),
    ]
}

/// A part of a whole in percent, never 0 or 100 where that is not quite so.
fn share(part: u64, whole: u64) -> String {
    let percent = 100.0 * part as f64 / whole.max(1) as f64;
    match part {
        0 => "0 %".to_owned(),
        _ if part == whole => "100 %".to_owned(),
        _ if percent < 0.1 => "< 0.1 %".to_owned(),
        _ => format!("{:.1} %", percent.min(99.9)),
    }
}

fn total(diff: &Diff) -> RegionDiff {
    let sum = |of: fn(&RegionDiff) -> u64| diff.regions.iter().map(of).sum();
    RegionDiff {
        name: "(all)".into(),
        ranks: diff.ranks_compared,
        ranks_changed: diff.ranks_changed,
        bytes_after: sum(|region| region.bytes_after),
        bytes_changed: sum(|region| region.bytes_changed),
        bytes_compared: sum(|region| region.bytes_compared),
        blocks_changed: sum(|region| region.blocks_changed),
        blocks_compared: sum(|region| region.blocks_compared),
        ..RegionDiff::default()
    }
}

/// What the table does not say of a region.
fn notes(region: &RegionDiff) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |ranks: u64, what: &str| {
        if ranks > 0 {
            let ranks = count(ranks, "rank");
            notes.push(format!("region '{}': {what} {ranks}", region.name));
        }
    };
    note(region.added, "new in");
    note(region.removed, "gone from");
    note(region.resized, "has another length in");
    if region.bytes_unread > 0 {
        notes.push(format!(
            "region '{}': {} could not be read",
            region.name,
            show_bytes(region.bytes_unread)
        ));
    }
    notes
}

/// Ranks in ascending order, as people write them: `ranks 0 to 3, 7`.
pub(super) fn spans(ranks: &[Rank]) -> String {
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == rank.0 => *last = rank.0,
            _ => spans.push((rank.0, rank.0)),
        }
    }
    let span = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    };
    let text: Vec<String> = spans.iter().map(span).collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", text.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_shares_are_said_briefly_and_truly() {
        let ranks = |numbers: &[u32]| numbers.iter().map(|it| Rank(*it)).collect::<Vec<_>>();
        assert_eq!(spans(&ranks(&[7])), "rank 7");
        assert_eq!(
            spans(&ranks(&[0, 1, 2, 3, 5, 6, 9])),
            "ranks 0 to 3, 5, 6, 9"
        );
        assert_eq!(share(0, 0), "0 %");
        assert_eq!(share(1, 1_000_000), "< 0.1 %");
        assert_eq!(share(999_999, 1_000_000), "99.9 %");
        assert_eq!(share(8, 8), "100 %");
    }
}
