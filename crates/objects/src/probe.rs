//! Whether a store may be trusted with a decision.

use std::thread;

use object_store::ObjectStoreExt;
use object_store::path::Path;
use outlive_base::{Code, Entity, Error, Result};
use outlive_vault::Store;

use crate::client::wait;
use crate::store::{Objects, create};

/// So many create one object at once. A store that looks first and writes then lets several of them
/// pass.
const RACERS: u8 = 16;

impl Objects {
    /// Writes, reads, creates at once with others, and removes: what a job needs of the store, before
    /// anything depends on it.
    ///
    /// # Errors
    /// [`Code::StoreUnfit`] if several of those who create one object succeed: of two supervisors
    /// that decide differently both would be right. Those of the store.
    pub fn probe(&self) -> Result<()> {
        let name = format!("probe-{:016x}", crate::client::nonce());
        let path = self.root.clone().join(name);
        let result = self.race(&path);
        // One that was not made is no error.
        let removed = wait(self.client.objects.delete(&path));
        match (result, removed) {
            (Ok(()), Err(error)) if !matches!(error, object_store::Error::NotFound { .. }) => {
                Err(self.failed("remove", &error))
            }
            (result, _) => result,
        }
    }

    fn race(&self, path: &Path) -> Result<()> {
        let racer = |nth: u8| create(&self.client, path, &[nth]).map(|made| made.then_some(nth));
        let outcomes: Vec<_> = thread::scope(|scope| {
            let racers: Vec<_> = (0..RACERS)
                .filter_map(|nth| {
                    let thread = thread::Builder::new();
                    thread.spawn_scoped(scope, move || racer(nth)).ok()
                })
                .collect();
            racers.into_iter().filter_map(|it| it.join().ok()).collect()
        });
        let mut made = Vec::new();
        for outcome in outcomes {
            made.extend(outcome.map_err(|error| self.failed("create", &error))?);
        }
        let found = wait(async { self.client.objects.get(path).await?.bytes().await });
        let found = found.map_err(|error| self.failed("read", &error))?;
        match made[..] {
            [one] if found[..] == [one] => Ok(()),
            _ => Err(Error::new(
                Code::StoreUnfit,
                Entity::File(self.name()),
                format!(
                    "of {RACERS} who created one object at once {} were told that they had: this \
                     store does not keep to conditional puts, by which a job decides",
                    made.len()
                ),
                "use another server (S3 itself, versitygw and minio keep to them), or a shared \
                 directory",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_keeps_to_conditions_is_trusted() {
        let store = Objects::in_memory(1 << 20);
        store.probe().unwrap();
        assert!(
            store
                .list(outlive_vault::ObjectKind::Mark)
                .unwrap()
                .is_empty()
        );
    }
}
