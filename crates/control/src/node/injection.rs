//! Faults that wait for a version, and such as end by the clock.

use outlive_base::control_block::ControlWords;
use outlive_base::ipc::{ToAgent, ToRank};
use outlive_base::{Rank, Time, Version};

use super::core::{Core, News};
use super::service::{Service, Silent};
use super::shell::Shell;
use crate::orders::{Fault, Notice, Order};

/// An injection that waits for a version, and the ranks held at it.
struct AtVersion {
    id: u32,
    rank: Option<Rank>,
    version: Version,
    told: bool,
    held: Vec<(Rank, u32)>,
}

/// What is in force.
pub struct Injection {
    waiting: Vec<AtVersion>,
    isolated_until: Option<Time>,
}

impl Service for Injection {
    type Word = Silent;

    fn new(_: Time) -> Injection {
        Injection {
            waiting: Vec::new(),
            isolated_until: None,
        }
    }

    fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
        match *news {
            News::Injected { id, ref fault } => match *fault {
                Fault::Isolate { for_ms } => {
                    self.isolated_until = for_ms.map(|ms| core.now() + Time::from_ms(ms));
                }
                Fault::AtVersion { rank, version } => {
                    self.waiting.push(AtVersion {
                        id,
                        rank,
                        version,
                        told: false,
                        held: Vec::new(),
                    });
                    self.mark(core);
                }
                _ => {}
            },
            News::Joined => self.mark(core),
            News::Opening => {
                self.waiting.retain(|injection| !injection.told);
                for injection in &mut self.waiting {
                    injection.held.clear();
                }
            }
            _ => {}
        }
    }

    fn on_order<S: Shell>(&mut self, core: &mut Core<S>, order: Order) -> Option<Order> {
        let Order::InjectDone { id } = order else {
            return Some(order);
        };
        self.release(core, id);
        None
    }

    fn on_rank<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        (rank, sequence): (Rank, u32),
        message: ToAgent,
    ) -> Option<ToAgent> {
        let ToAgent::Inject { version } = message else {
            return Some(message);
        };
        self.hold(core, rank, sequence, version);
        None
    }

    fn on_look<S: Shell>(&mut self, core: &mut Core<S>) {
        let now = core.now();
        if self.isolated_until.take_if(|until| now >= *until).is_some() {
            core.isolate(false);
        }
    }
}

impl Injection {
    /// A rank offers a version, and waits if an injection waits for that.
    fn hold<S: Shell>(&mut self, core: &mut Core<S>, rank: Rank, sequence: u32, version: Version) {
        let mut held = false;
        for injection in &mut self.waiting {
            let here = injection.rank.is_none_or(|wanted| wanted == rank);
            if here && version >= injection.version {
                if !std::mem::replace(&mut injection.told, true) {
                    core.tell(&Notice::InjectReached {
                        id: injection.id,
                        version: Some(version),
                    });
                }
                injection.held.push((rank, sequence));
                held = true;
            }
        }
        if !held {
            core.answer(rank, sequence, ToRank::Ok);
        }
    }

    /// Lets the ranks go on that an injection holds.
    fn release<S: Shell>(&mut self, core: &mut Core<S>, id: u32) {
        let at = self.waiting.iter().position(|injection| injection.id == id);
        let Some(at) = at else { return };
        let injection = self.waiting.remove(at);
        self.mark(core);
        for (rank, sequence) in injection.held {
            core.answer(rank, sequence, ToRank::Ok);
        }
    }

    /// Writes the smallest injected version into each control block.
    fn mark<S: Shell>(&self, core: &Core<S>) {
        for entry in core.ranks().iter() {
            let first = self
                .waiting
                .iter()
                .filter(|injection| injection.rank.is_none_or(|rank| rank == entry.rank))
                .map(|injection| injection.version)
                .min();
            if let Some(block) = entry.block() {
                block.set_inject(first);
            }
        }
    }
}
