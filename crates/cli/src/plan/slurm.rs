//! `outlive plan --from-slurm`: a machine from `scontrol` and `sacct`, or from files that hold what
//! they printed.

use std::path::Path;
use std::process::Command;

use outlive_base::{Code, Entity, Error, Result};
use outlive_launch::input;
use outlive_planner::slurm::Cluster;

/// No longer answers.
const BYTES_MAX: u64 = 1 << 28;
/// Of a year back.
const SINCE: &str = "now-365days";

/// The machine as TOML: asked of Slurm, or read from `nodes.txt`, and `topology.conf` (it may
/// hold what `scontrol show topology` prints) and `sacct.txt` if they are there, in a directory.
pub(super) fn machine(directory: Option<&Path>) -> Result<String> {
    let (name, nodes, topology, accounting) = match directory {
        Some(directory) => {
            let nodes = directory.join("nodes.txt");
            let text = input::read_text(&nodes, BYTES_MAX)?;
            let name = directory
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            let topology = optional(&directory.join("topology.conf"))?;
            let accounting = optional(&directory.join("sacct.txt"))?;
            (
                name,
                (text, nodes.display().to_string()),
                topology,
                accounting,
            )
        }
        None => {
            let nodes = said("scontrol", &["--oneliner", "show", "node"])?;
            let accounting = said(
                "sacct",
                &[
                    "--allusers",
                    "--allocations",
                    "--parsable2",
                    "--starttime",
                    SINCE,
                    "--format=State,ElapsedRaw,NNodes",
                ],
            );
            // Without accounting a machine can still be described.
            let accounting = accounting.ok().map(|text| (text, "sacct".to_owned()));
            // The file may lie on the controller alone; without switches it goes on too.
            let topology = said("scontrol", &["show", "topology"]).ok();
            let topology = topology.map(|text| (text, "scontrol".to_owned()));
            (None, (nodes, "scontrol".to_owned()), topology, accounting)
        }
    };
    let mut cluster = Cluster::nodes(&nodes.0, &nodes.1)?;
    if let Some((text, file)) = topology {
        cluster.topology(&text, &file)?;
    }
    if let Some((text, file)) = accounting {
        cluster.accounting(&text, &file)?;
    }
    Ok(cluster.toml(name.as_deref().unwrap_or("slurm")))
}

fn optional(path: &Path) -> Result<Option<(String, String)>> {
    match path.exists() {
        true => Ok(Some((
            input::read_text(path, BYTES_MAX)?,
            path.display().to_string(),
        ))),
        false => Ok(None),
    }
}

/// What a command of Slurm prints.
fn said(command: &str, words: &[&str]) -> Result<String> {
    let refuse = |seen: String| {
        Error::new(
            Code::Config,
            Entity::Option("--from-slurm".into()),
            format!("{command} {}: {seen}", words.join(" ")),
            "run it where Slurm's commands work, or put what they print into a directory: nodes.txt, topology.conf, sacct.txt",
        )
    };
    // Lines of the topology that are cut would say something else.
    let output = Command::new(command)
        .args(words)
        .env_remove("SLURM_TOPO_LEN")
        .output();
    let output = output.map_err(|error| refuse(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(refuse(
            said.lines().next().unwrap_or("it failed").to_owned(),
        ));
    }
    if output.stdout.len() as u64 > BYTES_MAX {
        return Err(refuse(format!("{} bytes", output.stdout.len())));
    }
    String::from_utf8(output.stdout).map_err(|error| refuse(error.to_string()))
}
