//! Ranges of memory that Python objects own: the only place that follows addresses.
//!
//! Invariant: whoever makes a [`Spot`] holds the object that keeps its memory (an
//! array, a tensor, an exported buffer, which cannot be resized) for as long as the
//! spot is used.

use outlive::{Code, Element, Entity, Error, Region, RestoredRegion, Result, Source};
use std::collections::HashMap;

/// A named range of memory.
#[derive(Clone, Debug)]
pub struct Spot {
    name: String,
    address: usize,
    bytes: usize,
    element: Option<Element>,
}

impl Spot {
    /// A range that lives as long as `data` is held.
    pub fn of(name: &str, data: &[u8]) -> Spot {
        Spot {
            name: name.to_owned(),
            address: data.as_ptr() as usize,
            bytes: data.len(),
            element: None,
        }
    }

    /// Name, address and bytes, as `outlive._state` gives them.
    pub fn new((name, address, bytes): (String, usize, usize)) -> Spot {
        Spot {
            name,
            address,
            bytes,
            element: None,
        }
    }

    /// The same, with what numbers it consists of.
    pub fn described((name, address, bytes, element): (String, usize, usize, u32)) -> Spot {
        Spot {
            element: Element::of(element),
            ..Spot::new((name, address, bytes))
        }
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// As something to capture.
    pub fn source(&self) -> Source {
        Source {
            region: Region::memory(self.name.as_str(), self.bytes as u64).of_elements(self.element),
            data: core::ptr::with_exposed_provenance(self.address),
        }
    }
}

/// Copies each region of a checkpoint to the spot of its name, except `besides`. Checks
/// all of them first.
///
/// # Safety
/// Every spot is writable memory that nothing else touches during the call.
pub unsafe fn fill(
    version: u64,
    regions: &[RestoredRegion<'_>],
    spots: &[Spot],
    besides: &str,
) -> Result<()> {
    let index: HashMap<&str, &[u8]> = regions
        .iter()
        .map(|one| (one.region.name.as_str(), one.data))
        .collect();
    let known: HashMap<&str, ()> = spots.iter().map(|spot| (spot.name.as_str(), ())).collect();
    let refuse = |code, name: &str, reason: String| {
        let entity = Entity::Region(name.to_owned());
        Err(Error::new(
            code,
            entity,
            reason,
            "restore the state that was saved",
        ))
    };
    if let Some(name) = index
        .keys()
        .filter(|name| **name != besides && !known.contains_key(*name))
        .min()
    {
        let reason = format!("version {version} holds it, the state does not");
        return refuse(Code::RegionUnclaimed, name, reason);
    }
    for spot in spots {
        match index.get(spot.name.as_str()) {
            None => {
                let reason = format!("version {version} has no such entry");
                return refuse(Code::RegionMissing, &spot.name, reason);
            }
            Some(data) if data.len() != spot.bytes => {
                let reason = format!(
                    "{}, not {}",
                    outlive_base::count(data.len() as u64, "byte"),
                    spot.bytes
                );
                return refuse(Code::RegionSize, &spot.name, reason);
            }
            Some(_) => {}
        }
    }
    let targets: Vec<(*mut u8, usize)> = spots
        .iter()
        .map(|spot| {
            (
                core::ptr::with_exposed_provenance_mut(spot.address),
                spot.bytes,
            )
        })
        .collect();
    if let Some(at) = outlive::first_not_writable(&targets) {
        let reason = "its memory cannot be written: it is mapped read-only";
        return refuse(Code::InvalidArgument, &spots[at].name, reason.into());
    }
    for spot in spots.iter().filter(|spot| spot.bytes > 0) {
        let data = index[spot.name.as_str()];
        let target: *mut u8 = core::ptr::with_exposed_provenance_mut(spot.address);
        // SAFETY: as long as the data (checked above) and writable by the caller's
        // promise; the data lies in a mapping of our own.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), target, spot.bytes) };
    }
    Ok(())
}
