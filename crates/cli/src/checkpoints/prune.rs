//! `outlive checkpoints prune`: removes what newer versions have replaced, after a question.

use std::time::{Duration, SystemTime};

use outlive_base::{Code, Entity, Error, Incarnation, Level, Result, Version, count};
use outlive_control::units::{duration_ms, show_bytes};
use outlive_launch::jobs::Job;
use outlive_launch::prune::{Freed, Prune, Wanted, Why, is_prunable};
use serde::Serialize;

use super::delete::{DECLINED, ask};
use crate::options::JobChoice;
use crate::{checkpoints, output, status};

/// Options of `outlive checkpoints prune`.
#[derive(clap::Args, Debug)]
pub struct PruneOptions {
    /// Newest versions to keep, each with what it survives [default: 1 with --older-than]
    #[arg(long, value_name = "N", required_unless_present = "older_than")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// Only what lies at this level, for example shared [default: all levels]
    #[arg(long, value_name = "LEVEL")]
    level: Option<String>,
    /// Only versions that were written longer ago, for example 7d [default: of any age]
    #[arg(long, value_name = "TIME")]
    older_than: Option<String>,
    /// Tell what would go, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Remove without a question
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    choice: JobChoice,
}

#[derive(Serialize)]
struct Line {
    version: Version,
    incarnation: Incarnation,
    why: Why,
    levels: Vec<Level>,
    copies: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Body {
    removed: bool,
    versions: Vec<Line>,
    bytes: u64,
    left_over: usize,
    left_over_bytes: u64,
}

fn wanted(options: &PruneOptions) -> Result<Wanted> {
    let level: Option<Level> = options.level.as_deref().map(level).transpose()?;
    let before = options
        .older_than
        .as_deref()
        .map(|text| -> Result<SystemTime> {
            let age = Duration::from_millis(duration_ms("older-than", text)?);
            // Older than any clock: nothing is.
            let now = SystemTime::now();
            Ok(now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH))
        });
    Ok(Wanted {
        keep: options.keep.unwrap_or(1) as usize,
        level,
        before: before.transpose()?,
    })
}

fn level(text: &str) -> Result<Level> {
    let level = text.parse::<Level>().ok().filter(|it| is_prunable(*it));
    level.ok_or_else(|| {
        Error::new(
            Code::InvalidArgument,
            Entity::Option("level".into()),
            format!(
                "'{}' is no level that keeps files",
                text.chars().take(40).collect::<String>()
            ),
            "name one of disk, partner, xor:G, rs:K+M and shared",
        )
    })
}

/// Runs the subcommand.
///
/// # Errors
/// Those of [`Prune`] and of the options.
pub fn run(options: &PruneOptions) -> Result<u8> {
    let wanted = wanted(options)?;
    let job = status::choose(&options.choice)?;
    let prune = Prune::prepare(&job, &wanted)?;
    for error in &prune.errors {
        output::error(error);
    }
    let (left_over, left_over_bytes) = prune.rubbish();
    let versions: Vec<Line> = prune.freed().iter().map(line).collect();
    let of_versions: u64 = versions.iter().map(|line| line.bytes).sum();
    let mut body = Body {
        removed: false,
        bytes: of_versions + left_over_bytes,
        versions,
        left_over,
        left_over_bytes,
    };
    let is_idle = body.versions.is_empty() && left_over == 0;
    if !options.dry_run && !is_idle {
        let asked = || ask("prune it", &describe(&job, &body), "Remove that?");
        if !options.yes && !asked()? {
            output::warn("nothing was removed");
            return Ok(DECLINED);
        }
        prune.carry_out()?;
        body.removed = true;
    }
    match options.choice.json {
        true => checkpoints::answer(&job, "prune", body),
        false => output::text(&describe(&job, &body)),
    }
}

fn line(freed: &Freed) -> Line {
    Line {
        version: freed.version,
        incarnation: freed.incarnation,
        why: freed.why,
        levels: freed.levels.iter().copied().collect(),
        copies: freed.copies,
        bytes: freed.bytes,
    }
}

fn describe(job: &Job, body: &Body) -> String {
    let mut lines = Vec::new();
    if !body.versions.is_empty() {
        let heading = ["VERSION", "INCARNATION", "WHY", "LEVELS", "FILES", "SIZE"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(body.versions.iter().map(|line| {
            let levels = line.levels.iter().map(|level| level.name().to_owned());
            vec![
                line.version.0.to_string(),
                line.incarnation.0.to_string(),
                line.why.text().to_owned(),
                levels.collect::<Vec<_>>().join(","),
                line.copies.to_string(),
                show_bytes(line.bytes),
            ]
        }));
        lines.push(output::table(&rows));
    }
    if body.left_over > 0 {
        let files = match body.left_over {
            1 => "1 file or directory".to_owned(),
            some => format!("{some} files or directories"),
        };
        let bytes = show_bytes(body.left_over_bytes);
        lines.push(format!("{files} that killed processes left, {bytes}"));
    }
    let versions = count(body.versions.len() as u64, "version");
    lines.push(match (lines.is_empty(), body.removed) {
        (true, _) => format!("job {}: nothing would go", job.name),
        (_, true) => format!(
            "job {}: removed {versions}, {} freed",
            job.name,
            show_bytes(body.bytes)
        ),
        (_, false) => format!(
            "job {}: {versions} would go, {} would be free",
            job.name,
            show_bytes(body.bytes)
        ),
    });
    lines.join("\n")
}
