//! Bringing the program to a host that lacks it: written there under a name that tells the
//! build, in a directory that is this user's alone.

use std::fs::File;
use std::process::Stdio;

use super::source::{Host, Source};
use crate::process::{self, Group, Process};

/// The program on its way; it goes over the standard input of a shell there.
#[derive(Debug)]
pub(super) struct Install(pub Process);

/// A directory of somebody else's, or one that others may write to, is no place for a
/// program that is started.
const SCRIPT: &str = r#"umask 077
for dir in "${1%/*}" "$1"; do
    mkdir -m 700 "$dir" 2>/dev/null || :
    [ -O "$dir" ] && [ ! -L "$dir" ] && [ -z "$(find "$dir" -prune -perm /022)" ] || exit 77
done
cat > "$1/outlive.$$" && chmod 700 "$1/outlive.$$" && mv "$1/outlive.$$" "$1/outlive""#;

/// The directory of a build.
fn dir(program: u64) -> String {
    let uid = rustix::process::geteuid().as_raw();
    format!("/var/tmp/outlive-{uid}/program-{program:016x}")
}

/// The program of a build, where it was brought.
pub(super) fn path(program: u64) -> String {
    format!("{}/outlive", dir(program))
}

impl Install {
    /// `None` if it cannot be begun.
    pub fn begin(source: &dyn Source, host: &Host, program: u64) -> Option<Install> {
        let words = ["sh", "-c", SCRIPT, "sh", &dir(program)].map(str::to_owned);
        let mut command = source.shell(host, &words);
        command
            .stdin(Stdio::from(File::open("/proc/self/exe").ok()?))
            .stdout(Stdio::null());
        process::spawn(command, Group::Session, true)
            .ok()
            .map(Install)
    }

    pub fn pid(&self) -> u32 {
        self.0.pid
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn install(dir: &std::path::Path) -> bool {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", SCRIPT, "sh"]).arg(dir);
        let program = File::open("/proc/self/exe").unwrap();
        shell
            .stdin(Stdio::from(program))
            .status()
            .unwrap()
            .success()
    }

    #[test]
    fn a_program_is_brought_into_a_directory_of_ones_own_only() {
        let base = tempfile::tempdir().unwrap();
        let ours = base.path().join("outlive-1");
        let dir = ours.join("program-7");
        assert!(install(&dir) && install(&dir), "twice is no harm");
        let here = std::fs::read("/proc/self/exe").unwrap();
        assert!(std::fs::read(dir.join("outlive")).unwrap() == here);
        assert_eq!(
            std::fs::read_dir(&dir).unwrap().count(),
            1,
            "nothing is left beside it"
        );
        std::fs::set_permissions(&ours, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!install(&dir), "others may write there");
        let link = base.path().join("link");
        std::os::unix::fs::symlink(&ours, &link).unwrap();
        assert!(
            !install(&link.join("program-8")),
            "a link may lead anywhere"
        );
    }
}
