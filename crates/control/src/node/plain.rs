//! Shared memory of a node that is none: words and slabs of this process alone, for tests and
//! simulations. Both sides see the same words, as through two mappings.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outlive_base::control_block::{ControlWords, Identity, Page, Side};
use outlive_base::slab::{SlabHead, SlabId, State};
use outlive_base::{Code, Entity, Error, Result, Version};

use super::core::overwritten;
use super::shell::Staging;

/// One side of a control block.
#[derive(Clone)]
pub struct PlainBlock {
    page: Arc<Page>,
    side: Side,
}

impl PlainBlock {
    /// A new block, as the agent sees it.
    pub fn new(identity: Identity) -> PlainBlock {
        PlainBlock {
            page: Arc::new(Page::new(identity)),
            side: Side::Agent,
        }
    }
    /// The same words as the rank sees them.
    pub fn of_rank(&self) -> PlainBlock {
        PlainBlock {
            page: Arc::clone(&self.page),
            side: Side::Rank,
        }
    }
    /// The same words as another agent sees them.
    pub fn of_agent(&self) -> PlainBlock {
        PlainBlock {
            page: Arc::clone(&self.page),
            side: Side::Agent,
        }
    }
}

impl ControlWords for PlainBlock {
    fn page(&self) -> &Page {
        &self.page
    }
    fn side(&self) -> Side {
        self.side
    }
}

/// A slab whose content is a number. Clones are mappings of the same memory.
#[derive(Clone)]
pub struct PlainSlab(Arc<Mutex<Words>>);

struct Words {
    capacity: u64,
    head: SlabHead,
    content: u128,
}

impl PlainSlab {
    /// An empty slab.
    pub fn new(capacity: u64) -> PlainSlab {
        let id = SlabId {
            job: 0,
            incarnation: outlive_base::Incarnation(0),
            rank: outlive_base::Rank(0),
            ranks: 1,
            slot: 0,
            generation: 0,
        };
        PlainSlab(Arc::new(Mutex::new(Words {
            capacity,
            head: SlabHead {
                id,
                state: State::Empty,
                version: Version(0),
                table_bytes: 0,
                data_bytes: 0,
                table_crc: 0,
            },
            content: 0,
        })))
    }

    fn words(&self) -> MutexGuard<'_, Words> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever fills it begins.
    pub fn begin_fill(&self, version: Version, data_bytes: u64) {
        let mut words = self.words();
        words.head.state = State::Filling;
        words.head.version = version;
        words.head.data_bytes = data_bytes;
    }

    /// Whoever fills it has ended.
    pub fn finish(&self, content: u128) {
        let mut words = self.words();
        words.content = content;
        words.head.state = State::Captured;
    }

    /// What it holds, if it is complete.
    pub fn content(&self) -> Option<u128> {
        let words = self.words();
        words.head.state.is_complete().then_some(words.content)
    }

    /// Something changes what it holds, and no word of its head.
    pub fn damage(&self) {
        let mut words = self.words();
        words.content = words.content.wrapping_add(1);
    }
}

impl Staging for PlainSlab {
    fn capacity(&self) -> u64 {
        self.words().capacity
    }
    fn head(&self) -> Result<SlabHead> {
        Ok(self.words().head)
    }
    fn format(&mut self, id: SlabId) -> Result<()> {
        if id.rank.0 >= id.ranks {
            let entity = Entity::Rank(id.rank.0);
            return Err(Error::new(
                Code::RankUnknown,
                entity,
                "outside the job",
                "check the number of ranks",
            ));
        }
        let mut words = self.words();
        words.head.id = id;
        words.head.state = State::Empty;
        Ok(())
    }
    fn seal(&mut self) -> Result<()> {
        let mut words = self.words();
        match words.head.state {
            State::Captured => words.head.state = State::Sealed,
            _ => return Err(overwritten(Entity::Call, "slab is in another state")),
        }
        Ok(())
    }
}
