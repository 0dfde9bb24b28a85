//! Small work on a node's storage.

use std::path::{Path, PathBuf};

use outlive_base::level::StoreKind;
use outlive_base::{Code, Entity, Error, Incarnation, Level, Result};
use outlive_control::node::copies::CopySource;
use outlive_vault::{Key, ParityFile, Sealed, Vault};

use crate::places::Places;
use crate::serving::served_at;

/// Bytes of containers in node storage, and free bytes there.
pub fn disk_usage(store: &Vault) -> (u64, u64) {
    let used = store
        .found()
        .map_or(0, |found| found.iter().map(|found| found.length).sum());
    (used, store.store().room().unwrap_or(0))
}

/// The directories of ranks' own files, but for those of one start: its ranks may have begun
/// to write.
pub fn routed(files: &Path, but: Incarnation) -> Vec<PathBuf> {
    let stays = format!("i{}-", but.0);
    let entries = std::fs::read_dir(files).into_iter().flatten();
    entries
        .flatten()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with(&stays))
        .map(|entry| entry.path())
        .collect()
}

/// Flips one bit in the middle of the newest container at a level, or of its parity.
pub fn corrupt(places: &Places, level: Level) -> Result<()> {
    let shared = level.store() == StoreKind::Shared;
    let (level, vault) = match level.store() {
        StoreKind::Keeper => (CopySource::Own.level(), &places.store),
        StoreKind::Node => (level, &places.store),
        StoreKind::Server => return corrupt_served(places, level),
        StoreKind::Shared => (level, &places.shared),
    };
    let mut found = vault.found()?;
    found.retain(|found| found.level == level && (!shared || found.id.node == places.node));
    let newest = found.into_iter().max_by_key(|found| found.id);
    let newest = newest.ok_or_else(|| none_there(places, level))?;
    outlive_vault::damage(&**vault.store(), &newest.key)
}

/// The same of the parity of this node's group at the memory server, whichever member it is named after.
fn corrupt_served(places: &Places, level: Level) -> Result<()> {
    let parities = served_at(places)?.parities();
    let mut found = parities.found()?;
    found.retain(|(_, at)| *at == level);
    found.sort_by_key(|(id, _)| std::cmp::Reverse(*id));
    let is_of = |members: &[Sealed]| members.iter().any(|member| member.id.node == places.node);
    for (id, level) in found {
        // One that is being made has no header.
        let Ok(file) = ParityFile::open(parities, &Key::parity(level, id)) else {
            continue;
        };
        if is_of(&file.head.members) {
            return parities.damage(level, id);
        }
    }
    Err(none_there(places, level))
}

fn none_there(places: &Places, level: Level) -> Error {
    Error::new(
        Code::NotFound,
        Entity::Node(places.node.0),
        format!("no container of level {level} is there to be damaged"),
        "inject it at a later version, or at a level that is in use",
    )
}
