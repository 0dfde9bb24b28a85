//! Containers over a connection: the file's own bytes, sent as they are and checked
//! frame by frame as they arrive.
//!
//! Invariants: a receiver reserves memory only for bytes that have arrived, or that
//! its sink has agreed to; a frame is checked while the next ones arrive; nothing
//! is reported as received before the seal has been compared.

use std::io::{Read, Write};
use std::sync::{Arc, mpsc};

use outlive_base::Rank;
use outlive_ledger::Sealed;

use crate::aligned::{PAGE, up};
use crate::container::{Container, RankEntry, check_payload, refused, refused_at};
use crate::error::ReadError;
use crate::format::{
    ContainerHead, HEADER_FIXED, Sums, decode_frame, decode_header, decode_header_fixed,
    encode_footer, encode_index, seal,
};
use crate::pace::Pace;
use crate::plan::{Plan, Spot};
use crate::scratch::Scratch;
use crate::store::read_exact;

/// Bytes of a transfer.
const CHUNK: usize = 4 << 20;
/// Transfers read ahead.
const AHEAD: usize = 2;
/// Frames that may wait for their check.
const UNCHECKED: usize = 8;

/// Where received ranks go.
pub trait Sink {
    /// Called once, first; an error refuses the container.
    fn head(&mut self, _head: &ContainerHead) -> outlive_base::Result<()> {
        Ok(())
    }
    /// Called once, next, with all ranks that will come, in order: memory can be made
    /// ahead of their bytes. The sizes come from the peer: bound them.
    fn plan(&mut self, _ranks: &[RankEntry<'_>]) -> outlive_base::Result<()> {
        Ok(())
    }
    /// If the memory of a rank is still being made: how far it is.
    fn pace(&self, _rank: Rank) -> Option<Arc<Pace>> {
        None
    }
    /// Memory of exactly `data_bytes` for the data part of `rank`; an error refuses
    /// the container. `data_bytes` comes from the peer: bound it.
    fn rank(
        &mut self,
        rank: Rank,
        table: &[u8],
        data_bytes: u64,
    ) -> outlive_base::Result<&mut [u8]>;
}

impl Container {
    /// Sends the file, byte for byte, reading ahead while the connection is busy.
    /// The receiver checks. An error of `out` carries the doing "send".
    pub fn send_to(&self, out: &mut dyn Write) -> Result<(), ReadError> {
        let file = self.bulk(true)?;
        let length = self.length();
        let (full, filled) = mpsc::sync_channel::<(Scratch, usize)>(AHEAD);
        let (back, free) = mpsc::sync_channel::<Scratch>(AHEAD + 1);
        let chunk = CHUNK.min(usize::try_from(length).unwrap_or(CHUNK));
        for _ in 0..=AHEAD {
            // The queue has room for all: this never blocks.
            let _ = back.send(Scratch::new(chunk));
        }
        std::thread::scope(|scope| {
            let reader = std::thread::Builder::new().spawn_scoped(scope, move || {
                let mut offset = 0;
                while offset < length {
                    let Ok(mut buffer) = free.recv() else { break };
                    let bytes = (length - offset).min(buffer.len() as u64) as usize;
                    read_exact(&*file, &mut buffer[..bytes], offset)
                        .map_err(|error| self.short(error))?;
                    if full.send((buffer, bytes)).is_err() {
                        break;
                    }
                    offset += bytes as u64;
                }
                Ok(())
            });
            let reader =
                reader.map_err(|error| ReadError::io(self.path(), "start a thread", error))?;
            let mut sent = Ok(());
            for (buffer, bytes) in filled.iter() {
                sent = out.write_all(&buffer[..bytes]);
                if sent.is_err() {
                    break;
                }
                // The reader may be done: then nobody needs the buffer.
                let _ = back.send(buffer);
            }
            drop((filled, back));
            let read = reader
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            sent.map_err(|source| ReadError::Lost {
                path: self.path().to_owned(),
                expected: self.sealed().length,
                found: 0,
                source,
            })
            .and(read)
        })
    }
}

/// Reads from a peer and names what it reads in errors.
struct Incoming<'r> {
    reader: &'r mut dyn Read,
    name: String,
    taken: u64,
    expected: u64,
}

impl Incoming<'_> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ReadError> {
        // No file is cut off and no device at fault: the connection ended.
        self.reader
            .read_exact(bytes)
            .map_err(|source| ReadError::Lost {
                path: self.name.clone(),
                expected: self.expected,
                found: self.taken,
                source,
            })?;
        self.taken += bytes.len() as u64;
        Ok(())
    }

    /// The header, reserved piece by piece as it arrives.
    fn header(&mut self) -> Result<Vec<u8>, ReadError> {
        let mut header = vec![0; HEADER_FIXED];
        self.fill(&mut header)?;
        let fixed = decode_header_fixed(&header).map_err(|error| refused(&self.name, error))?;
        self.expected = fixed.file_bytes;
        let length = up(u64::from(fixed.header_bytes)) as usize;
        while header.len() < length {
            let start = header.len();
            header.resize(length.min(start + CHUNK), 0);
            self.fill(&mut header[start..])?;
        }
        Ok(header)
    }

    /// Reads as many bytes as `want` has and compares.
    fn same(&mut self, want: &[u8], what: &str) -> Result<(), ReadError> {
        let mut found = vec![0; CHUNK.min(want.len())];
        for want in want.chunks(CHUNK) {
            let found = &mut found[..want.len()];
            self.fill(found)?;
            if found != want {
                return Err(ReadError::corrupt(&self.name, what));
            }
        }
        Ok(())
    }
}

/// Receives a container into the memory that `sink` gives, checking every frame.
/// With `expected`, another container is refused: by its header at once, by its
/// seal at the end. On an error the memory's content is undefined.
pub fn receive<S: Sink>(
    reader: &mut dyn Read,
    expected: Option<&Sealed>,
    sink: &mut S,
) -> Result<Sealed, ReadError> {
    let name = expected.map_or("stream".into(), |it| format!("stream of {}", it.id));
    let mut input = Incoming {
        reader,
        name,
        taken: 0,
        expected: HEADER_FIXED as u64,
    };
    let header = input.header()?;
    let (head, plan) = decode_header(&header).map_err(|error| refused(&input.name, error))?;
    let other = |input: &Incoming<'_>, expected: &Sealed, found: String| ReadError::Other {
        path: input.name.clone(),
        expected: expected.to_string(),
        found,
    };
    if let Some(want) = expected
        && (want.id, want.length) != (head.id, plan.file_bytes)
    {
        return Err(other(
            &input,
            want,
            format!("{} ({} bytes)", head.id, plan.file_bytes),
        ));
    }
    sink.head(&head).map_err(ReadError::Sink)?;
    let entries: Vec<RankEntry<'_>> = plan
        .ranks
        .iter()
        .map(|rank| RankEntry {
            rank: rank.rank,
            table: &rank.table,
            data_bytes: rank.data_bytes,
        })
        .collect();
    sink.plan(&entries).map_err(ReadError::Sink)?;
    let mut sums = Vec::new();
    let mut spots = plan.spots().peekable();
    for (slot, rank) in plan.ranks.iter().enumerate() {
        let pace = sink.pace(rank.rank);
        let data = sink
            .rank(rank.rank, &rank.table, rank.data_bytes)
            .map_err(ReadError::Sink)?;
        if data.len() as u64 != rank.data_bytes {
            return Err(ReadError::Input(format!(
                "{} bytes of memory for the {} bytes of {}",
                data.len(),
                rank.data_bytes,
                rank.rank
            )));
        }
        let mine = std::iter::from_fn(|| spots.next_if(|spot| spot.slot == slot));
        let room = Room { data, pace };
        receive_rank(&mut input, &head, &plan, mine, room, &mut sums)?;
    }
    let index = encode_index(&head, &plan, &sums);
    let sealed = seal(&head, &plan, &header, &index);
    input.same(&index, "index contradicts the frames")?;
    let footer = encode_footer(&head, &plan, &index, &sealed);
    input.same(&footer.0, "footer contradicts header and index")?;
    match expected {
        Some(want) if *want != sealed => Err(other(&input, want, sealed.to_string())),
        _ => Ok(sealed),
    }
}

/// Memory of a rank.
struct Room<'a> {
    data: &'a mut [u8],
    pace: Option<Arc<Pace>>,
}

/// Receives the frames of one rank into its memory; a second thread checks them.
fn receive_rank(
    input: &mut Incoming<'_>,
    head: &ContainerHead,
    plan: &Plan,
    spots: impl Iterator<Item = Spot>,
    room: Room<'_>,
    sums: &mut Vec<Sums>,
) -> Result<(), ReadError> {
    let name = input.name.clone();
    let name: &str = &name;
    std::thread::scope(|scope| {
        let (arrived, unchecked) = mpsc::sync_channel::<(Spot, Sums, &[u8])>(UNCHECKED);
        let checker = std::thread::Builder::new().spawn_scoped(scope, move || {
            for (spot, sums, payload) in unchecked {
                check_payload(&spot, &sums, payload)
                    .map_err(|error| refused_at(name, plan, &spot, error))?;
            }
            Ok(())
        });
        let checker = checker.map_err(|error| ReadError::io(name, "start a thread", error))?;
        let mut page = [0; PAGE];
        let mut rest = room.data;
        let mut needed = 0;
        let received = (|| {
            for spot in spots {
                input.fill(&mut page)?;
                let found = decode_frame(head, plan, &spot, &page)
                    .map_err(|error| refused_at(name, plan, &spot, error))?;
                let (payload, after) = std::mem::take(&mut rest).split_at_mut(spot.padded());
                rest = after;
                needed += payload.len() as u64;
                if let Some(pace) = &room.pace {
                    pace.wait(needed)?;
                }
                input.fill(payload)?;
                sums.push(found);
                if arrived.send((spot, found, payload)).is_err() {
                    // The checker has found damage and tells below.
                    break;
                }
            }
            Ok(())
        })();
        drop(arrived);
        let checked = checker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        checked.and(received)
    })
}
