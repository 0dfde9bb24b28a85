//! Region descriptors and their table: what a rank protects, as bytes.
//!
//! The encoding is specified in `docs/format.md`, section "Region table". It leads
//! each slab and, per rank, each container, so it is parsed from bytes that may be
//! damaged or foreign: nothing here panics or reserves more than it was given (P7).

pub use outlive_base::ipc::NAME_BYTES_MAX;
use outlive_base::wire::{Reader, WireError, Writer};

/// Most regions of one rank.
pub const REGIONS_MAX: usize = 1 << 20;
/// Longest attribute value, in bytes.
pub const ATTRIBUTE_BYTES_MAX: usize = 4096;
/// Regions start at multiples of this in a slab and in a container.
pub const REGION_ALIGN: u64 = 4096;

/// What a region is. Numbers are part of the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum RegionKind {
    /// A range of bytes of the rank's memory.
    Bytes = 0,
    /// A file that the program wrote by itself (`outlive_route`).
    File = 1,
    /// Part of a global array: attributes give dtype, shape, blocks and order.
    ArrayPart = 2,
}

/// What floating-point numbers a region consists of. Numbers are part of the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Element {
    /// IEEE 754 binary16.
    Float16 = 1,
    /// The upper half of a binary32.
    BFloat16 = 2,
    /// IEEE 754 binary32; complex numbers are two of them.
    Float32 = 3,
    /// IEEE 754 binary64.
    Float64 = 4,
}

impl Element {
    /// That of a number of the format; `None` if it is none of ours.
    pub fn of(number: u32) -> Option<Element> {
        let all = [
            Element::Float16,
            Element::BFloat16,
            Element::Float32,
            Element::Float64,
        ];
        all.into_iter().find(|it| *it as u32 == number)
    }

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Element::Float16 => "float16",
            Element::BFloat16 => "bfloat16",
            Element::Float32 => "float32",
            Element::Float64 => "float64",
        }
    }

    /// Bytes of one.
    pub const fn bytes(self) -> usize {
        match self {
            Element::Float16 | Element::BFloat16 => 2,
            Element::Float32 => 4,
            Element::Float64 => 8,
        }
    }
}

/// An attribute of a region: a tag and bytes. A reader that does not know the tag
/// of a required attribute must refuse the region; others may be skipped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attribute {
    /// The tag; the top bit ([`Attribute::REQUIRED`]) marks it as required.
    pub tag: u16,
    /// The value.
    pub value: Vec<u8>,
}

impl Attribute {
    /// The bit of a tag that says: refuse if unknown.
    pub const REQUIRED: u16 = 0x8000;
    /// A file's permission bits, u32.
    pub const FILE_MODE: u16 = 1;
    /// What numbers it consists of, u8: [`Element`].
    pub const ELEMENT: u16 = 2;
    /// Bytes of an [`Attribute::ELEMENT`] in the table: tag, length, value.
    pub const ELEMENT_BYTES: u64 = 2 + 4 + 1;
}

/// One region of one rank at one version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Unique in the rank.
    pub name: String,
    /// What it is.
    pub kind: RegionKind,
    /// Its length in bytes, without padding.
    pub bytes: u64,
    /// More about it, in ascending order of tags.
    pub attributes: Vec<Attribute>,
}

impl Region {
    /// A range of memory.
    pub fn memory(name: impl Into<String>, bytes: u64) -> Region {
        Region {
            name: name.into(),
            kind: RegionKind::Bytes,
            bytes,
            attributes: Vec::new(),
        }
    }

    /// The same, of such numbers.
    #[must_use]
    pub fn of_elements(mut self, element: Option<Element>) -> Region {
        self.attributes.retain(|it| it.tag != Attribute::ELEMENT);
        self.attributes.extend(element.map(|element| Attribute {
            tag: Attribute::ELEMENT,
            value: vec![element as u8],
        }));
        self
    }

    /// What numbers it consists of; `None`: nobody said it, or a later version has.
    pub fn element(&self) -> Option<Element> {
        let mut attributes = self.attributes.iter();
        let found = attributes.find(|it| it.tag == Attribute::ELEMENT)?;
        match found.value[..] {
            [number] => Element::of(number.into()),
            _ => None,
        }
    }
}

/// Rounds up to [`REGION_ALIGN`]; `None` on overflow.
pub const fn align_up(bytes: u64) -> Option<u64> {
    match bytes.checked_add(REGION_ALIGN - 1) {
        Some(sum) => Some(sum & !(REGION_ALIGN - 1)),
        None => None,
    }
}

/// Where each region starts within the data part, and the whole length of it.
/// `None` if the sum overflows.
pub fn offsets(regions: &[Region]) -> Option<(Vec<u64>, u64)> {
    let mut at = 0u64;
    let mut offsets = Vec::with_capacity(regions.len());
    for region in regions {
        offsets.push(at);
        at = at.checked_add(align_up(region.bytes)?)?;
    }
    Some((offsets, at))
}

/// Encodes a table: u32 count, then per region u16 kind, u64 bytes, name (u32
/// length, UTF-8), u32 count of attributes, each u16 tag and value (u32 length).
pub fn encode(regions: &[Region]) -> Vec<u8> {
    let mut out = Writer::new();
    out.u32(regions.len() as u32);
    for region in regions {
        out.u16(region.kind as u16)
            .u64(region.bytes)
            .blob(region.name.as_bytes());
        out.u32(region.attributes.len() as u32);
        for attribute in &region.attributes {
            out.u16(attribute.tag).blob(&attribute.value);
        }
    }
    out.into_vec()
}

/// Decodes a table; refuses unknown kinds, unknown required attributes, repeated
/// or empty names and data longer than 2^63 bytes.
pub fn decode(bytes: &[u8]) -> Result<Vec<Region>, WireError> {
    let mut input = Reader::new(bytes);
    let count = input.count(18)?;
    if count > REGIONS_MAX {
        return Err(WireError::TooLong {
            length: count as u64,
            bound: REGIONS_MAX as u64,
        });
    }
    let mut regions = Vec::with_capacity(count);
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..count {
        let kind = match input.u16()? {
            0 => RegionKind::Bytes,
            1 => RegionKind::File,
            2 => RegionKind::ArrayPart,
            _ => return Err(WireError::Value("region kind")),
        };
        let bytes = input.u64()?;
        let name = input.text(NAME_BYTES_MAX)?;
        if name.is_empty() || !names.insert(name) {
            return Err(WireError::Value("region name empty or repeated"));
        }
        let mut attributes = Vec::new();
        for _ in 0..input.count(6)? {
            let tag = input.u16()?;
            let value = input.blob(ATTRIBUTE_BYTES_MAX)?.to_vec();
            if tag & Attribute::REQUIRED != 0 {
                return Err(WireError::Value("unknown required attribute"));
            }
            attributes.push(Attribute { tag, value });
        }
        regions.push(Region {
            name: name.to_owned(),
            kind,
            bytes,
            attributes,
        });
    }
    input.finish()?;
    match offsets(&regions) {
        Some((_, total)) if total <= i64::MAX as u64 => Ok(regions),
        _ => Err(WireError::Value("regions too long together")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Region> {
        let mut file = Region::memory("out.h5", 5000);
        file.kind = RegionKind::File;
        file.attributes.push(Attribute {
            tag: Attribute::FILE_MODE,
            value: vec![0xa4, 1, 0, 0],
        });
        vec![Region::memory("u", 4097), Region::memory("leer", 0), file]
    }

    #[test]
    fn a_table_round_trips_and_every_cut_is_refused() {
        let bytes = encode(&sample());
        assert_eq!(decode(&bytes).unwrap(), sample());
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "{cut}");
        }
        assert_eq!(offsets(&sample()).unwrap(), (vec![0, 8192, 8192], 16384));
    }

    #[test]
    fn hostile_tables_are_refused() {
        assert!(decode(&u32::MAX.to_le_bytes()).is_err());
        let twice = encode(&[Region::memory("a", 1), Region::memory("a", 1)]);
        assert!(decode(&twice).is_err());
        let huge = encode(&[Region::memory("a", u64::MAX)]);
        assert!(decode(&huge).is_err());
        let mut required = sample();
        required[2].attributes[0].tag |= Attribute::REQUIRED;
        assert!(decode(&encode(&required)).is_err());
    }
}
