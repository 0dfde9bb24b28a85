//! Where machines come from, and how a process is started on one: a file of hosts and a
//! remote shell, or the hosts of a job of Slurm or PBS. A new launcher is another file like
//! this one's siblings, and a row in `outlive run`'s option `--hosts`.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use outlive_base::{Code, Entity, Error, Result};

/// A machine on which a node of the job may live.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its name, as the source's own commands take it.
    pub name: String,
    /// Ranks that it takes, if that is known.
    pub slots: Option<u32>,
    /// What fails as a whole with others, as the source names it: its leaf switch. `None`: not
    /// known, or it shares none with another.
    pub domain: Option<String>,
}

impl Host {
    /// Where others look for it: its name without the user's.
    pub(super) fn address(&self) -> &str {
        let name = &self.name;
        name.rsplit_once('@').map_or(name, |(_, host)| host)
    }
}

/// Most hosts of a job.
pub const HOSTS_MAX: usize = 1 << 16;

/// Where machines come from.
pub trait Source: std::fmt::Debug {
    /// All machines, spares last, in the order in which ranks are to be laid on them.
    fn hosts(&self) -> &[Host];
    /// The command that runs `words` on a host, with its own input, output and status.
    fn shell(&self, host: &Host, words: &[String]) -> Command;
    /// The same for a process of the user's command, which [`Source::sweep`] ends if it is left.
    fn start(&self, host: &Host, words: &[String]) -> Command {
        self.shell(host, words)
    }
    /// True if a program that a host lacks may be brought there.
    fn may_install(&self) -> bool {
        false
    }
    /// Finds out the [`Host::domain`] of all hosts, where the source can tell. Bounded in time;
    /// to be called before children of this process are waited for elsewhere.
    ///
    /// # Errors
    /// [`Code::Config`] with what the source said; the hosts can be used all the same.
    fn find_domains(&mut self) -> Result<()> {
        Ok(())
    }
    /// A command that ends what the user's command left on the hosts when it was killed, if it
    /// leaves anything. It ends by itself, within seconds.
    fn sweep(&self) -> Option<Command> {
        None
    }
    /// True if nobody else can read what goes over that command's pipes.
    fn keeps_secrets(&self) -> bool;
    /// Variables by which the usual launchers lay ranks on these hosts in this order; files
    /// that they name go into `dir`. They are to pass the variables `passed` on to all ranks.
    ///
    /// # Errors
    /// Those of the file system.
    fn environment(
        &self,
        hosts: &[&Host],
        passed: &[String],
        dir: &Path,
    ) -> Result<Vec<(OsString, OsString)>>;
}

/// Checks the names of hosts: each once, and none that would be taken for an option.
///
/// # Errors
/// [`Code::InvalidArgument`] with the name.
pub(super) fn check(hosts: &[Host], from: &str) -> Result<()> {
    let refuse = |reason: String, remedy: &str| {
        let entity = Entity::Option(from.to_owned());
        Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
    };
    if hosts.is_empty() {
        return refuse("names no host".to_owned(), "write one host on each line");
    }
    if hosts.len() > HOSTS_MAX {
        let reason = format!("names {} hosts", hosts.len());
        return refuse(reason, &format!("at most {HOSTS_MAX} can be used"));
    }
    let mut seen = std::collections::BTreeSet::new();
    for host in hosts {
        let usual = |c: char| c.is_ascii_alphanumeric() || ".-_:@%[]".contains(c);
        if !host.name.chars().all(usual) || host.name.starts_with('-') || host.name.is_empty() {
            let shown: String = host.name.chars().take(60).collect();
            return refuse(
                format!("'{shown}' is no name of a host"),
                "correct the line",
            );
        }
        if !seen.insert(&host.name) {
            let reason = format!("names {} twice", host.name);
            return refuse(
                reason,
                "give each host once; slots=N says how many ranks it takes",
            );
        }
    }
    Ok(())
}

/// True if a program of this name can be started.
pub(super) fn is_in_path(program: &str) -> bool {
    let dirs = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let there = |dir: std::path::PathBuf| {
        let path = dir.join(program);
        path.is_file() && rustix::fs::access(&path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    std::env::split_paths(&dirs).any(there)
}

/// A word for a shell, as it stands.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_command_would_take_for_something_else_are_refused() {
        let host = |name: &str| Host {
            name: name.to_owned(),
            slots: None,
            domain: None,
        };
        check(
            &[host("n1"), host("user@n2.example"), host("fd00::1")],
            "hosts",
        )
        .unwrap();
        for bad in [vec![], vec![host("-oProxyCommand=x")], vec![host("a b")]] {
            assert_eq!(
                check(&bad, "hosts").unwrap_err().code(),
                Code::InvalidArgument
            );
        }
        let error = check(&[host("a"), host("a")], "hosts").unwrap_err();
        assert!(error.reason().contains("twice"));
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert!(is_in_path("sh") && !is_in_path("no-such-program") && !is_in_path("."));
    }
}
