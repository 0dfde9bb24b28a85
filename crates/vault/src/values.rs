//! Numbers in a stored version that are none: NaN and infinity, by region.
//!
//! Invariants: memory is bounded by a frame, and the header and index of a container; a copy that
//! turns out damaged gives way to the next; what cannot be read is named and not counted. Regions of
//! which the program has not said what they consist of are left out.

use std::collections::BTreeMap;

use outlive_base::{Error, NodeId, Rank};
use outlive_capture::region::Element;
use serde::Serialize;

use crate::aligned::PAGE;
use crate::catalogue::Catalogue;
use crate::census::Census;
use crate::entry::Entry;
use crate::scratch::Scratch;
use crate::sources::{Source, Sources};

/// A region in all ranks that have one of this name and of these numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RegionValues {
    /// Its name.
    pub name: String,
    /// What it consists of: `float16`, `bfloat16`, `float32` or `float64`.
    pub element: &'static str,
    /// Ranks that have it.
    pub ranks: u64,
    /// Ranks of these in which it holds NaN or infinity.
    pub ranks_not_finite: u64,
    /// Elements that were looked at.
    pub elements: u64,
    /// Of these, not a number.
    pub nan: u64,
    /// Of these, positive or negative infinity.
    pub infinite: u64,
    /// Bytes that could not be read.
    pub bytes_unread: u64,
}

/// A node's part of which no copy can be read.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Uncounted {
    /// The node.
    pub node: NodeId,
    /// Its ranks.
    pub ranks: Vec<Rank>,
    /// Why: of the last copy that was tried.
    pub error: Error,
}

/// What the regions of a version hold.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Values {
    /// Regions of floating-point numbers, by name.
    pub regions: Vec<RegionValues>,
    /// Ranks that were looked at.
    pub ranks: u64,
    /// Regions of which it is not known what they consist of, in all ranks.
    pub not_described: u64,
    /// What could not be read.
    pub uncounted: Vec<Uncounted>,
    /// Copies that turned out damaged on the way.
    pub damaged: Vec<Error>,
}

impl Values {
    /// True if all was looked at.
    pub fn is_complete(&self) -> bool {
        let unread = |region: &RegionValues| region.bytes_unread > 0;
        self.uncounted.is_empty() && !self.regions.iter().any(unread)
    }

    /// How many elements are not finite.
    pub fn census(&self) -> Census {
        let mut sum = Census::default();
        for region in &self.regions {
            sum += Census {
                nan: region.nan,
                infinite: region.infinite,
            };
        }
        sum
    }
}

impl Catalogue {
    /// Counts in a version of which copies can be opened from here; `only`: one rank.
    pub fn values(&self, entry: &Entry, only: Option<Rank>) -> Values {
        let mut counting = Counting {
            sources: Sources::new(self),
            regions: BTreeMap::new(),
            values: Values::default(),
            buffer: Scratch::new(0),
        };
        for state in &entry.parts {
            let wanted = |rank: &Rank| only.is_none_or(|only| only == *rank);
            let mut ranks: Vec<Rank> = state.part.ranks.iter().filter(wanted).collect();
            ranks.sort();
            if ranks.is_empty() {
                continue;
            }
            match counting.sources.open(state) {
                Ok(mut source) => ranks
                    .iter()
                    .for_each(|rank| counting.rank(&mut source, *rank)),
                Err(error) => counting.values.uncounted.push(Uncounted {
                    node: state.part.node,
                    ranks,
                    error,
                }),
            }
        }
        Values {
            regions: counting.regions.into_values().collect(),
            damaged: counting.sources.damaged,
            ..counting.values
        }
    }
}

struct Counting<'a> {
    sources: Sources<'a>,
    regions: BTreeMap<(String, &'static str), RegionValues>,
    values: Values,
    buffer: Scratch,
}

impl<'a> Counting<'a> {
    fn rank(&mut self, source: &mut Source<'a>, rank: Rank) {
        self.values.ranks += 1;
        for (name, (region, frames)) in source.regions(rank) {
            let Some(element) = region.element() else {
                self.values.not_described += 1;
                continue;
            };
            let mut found = Census::default();
            let (mut elements, mut unread) = (0, 0);
            for nth in frames {
                let length = source.spot(nth).length as usize;
                match self.sources.load(source, nth, &mut self.buffer) {
                    // A frame ends where an element does: at a page, or with the region.
                    Ok(()) => {
                        found += Census::of(element, &self.buffer[PAGE..PAGE + length]);
                        elements += (length / element.bytes()) as u64;
                    }
                    Err(error) => {
                        unread += length as u64;
                        tracing::debug!(%error, name, "not counted");
                    }
                }
            }
            let sum = self.region(&name, element);
            sum.ranks += 1;
            sum.ranks_not_finite += u64::from(!found.is_finite());
            sum.elements += elements;
            sum.nan += found.nan;
            sum.infinite += found.infinite;
            sum.bytes_unread += unread;
        }
    }

    fn region(&mut self, name: &str, element: Element) -> &mut RegionValues {
        let key = (name.to_owned(), element.name());
        self.regions.entry(key).or_insert_with(|| RegionValues {
            name: name.to_owned(),
            element: element.name(),
            ranks: 0,
            ranks_not_finite: 0,
            elements: 0,
            nan: 0,
            infinite: 0,
            bytes_unread: 0,
        })
    }
}
