//! A capture: the regions of this rank, copied into the slab of an armed version.
//!
//! From [`ControlBlock::enter`](outlive_capture::control::ControlBlock::enter) on
//! the slot is ours until `leave`; every way out of here leaves, and tells the
//! agent CAPTURED or FAILED. A failure costs the version, never the program (P4).

use outlive_base::{Code, Entity, Error, Result, Version};
use outlive_capture::ShareError;
use outlive_capture::control::{Armed, ControlWords};
use outlive_capture::copy::{Job as Copy, copy_all};
use outlive_capture::ipc::{ToAgent, ToRank};
use outlive_capture::region::{self, Region};
use outlive_capture::slab::Slab;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crate::protected::{Layout, check_name};

use super::route::FileToCapture;
use super::{Job, Outcome};

/// Slots of a rank that may hold captures.
const SLOTS_MAX: usize = 8;

/// A region that is captured without having been declared, and its bytes.
#[derive(Clone, Debug)]
pub struct Source {
    /// What it is; `bytes` says how long `data` is.
    pub region: Region,
    /// Where it is; may be null if it has no bytes.
    pub data: *const u8,
}

/// The slabs that are mapped, one per slot.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    mapped: Vec<Mapped>,
}

#[derive(Debug)]
struct Mapped {
    slot: u32,
    generation: u32,
    slab: Slab,
}

/// A capture as it is going to be.
struct Plan {
    layout: Layout,
    /// Addresses and sizes, in table order; the files follow them in the table.
    memory: Vec<(*const u8, usize)>,
    files: Vec<FileToCapture>,
}

struct Filled {
    slot: u32,
    generation: u32,
    table_bytes: u64,
    data_bytes: u64,
}

impl Job {
    /// Captures `version`, which was entered, or is forced if `armed` is `None`.
    ///
    /// # Safety
    /// As [`Job::capture_with`].
    pub(crate) unsafe fn capture(
        &mut self,
        version: Version,
        armed: Option<Armed>,
        sources: impl FnOnce() -> Result<Vec<Source>>,
    ) -> Result<Outcome> {
        let start = Instant::now();
        if armed.is_none() {
            self.control.claim(version);
        }
        // A panic while the state is walked must not leave the slot entered.
        let plan = catch_unwind(AssertUnwindSafe(sources))
            .unwrap_or_else(|_| Err(Error::internal("the state cannot be walked: panic")))
            .and_then(|sources| self.plan(version, sources));
        let filled = plan.and_then(|plan| {
            let at = self.slab_for(version, armed, plan.layout.capacity)?;
            // SAFETY: the caller's promise, and the promise of `protect`.
            unsafe { self.fill(version, &plan, at) }
        });
        self.control.leave();
        self.answered = Some(version);
        match filled {
            Ok(filled) => {
                self.taken += 1;
                self.version_taken = Some(version.0);
                let blocked_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.control.count_taken(self.taken, blocked_ns);
                self.notify(ToAgent::Captured {
                    version,
                    slot: filled.slot,
                    generation: filled.generation,
                    table_bytes: filled.table_bytes,
                    data_bytes: filled.data_bytes,
                    blocked_ns,
                    forced: self.control.forced() == Some(version),
                });
                Ok(Outcome::Taken)
            }
            Err(error) => {
                self.failed += 1;
                self.notify(ToAgent::Failed {
                    version,
                    code: error.code(),
                });
                Err(self.note(error))
            }
        }
    }

    fn plan(&mut self, version: Version, sources: Vec<Source>) -> Result<Plan> {
        let files = self.routes.to_capture(version.0)?;
        let mut memory: Vec<(*const u8, usize)> = self
            .regions
            .all()
            .iter()
            .map(|r| (r.data.cast_const(), r.bytes))
            .collect();
        if sources.is_empty() && files.is_empty() {
            return Ok(Plan {
                layout: self.regions.layout()?,
                memory,
                files,
            });
        }
        let mut regions = self.regions.described();
        for source in sources {
            let bytes = usize::try_from(source.region.bytes).unwrap_or(usize::MAX);
            if source.data.is_null() && bytes > 0 {
                return Err(refuse(&source.region.name, "no address (NULL) but a size"));
            }
            memory.push((source.data, bytes));
            regions.push(source.region);
        }
        regions.extend(files.iter().map(FileToCapture::region));
        let mut names = HashSet::with_capacity(regions.len());
        for region in &regions {
            check_name(&region.name)?;
            if !names.insert(region.name.as_str()) {
                return Err(refuse(&region.name, "two regions or files have this name"));
            }
        }
        let layout = Layout::of(&regions)?;
        self.control.set_bytes_needed(layout.capacity);
        Ok(Plan {
            layout,
            memory,
            files,
        })
    }

    /// The place in `slabs` of a slab for this version of at least `bytes` bytes.
    fn slab_for(&mut self, version: Version, armed: Option<Armed>, bytes: u64) -> Result<usize> {
        let request = match armed {
            Some(armed) => {
                let mapped = self.slabs.mapped.iter().position(|mapped| {
                    (mapped.slot, mapped.generation) == (armed.slot, armed.generation)
                        && mapped.slab.capacity() >= bytes
                });
                if let Some(at) = mapped {
                    return Ok(at);
                }
                ToAgent::Slab { version, bytes }
            }
            None => ToAgent::Force { version, bytes },
        };
        let (answer, fd) = self.request(&request, None)?;
        let (
            ToRank::Slab {
                version: answered,
                slot,
                generation,
                ..
            },
            Some(fd),
        ) = (answer, fd)
        else {
            return Err(Error::internal(
                "the agent answers a request for memory with another kind",
            ));
        };
        if answered != version {
            return Err(Error::internal(
                "the agent offers memory for another version",
            ));
        }
        self.install(slot, generation, bytes, &fd)
    }

    fn install(&mut self, slot: u32, generation: u32, bytes: u64, fd: &OwnedFd) -> Result<usize> {
        let old = self
            .slabs
            .mapped
            .iter()
            .position(|mapped| mapped.slot == slot);
        if let Some(at) = old {
            // First, so that the old memory can go before the new is entered.
            self.slabs.mapped.swap_remove(at);
        }
        if self.slabs.mapped.len() >= SLOTS_MAX {
            self.slabs.mapped.swap_remove(0);
        }
        let slab = Slab::map(fd.as_fd(), true).map_err(|error| self.slab_error(&error))?;
        let head = slab.head().map_err(|error| self.slab_error(&error))?;
        let id = head.id;
        let matches = (id.rank.0, id.ranks) == (self.place.rank, self.place.ranks)
            && (id.slot, id.generation) == (slot, generation)
            && id.incarnation == self.control.identity().incarnation
            && self.same_job(id.job);
        if !matches {
            return Err(overwritten(
                self.place.rank,
                "the slab that the agent gave is another rank's, slot's or job's",
            ));
        }
        if slab.capacity() < bytes {
            return Err(Error::new(
                Code::MemoryBudget,
                Entity::Node(self.control.identity().node.0),
                format!(
                    "a slab of {} bytes where {bytes} are needed",
                    slab.capacity()
                ),
                "raise the memory budget of the agent or protect less",
            ));
        }
        self.slabs.mapped.push(Mapped {
            slot,
            generation,
            slab,
        });
        Ok(self.slabs.mapped.len() - 1)
    }

    /// # Safety
    /// The memory of the plan is readable and not written to.
    unsafe fn fill(&mut self, version: Version, plan: &Plan, at: usize) -> Result<Filled> {
        let node = self.control.identity().node.0;
        let (threads, check_captures) = (self.copy_threads, self.check_captures);
        let Mapped {
            slot,
            generation,
            slab,
        } = &mut self.slabs.mapped[at];
        let wrong = |error: ShareError| share_error(node, &error);
        // The agent empties a slab before it arms it; a FILLING one is a capture of
        // ours that failed.
        let head = slab.head().map_err(wrong)?;
        if head.state.is_complete() {
            let reason = format!("the slab still holds version {}", head.version.0);
            return Err(overwritten(head.id.rank.0, &reason));
        }
        let layout = &plan.layout;
        slab.begin_fill(version, &layout.table, layout.data_bytes)
            .map_err(wrong)?;
        let data = slab.data_mut().map_err(wrong)?;
        let jobs: Vec<Copy> = plan
            .memory
            .iter()
            .zip(&layout.offsets)
            .filter(|((_, bytes), _)| *bytes > 0)
            .map(|(&(source, bytes), &offset)| {
                let target = data[offset as usize..offset as usize + bytes].as_mut_ptr();
                Copy {
                    source,
                    target,
                    bytes,
                }
            })
            .collect();
        // SAFETY: sources by the caller's promise; targets are distinct ranges of the
        // slab, checked by the slicing above; program memory is no part of the slab.
        unsafe { copy_all(&jobs, threads) };
        if check_captures {
            // SAFETY: as for the copy. What another thread writes meanwhile is what is looked for.
            let torn = jobs.iter().position(|job| unsafe { !is_same(job) });
            if let Some(nth) = torn {
                return Err(written_to(&layout.table, plan, nth));
            }
        }
        for (file, &offset) in plan.files.iter().zip(&layout.offsets[plan.memory.len()..]) {
            let start = offset as usize;
            file.read_into(&mut data[start..start + file.bytes as usize])?;
        }
        slab.finish().map_err(wrong)?;
        Ok(Filled {
            slot: *slot,
            generation: *generation,
            table_bytes: layout.table.len() as u64,
            data_bytes: layout.data_bytes,
        })
    }

    pub(crate) fn slab_error(&self, error: &ShareError) -> Error {
        share_error(self.control.identity().node.0, error)
    }
}

/// True if the copy is what its source is now.
///
/// # Safety
/// Both are readable.
unsafe fn is_same(job: &Copy) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::memcmp(job.source.cast(), job.target.cast(), job.bytes) == 0 }
}

/// The nth range that has bytes was written to during its copy.
fn written_to(table: &[u8], plan: &Plan, nth: usize) -> Error {
    let with_bytes = plan.memory.iter().enumerate();
    let mut with_bytes = with_bytes.filter(|(_, (_, bytes))| *bytes > 0);
    let regions = region::decode(table).unwrap_or_default();
    let at = with_bytes.nth(nth).map(|(at, _)| at);
    let found = at.and_then(|at| regions.get(at));
    Error::new(
        Code::RegionTorn,
        Entity::Region(found.map_or_else(String::new, |region| region.name.clone())),
        "another thread wrote to it while it was captured",
        "let all threads wait at the checkpoint, or protect a copy that nobody writes to",
    )
}

fn share_error(node: u32, error: &ShareError) -> Error {
    let (code, remedy) = match error {
        ShareError::Io { source, .. } if source.raw_os_error() == Some(libc::ENOMEM) => (
            Code::MemoryBudget,
            "leave more memory to the node's agent, or protect less",
        ),
        ShareError::Io { .. } => (Code::Io, "see the system log"),
        ShareError::Full { .. } => (Code::MemoryBudget, "raise the memory budget of the agent"),
        ShareError::Abi(_) => (
            Code::PeerVersion,
            "use agent and library of the same release",
        ),
        _ => (
            Code::SharedMemory,
            "look for writes beyond the program's arrays (-fsanitize=address, valgrind); the \
             version is given up, another one is taken later",
        ),
    };
    Error::new(code, Entity::Node(node), format!("slab: {error}"), remedy)
}

/// Shared memory holds what neither agent nor library wrote there: the program did.
fn overwritten(rank: u32, reason: &str) -> Error {
    Error::new(
        Code::SharedMemory,
        Entity::Rank(rank),
        reason,
        "look for writes beyond the program's arrays (-fsanitize=address, valgrind)",
    )
}

fn refuse(name: &str, reason: &str) -> Error {
    let entity = Entity::Region(name.chars().take(255).collect());
    Error::new(
        Code::InvalidArgument,
        entity,
        reason,
        "give each its own name and its true size",
    )
}
