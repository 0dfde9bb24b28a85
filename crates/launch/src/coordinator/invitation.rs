//! What lets a job of another store take part in a coordinator's turns: one file, which holds the
//! job's key and says where the address of the coordinator lies. That file is one that everybody
//! may read, and is written anew whenever another member serves; so no invitation grows old.

use std::io::Read;
use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, JobName, Result};
use outlive_network::{JobKey, open_private, save_private};
use serde::{Deserialize, Serialize};

const SCHEMA: &str = "outlive.coordinator-invitation/1";
/// Longest file, in bytes.
const BYTES_MAX: u64 = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Text {
    schema: String,
    job: JobName,
    key: String,
    address: PathBuf,
}

/// An invitation.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// The name under which the coordinator knows the job, whatever its store calls it.
    pub job: JobName,
    /// The key of that name.
    pub key: JobKey,
    /// The file with the coordinator's address.
    pub address: PathBuf,
}

impl Invitation {
    /// Reads one.
    ///
    /// # Errors
    /// [`Code::Permission`] if others can read it or it is another user's;
    /// [`Code::FormatUnknown`] if it is none, or of another version; those of the file system.
    pub fn load(path: &Path) -> Result<Invitation> {
        let unknown = |reason: String| {
            Error::new(
                Code::FormatUnknown,
                Entity::File(path.display().to_string()),
                reason,
                "give the file that outlive coordinator --issue made, of the same version",
            )
        };
        let mut text = Vec::new();
        let mut file = open_private(path)?.take(BYTES_MAX);
        file.read_to_end(&mut text)
            .map_err(|error| Error::io(path, "read", &error))?;
        let parsed = serde_json::from_slice::<Text>(&text);
        text.fill(0);
        // The parser's own words may hold what stands there.
        let parsed = parsed.map_err(|error| {
            unknown(format!(
                "is no invitation (line {}, column {})",
                error.line(),
                error.column()
            ))
        })?;
        if parsed.schema != SCHEMA {
            return Err(unknown(format!(
                "schema {}, expected {SCHEMA}",
                parsed.schema
            )));
        }
        let key = JobKey::from_hex(&parsed.key)
            .ok_or_else(|| unknown("its key is not 64 hexadecimal digits".to_owned()))?;
        Ok(Invitation {
            job: parsed.job,
            key,
            address: parsed.address,
        })
    }

    /// Writes one, for its owner alone.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if there is such a file; those of the file system.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = Text {
            schema: SCHEMA.to_owned(),
            job: self.job.clone(),
            key: self.key.to_hex(),
            address: self.address.clone(),
        };
        let mut text = serde_json::to_vec_pretty(&text)
            .map_err(|error| Error::internal(format!("{}: {error}", path.display())))?;
        text.push(b'\n');
        let saved = save_private(path, &text);
        text.fill(0);
        saved.map_err(|error| match error.code() {
            Code::JobBusy => Error::new(
                Code::InvalidArgument,
                Entity::File(path.display().to_string()),
                "is there already",
                "give the name of a new file, or remove that one",
            ),
            _ => error,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_invitation_is_its_holders_alone_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("invitation");
        let made = Invitation {
            job: JobName::new("heat").unwrap(),
            key: JobKey::generate().unwrap(),
            address: dir.path().join("address"),
        };
        made.save(&path).unwrap();
        assert_eq!(made.save(&path).unwrap_err().code(), Code::InvalidArgument);
        let read = Invitation::load(&path).unwrap();
        assert_eq!((&read.job, &read.address), (&made.job, &made.address));
        assert_eq!(read.key.to_hex(), made.key.to_hex());
        assert!(!format!("{read:?}").contains(&made.key.to_hex()));
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode(0o640)).unwrap();
        let error = Invitation::load(&path).unwrap_err();
        assert_eq!(error.code(), Code::Permission);
        std::fs::set_permissions(&path, mode(0o600)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let key = made.key.to_hex();
        let bad = [
            "no invitation".to_owned(),
            text.replace("-invitation/1", "-invitation/9"),
            text.replace(&key, &key[..62]),
            text.replace("heat", "../heat"),
        ];
        for bad in bad {
            std::fs::write(&path, &bad).unwrap();
            let error = Invitation::load(&path).unwrap_err();
            assert_eq!(error.code(), Code::FormatUnknown, "{bad}");
            assert!(!error.to_string().contains(&key[..62]), "{error}");
        }
    }
}
