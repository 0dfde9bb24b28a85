//! A command whose threads are decoupled: the library that does it, and what it tells.

use std::ffi::OsString;
use std::path::Path;

use outlive_base::{Code, Entity, Error, Result, count};
use outlive_launch::input;
use outlive_node::cpus::Cpus;
use outlive_node::decouple::{CORES_MAX, account, environment, offered};
use outlive_node::pages::program;
use outlive_node::placement;

use super::refuse;
use crate::pages::library::{DECOUPLE, Folder};

/// What is read of the account: a line has some forty bytes, a build a hundred thousand processes.
const ACCOUNT_BYTES_MAX: u64 = 16 << 20;

/// What a decoupled command needs; goes when its cores do.
pub(super) struct Decoupled {
    folder: Folder,
    pub(super) variables: Vec<(OsString, OsString)>,
}

impl Decoupled {
    /// Makes the library ready, behind what `preload` has in `LD_PRELOAD`; `say` hears if the command cannot have it.
    ///
    /// # Errors
    /// OL-100 if this machine cannot do it, or a service core is too high; those of the files.
    pub(super) fn new(
        words: &[OsString],
        (compute, service): (&Cpus, &Cpus),
        preload: Option<OsString>,
        say: &dyn Fn(&str),
    ) -> Result<Decoupled> {
        if let Err(why) = offered() {
            let remedy = "leave --decouple out: the command makes its system calls itself then";
            let entity = Entity::Option("decouple".into());
            return Err(Error::new(Code::InvalidArgument, entity, why, remedy));
        }
        if service.iter().any(|core| core >= CORES_MAX) {
            let reason = format!("partners cannot run on cores from {CORES_MAX} on");
            return Err(refuse("service", reason, "choose lower ones"));
        }
        let path = words.first().and_then(|name| program::find(name));
        if let Some(why) = path.as_deref().and_then(program::refusal) {
            say(&format!(
                "the command is not decoupled (what it starts may be): {why}"
            ));
        }
        let folder = Folder::new(&DECOUPLE)?;
        let nodes = placement::nodes(Path::new(placement::SYSFS));
        let cores = (compute, service);
        let variables = environment(&folder.library, cores, &nodes, &folder.account, preload);
        Ok(Decoupled { folder, variables })
    }

    /// What processes told that have ended.
    pub(super) fn line(&self) -> String {
        let text = input::read_text(&self.folder.account, ACCOUNT_BYTES_MAX).unwrap_or_default();
        let all = account(&text);
        match all.processes {
            0 => "decoupled: no process told that it was (one that is killed tells nothing)"
                .to_owned(),
            processes => format!(
                "decoupled: {} forwarded, {} made in place, by {} with {}",
                count(all.forwarded, "call"),
                all.in_place,
                count(processes, "process"),
                count(all.partners, "partner"),
            ),
        }
    }
}
