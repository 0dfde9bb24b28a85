//! Copies at `shared` that are made of containers in node storage, step by step.

use std::rc::Rc;

use outlive_base::{Code, Entity, Error, Level, NodeId, Result, Time};
use outlive_control::node::Input as NodeInput;
use outlive_control::node::copies::Transferring;
use outlive_control::node::plain::PlainSlab;
use outlive_control::node::shell::{Done, Target};
use outlive_ledger::Part;

use super::node::Process;
use super::*;

/// A step of a copy that comes further.
const STEP: Time = Time::from_ms(200);

/// A copy on its way: the steps that are left.
#[derive(Clone)]
pub struct OnTheWay {
    wanted: Rc<Transferring>,
    steps: u32,
}

impl Job {
    pub(super) fn begin_transfer(&mut self, who: Process, life: u32, wanted: Transferring) {
        let most = if self.calm {
            1
        } else {
            self.options.transfer_steps
        };
        let steps = self.random.below(u64::from(most) + 1) as u32;
        let mut delay = Time(600_000) + self.some_us(60_000) + self.slowness(who);
        if !self.calm && self.random.chance(self.options.transfer_hangs) {
            // For longer than anybody waits.
            delay = delay + Time::from_ms(self.options.commit_ms.min(5_000) * 2);
        }
        let way = OnTheWay {
            wanted: Rc::new(wanted),
            steps,
        };
        self.after(delay, Action::Transfer { who, life, way });
    }

    pub(super) fn transfer(&mut self, who: Process, life: u32, mut way: OnTheWay) {
        if self.home(who).life != life || self.home(who).agent.is_none() {
            let id = way.wanted.part.id;
            let key = (id.incarnation.0, id.version.0);
            let sent = self.home(who).storage.own.get(&key).cloned();
            if let Some(sent) = sent.filter(storage::Container::is_good) {
                self.outlasts(who, key, Target::Shared, sent);
            }
            return;
        }
        let wanted = Rc::clone(&way.wanted);
        if wanted.brake.is_paused() && !wanted.brake.is_stopped() {
            return self.after(slots::STANDS, Action::Transfer { who, life, way });
        }
        if way.steps > 0 && !wanted.brake.is_stopped() {
            way.steps -= 1;
            wanted.progress.add(1);
            return self.after(STEP, Action::Transfer { who, life, way });
        }
        let result = match wanted.brake.is_stopped() {
            true => Ok(None),
            false => self.transferred(who, &wanted.part).map(Some),
        };
        self.transfers += u64::from(matches!(result, Ok(Some(_))));
        let done: Done<PlainSlab> = Done::Transferred {
            id: wanted.part.id,
            result,
        };
        self.input(who, life, NodeInput::Done(done));
    }

    fn transferred(&mut self, who: Process, part: &Part) -> Result<Part> {
        let key = (part.id.incarnation.0, part.id.version.0);
        let found = self.home(who).storage.own.get(&key).cloned();
        let sound = found.filter(|it| it.is_good() && it.digest == part.digest);
        let container = sound.ok_or_else(|| {
            let node = Entity::Node(part.node.0);
            Error::new(Code::Corrupt, node, "it has rotted", "see the storage")
        })?;
        let there = self.shared.containers.get(&(key, part.node.0));
        let hidden = self.shared_is_hidden(part.node.0);
        let whole = |it: &storage::Container| it.is_good() && it.digest == part.digest;
        if hidden || !there.is_some_and(whole) {
            self.write(who, key, Target::Shared, container)?;
        }
        Ok(Part {
            holder: NodeId::LAUNCHER,
            parity: None,
            ..part.clone()
        })
    }
}

impl Options {
    /// Draws how copies at `shared` are made: in two thirds of the histories of node storage, in
    /// half of these some take long, and a few come no further.
    pub(super) fn with_transfers(mut self, seed: u64) -> Options {
        let mut random = Sequence::new(seed, 0x7472_616e);
        self.from_disk = random.chance(660_000);
        if random.chance(500_000) {
            self.transfer_steps = 1 + random.below(10) as u32;
            self.transfer_hangs = random.below(100_000) as u32;
        }
        self.from_disk &= self.levels.contains(Level::SHARED);
        self
    }
}
