//! `outlive run --collectives`: the environment under which the ranks' collectives are
//! served by `liboutlive_mpi.so`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Ports, Result};

use crate::options::{Collectives, CollectivesRail, RunOptions};

/// The library's file name.
const LIBRARY: &str = "liboutlive_mpi.so";
/// The variables of the library begin so.
const PREFIX: &str = "OUTLIVE_COLLECTIVES";
/// Where it is instead of beside the command.
const VARIABLE: &str = "OUTLIVE_MPI_LIBRARY";

/// The variables that the command's processes inherit.
///
/// # Errors
/// [`Code::NotFound`] if the library is not where this command was installed,
/// [`Code::InvalidArgument`] if f or trees are named for collectives that have none.
pub fn environment(options: &RunOptions) -> Result<Vec<(OsString, OsString)>> {
    let how = match options.collectives {
        None | Some(Collectives::Native) => return none(options),
        Some(Collectives::Ftco) => "ftco",
        Some(Collectives::CorrectedTree) => "corrected-tree",
        Some(Collectives::CorrectedGossip) => "corrected-gossip",
    };
    if how == "ftco" {
        none(options)?;
    }
    let mut preload = library()?.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let rail = options.collectives_rail.map(|rail| match rail {
        CollectivesRail::Mpi => "mpi".to_owned(),
        CollectivesRail::Tcp => "tcp".to_owned(),
        CollectivesRail::Ucx => "ucx".to_owned(),
    });
    let text = |number: Option<f64>| number.map(|number| number.to_string());
    let given = [
        ("_RAIL", rail),
        (
            "_FAILURES",
            options.collectives_failures.map(|f| f.to_string()),
        ),
        ("_TREES", options.collectives_trees.map(|k| k.to_string())),
        ("_MTBF_S", text(options.collectives_mtbf)),
        ("_DURATION_S", text(options.collectives_duration)),
        ("_RISK", text(options.collectives_risk)),
    ];
    let mut variables = vec![("LD_PRELOAD".into(), preload), (PREFIX.into(), how.into())];
    for (name, value) in given {
        if let Some(value) = value {
            variables.push((format!("{PREFIX}{name}").into(), value.into()));
        }
    }
    Ok(variables)
}

/// The variables that keep what ranks open themselves to the ports that are open between hosts;
/// those of the user stand.
pub fn ports(ports: Ports, is_set: impl Fn(&str) -> bool) -> Vec<(OsString, OsString)> {
    let names = ["OUTLIVE_COLLECTIVES_PORTS", "UCX_TCP_PORT_RANGE"];
    let wanted = names
        .into_iter()
        .filter(|name| !ports.is_any() && !is_set(name));
    let both = |name: &str| (name.into(), ports.to_string().into());
    wanted.map(both).collect()
}

/// No variables, or an error if f or trees were named where there are none.
fn none(options: &RunOptions) -> Result<Vec<(OsString, OsString)>> {
    let reason = if options.collectives_failures.is_some() || options.collectives_mtbf.is_some() {
        "only corrected collectives tolerate a number of failures; ftco tolerates any"
    } else if options.collectives_trees.is_some() {
        "only corrected collectives keep spanning trees"
    } else {
        return Ok(Vec::new());
    };
    Err(Error::new(
        Code::InvalidArgument,
        Entity::Option("collectives".to_owned()),
        reason,
        "give --collectives corrected-tree or corrected-gossip",
    ))
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
