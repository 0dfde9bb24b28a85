//! A command whose memory stays in memory: the library that locks it, and what it tells.

use std::ffi::OsString;

use outlive_base::{Error, Result, count};
use outlive_launch::input;
use outlive_node::lock::{account, environment, lift};
use outlive_node::pages::program;

use super::refuse;
use crate::pages::library::{Folder, LOCK};

/// What is read of the account: a line has some twenty bytes, a build a hundred thousand processes.
const ACCOUNT_BYTES_MAX: u64 = 16 << 20;

/// What a command needs whose memory is locked; goes when its cores do.
pub(super) struct Locked {
    folder: Folder,
    pub(super) variables: Vec<(OsString, OsString)>,
}

impl Locked {
    /// Makes the library ready and lifts this process's limit; `say` hears if the command cannot have it.
    ///
    /// # Errors
    /// OL-100 if memory can be locked up to a limit only; those of the files.
    pub(super) fn new(words: &[OsString], say: &dyn Fn(&str)) -> Result<Locked> {
        let left = lift().map_err(|error| Error::internal(format!("limit of memory: {error}")))?;
        if let Some(most) = left {
            let reason = format!(
                "this user may lock {} KiB, and a program that is locked could map no more",
                most >> 10
            );
            let remedy = "run it as root, or have the limit lifted (ulimit -l unlimited; \
                          LimitMEMLOCK= of a service; memlock in limits.conf)";
            return Err(refuse("lock", reason, remedy));
        }
        let path = words.first().and_then(|name| program::find(name));
        if let Some(why) = path.as_deref().and_then(program::refusal) {
            say(&format!(
                "the command's memory is not locked (that of what it starts may be): {why}"
            ));
        }
        let folder = Folder::new(&LOCK)?;
        let preload = std::env::var_os("LD_PRELOAD");
        let variables = environment(&folder.library, &folder.account, preload);
        Ok(Locked { folder, variables })
    }

    /// What stands in `LD_PRELOAD` with it.
    pub(super) fn preload(&self) -> Option<OsString> {
        let mut set = self.variables.iter();
        set.find_map(|(name, value)| (name == "LD_PRELOAD").then(|| value.clone()))
    }

    /// What processes told.
    pub(super) fn line(&self) -> String {
        let text = input::read_text(&self.folder.account, ACCOUNT_BYTES_MAX).unwrap_or_default();
        let all = account(&text);
        let refused = match all.error {
            None => String::new(),
            Some(error) => format!(
                ", and not that of {}: {}",
                count(all.refused, "process"),
                std::io::Error::from_raw_os_error(error)
            ),
        };
        match all.locked {
            0 if all.refused == 0 => "locked: no process told that its memory is".to_owned(),
            locked => format!(
                "locked: the memory of {}{refused}",
                count(locked, "process")
            ),
        }
    }
}
