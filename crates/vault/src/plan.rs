//! Where everything in a container lies, computed from its header alone.
//!
//! Invariants: frames tile each rank's data part exactly, in file order; nothing is
//! stored per frame, so a header that claims 2^40 frames costs no memory (P7).

use outlive_base::Rank;
use outlive_base::wire::WireError;
use outlive_capture::region::{self, Region};

use crate::aligned::{PAGE, PAGE64, up};

pub(crate) const INDEX_FIXED: usize = 32;
pub(crate) const INDEX_ENTRY: usize = 64;

/// One rank of a container.
#[derive(Clone, Debug)]
pub struct RankPlan {
    /// The rank.
    pub rank: Rank,
    /// Its encoded region table.
    pub table: Vec<u8>,
    /// The table decoded.
    pub regions: Vec<Region>,
    /// Length of its data part.
    pub data_bytes: u64,
}

/// One frame: where it is in the region, in the rank's data part and in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// Index of the rank in the container.
    pub slot: usize,
    /// Index of the region in the rank.
    pub region: usize,
    /// Index of the frame in the region.
    pub frame: u32,
    /// Number of the frame in the file.
    pub number: u64,
    /// Offset in the region.
    pub logical_offset: u64,
    /// Bytes of the region in this frame: 1 to the frame size.
    pub length: u32,
    /// Offset in the rank's data part.
    pub data_offset: u64,
    /// Offset of the frame page in the file.
    pub file_offset: u64,
}

impl Spot {
    /// Bytes of the payload with padding.
    pub fn padded(&self) -> usize {
        (self.length as usize).next_multiple_of(PAGE)
    }
}

/// The geometry of a container.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Ranks, ascending.
    pub ranks: Vec<RankPlan>,
    /// Logical bytes of a full frame.
    pub frame_bytes: u32,
    /// Header bytes with padding.
    pub header_bytes: u64,
    /// Number of frames.
    pub frames: u64,
    /// Offset of the index.
    pub index_offset: u64,
    /// Index bytes without padding.
    pub index_bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
}

impl Plan {
    /// The plan of these ranks after a header of `header_bytes` (padded). Refuses
    /// ranks out of order, tables that contradict the data and files too long.
    pub fn new(
        ranks: Vec<RankPlan>,
        frame_bytes: u32,
        header_bytes: u64,
    ) -> Result<Plan, WireError> {
        const TOO_LONG: WireError = WireError::Value("container longer than 2^63");
        if !ranks.windows(2).all(|pair| pair[0].rank < pair[1].rank) {
            return Err(WireError::Value("ranks not ascending"));
        }
        let (mut frames, mut bytes, mut index) = (0u64, header_bytes, INDEX_FIXED as u64 + 8);
        for rank in &ranks {
            match region::offsets(&rank.regions) {
                Some((_, total)) if total == rank.data_bytes => {}
                _ => return Err(WireError::Value("region table contradicts data length")),
            }
            for region in &rank.regions {
                let count = region.bytes.div_ceil(u64::from(frame_bytes));
                u32::try_from(count).map_err(|_| WireError::Value("too many frames"))?;
                frames += count;
                bytes = bytes.checked_add(count * PAGE64).ok_or(TOO_LONG)?;
            }
            bytes = bytes.checked_add(rank.data_bytes).ok_or(TOO_LONG)?;
            index += 8 + 8 * rank.regions.len() as u64;
        }
        index += frames * INDEX_ENTRY as u64;
        let file_bytes = bytes.checked_add(up(index) + PAGE64).ok_or(TOO_LONG)?;
        if file_bytes > i64::MAX as u64 {
            return Err(TOO_LONG);
        }
        Ok(Plan {
            ranks,
            frame_bytes,
            header_bytes,
            frames,
            index_offset: bytes,
            index_bytes: index,
            file_bytes,
        })
    }

    /// All frames, in file order.
    pub fn spots(&self) -> impl Iterator<Item = Spot> + '_ {
        let full = u64::from(self.frame_bytes);
        let mut number = 0;
        let mut file_offset = self.header_bytes;
        self.ranks.iter().enumerate().flat_map(move |(slot, rank)| {
            let mut start = 0;
            let regions = rank.regions.iter().enumerate().map(move |(index, region)| {
                let at = start;
                start += up(region.bytes);
                (index, region.bytes, at)
            });
            let frames = regions.flat_map(move |(region, bytes, at)| {
                (0..bytes.div_ceil(full)).map(move |frame| {
                    let logical_offset = frame * full;
                    let length = full.min(bytes - logical_offset) as u32;
                    (
                        region,
                        frame as u32,
                        logical_offset,
                        length,
                        at + logical_offset,
                    )
                })
            });
            // Collected per region chain lazily: number and offset run on.
            let (first_number, first_offset) = (number, file_offset);
            for region in &rank.regions {
                let count = region.bytes.div_ceil(full);
                number += count;
                file_offset += count * PAGE64 + up(region.bytes);
            }
            frames.enumerate().map(
                move |(nth, (region, frame, logical_offset, length, data))| Spot {
                    slot,
                    region,
                    frame,
                    number: first_number + nth as u64,
                    logical_offset,
                    length,
                    data_offset: data,
                    // Every frame before it in this rank added one page; padding only
                    // ever ends a region, so the data offset is exact.
                    file_offset: first_offset + data + nth as u64 * PAGE64,
                },
            )
        })
    }

    /// The name of a frame's region.
    pub fn region_name(&self, spot: &Spot) -> &str {
        &self.ranks[spot.slot].regions[spot.region].name
    }
}
