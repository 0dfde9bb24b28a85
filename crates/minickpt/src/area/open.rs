//! Open files in the module's records.

use std::collections::BTreeSet;

use outlive_image::model::{Description, Descriptor, Lock, OpenFile, Process, Watched};

use super::state::{self, Call, Held};
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

/// A file that an epoll watches, by the module's numbers.
#[derive(Clone, Copy)]
struct Watch {
    epoll: u64,
    target: u64,
    fd: i32,
    events: u32,
    data: u64,
}

/// The open file descriptions of all processes, by the module's number for them.
#[derive(Default)]
pub(super) struct Open {
    found: Vec<(u64, i32, Description)>,
    /// Pipes that held something that is lost, by number.
    full: BTreeSet<u64>,
    /// Descriptions through which something may have been moving.
    busy: BTreeSet<u64>,
    /// Epolls that were asked what has happened.
    asked: BTreeSet<u64>,
    watched: Vec<Watch>,
    /// Epolls of which it is not known what they watch.
    blind: BTreeSet<u64>,
}

/// What a process has open, and the locks that are its own.
pub(super) type Has = (Vec<Descriptor>, Vec<(i32, Lock)>);

impl Open {
    /// The descriptors of one process.
    pub(super) fn of(&mut self, records: &Records<'_>) -> std::result::Result<Has, String> {
        let mut descriptors = Vec::new();
        for entry in records.fds.chunks_exact(64) {
            let bytes = Bytes(entry);
            let (fd, id) = (bytes.i32(0), bytes.u64(8));
            let known = self.found.iter().position(|(other, _, _)| *other == id);
            let index = known.unwrap_or_else(|| self.add(records, bytes));
            descriptors.push(Descriptor {
                fd,
                close_on_exec: bytes.u32(4) & CLOEXEC != 0,
                description: index as u32,
            });
        }
        self.watched_by(records);
        self.calls(records, &descriptors);
        let locks = self.locks(records)?;
        Ok((descriptors, locks))
    }

    fn add(&mut self, records: &Records<'_>, bytes: Bytes<'_>) -> usize {
        let (fd, id) = (bytes.i32(0), bytes.u64(8));
        let name = path(records.strings, bytes.u32(56));
        let about = bytes.u32(4);
        let mut kind = match kind(bytes, name, records) {
            // Another file may have its name now.
            OpenFile::Path(path) if about & UNLINKED != 0 => {
                OpenFile::Gone(format!("{path} was removed while it was open"))
            }
            kind => kind,
        };
        if let OpenFile::Pipe { id: pipe, held, .. } = &mut kind
            && bytes.u64(48) > 0
            && !self.holds(*pipe)
        {
            match records.held.and_then(|all| state::held(all, id)) {
                Some(pieces) => *held = pieces.concat(),
                None => drop(self.full.insert(*pipe)),
            }
        }
        self.found.push((
            id,
            fd,
            Description {
                flags: bytes.u32(40) & !(libc::O_CLOEXEC as u32),
                position: bytes.u64(16),
                volatile: about & VOLATILE != 0,
                device: device(bytes.u32(32)),
                locks: Vec::new(),
                kind,
            },
        ));
        self.found.len() - 1
    }

    /// True if what a pipe holds is known already.
    fn holds(&self, pipe: u64) -> bool {
        self.found.iter().any(|(_, _, other)| {
            matches!(&other.kind, OpenFile::Pipe { id, held, .. } if *id == pipe && !held.is_empty())
        })
    }

    fn watched_by(&mut self, records: &Records<'_>) {
        let Some(watched) = records.watched else {
            let all = records
                .specials
                .chunks_exact(64)
                .map(|entry| Bytes(entry).u64(0));
            self.blind.extend(all);
            return;
        };
        for entry in watched.chunks_exact(32).map(Bytes) {
            let one = Watch {
                epoll: entry.u64(0),
                target: entry.u64(8),
                fd: entry.i32(16),
                events: entry.u32(20),
                data: entry.u64(24),
            };
            let known = |other: &Watch| {
                (other.epoll, other.target, other.fd) == (one.epoll, one.target, one.fd)
            };
            if !self.watched.iter().any(known) {
                self.watched.push(one);
            }
        }
    }

    /// Calls that are made again: those on epolls find what they found, of those that move
    /// something it is noted through what.
    fn calls(&mut self, records: &Records<'_>, descriptors: &[Descriptor]) {
        let id = |fd: i32| {
            let of = descriptors.iter().find(|d| d.fd == fd)?;
            Some(self.found[of.description as usize].0)
        };
        let threads = records.threads.iter();
        let calls: Vec<_> = threads
            .flat_map(|thread| state::calls(Bytes(thread)))
            .filter_map(|call| {
                let (Call::Moves(fd) | Call::Waits(fd) | Call::Watches(fd, ..)) = call;
                let target = match call {
                    Call::Watches(_, _, fd) => id(fd).unwrap_or(0),
                    _ => 0,
                };
                Some((call, id(fd)?, target))
            })
            .collect();
        for (call, of, target) in calls {
            match call {
                Call::Moves(_) => drop(self.busy.insert(of)),
                Call::Waits(_) => drop(self.asked.insert(of)),
                Call::Watches(_, libc::EPOLL_CTL_ADD, fd) => {
                    self.watched
                        .retain(|w| (w.epoll, w.target, w.fd) != (of, target, fd));
                }
                Call::Watches(_, libc::EPOLL_CTL_DEL, fd) if target != 0 => {
                    let mut all = self.watched.iter();
                    if !all.any(|w| (w.epoll, w.target, w.fd) == (of, target, fd)) {
                        self.watched.push(Watch {
                            epoll: of,
                            target,
                            fd,
                            events: 0,
                            data: 0,
                        });
                    }
                }
                Call::Watches(..) => {}
            }
        }
    }

    /// Gives those of the process; those of descriptions go with these.
    fn locks(&mut self, records: &Records<'_>) -> std::result::Result<Vec<(i32, Lock)>, String> {
        let mut own = Vec::new();
        let all = records
            .locks
            .ok_or("its locks on files could not be read")?;
        for held in state::locks(all) {
            match held {
                Held::Description(id, lock) => {
                    let mut all = self.found.iter_mut();
                    if let Some((_, _, found)) = all.find(|(other, _, _)| *other == id)
                        && !found.locks.contains(&lock)
                    {
                        found.locks.push(lock);
                    }
                }
                Held::Process(fd, lock) => own.push((fd, lock)),
                Held::Lease(fd) => {
                    let mut entries = records.fds.chunks_exact(64).map(Bytes);
                    let of = entries.find(|entry| entry.i32(0) == fd);
                    let name = of.and_then(|entry| path(records.strings, entry.u32(56)));
                    let name = name.unwrap_or_else(|| format!("descriptor {fd}"));
                    return Err(format!("it held a lease on {name}, which is not kept"));
                }
            }
        }
        Ok(own)
    }

    /// The descriptions as these processes can have them again.
    pub(super) fn finish(mut self, processes: &[Process]) -> Vec<Description> {
        self.settle();
        let mut all: Vec<_> = self.found.iter().map(|(_, _, d)| d.clone()).collect();
        for (index, (id, _, _)) in self.found.iter().enumerate() {
            if let OpenFile::Epoll(_) = all[index].kind {
                all[index].kind = self.epoll(*id, index, processes);
            }
        }
        all
    }

    /// Pipes and pairs whose other end is not here, or through which something was moving.
    fn settle(&mut self) {
        let ends: BTreeSet<(u64, bool)> = self
            .found
            .iter()
            .filter_map(|(_, _, d)| match d.kind {
                OpenFile::Pipe { id, write, .. } => Some((id, write)),
                OpenFile::Pair { id, .. } => Some((id, true)),
                _ => None,
            })
            .collect();
        let is_busy = |id: &u64| self.busy.contains(id);
        let mut moving = BTreeSet::new();
        for (id, _, description) in &self.found {
            match &description.kind {
                OpenFile::Pipe { id: pipe, .. } if is_busy(id) => drop(moving.insert(*pipe)),
                OpenFile::Pair { id: own, peer, .. } if is_busy(id) => moving.extend([*own, *peer]),
                _ => {}
            }
        }
        let held: BTreeSet<u64> = self
            .found
            .iter()
            .filter_map(|(_, _, d)| match &d.kind {
                OpenFile::Pipe { id, held, .. } if !held.is_empty() => Some(*id),
                _ => None,
            })
            .collect();
        let gone = |what: &str| OpenFile::Gone(what.to_owned());
        for (own, fd, description) in &mut self.found {
            let under_way = self.busy.contains(own);
            let kind = match &description.kind {
                OpenFile::Pipe { id, write, .. } => {
                    let inside = ends.contains(&(*id, true)) && ends.contains(&(*id, false));
                    let lost = self.full.contains(id) || held.contains(id) && moving.contains(id);
                    let counts = inside || !write;
                    if lost && counts {
                        // Who would go on with it would go on without what was in it.
                        Some(gone("a pipe that held something"))
                    } else if !inside && held.contains(id) && counts {
                        Some(gone("a pipe that held something, from outside"))
                    } else {
                        (!inside).then_some(OpenFile::Outside { stdio: *fd })
                    }
                }
                OpenFile::Pair { id, .. } if moving.contains(id) => {
                    Some(gone("a pair of sockets with a call under way"))
                }
                OpenFile::Pair { peer, .. } if *peer != 0 && !ends.contains(&(*peer, true)) => {
                    Some(match *fd {
                        0..=2 => OpenFile::Outside { stdio: *fd },
                        _ => OpenFile::Socket,
                    })
                }
                OpenFile::Event(_) | OpenFile::Semaphore(_) if under_way => {
                    Some(gone("an eventfd with a call under way"))
                }
                OpenFile::Timer { .. } if under_way => {
                    Some(gone("a timerfd with a call under way"))
                }
                _ => None,
            };
            description.kind = kind.unwrap_or_else(|| description.kind.clone());
        }
    }

    /// What an epoll watches, each by a process that has both.
    fn epoll(&self, id: u64, index: usize, processes: &[Process]) -> OpenFile {
        const HOW: u32 = 0xf << 28;
        let of_it = self.watched.iter().filter(|one| one.epoll == id);
        let mut watched = Vec::new();
        for one in of_it {
            let target = self
                .found
                .iter()
                .position(|(other, _, _)| *other == one.target);
            let has = |process: &&Process| {
                let has = |fd: Option<i32>, description: Option<usize>| {
                    process.descriptors.iter().any(|d| {
                        Some(d.description as usize) == description
                            && fd.is_none_or(|fd| fd == d.fd)
                    })
                };
                has(None, Some(index)) && has(Some(one.fd), target)
            };
            let (Some(description), Some(_)) = (target, processes.iter().find(has)) else {
                let what = "an epoll that watches a file whose number was closed";
                return OpenFile::Gone(what.to_owned());
            };
            if one.events & !HOW == 0 && one.events != 0 && self.asked.contains(&id) {
                return OpenFile::Gone("an epoll whose events were being told".to_owned());
            }
            watched.push(Watched {
                fd: one.fd,
                description: description as u32,
                events: one.events,
                data: one.data,
            });
        }
        if self.blind.contains(&id) {
            return OpenFile::Gone("an epoll of which not all was saved".to_owned());
        }
        OpenFile::Epoll(watched)
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

fn kind(bytes: Bytes<'_>, path: Option<String>, records: &Records<'_>) -> OpenFile {
    let (mode, rdev) = (bytes.u32(44), u64::from(bytes.u32(36)));
    let (fd, id) = (bytes.i32(0), bytes.u64(8));
    match (mode & libc::S_IFMT, path) {
        (libc::S_IFIFO, _) => {
            let write = bytes.u32(40) & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32;
            OpenFile::Pipe {
                id: bytes.u64(24),
                write,
                held: Vec::new(),
            }
        }
        (libc::S_IFSOCK, _) => {
            let mut saved = records.specials.chunks_exact(64).map(Bytes);
            let is_unix = saved.any(|entry| entry.u64(0) == id);
            match state::special(records.specials, records.held, id) {
                OpenFile::Socket if fd <= 2 => OpenFile::Outside { stdio: fd },
                special if is_unix => special,
                _ if fd <= 2 => OpenFile::Outside { stdio: fd },
                _ => OpenFile::Socket,
            }
        }
        (0, _) => state::special(records.specials, records.held, id),
        (libc::S_IFREG | libc::S_IFDIR, Some(path)) => OpenFile::Path(path),
        (libc::S_IFCHR, Some(path)) if outlive_image::descriptors::is_terminal(rdev) => {
            terminal(path, bytes.u64(8), records.terminals)
        }
        (libc::S_IFCHR, Some(path)) if path.starts_with("/dev/") => OpenFile::Path(path),
        _ => OpenFile::Outside { stdio: fd },
    }
}
