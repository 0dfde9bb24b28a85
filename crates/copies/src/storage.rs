//! Small work on a node's storage.

use std::path::{Path, PathBuf};

use outlive_base::level::StoreKind;
use outlive_base::{Code, Entity, Error, Incarnation, Level, Result};
use outlive_control::node::copies::CopySource;
use outlive_vault::Vault;

use crate::places::Places;

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

/// Flips one bit in the middle of the newest container at a level.
pub fn corrupt(places: &Places, level: Level) -> Result<()> {
    let shared = level.store() == StoreKind::Shared;
    let (level, vault) = match level.store() {
        StoreKind::Keeper => (CopySource::Own.level(), &places.store),
        StoreKind::Node | StoreKind::Server => (level, &places.store),
        StoreKind::Shared => (level, &places.shared),
    };
    let mut found = vault.found()?;
    found.retain(|found| found.level == level && (!shared || found.id.node == places.node));
    let newest = found.into_iter().max_by_key(|found| found.id);
    let newest = newest.ok_or_else(|| {
        Error::new(
            Code::NotFound,
            Entity::Node(places.node.0),
            format!("no container of level {level} is there to be damaged"),
            "inject it at a later version, or at a level that is in use",
        )
    })?;
    outlive_vault::damage(&**vault.store(), &newest.key)
}
