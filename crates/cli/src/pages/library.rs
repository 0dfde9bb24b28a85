//! Where the library lies while a program has it, and what it writes.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use outlive_base::{Error, Result};
use outlive_node::pages::launch::can_be_preloaded;
use outlive_node::{decouple, lock, pages};

use super::refuse;

/// A library that the command carries.
pub(crate) struct Carried {
    bytes: &'static [u8],
    /// The name of its file.
    name: &'static str,
    /// How directories begin that hold a copy.
    directory: &'static str,
}

/// Huge pages.
pub(crate) const PAGES: Carried = Carried {
    bytes: pages::LIBRARY,
    name: pages::LIBRARY_NAME,
    directory: "outlive-pages",
};

/// Decoupled threads.
pub(crate) const DECOUPLE: Carried = Carried {
    bytes: decouple::LIBRARY,
    name: decouple::LIBRARY_NAME,
    directory: "outlive-decouple",
};

/// Locked memory.
pub(crate) const LOCK: Carried = Carried {
    bytes: lock::LIBRARY,
    name: lock::LIBRARY_NAME,
    directory: "outlive-lock",
};

/// Directories of one process number that may be there already.
const LEFT_MAX: u32 = 1_000;

/// Writes a library; a program that has mapped the file of before keeps that.
pub(crate) fn write(file: &Path, bytes: &[u8]) -> Result<()> {
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
pub(super) fn installed(carried: &Carried) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let beside = own.parent()?;
    let places = [
        beside.join(carried.name),
        beside.join("../lib").join(carried.name),
    ];
    let mut real = places.iter().filter_map(|path| path.canonicalize().ok());
    real.find(|path| {
        let long = fs::metadata(path).is_ok_and(|file| file.len() == carried.bytes.len() as u64);
        long && can_be_preloaded(path) && fs::read(path).is_ok_and(|bytes| bytes == carried.bytes)
    })
}

/// A directory of this run, which goes when this does: the library, if it is not installed, and
/// the account that it writes.
pub(crate) struct Folder {
    path: PathBuf,
    /// The library to preload.
    pub(crate) library: PathBuf,
    /// Where it appends what it did.
    pub(crate) account: PathBuf,
}

impl Folder {
    /// Makes it.
    ///
    /// # Errors
    /// Those of writing there; OL-100 if the loader would part the path at a blank or colon.
    pub(crate) fn new(carried: &Carried) -> Result<Folder> {
        let base = std::env::temp_dir();
        let base = std::path::absolute(&base).map_err(|error| Error::io(&base, "find", &error))?;
        let path = create(&base, carried.directory)?;
        // It goes from here on, whatever fails.
        let mut folder = Folder {
            account: path.join("account"),
            library: path.join(carried.name),
            path,
        };
        match installed(carried) {
            Some(library) => folder.library = library,
            None if !can_be_preloaded(&folder.library) => {
                let reason = format!("the loader takes no library at {}", folder.path.display());
                let remedy = "name a directory without blanks, colons and dollar signs in TMPDIR";
                return Err(refuse("TMPDIR", reason, remedy));
            }
            None => write(&folder.library, carried.bytes)?,
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
fn create(base: &Path, directory: &str) -> Result<PathBuf> {
    let mut tries = 0;
    loop {
        let path = base.join(format!("{directory}-{}-{tries}", std::process::id()));
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
