//! The regions that the program has declared, and the layout of a capture.
//!
//! Invariant: `index` maps each name to its place in `regions`; `needed` is always
//! the capacity of a slab for these regions, kept up to date in O(1), so that the
//! agent can reserve memory before the first capture.

use outlive_base::{Code, Entity, Error, Result};
use outlive_capture::region::{self, Attribute, Element, NAME_BYTES_MAX, Region, align_up};
use outlive_capture::slab::{HEAD_BYTES, capacity_for};
use std::collections::HashMap;

/// A declared range of memory.
#[derive(Clone, Debug)]
pub(crate) struct Protected {
    pub(crate) name: String,
    pub(crate) data: *mut u8,
    pub(crate) bytes: usize,
    /// What numbers it consists of, if that was said.
    pub(crate) element: Option<Element>,
}

impl Protected {
    /// Its length in the table.
    fn table_bytes(&self) -> u64 {
        let described = self.element.map_or(0, |_| Attribute::ELEMENT_BYTES);
        ENTRY_BYTES + self.name.len() as u64 + described
    }
}

/// What a capture consists of, apart from the bytes.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) table: Vec<u8>,
    pub(crate) offsets: Vec<u64>,
    pub(crate) data_bytes: u64,
    /// Capacity of a slab that holds it.
    pub(crate) capacity: u64,
}

impl Layout {
    pub(crate) fn of(regions: &[Region]) -> Result<Layout> {
        if regions.len() > PROTECTED_MAX {
            return Err(too_many());
        }
        let table = region::encode(regions);
        let sized = region::offsets(regions).and_then(|(offsets, data_bytes)| {
            let capacity = capacity_for(table.len() as u64, data_bytes)?;
            i64::try_from(capacity).ok()?;
            Some((offsets, data_bytes, capacity))
        });
        let (offsets, data_bytes, capacity) = sized.ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                Entity::Call,
                "the regions are longer together than any memory",
                "check the sizes that are passed to protect",
            )
        })?;
        Ok(Layout {
            table,
            offsets,
            data_bytes,
            capacity,
        })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    regions: Vec<Protected>,
    index: HashMap<String, usize>,
    table_bytes: u64,
    data_bytes: u64,
    bytes: u64,
    layout: Option<Layout>,
}

/// Most regions of a rank. The format takes more (2^20); but each lies at a page of its own
/// in memory and on disk, and with so many an agent was busy with them for too long.
pub(crate) const PROTECTED_MAX: usize = 1 << 16;

/// Bytes of a region in the table, besides its name: kind, size, length of the
/// name, number of attributes.
const ENTRY_BYTES: u64 = 2 + 8 + 4 + 4;

fn too_many() -> Error {
    Error::new(
        Code::InvalidArgument,
        Entity::Call,
        format!("more than {PROTECTED_MAX} regions"),
        "protect larger regions instead of many small ones",
    )
}

/// Refuses names that no region can have.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(Error::new(
        Code::InvalidArgument,
        Entity::Region(name.chars().take(40).collect()),
        format!("a name of {} bytes", name.len()),
        "use 1 to 255 bytes",
    ))
}

impl Registry {
    pub(crate) fn insert(&mut self, name: &str, data: *mut u8, bytes: usize) -> Result<()> {
        check_name(name)?;
        let refuse = |reason: &str| {
            let entity = Entity::Region(name.to_owned());
            Error::new(
                Code::InvalidArgument,
                entity,
                reason,
                "check address and size",
            )
        };
        if data.is_null() && bytes > 0 {
            return Err(refuse("no address (NULL) but a size"));
        }
        let padded = isize::try_from(bytes)
            .ok()
            .and_then(|_| align_up(bytes as u64))
            .ok_or_else(|| refuse("larger than any memory"))?;
        let entry = Protected {
            name: name.to_owned(),
            data,
            bytes,
            element: None,
        };
        if let Some(&at) = self.index.get(name) {
            let old = core::mem::replace(&mut self.regions[at], entry);
            self.table_bytes -= old.table_bytes();
            self.table_bytes += self.regions[at].table_bytes();
            if old.element.is_some() {
                self.layout = None;
            }
            if old.bytes != bytes {
                self.data_bytes = self
                    .data_bytes
                    .saturating_sub(align_up(old.bytes as u64).unwrap_or(0));
                self.bytes = self.bytes.saturating_sub(old.bytes as u64);
                self.add(padded, bytes);
            }
            return Ok(());
        }
        if self.regions.len() >= PROTECTED_MAX {
            return Err(too_many());
        }
        self.index.insert(name.to_owned(), self.regions.len());
        self.table_bytes += entry.table_bytes();
        self.regions.push(entry);
        self.add(padded, bytes);
        Ok(())
    }

    /// Says what numbers a region consists of, until it is replaced.
    pub(crate) fn describe(&mut self, name: &str, element: Element) -> Result<()> {
        check_name(name)?;
        let entity = Entity::Region(name.to_owned());
        let Some(&at) = self.index.get(name) else {
            return Err(Error::new(
                Code::RegionMissing,
                entity,
                "no region of this name is protected",
                "protect it first, then say what it holds",
            ));
        };
        let region = &mut self.regions[at];
        if !region.bytes.is_multiple_of(element.bytes()) {
            return Err(Error::new(
                Code::InvalidArgument,
                entity,
                format!(
                    "{} bytes are no whole number of elements of {} bytes",
                    region.bytes,
                    element.bytes()
                ),
                "check the size that was protected, and the type",
            ));
        }
        self.table_bytes -= region.table_bytes();
        region.element = Some(element);
        self.table_bytes += region.table_bytes();
        self.layout = None;
        Ok(())
    }

    fn add(&mut self, padded: u64, bytes: usize) {
        self.data_bytes = self.data_bytes.saturating_add(padded);
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.layout = None;
    }

    /// True if the region was there.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let Some(at) = self.index.remove(name) else {
            return false;
        };
        let old = self.regions.swap_remove(at);
        if let Some(moved) = self.regions.get(at) {
            self.index.insert(moved.name.clone(), at);
        }
        self.table_bytes -= old.table_bytes();
        self.data_bytes = self
            .data_bytes
            .saturating_sub(align_up(old.bytes as u64).unwrap_or(0));
        self.bytes = self.bytes.saturating_sub(old.bytes as u64);
        self.layout = None;
        true
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Protected> {
        self.index.get(name).map(|&at| &self.regions[at])
    }

    pub(crate) fn all(&self) -> &[Protected] {
        &self.regions
    }

    /// Bytes of all regions, without padding.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Capacity of a slab for these regions alone.
    pub(crate) fn needed(&self) -> u64 {
        let table = align_up(4 + self.table_bytes).unwrap_or(u64::MAX);
        HEAD_BYTES
            .saturating_add(table)
            .saturating_add(self.data_bytes)
    }

    pub(crate) fn described(&self) -> Vec<Region> {
        self.regions
            .iter()
            .map(|r| Region::memory(r.name.clone(), r.bytes as u64).of_elements(r.element))
            .collect()
    }

    /// The layout of these regions alone; computed once per change.
    pub(crate) fn layout(&mut self) -> Result<Layout> {
        if self.layout.is_none() {
            self.layout = Some(Layout::of(&self.described())?);
        }
        self.layout
            .clone()
            .ok_or_else(|| Error::internal("layout vanished"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_is_what_the_layout_needs_after_any_change() {
        let mut registry = Registry::default();
        let mut random = outlive_base::rng::Sequence::new(outlive_base::seed!(), 0);
        let mut memory = vec![0u8; 20_000];
        for _ in 0..2_000 {
            let name = format!("r{}", random.below(60));
            if random.chance(300_000) {
                registry.remove(&name);
            } else if random.chance(300_000) {
                // Of many no whole number fits: that changes nothing.
                let _ = registry.describe(&name, Element::Float64);
            } else {
                let bytes = random.below(20_000) as usize;
                registry.insert(&name, memory.as_mut_ptr(), bytes).unwrap();
            }
            let layout = registry.layout().unwrap();
            assert_eq!(layout.capacity, registry.needed());
            let bytes: u64 = registry.all().iter().map(|r| r.bytes as u64).sum();
            assert_eq!(bytes, registry.bytes());
            for entry in registry.all() {
                assert_eq!(registry.get(&entry.name).unwrap().bytes, entry.bytes);
            }
        }
    }

    #[test]
    fn impossible_regions_are_refused() {
        let mut registry = Registry::default();
        let mut byte = 0u8;
        for (name, data, bytes) in [
            ("", &raw mut byte, 1),
            (&*"x".repeat(256), &raw mut byte, 1),
            ("null", core::ptr::null_mut(), 1),
            ("huge", &raw mut byte, usize::MAX),
        ] {
            let error = registry.insert(name, data, bytes).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        }
        registry.insert("empty", core::ptr::null_mut(), 0).unwrap();
        assert_eq!(registry.all().len(), 1);
    }

    #[test]
    fn what_a_region_consists_of() {
        let mut registry = Registry::default();
        let mut memory = [0_u8; 24];
        let missing = registry.describe("field", Element::Float64).unwrap_err();
        assert_eq!(missing.code(), Code::RegionMissing, "{missing}");
        registry.insert("field", memory.as_mut_ptr(), 24).unwrap();
        registry.describe("field", Element::Float64).unwrap();
        assert_eq!(registry.described()[0].element(), Some(Element::Float64));
        let told = region::decode(&registry.layout().unwrap().table).unwrap();
        assert_eq!(told, registry.described());
        // Another memory may hold something else.
        registry.insert("field", memory.as_mut_ptr(), 12).unwrap();
        assert_eq!(registry.described()[0].element(), None);
        let odd = registry.describe("field", Element::Float64).unwrap_err();
        assert_eq!(odd.code(), Code::InvalidArgument, "{odd}");
        assert!(odd.reason().starts_with("12 bytes"), "{odd}");
    }

    #[test]
    fn one_region_too_many_is_refused_and_changes_nothing() {
        let mut registry = Registry::default();
        let mut byte = 0u8;
        for number in 0..PROTECTED_MAX {
            registry
                .insert(&format!("r{number}"), &raw mut byte, 1)
                .unwrap();
        }
        let error = registry.insert("more", &raw mut byte, 1).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert_eq!(registry.all().len(), PROTECTED_MAX);
        assert!(registry.layout().is_ok());
    }
}
