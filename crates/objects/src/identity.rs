//! Whose objects these are: the number of the job that stands in its records and containers. A
//! cluster that has never seen the job finds it here, and goes on.

use std::io;

use object_store::ObjectStoreExt;
use object_store::path::Path;
use outlive_base::{Code, Entity, Error, Result};
use outlive_vault::Store;
use serde::{Deserialize, Serialize};

use crate::client::wait;
use crate::store::{Objects, create};

const NAME: &str = "identity.json";
const SCHEMA: &str = "outlive.objects/1";
/// Longest that is read.
const BYTES_MAX: u64 = 64 << 10;

/// Whose objects these are. No secret: the number is a hash of the job's key that says nothing of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    schema: String,
    /// The job's name.
    pub job: String,
    /// The number of the job in its records, as 16 hexadecimal digits.
    pub number: String,
    /// When it was first run with this store, in UTC.
    pub created: String,
}

impl Identity {
    /// The number of the job in its records.
    pub fn job_hash(&self) -> Option<u64> {
        u64::from_str_radix(&self.number, 16)
            .ok()
            .filter(|_| self.number.len() == 16)
    }
}

impl Objects {
    pub(crate) fn identity_path(&self) -> Path {
        self.root.clone().join(NAME)
    }

    /// Whose objects these are; `None` if nobody's.
    ///
    /// # Errors
    /// Those of the store; [`Code::FormatUnknown`] if it cannot be understood.
    pub fn identity(&self) -> Result<Option<Identity>> {
        let path = self.identity_path();
        let found = wait(async {
            let found = self.client.objects.get(&path).await?;
            match found.meta.size > BYTES_MAX {
                true => Ok(None),
                false => found.bytes().await.map(Some),
            }
        });
        let bytes = match found {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.failed("read", &error)),
            Ok(bytes) => bytes.unwrap_or_default(),
        };
        let identity: Option<Identity> = serde_json::from_slice(&bytes).ok();
        let sound = |it: &Identity| it.schema == SCHEMA && it.job_hash().is_some();
        identity.filter(sound).map(Some).ok_or_else(|| {
            Error::new(
                Code::FormatUnknown,
                Entity::File(format!("{}/{NAME}", self.name())),
                "it does not say whose objects these are",
                "use the version of outlive that wrote it, or another directory of the bucket",
            )
        })
    }

    /// Says whose objects these are from now on, unless that is said.
    ///
    /// # Errors
    /// [`Code::KeyMismatch`] if they are another job's; those of the store.
    pub fn claim(&self, job: &str, job_hash: u64) -> Result<()> {
        let mine = Identity {
            schema: SCHEMA.to_owned(),
            job: job.to_owned(),
            number: format!("{job_hash:016x}"),
            created: jiff::Timestamp::now().to_string(),
        };
        let text = serde_json::to_vec_pretty(&mine);
        let text = text.map_err(|error| Error::internal(io::Error::from(error).to_string()))?;
        let made = create(&self.client, &self.identity_path(), &text);
        if made.map_err(|error| self.failed("create", &error))? {
            return Ok(());
        }
        match self.identity()? {
            Some(there) if there.job_hash() == Some(job_hash) => Ok(()),
            _ => Err(Error::new(
                Code::KeyMismatch,
                Entity::File(self.name()),
                "another job of this name keeps its checkpoints there",
                "use another --job or another directory of the bucket; to go on with that job, \
                 use its --store, or one that does not know the job yet",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_known_by_its_number_and_no_other_takes_its_place() {
        let store = Objects::in_memory(1 << 20);
        assert_eq!(store.identity().unwrap(), None);
        store.claim("heat", 7).unwrap();
        store.claim("heat", 7).unwrap();
        assert_eq!(store.identity().unwrap().unwrap().job_hash(), Some(7));
        let error = store.claim("heat", 8).unwrap_err();
        assert_eq!(error.code(), Code::KeyMismatch);
        let path = store.identity_path();
        wait(store.client.objects.put(&path, "{}".into())).unwrap();
        assert_eq!(store.identity().unwrap_err().code(), Code::FormatUnknown);
        assert!(store.room().unwrap() > 0);
    }
}
