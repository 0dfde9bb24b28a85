//! Header, frame page, index and footer as bytes: `docs/format.md`, "Container".
//!
//! Invariants: encoding is a function of its arguments alone (P8); decoding never
//! panics and reserves no more than the bytes that it was given (P7); every byte of
//! a decoded structure was covered by a checksum or compared with zero.

use outlive_base::wire::{Reader, WireError, Writer};
use outlive_base::{ContainerId, Rank};
use outlive_capture::region;
use outlive_codec::crc64;
use outlive_ledger::{Sealed, put_id, read_id};

use crate::aligned::{Buffer, PAGE, Page, up};
use crate::plan::{INDEX_ENTRY, Plan, RankPlan, Spot};

/// Version of the format that is written.
pub const FORMAT_VERSION: u16 = 1;
/// Logical bytes of a full frame unless told otherwise.
pub const FRAME_BYTES: u32 = 4 << 20;
/// Largest frame, in bytes.
pub const FRAME_BYTES_MAX: u32 = 1 << 26;
/// Largest header without padding, in bytes.
pub const HEADER_BYTES_MAX: u32 = 1 << 30;
/// Most ranks in a container.
pub const RANKS_MAX: u32 = 1 << 20;

/// Fixed part of a header, in bytes.
pub const HEADER_FIXED: usize = 128;
const RANK_ENTRY: usize = 16;
const CHECKSUM: usize = PAGE - 8;

const MAGIC_CONTAINER: &[u8; 8] = b"OLCONT1\0";
const MAGIC_FRAME: &[u8; 8] = b"OLFRAME1";
const MAGIC_INDEX: &[u8; 8] = b"OLINDEX1";
const MAGIC_FOOTER: &[u8; 8] = b"OLFOOT1\0";

/// Incompatible features that this reader knows: none yet.
const KNOWN_INCOMPATIBLE: u64 = 0;
const CRC64_NVME: u8 = 1;
const XXH3_128: u8 = 1;

/// What a container belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContainerHead {
    /// Names the job across stores.
    pub job_hash: u64,
    /// Which container.
    pub id: ContainerId,
    /// Ranks of the whole job.
    pub ranks_total: u32,
}

/// Stored checksum and logical digest of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// CRC-64/NVME of the payload with padding.
    pub checksum: u64,
    /// XXH3-128 of the logical bytes.
    pub digest: u128,
}

/// Why a structure is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// Damaged: another copy may be sound.
    Damaged(String),
    /// Sound as far as can be told, and of an unknown format.
    Unknown(String),
}

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Refusal {
        Refusal::Damaged(error.to_string())
    }
}

fn damaged<T>(what: &str) -> Result<T, Refusal> {
    Err(Refusal::Damaged(what.to_owned()))
}

/// The fixed part of a header, decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderFixed {
    pub head: ContainerHead,
    /// Without padding.
    pub header_bytes: u32,
    pub ranks: u32,
    pub frame_bytes: u32,
    pub frames: u64,
    pub index_offset: u64,
    pub file_bytes: u64,
}

/// Header bytes without padding for these ranks; `None` if above the bound.
pub(crate) fn header_bytes(ranks: &[RankPlan]) -> Option<u32> {
    let tables: u64 = ranks.iter().map(|rank| rank.table.len() as u64).sum();
    let bytes = (HEADER_FIXED + RANK_ENTRY * ranks.len() + 8) as u64 + tables;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= HEADER_BYTES_MAX)
}

/// The header with padding. `plan` must have been made for `header_bytes(ranks)`.
pub(crate) fn encode_header(head: &ContainerHead, plan: &Plan, header_bytes: u32) -> Buffer {
    let mut out = Writer::new();
    out.raw(MAGIC_CONTAINER)
        .u16(FORMAT_VERSION)
        .u16(0)
        .u32(header_bytes);
    out.u64(0).u64(0).u64(head.job_hash);
    put_id(&mut out, head.id);
    out.u32(head.ranks_total)
        .u32(plan.ranks.len() as u32)
        .u32(plan.frame_bytes);
    out.u8(CRC64_NVME).u8(XXH3_128).u16(0);
    out.u64(plan.frames)
        .u64(plan.index_offset)
        .u64(plan.file_bytes)
        .raw(&[0; 24]);
    let checksum = crc64(out.as_slice());
    out.u64(checksum);
    for rank in &plan.ranks {
        out.u32(rank.rank.0)
            .u32(rank.table.len() as u32)
            .u64(rank.data_bytes);
    }
    for rank in &plan.ranks {
        out.raw(&rank.table);
    }
    let checksum = crc64(&out.as_slice()[HEADER_FIXED..]);
    out.u64(checksum);
    Buffer::padded(out.as_slice())
}

/// Decodes the first [`HEADER_FIXED`] bytes.
pub(crate) fn decode_header_fixed(bytes: &[u8]) -> Result<HeaderFixed, Refusal> {
    let mut input = Reader::new(bytes);
    if bytes.len() < HEADER_FIXED {
        return damaged("header: too short");
    }
    if input.array::<8>()? != *MAGIC_CONTAINER {
        return damaged("no container: wrong magic");
    }
    let version = input.u16()?;
    if crc64(&bytes[..HEADER_FIXED - 8]).to_le_bytes() != bytes[HEADER_FIXED - 8..HEADER_FIXED] {
        return damaged("header checksum");
    }
    if version != FORMAT_VERSION {
        return Err(Refusal::Unknown(format!("container format {version}")));
    }
    let zero = input.u16()?;
    let header_bytes = input.u32()?;
    let _compatible = input.u64()?;
    let incompatible = input.u64()? & !KNOWN_INCOMPATIBLE;
    if incompatible != 0 {
        return Err(Refusal::Unknown(format!("features {incompatible:#x}")));
    }
    let job_hash = input.u64()?;
    let id = read_id(&mut input)?;
    let (ranks_total, ranks, frame_bytes) = (input.u32()?, input.u32()?, input.u32()?);
    if (input.u8()?, input.u8()?) != (CRC64_NVME, XXH3_128) {
        return Err(Refusal::Unknown("checksum or digest algorithm".into()));
    }
    let zero = zero | input.u16()?;
    let (frames, index_offset, file_bytes) = (input.u64()?, input.u64()?, input.u64()?);
    if zero != 0 || input.array::<24>()? != [0; 24] {
        return damaged("header: reserved bytes are not zero");
    }
    let frame_good =
        frame_bytes.is_power_of_two() && (PAGE as u32..=FRAME_BYTES_MAX).contains(&frame_bytes);
    let entries = u64::from(ranks) * RANK_ENTRY as u64 + (HEADER_FIXED + 8) as u64;
    if !frame_good
        || header_bytes > HEADER_BYTES_MAX
        || ranks > RANKS_MAX
        || entries > u64::from(header_bytes)
        || file_bytes > i64::MAX as u64
    {
        return damaged("header: a length out of bounds");
    }
    let head = ContainerHead {
        job_hash,
        id,
        ranks_total,
    };
    Ok(HeaderFixed {
        head,
        header_bytes,
        ranks,
        frame_bytes,
        frames,
        index_offset,
        file_bytes,
    })
}

/// Decodes a whole header with padding into the plan of the file.
pub(crate) fn decode_header(bytes: &[u8]) -> Result<(ContainerHead, Plan), Refusal> {
    let fixed = decode_header_fixed(bytes)?;
    let length = fixed.header_bytes as usize;
    if bytes.len() as u64 != up(u64::from(fixed.header_bytes)) {
        return damaged("header: length");
    }
    let (body, rest) = bytes[HEADER_FIXED..].split_at(length - HEADER_FIXED - 8);
    let (checksum, padding) = rest.split_at(8);
    if crc64(body).to_le_bytes() != *checksum {
        return damaged("header checksum");
    }
    if padding.iter().any(|byte| *byte != 0) {
        return damaged("header: padding is not zero");
    }
    let mut input = Reader::new(body);
    let mut entries = Vec::with_capacity(fixed.ranks as usize);
    for _ in 0..fixed.ranks {
        entries.push((Rank(input.u32()?), input.u32()?, input.u64()?));
    }
    let mut ranks = Vec::with_capacity(entries.len());
    for (rank, table_bytes, data_bytes) in entries {
        let table = input.take(table_bytes as usize)?.to_vec();
        let regions = region::decode(&table)?;
        if rank.0 >= fixed.head.ranks_total {
            return damaged("header: a rank outside the job");
        }
        ranks.push(RankPlan {
            rank,
            table,
            regions,
            data_bytes,
        });
    }
    input.finish()?;
    let plan = Plan::new(ranks, fixed.frame_bytes, bytes.len() as u64)?;
    let stated = (fixed.frames, fixed.index_offset, fixed.file_bytes);
    if stated != (plan.frames, plan.index_offset, plan.file_bytes) {
        return damaged("header: lengths contradict the region tables");
    }
    Ok((fixed.head, plan))
}

/// The frame page of `spot`.
pub(crate) fn encode_frame(head: &ContainerHead, plan: &Plan, spot: &Spot, sums: &Sums) -> Page {
    let mut out = Writer::new();
    out.raw(MAGIC_FRAME)
        .u16(FORMAT_VERSION)
        .u16(0)
        .u32(plan.ranks[spot.slot].rank.0);
    out.u32(spot.region as u32)
        .u32(spot.frame)
        .u64(spot.logical_offset);
    out.u32(spot.length).u32(spot.length).u32(0);
    out.u8(CRC64_NVME)
        .u8(XXH3_128)
        .u16(0)
        .u64(sums.checksum)
        .u64(head.job_hash);
    put_id(&mut out, head.id);
    out.u128(sums.digest).u64(spot.number);
    seal_page(out.as_slice())
}

/// Pads to a page and puts the checksum at its end.
fn seal_page(bytes: &[u8]) -> Page {
    let mut page = Page([0; PAGE]);
    page.0[..bytes.len()].copy_from_slice(bytes);
    let checksum = crc64(&page.0[..CHECKSUM]);
    page.0[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    page
}

fn page_is_sound(page: &[u8], magic: &[u8; 8]) -> bool {
    page.len() == PAGE
        && page.starts_with(magic)
        && crc64(&page[..CHECKSUM]).to_le_bytes() == page[CHECKSUM..]
}

/// The sums in the frame page that must stand at `spot`. Every other byte of the
/// page is compared with what header and place demand.
pub(crate) fn decode_frame(
    head: &ContainerHead,
    plan: &Plan,
    spot: &Spot,
    page: &[u8],
) -> Result<Sums, Refusal> {
    if !page_is_sound(page, MAGIC_FRAME) {
        return damaged("frame header checksum");
    }
    let mut input = Reader::new(page);
    input.take(48)?;
    let checksum = input.u64()?;
    input.take(24)?;
    let sums = Sums {
        checksum,
        digest: input.u128()?,
    };
    if encode_frame(head, plan, spot, &sums).0 != page {
        return damaged("a frame of another place or container");
    }
    Ok(sums)
}

/// The index with padding.
pub(crate) fn encode_index(head: &ContainerHead, plan: &Plan, sums: &[Sums]) -> Buffer {
    let mut out = Writer::new();
    out.raw(MAGIC_INDEX)
        .u16(FORMAT_VERSION)
        .u16(0)
        .u32(plan.ranks.len() as u32);
    out.u64(plan.frames).u64(plan.index_bytes);
    for rank in &plan.ranks {
        out.u32(rank.rank.0).u32(rank.regions.len() as u32);
        for region in &rank.regions {
            out.u64(region.bytes.div_ceil(u64::from(plan.frame_bytes)));
        }
    }
    for (spot, sums) in plan.spots().zip(sums) {
        put_id(&mut out, head.id);
        out.u64(spot.file_offset)
            .u32(spot.length)
            .u32(spot.length)
            .u32(0)
            .u32(0);
        out.u64(sums.checksum).u128(sums.digest);
    }
    let checksum = crc64(out.as_slice());
    out.u64(checksum);
    Buffer::padded(out.as_slice())
}

/// The sums of all frames out of an index. The caller has read `bytes` from a file
/// as long as the plan says, so that the plan's number of frames is real.
pub(crate) fn decode_index(
    head: &ContainerHead,
    plan: &Plan,
    bytes: &[u8],
) -> Result<Vec<Sums>, Refusal> {
    if bytes.len() as u64 != up(plan.index_bytes) || !bytes.starts_with(MAGIC_INDEX) {
        return damaged("index: magic or length");
    }
    let end = plan.index_bytes as usize - 8;
    if crc64(&bytes[..end]).to_le_bytes() != bytes[end..end + 8] {
        return damaged("index checksum");
    }
    let entries = end - plan.frames as usize * INDEX_ENTRY;
    let mut sums = Vec::with_capacity(plan.frames as usize);
    for entry in bytes[entries..end].chunks_exact(INDEX_ENTRY) {
        let mut input = Reader::new(&entry[40..]);
        sums.push(Sums {
            checksum: input.u64()?,
            digest: input.u128()?,
        });
    }
    if encode_index(head, plan, &sums)[..] != *bytes {
        return damaged("index contradicts the header");
    }
    Ok(sums)
}

/// The seal of header and index, both with padding.
pub(crate) fn seal(head: &ContainerHead, plan: &Plan, header: &[u8], index: &[u8]) -> Sealed {
    let mut digest = outlive_codec::Digest::new();
    digest.update(header);
    digest.update(index);
    Sealed {
        id: head.id,
        length: plan.file_bytes,
        digest: digest.finish(),
    }
}

/// The footer page.
pub(crate) fn encode_footer(
    head: &ContainerHead,
    plan: &Plan,
    index: &[u8],
    sealed: &Sealed,
) -> Page {
    let mut out = Writer::new();
    out.raw(MAGIC_FOOTER).u16(FORMAT_VERSION).raw(&[0; 6]);
    out.u64(plan.index_offset)
        .u64(up(plan.index_bytes))
        .u64(crc64(index));
    out.u64(plan.file_bytes)
        .u128(sealed.digest)
        .u64(head.job_hash);
    put_id(&mut out, head.id);
    seal_page(out.as_slice())
}
