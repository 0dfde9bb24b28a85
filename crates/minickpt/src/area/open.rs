//! Open files in the module's records.

use std::collections::BTreeSet;

use outlive_image::model::{Description, Descriptor, OpenFile};

use super::{Bytes, Records, path};

// Of a descriptor.
const CLOEXEC: u32 = 1;
const VOLATILE: u32 = 1 << 1;
const UNLINKED: u32 = 1 << 2;

/// Major and minor number; `None` for file systems without a device.
fn device(number: u32) -> Option<(u32, u32)> {
    let (major, minor) = (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xf_ff00);
    (major != 0).then_some((major, minor))
}

/// The open file descriptions of all processes, by the module's number for them.
#[derive(Default)]
pub(super) struct Open {
    found: Vec<(u64, i32, Description)>,
    /// Pipes that held something, by number: it is lost.
    full: BTreeSet<u64>,
}

impl Open {
    /// The descriptors of one process.
    pub(super) fn of(
        &mut self,
        records: &Records<'_>,
    ) -> std::result::Result<Vec<Descriptor>, String> {
        let mut descriptors = Vec::new();
        for entry in records.fds.chunks_exact(64) {
            let bytes = Bytes(entry);
            let (fd, id) = (bytes.i32(0), bytes.u64(8));
            let known = self.found.iter().position(|(other, _, _)| *other == id);
            let index = known.unwrap_or_else(|| {
                let name = path(records.strings, bytes.u32(56));
                let about = bytes.u32(4);
                let kind = match kind(bytes, name, fd, records.terminals) {
                    // Another file may have its name now.
                    OpenFile::Path(path) if about & UNLINKED != 0 => {
                        OpenFile::Gone(format!("{path} was removed while it was open"))
                    }
                    kind => kind,
                };
                if let OpenFile::Pipe { id, .. } = kind
                    && bytes.u64(48) > 0
                {
                    self.full.insert(id);
                }
                let flags = bytes.u32(40) & !(libc::O_CLOEXEC as u32);
                let position = bytes.u64(16);
                self.found.push((
                    id,
                    fd,
                    Description {
                        flags,
                        position,
                        volatile: about & VOLATILE != 0,
                        device: device(bytes.u32(32)),
                        kind,
                    },
                ));
                self.found.len() - 1
            });
            descriptors.push(Descriptor {
                fd,
                close_on_exec: bytes.u32(4) & CLOEXEC != 0,
                description: index as u32,
            });
        }
        Ok(descriptors)
    }

    pub(super) fn finish(self) -> Vec<Description> {
        let end = |id: u64, want: bool| {
            self.found.iter().any(|(_, _, d)| {
                matches!(d.kind, OpenFile::Pipe { id: i, write, .. } if i == id && write == want)
            })
        };
        let found = self.found.iter().map(|(_, fd, description)| {
            let mut description = description.clone();
            if let OpenFile::Pipe { id, write, .. } = description.kind {
                let inside = end(id, true) && end(id, false);
                if self.full.contains(&id) && (inside || !write) {
                    // Who would go on with it would go on without what was in it.
                    description.kind = OpenFile::Gone("a pipe that held something".to_owned());
                } else if !inside {
                    description.kind = OpenFile::Outside { stdio: *fd };
                }
            }
            description
        });
        found.collect()
    }
}

/// A terminal with the settings that it had, if they could be saved.
fn terminal(path: String, description: u64, terminals: &[u8]) -> OpenFile {
    let mut entries = terminals.chunks_exact(56).map(Bytes);
    let found = entries.find(|entry| entry.u64(0) == description);
    let (termios, size, foreground) = found.map_or_else(Default::default, |entry| {
        let size = entry.u32(44);
        let size = (size as u16, (size >> 16) as u16);
        (entry.0[8..44].to_vec(), size, entry.i32(48))
    });
    OpenFile::Terminal {
        path,
        termios,
        size,
        foreground,
    }
}

fn kind(bytes: Bytes<'_>, path: Option<String>, fd: i32, terminals: &[u8]) -> OpenFile {
    let (mode, rdev) = (bytes.u32(44), u64::from(bytes.u32(36)));
    let closed = OpenFile::Outside { stdio: fd };
    match (mode & libc::S_IFMT, path) {
        (libc::S_IFIFO, _) => {
            let write = bytes.u32(40) & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32;
            OpenFile::Pipe {
                id: bytes.u64(24),
                write,
                held: Vec::new(),
            }
        }
        (libc::S_IFSOCK, _) if fd > 2 => OpenFile::Socket,
        (libc::S_IFREG | libc::S_IFDIR, Some(path)) => OpenFile::Path(path),
        (libc::S_IFCHR, Some(path)) if outlive_image::descriptors::is_terminal(rdev) => {
            terminal(path, bytes.u64(8), terminals)
        }
        (libc::S_IFCHR, Some(path)) if path.starts_with("/dev/") => OpenFile::Path(path),
        _ => closed,
    }
}
