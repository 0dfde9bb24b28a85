//! A container before it is a file: header, frames, index and footer over memory
//! that stays where it is.
//!
//! Invariants: payload is borrowed, never copied, but for the last page of a region
//! whose padding must be zero; the sums of a frame are computed once, by whoever
//! needs them first (disk writer or partner streamer), and shared; the bytes depend
//! on head and ranks alone (P8).

use std::ops::Range;
use std::sync::OnceLock;

use outlive_base::Rank;
use outlive_capture::region;
use outlive_ledger::Sealed;

use crate::aligned::{Buffer, Page, is_aligned};
use crate::aligned::{PAGE, up};
use crate::census::Census;
use crate::error::WriteError;
use crate::format::{
    self, ContainerHead, FRAME_BYTES, FRAME_BYTES_MAX, Sums, encode_footer, encode_frame,
    encode_header, encode_index,
};
use crate::plan::{Plan, RankPlan, Spot};

/// One rank as it lies in memory.
#[derive(Clone, Copy)]
pub struct RankImage<'a> {
    /// The rank.
    pub rank: Rank,
    /// Its encoded region table.
    pub table: &'a [u8],
    /// Its data part: regions at 4 KiB boundaries in table order, whole pages. Page
    /// alignment is needed for direct writes; other memory is written buffered.
    pub data: &'a [u8],
}

/// Frame page, sums and zero-padded last page of one frame, and what is none of its numbers.
struct Framed {
    page: Box<Page>,
    sums: Sums,
    tail: Option<Box<Page>>,
    census: Census,
}

/// What a region holds, in few bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Print<'a> {
    /// Whose it is.
    pub rank: Rank,
    /// Its name.
    pub region: &'a str,
    /// Its length.
    pub bytes: u64,
    /// The digest of the digests of its frames.
    pub digest: u128,
    /// Of its numbers, if it was said that it consists of some.
    pub census: Census,
}

struct End {
    index: Buffer,
    footer: Box<Page>,
    sealed: Sealed,
}

/// A container laid out over borrowed memory.
pub struct Layout<'a> {
    head: ContainerHead,
    plan: Plan,
    data: Vec<&'a [u8]>,
    spots: Vec<Spot>,
    header: Buffer,
    framed: Vec<OnceLock<Framed>>,
    end: OnceLock<End>,
    aligned: bool,
}

impl<'a> Layout<'a> {
    /// Lays out `ranks`, in ascending order of rank, in frames of 4 MiB. Refuses
    /// tables that cannot be decoded or contradict the length of the data.
    pub fn new(head: ContainerHead, ranks: Vec<RankImage<'a>>) -> Result<Layout<'a>, WriteError> {
        Layout::with_frame_bytes(head, ranks, FRAME_BYTES)
    }

    /// Like [`Layout::new`], with another frame size: a power of two, 4 KiB to 64 MiB.
    pub fn with_frame_bytes(
        head: ContainerHead,
        ranks: Vec<RankImage<'a>>,
        frame_bytes: u32,
    ) -> Result<Layout<'a>, WriteError> {
        let input = |what: String| WriteError::Input(format!("{}: {what}", head.id));
        if !frame_bytes.is_power_of_two() || !(PAGE as u32..=FRAME_BYTES_MAX).contains(&frame_bytes)
        {
            return Err(input(format!("frame size {frame_bytes}")));
        }
        if ranks.len() > format::RANKS_MAX as usize {
            return Err(input(format!("{} ranks", ranks.len())));
        }
        let mut plans = Vec::with_capacity(ranks.len());
        for image in &ranks {
            if image.rank.0 >= head.ranks_total {
                return Err(input(format!(
                    "{} of {} ranks",
                    image.rank, head.ranks_total
                )));
            }
            plans.push(RankPlan {
                rank: image.rank,
                table: image.table.to_vec(),
                regions: region::decode(image.table)
                    .map_err(|error| input(format!("{}, region table: {error}", image.rank)))?,
                data_bytes: image.data.len() as u64,
            });
        }
        let bytes = format::header_bytes(&plans)
            .ok_or_else(|| input("region tables too long together".into()))?;
        let plan = Plan::new(plans, frame_bytes, up(u64::from(bytes)))
            .map_err(|error| input(error.to_string()))?;
        let spots: Vec<Spot> = plan.spots().collect();
        Ok(Layout {
            header: encode_header(&head, &plan, bytes),
            aligned: ranks.iter().all(|image| is_aligned(image.data)),
            data: ranks.iter().map(|image| image.data).collect(),
            framed: spots.iter().map(|_| OnceLock::new()).collect(),
            end: OnceLock::new(),
            head,
            plan,
            spots,
        })
    }

    /// What the container belongs to.
    pub fn head(&self) -> &ContainerHead {
        &self.head
    }

    /// Length of the file and of the stream, in bytes; a multiple of 4096.
    pub fn length(&self) -> u64 {
        self.plan.file_bytes
    }

    /// True if all of the ranks' memory can be written without a copy by the kernel.
    pub fn is_aligned(&self) -> bool {
        self.aligned
    }

    /// The whole file as slices, in file order. Each length is a multiple of 4096,
    /// and each slice is page-aligned if [`Layout::is_aligned`]. Sums are computed
    /// as the iterator advances.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let frames = (0..self.spots.len()).flat_map(|nth| self.frame_segments(nth));
        let end = std::iter::once(()).flat_map(|()| self.end_segments());
        std::iter::once(&self.header[..]).chain(frames).chain(end)
    }

    /// The seal: computes what is not computed yet.
    pub fn seal(&self) -> Sealed {
        self.end().sealed
    }

    /// True if the sums of all frames are computed, as they are once a copy was written.
    pub fn has_sums(&self) -> bool {
        self.framed.iter().all(|framed| framed.get().is_some())
    }

    /// What each region holds, rank by rank. Computes what is not computed yet.
    pub fn prints(&self) -> impl Iterator<Item = Print<'_>> {
        let mut frames: Vec<Vec<(Vec<u8>, Census)>> = Vec::with_capacity(self.plan.ranks.len());
        for rank in &self.plan.ranks {
            frames.push(vec![Default::default(); rank.regions.len()]);
        }
        for (nth, spot) in self.spots.iter().enumerate() {
            let framed = self.framed(nth);
            let (digests, census) = &mut frames[spot.slot][spot.region];
            digests.extend(framed.sums.digest.to_le_bytes());
            *census += framed.census;
        }
        let ranks = self.plan.ranks.iter().zip(frames);
        ranks.flat_map(|(rank, frames)| {
            let regions = rank.regions.iter().zip(frames);
            regions.map(|(region, (digests, census))| Print {
                rank: rank.rank,
                region: &region.name,
                bytes: region.bytes,
                digest: outlive_codec::digest(&digests),
                census,
            })
        })
    }

    pub(crate) fn spots(&self) -> &[Spot] {
        &self.spots
    }

    pub(crate) fn header(&self) -> &[u8] {
        &self.header
    }

    pub(crate) fn index_offset(&self) -> u64 {
        self.plan.index_offset
    }

    /// Frame page, whole pages of payload and padded last page of the nth frame.
    pub(crate) fn frame_segments(&self, nth: usize) -> impl Iterator<Item = &[u8]> {
        let framed = self.framed(nth);
        let (body, _) = self.payload(nth);
        let tail = framed.tail.as_deref().map_or(&[][..], |page| &page.0);
        [&framed.page.0[..], body, tail]
            .into_iter()
            .filter(|segment| !segment.is_empty())
    }

    pub(crate) fn end_segments(&self) -> [&[u8]; 2] {
        let end = self.end();
        [&end.index, &end.footer.0]
    }

    /// Whole pages of the payload, and the bytes of the last one if it is not full.
    fn payload(&self, nth: usize) -> (&'a [u8], &'a [u8]) {
        let spot = &self.spots[nth];
        let start = spot.data_offset as usize;
        let length = spot.length as usize;
        self.data[spot.slot][start..start + length].split_at(length & !(PAGE - 1))
    }

    fn framed(&self, nth: usize) -> &Framed {
        self.framed[nth].get_or_init(|| {
            let (body, rest) = self.payload(nth);
            let tail = (!rest.is_empty()).then(|| {
                let mut page = Box::new(Page([0; PAGE]));
                page.0[..rest.len()].copy_from_slice(rest);
                page
            });
            let padded = tail.as_deref().map_or(&[][..], |page| &page.0);
            let (checksum, digest) =
                outlive_codec::sums(body, padded, self.spots[nth].length as usize);
            let sums = Sums { checksum, digest };
            let spot = &self.spots[nth];
            let region = &self.plan.ranks[spot.slot].regions[spot.region];
            let mut census = Census::default();
            if let Some(element) = region.element() {
                // A frame ends where an element does: at a page, or with the region.
                census += Census::of(element, body);
                census += Census::of(element, rest);
            }
            let page = Box::new(encode_frame(&self.head, &self.plan, spot, &sums));
            Framed {
                page,
                sums,
                tail,
                census,
            }
        })
    }

    fn end(&self) -> &End {
        self.end.get_or_init(|| {
            let sums: Vec<Sums> = (0..self.spots.len())
                .map(|nth| self.framed(nth).sums)
                .collect();
            let index = encode_index(&self.head, &self.plan, &sums);
            let sealed = format::seal(&self.head, &self.plan, &self.header, &index);
            let footer = Box::new(encode_footer(&self.head, &self.plan, &index, &sealed));
            End {
                index,
                footer,
                sealed,
            }
        })
    }
}

/// Most frames handed to the kernel at once: three slices each stay under IOV_MAX.
const BATCH_FRAMES: usize = 256;
/// Bytes of one transfer, roughly.
const BATCH_BYTES: usize = 4 << 20;

/// Consecutive frames, joined until a transfer is long enough to be worth it.
pub(crate) fn batches(spots: &[Spot]) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (nth, spot) in spots.iter().enumerate() {
        bytes += PAGE + spot.padded();
        let next_slot = spots.get(nth + 1).map(|next| next.slot);
        if bytes >= BATCH_BYTES || nth + 1 - start >= BATCH_FRAMES || next_slot != Some(spot.slot) {
            batches.push(start..nth + 1);
            (start, bytes) = (nth + 1, 0);
        }
    }
    batches
}
