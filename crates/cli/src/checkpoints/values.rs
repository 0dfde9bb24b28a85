//! `outlive checkpoints values`: NaN and infinity in stored versions.

use outlive_base::{Code, Entity, Error, Incarnation, Rank, Result, Version, count};
use outlive_launch::versions;
use outlive_vault::{Entry, RegionValues, Values};
use serde::Serialize;

use super::diff::{spans, stored};
use crate::options::JobChoice;
use crate::{checkpoints, output};

/// Options of `outlive checkpoints values`.
#[derive(clap::Args, Debug)]
pub struct ValuesOptions {
    /// The version, region by region [default: all that are stored, a line each]
    version: Option<u64>,
    /// Look at this rank only [default: all]
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
    #[command(flatten)]
    choice: JobChoice,
}

#[derive(Serialize)]
struct Body {
    versions: Vec<OfVersion>,
}

#[derive(Serialize)]
struct OfVersion {
    version: Version,
    incarnation: Incarnation,
    complete: bool,
    #[serde(flatten)]
    values: Values,
}

/// Runs the subcommand.
///
/// # Errors
/// [`Code::NotFound`] if the version is not stored; [`Code::RankUnknown`]; those of finding the job.
pub fn run(options: &ValuesOptions) -> Result<u8> {
    let (job, catalogue) = checkpoints::open(&options.choice)?;
    let entries: Vec<&Entry> = match options.version {
        Some(version) => vec![stored(versions::find(&catalogue, Version(version))?)?],
        None => catalogue
            .entries
            .iter()
            .filter(|it| it.is_stored())
            .collect(),
    };
    let only = options.rank.map(Rank);
    if let Some(rank) = only {
        let mut parts = entries.iter().flat_map(|entry| &entry.parts);
        if !parts.any(|it| it.part.ranks.contains(rank)) {
            return Err(Error::new(
                Code::RankUnknown,
                Entity::Rank(rank.0),
                "no version has it",
                "outlive checkpoints list says how many ranks a version has",
            ));
        }
    }
    let of = |entry: &&Entry| {
        let values = catalogue.values(entry, only);
        OfVersion {
            version: entry.version,
            incarnation: entry.incarnation,
            complete: values.is_complete(),
            values,
        }
    };
    let found: Vec<OfVersion> = entries.iter().map(of).collect();
    for error in found.iter().flat_map(|it| &it.values.damaged) {
        output::error(error);
    }
    let status = match found.iter().all(|it| it.complete) {
        true => 0,
        false => Code::Corrupt.exit_status(),
    };
    if options.choice.json {
        checkpoints::answer(&job, "values", Body { versions: found })?;
    } else {
        output::text(&match (options.version, &found[..]) {
            (Some(_), [one]) => by_region(one),
            _ => by_version(&found),
        })?;
    }
    Ok(status)
}

fn by_region(found: &OfVersion) -> String {
    let values = &found.values;
    let mut lines = Vec::new();
    if !values.regions.is_empty() {
        let heading = [
            "REGION", "NUMBERS", "RANKS", "WITH ANY", "ELEMENTS", "NAN", "INFINITE",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(values.regions.iter().map(|region| {
            vec![
                region.name.clone(),
                region.element.to_owned(),
                region.ranks.to_string(),
                region.ranks_not_finite.to_string(),
                region.elements.to_string(),
                region.nan.to_string(),
                region.infinite.to_string(),
            ]
        }));
        lines.push(output::table(&rows));
    }
    lines.extend(left_out(found));
    lines.join("\n")
}

fn by_version(found: &[OfVersion]) -> String {
    if found.is_empty() {
        return "no version is stored".to_owned();
    }
    let heading = ["VERSION", "ELEMENTS", "NAN", "INFINITE", "REGIONS WITH ANY"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for one in found {
        let regions = &one.values.regions;
        let census = one.values.census();
        let with_any = |region: &&RegionValues| region.ranks_not_finite > 0;
        let names = regions.iter().filter(with_any).map(|it| it.name.as_str());
        let elements: u64 = regions.iter().map(|region| region.elements).sum();
        rows.push(vec![
            one.version.0.to_string(),
            elements.to_string(),
            census.nan.to_string(),
            census.infinite.to_string(),
            match census.is_finite() {
                true => "-".to_owned(),
                false => names.collect::<Vec<_>>().join(", "),
            },
        ]);
    }
    let mut lines = vec![output::table(&rows)];
    lines.extend(found.iter().flat_map(left_out));
    lines.join("\n")
}

/// What was not looked at.
fn left_out(found: &OfVersion) -> Vec<String> {
    let (version, values) = (found.version, &found.values);
    let mut lines = Vec::new();
    for one in &values.uncounted {
        lines.push(format!(
            "not looked at: {} of {version}, because no copy of {} can be read: {}",
            spans(&one.ranks),
            one.node,
            one.error.reason()
        ));
    }
    for region in values.regions.iter().filter(|it| it.bytes_unread > 0) {
        lines.push(format!(
            "{version}, region '{}': {} could not be read",
            region.name,
            outlive_control::units::show_bytes(region.bytes_unread)
        ));
    }
    if values.not_described > 0 {
        lines.push(format!(
            "{version}: {} of {}: what they consist of was not said (outlive_describe)",
            count(values.not_described, "region"),
            count(values.ranks, "rank")
        ));
    }
    lines
}
