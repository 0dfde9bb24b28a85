//! The job's key: the only secret of the network, and its file.
//!
//! Invariants: the bytes are wiped when the last copy goes; they are never
//! shown; a key file that others could read is never used (P7); a key file is
//! complete or absent, even after a crash (temporary name, fsync, link).

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use outlive_base::{Code, Entity, Error};
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use zeroize::Zeroize;

/// Length of a key, in bytes.
pub const KEY_BYTES: usize = 32;

/// The secret that the agents and the launcher of one job share. Wiped when
/// dropped; its `Debug` shows nothing.
#[derive(Clone)]
pub struct JobKey([u8; KEY_BYTES]);

impl JobKey {
    /// A fresh key from the kernel's random source.
    ///
    /// # Errors
    /// [`Code::Internal`] if the kernel gives no random bytes.
    pub fn generate() -> Result<JobKey, Error> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::internal(format!("no random bytes: {error}")))?;
        Ok(JobKey(bytes))
    }

    /// Wraps 32 bytes that the caller keeps secret.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> JobKey {
        JobKey(bytes)
    }

    /// Makes a fresh key and its file (mode 0600), durably. Of several callers
    /// exactly one succeeds; the others [`JobKey::load`].
    ///
    /// # Errors
    /// [`Code::JobBusy`] if the file exists already, else what
    /// [`Error::io`] says.
    pub fn create(path: impl AsRef<Path>) -> Result<JobKey, Error> {
        let key = JobKey::generate()?;
        key.save(path)?;
        Ok(key)
    }

    /// Makes the file of this key, which is not there, durably: of a key that was just
    /// made, or of one whose file was removed while its job ran.
    ///
    /// # Errors
    /// Those of [`JobKey::create`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        save_private(path.as_ref(), &self.0)
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// [`Code::Permission`] if the file belongs to another user, is no regular
    /// file, or grants anything to group or others; [`Code::Truncated`] or
    /// [`Code::FormatUnknown`] if it is not exactly 32 bytes long; else what
    /// [`Error::io`] says.
    pub fn load(path: impl AsRef<Path>) -> Result<JobKey, Error> {
        let path = path.as_ref();
        let mut file = open_private(path)?;
        let mut bytes = [0; KEY_BYTES];
        file.read_exact(&mut bytes)
            .map_err(|error| Error::io(path, "read", &error))?;
        let key = JobKey(bytes);
        bytes.zeroize();
        let rest = file
            .read(&mut [0])
            .map_err(|error| Error::io(path, "read", &error))?;
        if rest != 0 {
            return Err(Error::new(
                Code::FormatUnknown,
                Entity::File(path.display().to_string()),
                "a key is 32 bytes and this file is longer",
                "give the key file that outlive run made",
            ));
        }
        Ok(key)
    }

    /// The key of `name` for the use that `label` says, which only holders of this one can make:
    /// HMAC-BLAKE2s (RFC 2104 with the hash of RFC 7693) of label and name under this key. Who
    /// holds derived keys learns nothing of this one, nor of others that are derived from it.
    ///
    /// # Errors
    /// [`Code::Internal`] if the hash is not compiled in.
    pub fn derived(&self, label: &str, name: &str) -> Result<JobKey, Error> {
        self.keyed(label, name).map(JobKey)
    }

    /// A number that follows from this key, for the use that `label` says: who does not hold the
    /// key cannot find another whose number is the same.
    ///
    /// # Errors
    /// Those of [`JobKey::derived`].
    pub fn number(&self, label: &str) -> Result<u32, Error> {
        let [a, b, c, d, ..] = self.keyed(label, "")?;
        Ok(u32::from_le_bytes([a, b, c, d]))
    }

    fn keyed(&self, label: &str, name: &str) -> Result<[u8; KEY_BYTES], Error> {
        let mut hash = DefaultResolver
            .resolve_hash(&HashChoice::Blake2s)
            .ok_or_else(|| Error::internal("no keyed hash"))?;
        let mut data = label.as_bytes().to_vec();
        // No label holds one: label and name are told apart.
        data.push(0);
        data.extend_from_slice(name.as_bytes());
        let mut out = [0; KEY_BYTES];
        hash.hmac(&self.0, &data, &mut out);
        Ok(out)
    }

    /// As hexadecimal digits, for a file that keeps it beside other things.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What [`JobKey::to_hex`] gave.
    pub fn from_hex(text: &str) -> Option<JobKey> {
        let mut bytes = [0; KEY_BYTES];
        if text.len() != 2 * KEY_BYTES || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = core::str::from_utf8(digits).ok()?;
            *byte = u8::from_str_radix(digits, 16).ok()?;
        }
        Some(JobKey(bytes))
    }

    /// The secret bytes, for the handshake only.
    pub(crate) const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

/// Makes a file that holds a key (mode 0600) and is not there, durably, whole or not at all.
///
/// # Errors
/// [`Code::JobBusy`] if it exists already, else what [`Error::io`] says.
pub fn save_private(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".new-{}-{:x}", std::process::id(), fresh_number()?));
    let temporary = Path::new(&name);
    let made = write_private(temporary, path, bytes);
    // The link holds the file now, or nothing needs it.
    let removed = fs::remove_file(temporary);
    made?;
    removed.map_err(|error| Error::io(temporary, "remove", &error))?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let directory = parent.unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|handle| handle.sync_all())
        .map_err(|error| Error::io(directory, "synchronise", &error))
}

fn write_private(temporary: &Path, path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(temporary)
        .map_err(|error| Error::io(temporary, "create", &error))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(|error| Error::io(temporary, "write", &error))?;
    fs::hard_link(temporary, path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::new(
            Code::JobBusy,
            Entity::File(path.display().to_string()),
            "the key exists already",
            "load it instead of making a new one",
        ),
        _ => Error::io(path, "link", &error),
    })
}

/// Opens a file that holds a key.
///
/// # Errors
/// [`Code::Permission`] if the file belongs to another user, is no regular file, or grants
/// anything to group or others; else what [`Error::io`] says.
pub fn open_private(path: &Path) -> Result<File, Error> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
        .map_err(|error| Error::io(path, "open", &error))?;
    check_private(&file, path)?;
    Ok(file)
}

fn fresh_number() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::internal(format!("no random bytes: {error}")))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Checks the opened file, not the path: nobody can swap it in between.
fn check_private(file: &File, path: &Path) -> Result<(), Error> {
    let meta = file
        .metadata()
        .map_err(|error| Error::io(path, "look at", &error))?;
    let me = rustix::process::geteuid().as_raw();
    let refuse = |reason: String, remedy: &str| {
        Err(Error::new(
            Code::Permission,
            Entity::File(path.display().to_string()),
            reason,
            remedy,
        ))
    };
    if !meta.is_file() {
        return refuse(
            "a key must be a regular file".into(),
            "give the key file itself",
        );
    }
    if meta.uid() != me {
        return refuse(
            format!("the key belongs to user {} and not to {me}", meta.uid()),
            "run as the user who owns the job",
        );
    }
    if meta.mode() & 0o077 != 0 {
        return refuse(
            format!("mode {:04o} lets others at the key", meta.mode() & 0o7777),
            "chmod 600 the file; make a new key if others may have read it",
        );
    }
    Ok(())
}

impl Drop for JobKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl core::fmt::Debug for JobKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("JobKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn derived_keys_differ_by_key_label_and_name() {
        let (one, two) = (JobKey::from_bytes([1; 32]), JobKey::from_bytes([2; 32]));
        let all = [
            one.clone(),
            one.derived("use", "a").unwrap(),
            one.derived("use", "b").unwrap(),
            one.derived("other", "a").unwrap(),
            one.derived("usea", "").unwrap(),
            one.derived("use", "").unwrap(),
            two.derived("use", "a").unwrap(),
        ];
        let numbers: Vec<u32> = all.iter().map(|key| key.number("n").unwrap()).collect();
        for (at, key) in all.iter().enumerate() {
            for (other, number) in all[..at].iter().zip(&numbers) {
                assert_ne!(key.bytes(), other.bytes());
                assert_ne!(numbers[at], *number);
            }
        }
        let again = one.derived("use", "a").unwrap();
        assert_eq!(again.bytes(), all[1].bytes());
        assert_ne!(again.number("n").unwrap(), again.number("m").unwrap());
        // As hmac of Python's library computes it, with hashlib.blake2s.
        let known = "d3275fd01b7458bcc3be928c3e42b3f806571725c80ee36f4113c262f603c050";
        assert_eq!(again.to_hex(), known);
        assert_eq!(JobKey::from_hex(known).unwrap().bytes(), again.bytes());
        for bad in [
            "",
            &known[1..],
            &known.replace('0', "g"),
            &format!("+{}", &known[1..]),
        ] {
            assert!(JobKey::from_hex(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_key_file_is_private_made_once_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let made = JobKey::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(JobKey::load(&path).unwrap().bytes(), made.bytes());
        assert_eq!(JobKey::create(&path).unwrap_err().code(), Code::JobBusy);
        assert_eq!(JobKey::load(&path).unwrap().bytes(), made.bytes());
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
        assert_eq!(format!("{made:?}"), "JobKey(secret)");
    }

    #[test]
    fn wide_permissions_links_and_wrong_lengths_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        JobKey::create(&path).unwrap();
        for mode in [0o640, 0o604, 0o660, 0o601] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                JobKey::load(&path).unwrap_err().code(),
                Code::Permission,
                "{mode:o}"
            );
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(JobKey::load(&link).is_err());
        assert_eq!(
            JobKey::load(dir.path()).unwrap_err().code(),
            Code::Permission
        );
        assert_eq!(
            JobKey::load(dir.path().join("none")).unwrap_err().code(),
            Code::NotFound
        );
        fs::write(&path, [0; 31]).unwrap();
        assert_eq!(JobKey::load(&path).unwrap_err().code(), Code::Truncated);
        fs::write(&path, [0; 33]).unwrap();
        assert_eq!(JobKey::load(&path).unwrap_err().code(), Code::FormatUnknown);
    }
}
