//! Files that the program writes by itself, in a place that we name.
//!
//! A routed file becomes a region of its version at the capture: its bytes are read
//! into the slab. After a restore it is written back to node storage before the
//! program is told anything.

use outlive_base::{Code, Entity, Error, Result, Version};
use outlive_capture::ipc::{ToAgent, ToRank};
use outlive_capture::region::{Attribute, Region, RegionKind};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::protected::check_name;

use super::Job;
use super::restore::RestoredRegion;

/// Most files of one version.
const FILES_MAX: usize = 4096;

#[derive(Debug)]
struct Route {
    version: u64,
    name: String,
    path: PathBuf,
    /// Written back by a restore.
    restored: bool,
    /// The program has asked for it: it is captured with its version.
    asked: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Routes {
    routes: Vec<Route>,
    /// Of an unprotected job: our own directory, and the process that made it.
    private: Option<(PathBuf, u32)>,
}

/// A routed file, found before the capture.
#[derive(Debug)]
pub(crate) struct FileToCapture {
    name: String,
    path: PathBuf,
    pub(crate) bytes: u64,
    mode: u32,
}

fn missing(name: &str, path: &Path, reason: &str) -> Error {
    Error::new(
        Code::RouteMissing,
        Entity::File(path.display().to_string()),
        format!("routed as '{name}': {reason}"),
        "write and close the file before the checkpoint with its version",
    )
}

impl FileToCapture {
    pub(crate) fn region(&self) -> Region {
        let value = self.mode.to_le_bytes().to_vec();
        Region {
            name: self.name.clone(),
            kind: RegionKind::File,
            bytes: self.bytes,
            attributes: vec![Attribute {
                tag: Attribute::FILE_MODE,
                value,
            }],
        }
    }

    /// Reads the file, which must have as many bytes as were found before.
    pub(crate) fn read_into(&self, target: &mut [u8]) -> Result<()> {
        let io = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => missing(
                &self.name,
                &self.path,
                "it became shorter during the capture",
            ),
            _ => Error::io(&self.path, "read a routed file", &error),
        };
        let mut file = File::open(&self.path).map_err(io)?;
        file.read_exact(target).map_err(io)?;
        if file.read(&mut [0]).map_err(io)? != 0 {
            return Err(missing(
                &self.name,
                &self.path,
                "it became longer during the capture",
            ));
        }
        Ok(())
    }
}

impl Routes {
    fn find(&mut self, version: u64, name: &str) -> Option<&mut Route> {
        self.routes
            .iter_mut()
            .find(|route| route.version == version && route.name == name)
    }

    /// The files of a version, all of which must be there.
    pub(crate) fn to_capture(&self, version: u64) -> Result<Vec<FileToCapture>> {
        let mut files = Vec::new();
        for route in self
            .routes
            .iter()
            .filter(|route| route.asked && route.version == version)
        {
            let found = std::fs::metadata(&route.path)
                .map_err(|error| missing(&route.name, &route.path, &error.to_string()))?;
            if !found.is_file() {
                return Err(missing(&route.name, &route.path, "it is no regular file"));
            }
            files.push(FileToCapture {
                name: route.name.clone(),
                path: route.path.clone(),
                bytes: found.len(),
                mode: found.permissions().mode() & 0o7777,
            });
        }
        Ok(files)
    }

    /// Forgets versions that have passed, and removes their files: what was captured lies
    /// in a slab, and what was skipped would fill the node's storage.
    fn forget_before(&mut self, version: u64, keep: Option<u64>) {
        self.routes.retain(|route| {
            let stays = route.version >= version || Some(route.version) == keep;
            if !stays {
                let _ = std::fs::remove_file(&route.path);
                // The version's directory, with its last file.
                let _ = route.path.parent().map(std::fs::remove_dir);
            }
            stays
        });
    }

    /// Unprotected: removes what the program wrote into our own directory.
    pub(crate) fn discard_private(&mut self) {
        if let Some((directory, pid)) = self.private.take()
            && pid == std::process::id()
        {
            let _ = std::fs::remove_dir_all(directory);
        }
    }

    fn private_path(&mut self, version: u64, name: &str) -> Result<PathBuf> {
        let directory = match &self.private {
            Some((directory, _)) => directory.clone(),
            None => {
                let directory = private_directory()?;
                self.private = Some((directory.clone(), std::process::id()));
                directory
            }
        };
        let directory = directory.join(version.to_string());
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|error| Error::io(&directory, "create a directory", &error))?;
        Ok(directory.join(name))
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        self.discard_private();
    }
}

fn private_directory() -> Result<PathBuf> {
    const ATTEMPTS: u32 = 1000;
    let parent = std::env::temp_dir();
    let mut last = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
    for attempt in 0..ATTEMPTS {
        let directory = parent.join(format!("outlive-{}-{attempt}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) => last = error,
        }
        if last.kind() != std::io::ErrorKind::AlreadyExists {
            break;
        }
    }
    Err(Error::io(&parent, "create a directory", &last))
}

fn check_file_name(name: &str) -> Result<()> {
    check_name(name)?;
    if name.contains(['/', '\0']) || name == "." || name == ".." {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::File(name.to_owned()),
            "not a file's name",
            "use a name without '/'",
        ));
    }
    Ok(())
}

impl Job {
    /// A path in node storage for a file of `version` that the program writes by
    /// itself, before the checkpoint with that version. After a restore, with the
    /// restored version, the file as it was. Unprotected: a path in a directory of
    /// this process, removed with the job.
    ///
    /// # Errors
    /// 100 for an impossible name, 102 for a version that has passed, 300 or 301
    /// without an agent, 4xx if node storage cannot hold the file.
    pub fn route(&mut self, version: u64, name: &str) -> Result<PathBuf> {
        let result = self.route_inner(version, name);
        self.noted(result)
    }

    fn route_inner(&mut self, version: u64, name: &str) -> Result<PathBuf> {
        self.alive()?;
        check_file_name(name)?;
        let restored = self.version_restored;
        let open = version >= self.next_version() || self.is_decided(version);
        if version > Version::MAX.0 || !(open || restored == Some(version)) {
            return Err(Error::new(
                Code::VersionOrder,
                Entity::Version(version),
                "this version has passed",
                "route files before the checkpoint with their version",
            ));
        }
        if let Some(route) = self.routes.find(version, name) {
            route.asked = true;
            return Ok(route.path.clone());
        }
        if self.regions.get(name).is_some() {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::File(name.to_owned()),
                "a region has this name",
                "give each region and file its own name",
            ));
        }
        let first = self.first_open();
        self.routes.forget_before(first, restored);
        if self.routes.routes.len() >= FILES_MAX {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Version(version),
                format!("more than {FILES_MAX} files"),
                "put them into one file",
            ));
        }
        let path = self.ask_path(version, name)?;
        let (name, restored) = (name.to_owned(), false);
        let route = Route {
            version,
            name,
            path: path.clone(),
            restored,
            asked: true,
        };
        self.routes.routes.push(route);
        Ok(path)
    }

    fn ask_path(&mut self, version: u64, name: &str) -> Result<PathBuf> {
        if self.link.is_none() {
            return self.routes.private_path(version, name);
        }
        let request = ToAgent::Route {
            version: Version(version),
            name: name.to_owned(),
        };
        match self.request(&request, None)? {
            (ToRank::Path { path }, _) => Ok(path.into()),
            _ => Err(Error::internal("the agent answers ROUTE with another kind")),
        }
    }

    /// Writes a file of the checkpoint back to node storage, once.
    pub(crate) fn write_back(&mut self, version: u64, file: &RestoredRegion<'_>) -> Result<()> {
        let name = &file.region.name;
        check_file_name(name)?;
        if self
            .routes
            .find(version, name)
            .is_some_and(|route| route.restored)
        {
            return Ok(());
        }
        let path = self.ask_path(version, name)?;
        let io = |error: std::io::Error| Error::io(&path, "write a routed file back", &error);
        let mode = file
            .region
            .attributes
            .iter()
            .find(|attribute| attribute.tag == Attribute::FILE_MODE)
            .and_then(|attribute| attribute.value.as_slice().try_into().ok())
            .map_or(0o600, u32::from_le_bytes);
        let mut target = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .map_err(io)?;
        target.write_all(file.data).map_err(io)?;
        target
            .set_permissions(Permissions::from_mode(mode & 0o777))
            .map_err(io)?;
        drop(target);
        let (name, restored, asked) = (name.clone(), true, false);
        self.routes.routes.push(Route {
            version,
            name,
            path,
            restored,
            asked,
        });
        Ok(())
    }
}
