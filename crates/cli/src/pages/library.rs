//! Where the library lies while a program has it, and what it writes.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use outlive_base::{Error, Result};
use outlive_node::pages::launch::can_be_preloaded;
use outlive_node::pages::{LIBRARY, LIBRARY_NAME};

use super::refuse;

/// Directories of one process number that may be there already.
const LEFT_MAX: u32 = 1_000;

/// Writes a library; a program that has mapped the file of before keeps that.
pub(super) fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let beside = file.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = fs::write(&beside, bytes)
        .and_then(|()| fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&beside, file));
    written.map_err(|error| {
        let _ = fs::remove_file(&beside);
        Error::io(file, "write", &error)
    })
}

/// The library that was installed with this command, if it is the same.
pub(super) fn installed() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let beside = own.parent()?;
    let places = [
        beside.join(LIBRARY_NAME),
        beside.join("../lib").join(LIBRARY_NAME),
    ];
    let mut real = places.iter().filter_map(|path| path.canonicalize().ok());
    real.find(|path| {
        let long = fs::metadata(path).is_ok_and(|file| file.len() == LIBRARY.len() as u64);
        long && can_be_preloaded(path) && fs::read(path).is_ok_and(|bytes| bytes == LIBRARY)
    })
}

/// A directory of this run, which goes when this does: the library, if it is not installed, and
/// the account that it writes.
pub(super) struct Folder {
    path: PathBuf,
    /// The library to preload.
    pub(super) library: PathBuf,
    /// Where it appends what it did.
    pub(super) account: PathBuf,
}

impl Folder {
    /// Makes it.
    ///
    /// # Errors
    /// Those of writing there; OL-100 if the loader would part the path at a blank or colon.
    pub(super) fn new() -> Result<Folder> {
        let base = std::env::temp_dir();
        let base = std::path::absolute(&base).map_err(|error| Error::io(&base, "find", &error))?;
        let path = create(&base)?;
        // It goes from here on, whatever fails.
        let mut folder = Folder {
            account: path.join("account"),
            library: path.join(LIBRARY_NAME),
            path,
        };
        match installed() {
            Some(library) => folder.library = library,
            None if !can_be_preloaded(&folder.library) => {
                let reason = format!("the loader takes no library at {}", folder.path.display());
                let remedy = "name a directory without blanks, colons and dollar signs in TMPDIR";
                return Err(refuse("TMPDIR", reason, remedy));
            }
            None => write(&folder.library, LIBRARY)?,
        }
        folder.clear()?;
        Ok(folder)
    }

    /// Begins the account anew.
    pub(super) fn clear(&self) -> Result<()> {
        let written = fs::write(&self.account, "")
            .and_then(|()| fs::set_permissions(&self.account, fs::Permissions::from_mode(0o600)));
        written.map_err(|error| Error::io(&self.account, "write", &error))
    }
}

/// A new directory; one that a killed run of the same number left is no obstacle.
fn create(base: &Path) -> Result<PathBuf> {
    let mut tries = 0;
    loop {
        let path = base.join(format!("outlive-pages-{}-{tries}", std::process::id()));
        // Programs that become another user still find the library.
        match fs::DirBuilder::new().mode(0o755).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && tries < LEFT_MAX => {
                tries += 1;
            }
            Err(error) => return Err(Error::io(&path, "create", &error)),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
