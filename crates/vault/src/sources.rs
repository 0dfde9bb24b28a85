//! A node's bytes of a stored version, of whichever copy can be read.
//!
//! Invariants: a frame that is given was whole; a copy that turns out damaged gives way to the next,
//! and is named once.

use std::collections::BTreeMap;
use std::ops::Range;

use outlive_base::{Error, Rank};
use outlive_capture::region::Region;

use crate::catalogue::Catalogue;
use crate::container::Container;
use crate::entry::{CopyState, PartState};
use crate::error::ReadError;
use crate::plan::Spot;
use crate::scratch::Scratch;
use crate::store::Object;

/// Copies of one node's part, and the one that is read.
pub(crate) struct Source<'a> {
    state: &'a PartState,
    /// Those that were not tried.
    copies: std::vec::IntoIter<&'a CopyState>,
    pub(crate) container: Container,
    file: Box<dyn Object>,
}

/// Opens copies, and keeps what is wrong with them.
pub(crate) struct Sources<'a> {
    catalogue: &'a Catalogue,
    /// Copies that turned out damaged.
    pub(crate) damaged: Vec<Error>,
}

impl<'a> Sources<'a> {
    pub(crate) fn new(catalogue: &'a Catalogue) -> Sources<'a> {
        Sources {
            catalogue,
            damaged: Vec::new(),
        }
    }

    /// Opens a copy of a node's part.
    ///
    /// # Errors
    /// Why the last one could not be read.
    pub(crate) fn open(&mut self, state: &'a PartState) -> Result<Source<'a>, Error> {
        let whole = |copy: &&CopyState| copy.level.members().is_none();
        let copies: Vec<&CopyState> = state.copies.iter().filter(whole).collect();
        let mut copies = copies.into_iter();
        let (container, file) = self.next(state, &mut copies, None)?;
        Ok(Source {
            state,
            copies,
            container,
            file,
        })
    }

    /// The next copy that can be opened; else why the last could not be read.
    fn next(
        &mut self,
        state: &PartState,
        copies: &mut std::vec::IntoIter<&'a CopyState>,
        mut last: Option<Error>,
    ) -> Result<(Container, Box<dyn Object>), Error> {
        for copy in copies {
            let opened = self.catalogue.open(copy, &state.part);
            let opened = opened.and_then(|container| {
                let file = container.bulk(true)?;
                Ok((container, file))
            });
            match opened {
                Ok(opened) => return Ok(opened),
                Err(error) if copy.path.is_some() => {
                    let error = Error::from(error);
                    self.damaged.push(error.clone());
                    last = Some(error);
                }
                Err(error) => last = last.or_else(|| Some(error.into())),
            }
        }
        let gone = || ReadError::io("storage", "find a copy", std::io::ErrorKind::NotFound).into();
        Err(last.unwrap_or_else(gone))
    }

    /// Reads a frame of whichever copy has it whole; its bytes lie behind a page.
    ///
    /// # Errors
    /// Why no copy has it.
    pub(crate) fn load(
        &mut self,
        source: &mut Source<'a>,
        nth: usize,
        buffer: &mut Scratch,
    ) -> Result<(), Error> {
        loop {
            let Err(error) = source.container.frame(nth, &*source.file, buffer) else {
                return Ok(());
            };
            let error = Error::from(error);
            if !self.damaged.contains(&error) {
                self.damaged.push(error.clone());
            }
            let next = self.next(source.state, &mut source.copies, Some(error));
            (source.container, source.file) = next?;
        }
    }
}

impl Source<'_> {
    /// The regions of a rank with their frames, by number in the container.
    pub(crate) fn regions(&self, rank: Rank) -> BTreeMap<String, (Region, Range<usize>)> {
        let plan = self.container.plan();
        let Ok(slot) = plan.ranks.binary_search_by_key(&rank, |it| it.rank) else {
            return BTreeMap::new();
        };
        let (spots, _) = self.container.frames();
        let mut at = spots.partition_point(|spot| spot.slot < slot);
        let regions = plan.ranks[slot].regions.iter().map(|region| {
            let count = region.bytes.div_ceil(u64::from(plan.frame_bytes)) as usize;
            at += count;
            (region.name.clone(), (region.clone(), at - count..at))
        });
        regions.collect()
    }

    pub(crate) fn spot(&self, nth: usize) -> &Spot {
        &self.container.frames().0[nth]
    }
}
