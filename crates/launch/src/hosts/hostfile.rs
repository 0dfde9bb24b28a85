//! Machines of a file, reached by ssh (or what the user gives instead).
//!
//! The file is what mpirun reads: a host on each line, `slots=N` (Open MPI) or `:N` (MPICH)
//! after it, `#` begins a comment.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use outlive_base::{Code, Entity, Error, Result};

use super::source::{self, Host, Source};
use crate::{files, input};

/// Connects without questions, and notices a host that went away.
pub const SSH: &str = "ssh -o BatchMode=yes -o ConnectTimeout=5 -o ServerAliveInterval=2 \
                       -o ServerAliveCountMax=3";

/// Where Open MPI finds the names of variables that it passes on.
const ENV_LIST: &str = "OMPI_MCA_mca_base_env_list";

/// Further variables for launchers, as of [`Source::environment`]: of what brings its own list of
/// hosts, all of which ssh reaches.
pub(super) type More = fn(&[&Host], &Path) -> Result<Vec<(OsString, OsString)>>;

/// The hosts of a file.
#[derive(Debug)]
pub struct HostFile {
    hosts: Vec<Host>,
    shell: Vec<String>,
    more: Option<More>,
}

impl HostFile {
    /// Reads the file; `shell` is the command that runs another on a host: its words, then
    /// the host, then one word for the shell there.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] with the line; those of reading the file.
    pub fn load(path: &Path, shell: &str) -> Result<HostFile> {
        let text = input::read_text(path, input::TEXT_BYTES_MAX)?;
        HostFile::of(parse(&text, path)?, shell)
    }

    /// These hosts, reached by `shell`.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if one is no host, or `shell` names no program.
    pub fn of(hosts: Vec<Host>, shell: &str) -> Result<HostFile> {
        source::check(&hosts, "hosts")?;
        let shell: Vec<String> = shell.split_whitespace().map(str::to_owned).collect();
        if shell.is_empty() {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Option("remote-shell".to_owned()),
                "names no program",
                "leave it out for ssh",
            ));
        }
        Ok(HostFile {
            hosts,
            shell,
            more: None,
        })
    }

    /// With these variables besides.
    pub(super) fn with(self, more: More) -> HostFile {
        HostFile {
            more: Some(more),
            ..self
        }
    }
}

fn parse(text: &str, path: &Path) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    // Editors of Windows begin files so.
    let text = text.trim_start_matches('\u{feff}');
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let refuse = |what: &str| {
            Err(Error::new(
                Code::InvalidArgument,
                Entity::File(path.display().to_string()),
                format!("line {}: '{}' is not understood", at + 1, cut(what)),
                "write HOST, HOST slots=N or HOST:N",
            ))
        };
        // Of an address of IPv6 only one in brackets can have a number after it.
        let colon = name
            .rsplit_once(':')
            .filter(|(host, _)| !host.contains(':'));
        let (name, mut slots) = match colon.map(|(host, n)| (host, n.parse::<u32>())) {
            Some((host, Ok(n))) if n > 0 => (host, Some(n)),
            Some(_) => return refuse(name),
            None => (name, None),
        };
        for word in words {
            match word.split_once('=').map(|(key, n)| (key, n.parse::<u32>())) {
                Some(("slots", Ok(n))) if n > 0 => slots = Some(n),
                // Open MPI's other keys say nothing of where a node is.
                Some(("max_slots" | "max-slots", Ok(_))) => {}
                _ => return refuse(word),
            }
        }
        hosts.push(Host {
            name: name.to_owned(),
            slots,
            domain: None,
        });
    }
    Ok(hosts)
}

/// By which Open MPI 4 and 5 find the hosts of a file, and pass these variables on: no others but
/// those that are listed; MPICH's mpirun passes all.
pub(super) fn open_mpis(file: &Path, passed: &[String]) -> Vec<(OsString, OsString)> {
    let list = std::env::var(ENV_LIST).ok().filter(|list| !list.is_empty());
    let list: Vec<String> = list.into_iter().chain(passed.iter().cloned()).collect();
    vec![
        ("OMPI_MCA_orte_default_hostfile".into(), file.into()),
        ("PRTE_MCA_prte_default_hostfile".into(), file.into()),
        (ENV_LIST.into(), list.join(";").into()),
    ]
}

fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}

impl Source for HostFile {
    fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    fn shell(&self, host: &Host, words: &[String]) -> Command {
        let mut command = Command::new(&self.shell[0]);
        let words: Vec<String> = words.iter().map(|word| source::quoted(word)).collect();
        // Nobody answers a question: a window that asks for a password would be waited for.
        command
            .env("SSH_ASKPASS_REQUIRE", "never")
            .env_remove("SSH_ASKPASS")
            .args(&self.shell[1..])
            .arg(&host.name)
            .arg(format!("exec {}", words.join(" ")));
        command
    }

    fn may_install(&self) -> bool {
        true
    }

    fn keeps_secrets(&self) -> bool {
        true
    }

    fn environment(
        &self,
        hosts: &[&Host],
        passed: &[String],
        dir: &Path,
    ) -> Result<Vec<(OsString, OsString)>> {
        let lines = |write: &dyn Fn(&Host) -> String| -> String {
            hosts.iter().map(|host| write(host) + "\n").collect()
        };
        let open_mpi = lines(&|host| match host.slots {
            Some(slots) => format!("{} slots={slots}", host.name),
            None => host.name.clone(),
        });
        let hydra = lines(&|host| match host.slots {
            Some(slots) => format!("{}:{slots}", host.name),
            None => host.name.clone(),
        });
        let (open_mpi_file, hydra_file) = (dir.join("hosts"), dir.join("hosts.hydra"));
        files::write_atomic(&open_mpi_file, open_mpi.as_bytes())?;
        files::write_atomic(&hydra_file, hydra.as_bytes())?;
        let more = self.more.map(|more| more(hosts, dir)).transpose()?;
        let mut variables = open_mpis(&open_mpi_file, passed);
        variables.push(("OUTLIVE_HOSTFILE".into(), open_mpi_file.into()));
        variables.push(("HYDRA_HOST_FILE".into(), hydra_file.into()));
        variables.extend(more.into_iter().flatten());
        Ok(variables)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_both_launchers_are_read() {
        let text =
            "# cluster\nn1 slots=4\n\nn2:2 # the old one\nuser@n3\n fd00::7 slots=1 max_slots=2\n";
        let hosts = parse(text, Path::new("hosts")).unwrap();
        let seen: Vec<_> = hosts
            .iter()
            .map(|it| (it.name.as_str(), it.slots))
            .collect();
        let expected = [
            ("n1", Some(4)),
            ("n2", Some(2)),
            ("user@n3", None),
            ("fd00::7", Some(1)),
        ];
        assert_eq!(seen, expected);
        // As Windows writes it, with tabs.
        let text = "\u{feff}# cluster\r\nn1\tslots=4\t# the first\r\n\r\nn2:2\r\n  \r\n";
        let hosts = parse(text, Path::new("hosts")).unwrap();
        let seen: Vec<_> = hosts.iter().map(|it| (&*it.name, it.slots)).collect();
        assert_eq!(seen, [("n1", Some(4)), ("n2", Some(2))]);
        for bad in [
            "n1 slots=0",
            "n1 slots=x",
            "n1:0",
            "n1:x",
            "n1 what",
            "n1 n2",
        ] {
            let error = parse(&format!("n0\n{bad}\n"), Path::new("hosts")).unwrap_err();
            assert!(error.reason().contains("line 2"), "{bad}: {error}");
        }
    }

    #[test]
    fn the_remote_command_is_one_word_that_no_shell_takes_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        std::fs::write(&path, "n1\n").unwrap();
        let source = HostFile::load(&path, "ssh -x").unwrap();
        let words = ["/opt/my outlive".to_owned(), "host".to_owned()];
        let command = source.shell(&source.hosts[0], &words);
        let args: Vec<_> = command.get_args().map(|it| it.to_string_lossy()).collect();
        assert_eq!(args, ["-x", "n1", "exec '/opt/my outlive' 'host'"]);
        let error = HostFile::load(&path, " ").unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
    }

    #[test]
    fn launchers_are_told_the_hosts_in_the_order_of_the_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        std::fs::write(&path, "a:2\nb\nc slots=3\n").unwrap();
        let source = HostFile::load(&path, SSH).unwrap();
        let hosts = [&source.hosts[2], &source.hosts[0]];
        let variables = source
            .environment(&hosts, &["OUTLIVE_JOB".into()], dir.path())
            .unwrap();
        let file = |name: &str| {
            let (_, path) = variables.iter().find(|(key, _)| key == name).unwrap();
            std::fs::read_to_string(path).unwrap()
        };
        assert_eq!(file("OUTLIVE_HOSTFILE"), "c slots=3\na slots=2\n");
        assert_eq!(file("HYDRA_HOST_FILE"), "c:3\na:2\n");
        let list = variables.iter().find(|(key, _)| key == ENV_LIST);
        let list = list.unwrap().1.to_string_lossy();
        assert!(list.split(';').any(|name| name == "OUTLIVE_JOB"), "{list}");
    }
}
