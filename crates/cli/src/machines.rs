//! The machines on which a job's nodes live, as `--hosts` and what belongs to it say.

use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Ports, Result};
use outlive_launch::hosts::address::Subnet;
use outlive_launch::hosts::hostfile::{HostFile, SSH};
use outlive_launch::hosts::pbs;
use outlive_launch::hosts::slurm::{self, Slurm};
use outlive_launch::hosts::source::Source;

use crate::config::Config;

/// What is no source of machines, and is taken for one.
const FLUX: &str = "flux";

/// Which hosts `flux run` takes, and in which order, only its own line can say; that is not ours to
/// change, and a spare in another's place would be in the wrong one.
fn flux() -> Error {
    Error::new(
        Code::InvalidArgument,
        Entity::Option("hosts".to_owned()),
        "flux: a job of Flux is no source of hosts: `flux run` chooses and orders them itself",
        "list them: flux hostlist --expand --delimiter='\\n' local > hosts; then --hosts hosts, with \
         mpirun, which starts ranks by ssh, or --start each",
    )
}

/// The machines that `--hosts` names.
///
/// # Errors
/// Those of the file or the allocation.
pub fn source(config: &Config, hosts: &str) -> Result<Box<dyn Source>> {
    let blamed = |key: &'static str| move |error: Error| config.blame(key, &error);
    let shell = match config.get("remote-shell") {
        "" => SSH,
        shell => shell,
    };
    Ok(match hosts {
        slurm::NAME => Box::new(Slurm::of_this_job().map_err(blamed("hosts"))?),
        pbs::NAME => Box::new(pbs::of_this_job(shell).map_err(blamed("hosts"))?),
        FLUX => return Err(config.blame("hosts", &flux())),
        file => match HostFile::load(Path::new(file), shell) {
            Ok(source) => Box::new(source),
            Err(error) if error.code() == Code::InvalidArgument => {
                return Err(config.blame("hosts", &error));
            }
            Err(error) => {
                let refused = Error::new(
                    Code::InvalidArgument,
                    Entity::Option("hosts".to_owned()),
                    format!(
                        "'{}': {}",
                        file.chars().take(60).collect::<String>(),
                        error.reason()
                    ),
                    "give a file that names a host on each line, or slurm, or pbs",
                );
                return Err(config.blame("hosts", &refused));
            }
        },
    })
}

/// The network between hosts, if it is given.
///
/// # Errors
/// If it is none.
pub fn network(config: &Config) -> Result<Option<Subnet>> {
    let given = Some(config.get("network")).filter(|text| !text.is_empty());
    let parsed = given.map(Subnet::parse).transpose();
    parsed.map_err(|error| config.blame("network", &error))
}

/// The ports at which hosts may listen.
///
/// # Errors
/// If they are none.
pub fn ports(config: &Config) -> Result<Ports> {
    let parsed = config.get("ports").parse();
    parsed.map_err(|error| config.blame("ports", &error))
}

/// Where outlive lies on hosts, if that is given.
pub fn executable(config: &Config) -> Option<PathBuf> {
    let given = Some(config.get("remote-executable"));
    given.filter(|text| !text.is_empty()).map(PathBuf::from)
}

/// Where nodes keep their data on hosts, if nothing else is said: it stays when one starts anew.
pub fn storage() -> String {
    format!("/var/tmp/outlive-{}", rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Settings;

    #[test]
    fn flux_is_refused_with_the_way_that_works() {
        let config = Config::load(&Settings::default(), None).unwrap();
        let error = source(&config, FLUX).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.remedy().contains("flux hostlist"), "{error}");
    }
}
