//! `outlive run --collectives`: the environment under which the ranks' collectives are
//! served by `liboutlive_mpi.so`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Result};

use crate::args::{Collectives, CollectivesRail};

/// The library's file name.
const LIBRARY: &str = "liboutlive_mpi.so";
/// Where it is instead of beside the command.
const VARIABLE: &str = "OUTLIVE_MPI_LIBRARY";

/// The variables that the command's processes inherit.
///
/// # Errors
/// [`Code::NotFound`] if the library is not where this command was installed.
pub fn environment(
    how: Option<Collectives>,
    rail: Option<CollectivesRail>,
) -> Result<Vec<(OsString, OsString)>> {
    if !matches!(how, Some(Collectives::Ftco)) {
        return Ok(Vec::new());
    }
    let mut preload = library()?.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut variables = vec![
        ("LD_PRELOAD".into(), preload),
        ("OUTLIVE_COLLECTIVES".into(), "ftco".into()),
    ];
    if let Some(rail) = rail {
        let name = match rail {
            CollectivesRail::Mpi => "mpi",
            CollectivesRail::Tcp => "tcp",
        };
        variables.push(("OUTLIVE_COLLECTIVES_RAIL".into(), name.into()));
    }
    Ok(variables)
}

fn library() -> Result<PathBuf> {
    let told = std::env::var_os(VARIABLE).map(PathBuf::from);
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.parent().unwrap_or(Path::new(""));
    let places = match told {
        Some(path) => vec![path],
        None => vec![beside.join(LIBRARY), beside.join("../lib").join(LIBRARY)],
    };
    let found = places.iter().find_map(|path| path.canonicalize().ok());
    found.ok_or_else(|| {
        let looked: Vec<String> = places
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        Error::new(
            Code::NotFound,
            Entity::File(LIBRARY.to_owned()),
            format!("not at {}", looked.join(" nor ")),
            format!("build it (make build) or name it in {VARIABLE}"),
        )
    })
}
