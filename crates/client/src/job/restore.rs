//! Restore: straight out of the slab that the agent has filled and verified.
//!
//! All or nothing: names and sizes are compared, and routed files are written back
//! to node storage, before the first byte of the program's memory is changed.

use core::ops::Range;
use outlive_base::control_block::ControlWords;
use outlive_base::{Code, Entity, Error, Result, Version, count};
use outlive_capture::copy::{Job as Copy, copy_all};
use outlive_capture::ipc::{ToAgent, ToRank};
use outlive_capture::region::{Region, RegionKind};
use outlive_capture::slab::Slab;
use rustix::fd::AsFd;
use std::collections::HashMap;

use super::Job;
use crate::writable;

/// What a restore found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restored {
    /// Nothing to restore: the job starts anew.
    Fresh,
    /// The regions hold this version.
    Version(u64),
}

/// A region of the checkpoint and its bytes, in the slab.
#[derive(Clone, Copy, Debug)]
pub struct RestoredRegion<'a> {
    /// What it is.
    pub region: &'a Region,
    /// Its bytes.
    pub data: &'a [u8],
}

/// The checkpoint that a restore will take.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    version: u64,
    slab: Slab,
    regions: Vec<(Region, Range<usize>)>,
    index: HashMap<String, usize>,
}

/// What is known about a checkpoint to restore.
#[derive(Debug, Default)]
pub(crate) enum Pending {
    /// The agent was not asked.
    #[default]
    Unknown,
    /// There is none.
    Fresh,
    /// This one.
    Found(Box<Checkpoint>),
}

impl Checkpoint {
    fn each(&self) -> Result<Vec<RestoredRegion<'_>>> {
        let data = self
            .slab
            .data()
            .map_err(|e| corrupt(self.version, &e.to_string()))?;
        Ok(self
            .regions
            .iter()
            .map(|(region, range)| RestoredRegion {
                region,
                data: &data[range.clone()],
            })
            .collect())
    }
}

fn corrupt(version: u64, reason: &str) -> Error {
    Error::new(
        Code::Corrupt,
        Entity::Version(version),
        format!("the slab to restore from: {reason}"),
        "see the agent's log; outlive run takes another copy at the next start",
    )
}

impl Job {
    /// Fills all protected regions with the newest version that can be rebuilt.
    ///
    /// # Errors
    /// 103, 104, 105 if names or sizes differ from the checkpoint, 201 if the number
    /// of ranks does, 300 or 301 without an agent, 4xx if a routed file cannot be
    /// written back. Nothing was changed then.
    pub fn restore(&mut self) -> Result<Restored> {
        self.restore_with(|_, rest| rest.first().map_or(Ok(()), |first| Err(unclaimed(first))))
    }

    /// As [`Job::restore`]; regions that are not protected are given to `apply`,
    /// which must check all of them before it changes anything. If it refuses,
    /// nothing of the protected regions was changed either.
    pub fn restore_with(
        &mut self,
        apply: impl FnOnce(u64, &[RestoredRegion<'_>]) -> Result<()>,
    ) -> Result<Restored> {
        let result = self.restore_inner(apply);
        self.noted(result)
    }

    fn restore_inner(
        &mut self,
        apply: impl FnOnce(u64, &[RestoredRegion<'_>]) -> Result<()>,
    ) -> Result<Restored> {
        self.look()?;
        let checkpoint = match core::mem::take(&mut self.pending) {
            Pending::Found(checkpoint) => checkpoint,
            other => {
                self.pending = other;
                return Ok(Restored::Fresh);
            }
        };
        let result = self.take_over(&checkpoint, apply);
        match result {
            Ok(()) => {
                let version = checkpoint.version;
                self.pending = Pending::Found(checkpoint);
                self.finish_restore(Ok(()))?;
                Ok(Restored::Version(version))
            }
            Err(error) => {
                self.pending = Pending::Found(checkpoint);
                self.refuse_restore(error.code());
                Err(error)
            }
        }
    }

    fn take_over(
        &mut self,
        checkpoint: &Checkpoint,
        apply: impl FnOnce(u64, &[RestoredRegion<'_>]) -> Result<()>,
    ) -> Result<()> {
        for protected in self.regions.all() {
            let found = checkpoint
                .index
                .get(&protected.name)
                .map(|&at| &checkpoint.regions[at].0);
            let entity = Entity::Region(protected.name.clone());
            match found.filter(|region| region.kind != RegionKind::File) {
                None => {
                    return Err(Error::new(
                        Code::RegionMissing,
                        entity,
                        format!("version {} has no such region", checkpoint.version),
                        "protect what the checkpoint holds, or start the job under another name",
                    ));
                }
                Some(region) if region.bytes != protected.bytes as u64 => {
                    return Err(Error::new(
                        Code::RegionSize,
                        entity,
                        format!(
                            "{}, protected with {}",
                            count(region.bytes, "byte"),
                            protected.bytes
                        ),
                        "ask outlive_query for the size, allocate and protect, then restore",
                    ));
                }
                Some(_) => {}
            }
        }
        let all = checkpoint.each()?;
        let mut rest = Vec::new();
        let mut jobs = Vec::new();
        for one in &all {
            if one.region.kind == RegionKind::File {
                continue;
            }
            if let Some(target) = self.regions.get(&one.region.name) {
                if target.bytes > 0 {
                    let (source, bytes) = (one.data.as_ptr(), target.bytes);
                    jobs.push(Copy {
                        source,
                        target: target.data,
                        bytes,
                    });
                }
            } else {
                rest.push(*one);
            }
        }
        let targets: Vec<_> = jobs.iter().map(|job| (job.target, job.bytes)).collect();
        if let Some(at) = writable::first_that_is_not(&targets) {
            return Err(self.not_writable(targets[at].0));
        }
        for one in all.iter().filter(|one| one.region.kind == RegionKind::File) {
            self.write_back(checkpoint.version, one)?;
        }
        apply(checkpoint.version, &rest)?;
        // SAFETY: each target is a protected region of the same size as its source
        // (checked above), writable by the promise of `protect`; the sources lie in
        // the slab.
        unsafe { copy_all(&jobs, self.copy_threads) };
        Ok(())
    }

    fn not_writable(&self, address: *mut u8) -> Error {
        let regions = self.regions.all();
        let region = regions.iter().find(|region| region.data == address);
        Error::new(
            Code::InvalidArgument,
            Entity::Region(region.map_or_else(String::new, |region| region.name.clone())),
            "its memory cannot be written: it is read-only, or not mapped any more",
            "protect memory that the program may write, before it restores",
        )
    }

    /// The regions of the version that a restore will fill, and the version, straight
    /// from the slab; `None` if there is nothing to restore. Routed files are among
    /// them ([`RegionKind::File`]); [`Job::finish_restore`], which must follow, writes those
    /// back.
    pub fn restored_regions(&mut self) -> Result<Option<(u64, Vec<RestoredRegion<'_>>)>> {
        if let Err(error) = self.look() {
            return Err(self.note(error));
        }
        match &self.pending {
            Pending::Found(found) => Ok(Some((found.version, found.each()?))),
            _ => Ok(None),
        }
    }

    /// Ends what [`Job::restored_regions`] began: `Ok` if the state was taken over
    /// (versions go on from there), else why not. The slab is unmapped.
    ///
    /// # Errors
    /// 4xx if a routed file cannot be written back. That the agent cannot be told is
    /// no error: the state is there.
    pub fn finish_restore(&mut self, outcome: core::result::Result<(), Code>) -> Result<()> {
        let checkpoint = match core::mem::take(&mut self.pending) {
            Pending::Found(checkpoint) => checkpoint,
            other => {
                self.pending = other;
                return Ok(());
            }
        };
        let version = checkpoint.version;
        let mut result = Ok(());
        if outcome.is_ok() {
            for one in checkpoint
                .each()?
                .iter()
                .filter(|one| one.region.kind == RegionKind::File)
            {
                result = result.and_then(|()| self.write_back(version, one));
            }
        }
        drop(checkpoint);
        let code = result.as_ref().err().map(Error::code).or(outcome.err());
        if code.is_none() {
            self.version_restored = Some(version);
            self.go_on_from(version);
        }
        let notice = ToAgent::Restored {
            version: Version(version),
            code,
        };
        if let Err(error) = self.request(&notice, None) {
            self.note(error);
        }
        self.noted(result)
    }

    /// Tells the agent why the version to restore does not fit, for a binding that finds
    /// out by itself. It is still there: the program may protect other regions and try
    /// again. If it ends instead, the report says why.
    pub fn refuse_restore(&mut self, code: Code) {
        let Pending::Found(checkpoint) = &self.pending else {
            return;
        };
        let (version, code) = (Version(checkpoint.version), Some(code));
        let _ = self.request(&ToAgent::Restored { version, code }, None);
    }

    /// Bytes of a region in the version that a restore will fill; `None` if there is
    /// nothing to restore.
    ///
    /// # Errors
    /// 103 if the checkpoint has no such region, 300 or 301 without an agent.
    pub fn query(&mut self, name: &str) -> Result<Option<u64>> {
        let result = self.look().and_then(|()| {
            let Pending::Found(found) = &self.pending else {
                return Ok(None);
            };
            let bytes = found.index.get(name).map(|&at| found.regions[at].0.bytes);
            bytes.map(Some).ok_or_else(|| {
                Error::new(
                    Code::RegionMissing,
                    Entity::Region(name.chars().take(255).collect()),
                    format!("version {} has no such region", found.version),
                    "check the name",
                )
            })
        });
        self.noted(result)
    }

    /// Asks the agent for the checkpoint to restore, unless that is known.
    fn look(&mut self) -> Result<()> {
        self.alive()?;
        if !matches!(self.pending, Pending::Unknown) {
            return Ok(());
        }
        let Some(link) = &self.link else {
            self.pending = Pending::Fresh;
            return Ok(());
        };
        if link.welcome.restore.is_none() {
            self.pending = Pending::Fresh;
            return Ok(());
        }
        self.pending = match self.request(&ToAgent::Restore, None)? {
            (ToRank::Fresh, _) => Pending::Fresh,
            (ToRank::Restore { version, .. }, Some(fd)) => {
                let slab = Slab::map(fd.as_fd(), false).map_err(|e| self.slab_error(&e));
                let found = slab.and_then(|slab| self.accept(version.0, slab));
                if let Err(error) = &found {
                    // So that another copy is taken at the next start.
                    let code = Some(error.code());
                    let _ = self.request(&ToAgent::Restored { version, code }, None);
                }
                Pending::Found(Box::new(found?))
            }
            _ => {
                return Err(Error::internal(
                    "the agent answers RESTORE with another kind",
                ));
            }
        };
        Ok(())
    }

    /// Checks that the slab is what the agent says and belongs to this rank.
    fn accept(&mut self, version: u64, slab: Slab) -> Result<Checkpoint> {
        let head = slab.head().map_err(|e| corrupt(version, &e.to_string()))?;
        if head.id.ranks != self.place.ranks {
            return Err(Error::new(
                Code::RankCount,
                Entity::Version(version),
                format!(
                    "captured by {}, now {}",
                    count(head.id.ranks, "rank"),
                    self.place.ranks
                ),
                "start the job with the number of ranks that it had",
            ));
        }
        if head.id.rank.0 != self.place.rank
            || head.version.0 != version
            || !head.state.is_complete()
            || head.id.incarnation > self.control.identity().incarnation
            || !self.same_job(head.id.job)
        {
            return Err(corrupt(
                version,
                "it belongs to another rank, version or job",
            ));
        }
        let regions = slab
            .regions()
            .map_err(|e| corrupt(version, &e.to_string()))?;
        let index = regions
            .iter()
            .enumerate()
            .map(|(at, (region, _))| (region.name.clone(), at))
            .collect();
        Ok(Checkpoint {
            version,
            slab,
            regions,
            index,
        })
    }
}

pub(crate) fn unclaimed(region: &RestoredRegion<'_>) -> Error {
    Error::new(
        Code::RegionUnclaimed,
        Entity::Region(region.region.name.clone()),
        format!(
            "the checkpoint holds it, with {}",
            count(region.data.len() as u64, "byte")
        ),
        "protect it before restoring",
    )
}
