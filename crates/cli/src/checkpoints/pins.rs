//! `outlive checkpoints pin` and `unpin`: versions that stay whatever is newer.

use outlive_base::{Incarnation, Result, Version, count};
use outlive_control::units::show_bytes;
use outlive_launch::pins;
use outlive_vault::CopyState;
use serde::Serialize;

use crate::options::JobChoice;
use crate::{checkpoints, output, status};

#[derive(Serialize)]
struct Pin {
    version: Version,
    incarnation: Incarnation,
    changed: bool,
    places: usize,
    copies: usize,
    missing: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Unpin {
    version: Version,
    changed: bool,
    places: usize,
}

/// `outlive checkpoints pin`.
///
/// # Errors
/// Those of [`pins::pin`].
pub fn pin(version: u64, choice: &JobChoice) -> Result<u8> {
    let job = status::choose(choice)?;
    let pinned = pins::pin(&job, Version(version))?;
    let entry = &pinned.entry;
    let copies: Vec<&CopyState> = entry.parts.iter().flat_map(|it| &it.copies).collect();
    let there = copies.iter().filter(|copy| copy.path.is_some()).count();
    let said = Pin {
        version: entry.version,
        incarnation: entry.incarnation,
        changed: pinned.changed,
        places: pinned.places,
        copies: there,
        missing: copies.len() - there,
        bytes: entry.bytes,
    };
    if choice.json {
        return checkpoints::answer(&job, "pin", said);
    }
    if said.missing > 0 {
        output::warn(&format!(
            "{} of it missing: it survives less than it did",
            match said.missing {
                1 => "1 copy is".to_owned(),
                some => format!("{some} copies are"),
            }
        ));
    }
    output::text(&format!(
        "{} of {} of job {} {} pinned: {}, {}",
        entry.version,
        entry.incarnation,
        job.name,
        if said.changed { "is" } else { "was already" },
        show_bytes(entry.bytes),
        match there {
            1 => "1 copy".to_owned(),
            some => format!("{some} copies"),
        }
    ))
}

/// `outlive checkpoints unpin`.
///
/// # Errors
/// Those of [`pins::unpin`].
pub fn unpin(version: u64, choice: &JobChoice) -> Result<u8> {
    let job = status::choose(choice)?;
    let places = pins::unpin(&job, Version(version))?;
    if choice.json {
        let said = Unpin {
            version: Version(version),
            changed: places > 0,
            places,
        };
        return checkpoints::answer(&job, "unpin", said);
    }
    output::text(&match places {
        0 => format!("version {version} of job {} is not pinned", job.name),
        _ => format!(
            "version {version} of job {} is pinned no more (pins were in {})",
            job.name,
            count(places as u64, "place")
        ),
    })
}
