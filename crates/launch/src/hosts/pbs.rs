//! The hosts of a PBS job (PBS Professional, OpenPBS, Torque), reached by ssh.
//!
//! Not by `pbs_tmrsh` or `pbsdsh`: neither hands its input on, and the launcher talks to what it
//! starts. Most sites let the owner of a job log into its hosts; `--remote-shell` names another way.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use outlive_base::{Code, Entity, Error, Result};

use super::hostfile::HostFile;
use super::source::Host;
use crate::{files, input};

/// The word for it in `--hosts`.
pub const NAME: &str = "pbs";

/// Names the file of a job's hosts: one line for each process that MPI may start, hosts as often
/// as they take processes.
const NODE_FILE: &str = "PBS_NODEFILE";

/// The hosts of the PBS job in which this process runs, from the file that PBS names to it; `shell`
/// as for [`HostFile::load`].
///
/// # Errors
/// [`Code::InvalidArgument`] outside of a job, or if the file names no host or cannot be read.
pub fn of_this_job(shell: &str) -> Result<HostFile> {
    of_file(std::env::var_os(NODE_FILE), shell)
}

fn of_file(path: Option<OsString>, shell: &str) -> Result<HostFile> {
    let refuse = |reason: String, remedy: &str| {
        let entity = Entity::Option("hosts".to_owned());
        Error::new(Code::InvalidArgument, entity, reason, remedy)
    };
    let Some(path) = path.filter(|path| !path.is_empty()) else {
        return Err(refuse(
            format!("pbs: this is no job ({NODE_FILE} is not set)"),
            "run it inside: qsub -I -l select=5:ncpus=32:mpiprocs=32 -l place=scatter",
        ));
    };
    let path = Path::new(&path);
    // It lies on the job's first host alone.
    let text = input::read_text(path, input::TEXT_BYTES_MAX).map_err(|error| {
        refuse(
            format!("pbs: {}: {}", path.display(), error.reason()),
            "run it in the job's script, on the host on which that begins",
        )
    })?;
    let hosts = counted(&text);
    if hosts.is_empty() {
        return Err(refuse(
            format!("pbs: {} names no host", path.display()),
            "give mpiprocs=N to each chunk of the job's select, or name the hosts: --hosts FILE",
        ));
    }
    Ok(HostFile::of(hosts, shell)?.with(variables))
}

/// Each host once, in the order of the file, with as many slots as it has lines.
fn counted(text: &str) -> Vec<Host> {
    let mut hosts: Vec<Host> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for name in text.lines().map(str::trim).filter(|name| !name.is_empty()) {
        let at = *places.entry(name).or_insert(hosts.len());
        match hosts.get_mut(at) {
            Some(host) => host.slots = host.slots.map(|slots| slots + 1),
            None => hosts.push(Host {
                name: name.to_owned(),
                slots: Some(1),
                domain: None,
            }),
        }
    }
    hosts
}

/// By which launchers that know PBS lay ranks on the hosts in use.
fn variables(hosts: &[&Host], dir: &Path) -> Result<Vec<(OsString, OsString)>> {
    let lines = |host: &&Host| {
        let slots = host.slots.unwrap_or(1) as usize;
        format!("{}\n", host.name).repeat(slots)
    };
    let file = dir.join("hosts.pbs");
    let text: String = hosts.iter().map(lines).collect();
    files::write_atomic(&file, text.as_bytes())?;
    // What reads PBS's own file finds the hosts that are in use: PRRTE, Intel MPI, scripts.
    let mut variables = vec![(NODE_FILE.into(), file.into())];
    // PBS's task manager counts hosts by the lines of the file that it has made: with it Open
    // MPI would start ranks on other hosts than those of this one.
    let ways = [
        ("OMPI_MCA_ras", "^tm"),
        ("OMPI_MCA_plm", "^tm"),
        ("PRTE_MCA_plm", "^tm"),
        ("HYDRA_LAUNCHER", "ssh"),
    ];
    let free = |(name, _): &(&str, &str)| std::env::var_os(name).is_none();
    let ways = ways.into_iter().filter(free);
    variables.extend(ways.map(|(name, way)| (name.into(), way.into())));
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::hostfile::SSH;
    use crate::hosts::source::Source;

    #[test]
    fn each_host_counts_once_with_as_many_slots_as_lines() {
        let seen = |text: &str| -> Vec<(String, Option<u32>)> {
            let each = |host: Host| (host.name, host.slots);
            counted(text).into_iter().map(each).collect()
        };
        let expected = [("n2".to_owned(), Some(3)), ("n1".to_owned(), Some(1))];
        assert_eq!(seen("n2\nn2\n\nn1\n n2 \n"), expected);
        assert_eq!(seen("\n"), []);
    }

    #[test]
    fn launchers_find_the_hosts_in_use_in_the_file_that_pbs_would_give() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1234.server");
        std::fs::write(&path, "a\na\nb\nb\nc\nc\n").unwrap();
        let source = of_file(Some(path.into()), SSH).unwrap();
        let order = [&source.hosts()[2], &source.hosts()[0]];
        let variables = source.environment(&order, &[], dir.path()).unwrap();
        let file = |name: &str| {
            let (_, path) = variables.iter().find(|(key, _)| key == name).unwrap();
            std::fs::read_to_string(path).unwrap()
        };
        assert_eq!(file(NODE_FILE), "c\nc\na\na\n");
        assert_eq!(file("OUTLIVE_HOSTFILE"), "c slots=2\na slots=2\n");
        assert_eq!(file("HYDRA_HOST_FILE"), "c:2\na:2\n");
    }

    #[test]
    fn a_file_without_hosts_is_refused_with_what_helps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1234.server");
        std::fs::write(&path, "\n \n").unwrap();
        let error = of_file(Some(path.into()), SSH).unwrap_err();
        assert!(
            error.reason().contains("1234.server names no host"),
            "{error}"
        );
        assert!(error.remedy().contains("mpiprocs"), "{error}");
        for nothing in [None, Some(OsString::new())] {
            let error = of_file(nothing, SSH).unwrap_err();
            assert!(error.reason().contains("this is no job"), "{error}");
        }
    }
}
