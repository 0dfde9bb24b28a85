//! What an agent that is started anew must know to go on with a copy at `shared` that the one
//! before it had begun.
//!
//! Invariants: there is one at most, of the copy that is on its way; it is of use only for the very
//! container that it names; what was begun of another is given up at the store.

use outlive_base::ContainerId;
use outlive_codec::crc64;
use outlive_ledger::Sealed;
use outlive_vault::{Key, ObjectKind, Put, Space, Store, Vault};
use serde::{Deserialize, Serialize};

/// Its name in node storage. It is no record: who lists those leaves it out.
const NAME: &str = "upload";
/// Longer than one of as many parts as an object may have.
const BYTES_MAX: u64 = 4 << 20;

/// What is kept.
#[derive(Serialize, Deserialize)]
struct Noted {
    id: ContainerId,
    length: u64,
    digest: u128,
    /// What the draft said of itself.
    kept: Vec<u8>,
}

impl Noted {
    /// With a checksum before it: a bit that flips must not end another upload, nor go on with parts that
    /// are none of this one.
    fn bytes(&self) -> Option<Vec<u8>> {
        let body = postcard::to_allocvec(self).ok()?;
        Some([&crc64(&body).to_le_bytes()[..], &body].concat())
    }

    fn read(bytes: &[u8]) -> Option<Noted> {
        let (sum, body) = bytes.split_first_chunk::<8>()?;
        let sound = crc64(body).to_le_bytes() == *sum;
        let (noted, rest) = postcard::take_from_bytes(body).ok().filter(|_| sound)?;
        rest.is_empty().then_some(noted)
    }
}

/// The note in node storage.
pub struct Journal<'a> {
    store: &'a dyn Store,
    vault: &'a Vault,
}

impl Journal<'_> {
    /// That of a node.
    pub fn of(vault: &Vault) -> Journal<'_> {
        Journal {
            store: &**vault.store(),
            vault,
        }
    }

    fn key() -> Option<Key> {
        Key::new(ObjectKind::Mark, NAME)
    }

    /// What was noted of this container. What was of another is ended at the store, so that its
    /// parts cost nothing there.
    pub fn take_up(&self, shared: &dyn Store, sealed: &Sealed) -> Option<Vec<u8>> {
        let bytes = self.store.get(&Journal::key()?, BYTES_MAX).ok()?;
        let noted = Noted::read(&bytes)?;
        if (noted.id, noted.length, noted.digest) == (sealed.id, sealed.length, sealed.digest) {
            return Some(noted.kept);
        }
        let key = self.vault.container_key(noted.id);
        // Dropped, it is aborted.
        drop(shared.resume(&key, noted.length, false, &noted.kept));
        self.forget();
        None
    }

    /// Notes what a draft of this container has by now. Without it the copy is begun anew.
    pub fn note(&self, sealed: &Sealed, kept: &[u8]) {
        let noted = Noted {
            id: sealed.id,
            length: sealed.length,
            digest: sealed.digest,
            kept: kept.to_vec(),
        };
        let (Some(key), Some(bytes)) = (Journal::key(), noted.bytes()) else {
            return;
        };
        let space = Space::Free;
        let put = Put {
            key,
            bytes: &bytes,
            space,
        };
        for error in self
            .store
            .put_all(&[put])
            .into_iter()
            .filter_map(Result::err)
        {
            tracing::info!(%error, "nobody could go on with this copy");
        }
    }

    /// The copy is over.
    pub fn forget(&self) {
        let gone = Journal::key().map(|key| self.store.remove(&[key]));
        if let Some(Err(error)) = gone {
            tracing::info!(%error, "a note stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::{Incarnation, NodeId, Version};
    use outlive_vault::Memory;

    use super::*;

    fn sealed(version: u64) -> Sealed {
        Sealed {
            id: ContainerId {
                incarnation: Incarnation(1),
                version: Version(version),
                node: NodeId(0),
            },
            length: 10,
            digest: 3,
        }
    }

    #[test]
    fn what_was_noted_is_for_that_container_alone() {
        let (here, there) = (Memory::new(1 << 20), Memory::new(1 << 20));
        let vault = Vault::own(std::sync::Arc::new(here), 7);
        let journal = Journal::of(&vault);
        assert_eq!(journal.take_up(&there, &sealed(1)), None);
        journal.note(&sealed(1), b"half");
        journal.note(&sealed(1), b"more");
        assert_eq!(journal.take_up(&there, &sealed(1)), Some(b"more".to_vec()));
        assert_eq!(journal.take_up(&there, &sealed(2)), None);
        assert_eq!(
            journal.take_up(&there, &sealed(1)),
            None,
            "it was of another"
        );
        journal.forget();
    }

    #[test]
    fn what_is_damaged_is_no_note() {
        let vault = Vault::own(std::sync::Arc::new(Memory::new(1 << 20)), 7);
        let there = Memory::new(1 << 20);
        let journal = Journal::of(&vault);
        journal.note(&sealed(1), b"half of it");
        let key = Journal::key().unwrap();
        let good = vault.store().get(&key, BYTES_MAX).unwrap();
        let mut random = outlive_base::rng::Sequence::new(outlive_base::seed!(), 0);
        let mut harms: Vec<Vec<u8>> = (0..good.len()).map(|end| good[..end].to_vec()).collect();
        harms.push([&good[..], b"x"].concat());
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << random.below(8);
            harms.push(bytes);
        }
        for bytes in harms {
            let put = Put {
                key: key.clone(),
                bytes: &bytes,
                space: Space::Free,
            };
            assert!(vault.store().put_all(&[put]).remove(0).is_ok());
            assert_eq!(journal.take_up(&there, &sealed(1)), None, "{bytes:?}");
        }
    }
}
