//! What a simulated node sees of its world: its wishes are noted, and carried out afterwards.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use outlive_base::control_block::Identity;
use outlive_base::ipc::ToRank;
use outlive_base::{NodeId, Rank, Result};
use outlive_control::node::plain::{PlainBlock, PlainSlab};
use outlive_control::node::shell::{Ask, CommandLine, Link, PeerMessage, Shell, With};
use outlive_control::orders::{Fault, Member, Notice, Opened};
use outlive_ledger::Record;

/// What goes to a rank beside an answer.
pub enum Carry {
    Nothing,
    Block(PlainBlock),
    Slab(PlainSlab),
}

/// What a node wants done, in order.
pub enum Effect {
    Tell(Notice),
    Send(NodeId, PeerMessage),
    Meet(NodeId, u64),
    Answer(Link, u32, ToRank, Carry),
    Kill(u32),
    KeepBlock(Rank, PlainBlock),
    KeepSlab(Rank, usize, PlainSlab),
    /// The keeper has this word of its agent.
    Word(Opened),
    /// An injection's fault begins or ends.
    Fault(u32, Fault),
    Isolate(bool),
    /// A point is reached at which an injection waits.
    Hold(u32),
    Ask(Ask<PlainSlab>),
}

/// The world of a simulated node: wishes are noted and carried out afterwards, one by one.
#[derive(Default)]
pub struct Sim {
    pub effects: VecDeque<Effect>,
    /// Points at which injections wait: number, name, and how often it is still passed.
    pub points: Vec<(u32, String, u32)>,
    /// The points that were passed since this was asked.
    pub passed: Vec<&'static str>,
    pub live: Rc<RefCell<BTreeSet<u64>>>,
    /// Where many nodes are simulated.
    pub memo: Option<Rc<RefCell<Memo>>>,
}

impl Sim {
    pub fn take_effects(&mut self) -> VecDeque<Effect> {
        std::mem::take(&mut self.effects)
    }
}

impl Shell for Sim {
    type Block = PlainBlock;
    type Slab = PlainSlab;

    fn tell(&mut self, notice: &Notice) {
        self.effects.push_back(Effect::Tell(notice.clone()));
    }
    fn send(&mut self, to: NodeId, message: &PeerMessage) {
        self.effects.push_back(Effect::Send(to, message.clone()));
    }
    fn meet(&mut self, member: &Member, _: Option<&Member>) {
        self.effects
            .push_back(Effect::Meet(member.node, member.epoch));
    }
    fn isolate(&mut self, on: bool) {
        self.effects.push_back(Effect::Isolate(on));
    }
    fn read_records(&self, encoded: &[Arc<[u8]>], job_hash: u64) -> Vec<Record> {
        let Some(memo) = &self.memo else {
            return PeerMessage::records(encoded, job_hash);
        };
        let mut memo = memo.borrow_mut();
        let read = |bytes| memo.read(bytes, job_hash);
        encoded.iter().filter_map(read).collect()
    }
    fn answer(&mut self, link: Link, sequence: u32, message: &ToRank, with: With<'_, Sim>) {
        let carry = match with {
            With::Nothing => Carry::Nothing,
            With::Block(block) => Carry::Block(block.of_rank()),
            With::Slab(slab) | With::ReadOnly(slab) => Carry::Slab(slab.clone()),
        };
        let effect = Effect::Answer(link, sequence, message.clone(), carry);
        self.effects.push_back(effect);
    }
    fn is_live(&self, link: Link) -> bool {
        self.live.borrow().contains(&link.token)
    }
    fn command_of(&self, _: u32) -> Option<CommandLine> {
        None
    }
    fn kill(&mut self, pid: u32) {
        self.effects.push_back(Effect::Kill(pid));
    }
    fn make_block(&mut self, identity: Identity) -> Result<PlainBlock> {
        let block = PlainBlock::new(identity);
        let kept = Effect::KeepBlock(identity.rank, block.of_agent());
        self.effects.push_back(kept);
        Ok(block)
    }
    fn leave_word(&mut self, opened: &Opened) {
        self.effects.push_back(Effect::Word(opened.clone()));
    }
    fn keep_slab(&mut self, rank: Rank, slot: usize, slab: &Arc<PlainSlab>) {
        let kept = Effect::KeepSlab(rank, slot, PlainSlab::clone(slab));
        self.effects.push_back(kept);
    }
    fn ask(&mut self, ask: Ask<PlainSlab>) {
        self.effects.push_back(Effect::Ask(ask));
    }
    fn inject(&mut self, id: u32, fault: Fault) {
        match fault {
            Fault::FailPoint { point, nth } => {
                if self.points.iter().all(|(known, ..)| *known != id) {
                    self.points.push((id, point, nth));
                }
            }
            fault => self.effects.push_back(Effect::Fault(id, fault)),
        }
    }
    /// What follows in this turn waits with it. What is ordered meanwhile happens when it is
    /// carried out.
    fn point(&mut self, name: &'static str) -> Vec<(u32, Fault)> {
        self.passed.push(name);
        let at = self.points.iter_mut().position(|(_, point, left)| {
            let here = point == name;
            *left -= u32::from(here);
            here && *left == 0
        });
        if let Some(at) = at {
            let (id, ..) = self.points.remove(at);
            self.effects.push_back(Effect::Hold(id));
        }
        Vec::new()
    }
}

/// Records as the nodes have read them last: what goes to all of them is read once.
#[derive(Default)]
pub struct Memo(VecDeque<(Arc<[u8]>, Option<Record>)>);

impl Memo {
    const MAX: usize = 16;

    fn read(&mut self, bytes: &Arc<[u8]>, job_hash: u64) -> Option<Record> {
        let known = self.0.iter().find(|(known, _)| Arc::ptr_eq(known, bytes));
        if let Some((_, record)) = known {
            return record.clone();
        }
        let record = Record::decode(bytes, job_hash).ok();
        self.0.truncate(Memo::MAX - 1);
        self.0.push_front((Arc::clone(bytes), record.clone()));
        record
    }
}
