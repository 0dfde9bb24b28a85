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
    /// At which version it was reached, as the launcher was told.
    told: Option<Version>,
    held: Vec<(Rank, u32)>,
}

impl AtVersion {
    fn tell<S: Shell>(&self, core: &mut Core<S>) {
        let (id, version) = (self.id, self.told);
        core.tell(&Notice::InjectReached { id, version });
    }
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
                Fault::AtVersion { .. } if self.is_known(id) => {}
                Fault::AtVersion { rank, version } => {
                    self.waiting.push(AtVersion {
                        id,
                        rank,
                        version,
                        told: None,
                        held: Vec::new(),
                    });
                    self.mark(core);
                }
                _ => {}
            },
            News::Joined => self.mark(core),
            News::Opening => {
                self.waiting.retain(|injection| injection.told.is_none());
                for injection in &mut self.waiting {
                    injection.held.clear();
                }
            }
            _ => {}
        }
    }

    fn on_order<S: Shell>(&mut self, core: &mut Core<S>, order: Order) -> Option<Order> {
        match order {
            Order::InjectDone { id } => self.release(core, id),
            Order::Status => {
                self.tell_again(core);
                return Some(order);
            }
            _ => return Some(order),
        }
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
    /// The launcher repeats what waits here.
    fn is_known(&self, id: u32) -> bool {
        self.waiting.iter().any(|injection| injection.id == id)
    }

    /// What the launcher was told may be lost: ranks wait for its answer.
    fn tell_again<S: Shell>(&self, core: &mut Core<S>) {
        for injection in &self.waiting {
            if injection.told.is_some() {
                injection.tell(core);
            }
        }
    }

    /// A rank offers a version, and waits if an injection waits for that.
    fn hold<S: Shell>(&mut self, core: &mut Core<S>, rank: Rank, sequence: u32, version: Version) {
        let mut held = false;
        for injection in &mut self.waiting {
            let here = injection.rank.is_none_or(|wanted| wanted == rank);
            if here && version >= injection.version {
                if injection.told.is_none() {
                    injection.told = Some(version);
                    injection.tell(core);
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

#[cfg(test)]
mod tests {
    use outlive_base::Level;

    use super::*;
    use crate::node::shell::{Ask, Done};
    use crate::node::still::{Still, alone};
    use crate::node::{Input, Node};

    fn order(node: &mut Node<Still>, order: Order) {
        node.on(Time::from_ms(1), Input::Order(order));
    }

    fn inject(node: &mut Node<Still>, id: u32, fault: Fault) {
        order(node, Order::Inject { id, fault });
    }

    fn reached(node: &mut Node<Still>) -> usize {
        let told = &node.shell().told;
        let reached = |notice: &&Notice| matches!(notice, Notice::InjectReached { .. });
        told.iter().filter(reached).count()
    }

    fn answers(node: &mut Node<Still>) -> usize {
        let told = &node.shell().told;
        let injected = |notice: &&Notice| matches!(notice, Notice::Injected { .. });
        told.iter().filter(injected).count()
    }

    #[test]
    fn a_version_that_was_reached_is_said_again_until_it_is_answered() {
        let mut node = alone(0);
        let fault = || Fault::AtVersion {
            rank: None,
            version: Version(7),
        };
        let rank = (Rank(0), 1);
        let mut service = Injection::new(Time::ZERO);
        for _ in 0..2 {
            let news = News::Injected {
                id: 4,
                fault: fault(),
            };
            service.on_news(&mut node.core, &news);
        }
        assert_eq!(service.waiting.len(), 1, "said again, it is the same");
        service.hold(&mut node.core, rank.0, rank.1, Version(7));
        assert_eq!(reached(&mut node), 1);
        assert_eq!(
            service.on_order(&mut node.core, Order::Status),
            Some(Order::Status)
        );
        assert_eq!(reached(&mut node), 2);
        let done = Order::InjectDone { id: 4 };
        assert_eq!(service.on_order(&mut node.core, done), None);
        assert_eq!(
            service.on_order(&mut node.core, Order::Status),
            Some(Order::Status)
        );
        assert_eq!(reached(&mut node), 2);
    }

    #[test]
    fn a_fault_that_is_ordered_again_is_carried_out_once_and_answered_again() {
        let mut node = alone(0);
        let asks = |node: &mut Node<Still>| {
            let corrupt = |ask: &&Ask<_>| matches!(ask, Ask::Corrupt { id: 1, .. });
            node.shell().asked.iter().filter(corrupt).count()
        };
        let level = Level::DISK;
        for _ in 0..2 {
            inject(&mut node, 1, Fault::Corrupt(level));
        }
        assert_eq!((asks(&mut node), answers(&mut node)), (1, 0), "not yet");
        let result = Ok(());
        let done = Done::Corrupted {
            id: 1,
            level,
            result,
        };
        node.on(Time::from_ms(2), Input::Done(done));
        assert_eq!(answers(&mut node), 1);
        inject(&mut node, 1, Fault::Corrupt(level));
        assert_eq!((asks(&mut node), answers(&mut node)), (1, 2));
        // Cut off once, and not again when the first time is over.
        let isolate = || Fault::Isolate { for_ms: Some(5) };
        for _ in 0..2 {
            inject(&mut node, 3, isolate());
        }
        assert_eq!((answers(&mut node), node.shell().isolated), (4, 1));
    }
}
