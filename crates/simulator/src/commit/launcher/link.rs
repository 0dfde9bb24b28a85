//! Connections between the launcher and its agents: words and orders arrive in order, until
//! the connection breaks and what is under way is lost.

use outlive_control::orders::{NodeStatus, Order, Step};
use outlive_protocols::NodeSet;

use super::*;

/// A connection between the launcher and an agent: in order, until it breaks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    /// Grows when it breaks: what was under way is lost.
    number: u32,
    to_agent: Time,
    to_launcher: Time,
}

impl History {
    /// The agent connects and says who it is; with the first word its heart begins to beat.
    pub(in crate::commit) fn greet(&mut self, world: &mut W, who: Process, beats: bool) {
        let link = self.launcher.links.entry(who).or_default();
        link.number += 1;
        let home = self.home(who);
        let (life, node) = (home.life, home.node);
        let ranks = match self.launcher.running {
            Some(_) if life > 1 => self.ranks_with_pids(node),
            _ => Vec::new(),
        };
        let hello = Notice::Hello {
            address: (core::net::Ipv4Addr::LOCALHOST, 1024 + who as u16).into(),
            pid: who * 100 + life,
            keeper_pid: who,
            restarts: life - 1,
            ranks,
        };
        self.notify(world, who, hello);
        let ranks = self.ranks_total();
        for (rank, pid) in self.ranks_with_pids(node) {
            if self.launcher.joined.contains(&(self.epoch, rank.0)) {
                self.notify(world, who, Notice::RankUp { rank, ranks, pid });
            }
        }
        if beats {
            world.after(Time::from_ms(HEARTBEAT_MS), Action::Beat { who, life });
        }
    }

    pub(in crate::commit) fn beat(&mut self, world: &mut W, who: Process, life: u32) {
        let home = self.home(who);
        if !home.up || home.life != life {
            return;
        }
        let pause = Time::from_ms(HEARTBEAT_MS);
        world.after(pause, Action::Beat { who, life });
        if !world.paused(who) {
            let offered = Some(Version(self.home(who).furthest()));
            self.notify(world, who, Notice::Alive { offered });
        }
    }

    /// An agent says something to the launcher.
    pub(in crate::commit) fn notify(&mut self, world: &mut W, who: Process, notice: Notice) {
        let breaks = !self.calm && self.random.chance(300);
        let delay = Time(20_000 + self.random.below(2_000_000));
        let link = self.launcher.links.entry(who).or_default();
        if breaks {
            link.number += 1;
            let number = link.number;
            let down = Time::from_ms(5 + self.random.below(400));
            return world.after(down, Action::Reconnect { who, number });
        }
        let at = link.to_launcher.max(world.now + delay);
        link.to_launcher = at;
        let number = link.number;
        let notice = Box::new(notice);
        let told = Action::Hear {
            who,
            number,
            notice,
        };
        world.after(at.since(world.now), told);
    }

    /// A broken connection is made again, if the agent still lives.
    pub(in crate::commit) fn reconnect(&mut self, world: &mut W, who: Process, number: u32) {
        let same = self.launcher.links.get(&who).map(|link| link.number) == Some(number);
        if let (true, Some(&epoch)) = (same, self.launcher.epochs.get(&who)) {
            let node = NodeId(self.home(who).node);
            self.supervise(world, Input::LinkDown { node, epoch });
            if self.home(who).up {
                self.greet(world, who, false);
            }
        }
    }

    pub(in crate::commit) fn hear(
        &mut self,
        world: &mut W,
        who: Process,
        number: u32,
        notice: Notice,
    ) {
        let (link, epoch) = (
            self.launcher.links.get(&who),
            self.launcher.epochs.get(&who),
        );
        let (Some(link), Some(&epoch)) = (link, epoch) else {
            return;
        };
        if link.number != number {
            return;
        }
        if let Notice::Checkpoint {
            version,
            step: Step::Stable(_),
        } = &notice
        {
            let incarnation = self.launcher.number();
            let holds = world.at(self.home(who).node) == who;
            if holds {
                self.judge.tells_launcher((incarnation, version.0));
            }
        }
        let node = NodeId(self.home(who).node);
        let input = Input::Notice {
            node,
            epoch,
            notice,
        };
        self.supervise(world, input);
    }

    pub(super) fn send_order(&mut self, world: &mut W, node: u32, order: Order) {
        if let Order::Open {
            incarnation,
            fresh: true,
            ..
        } = order
        {
            self.judge.asks_anew(incarnation.0);
        }
        let who = world.at(node);
        let delay = Time(20_000 + self.random.below(2_000_000));
        let Some(link) = self.launcher.links.get_mut(&who) else {
            return;
        };
        let at = link.to_agent.max(world.now + delay);
        link.to_agent = at;
        let (number, order) = (link.number, Box::new(order));
        world.after(at.since(world.now), Action::Obey { who, number, order });
    }

    /// An order reaches an agent; a frozen one gets it later.
    pub(in crate::commit) fn obey(
        &mut self,
        world: &mut W,
        who: Process,
        number: u32,
        order: Box<Order>,
    ) {
        let link = self.launcher.links.get(&who).map(|link| link.number);
        if link != Some(number) || !self.home(who).up {
            return;
        }
        if world.paused(who) {
            return world.after(Time::from_ms(5), Action::Obey { who, number, order });
        }
        match *order {
            Order::Open {
                incarnation,
                replaced,
                fenced,
                fresh,
                history,
            } => {
                let replaced = replaced.iter().map(|node| node.0);
                let replaced = NodeSet::of(self.options.nodes, replaced);
                let open = Command::Open {
                    incarnation,
                    replaced,
                    fenced,
                    fresh,
                    history,
                };
                world.command(who, open);
            }
            Order::Ranks { incarnation, .. } => {
                let life = self.home(who).life;
                self.learn(world, who, life, incarnation.0);
            }
            Order::Status => {
                let machine = world.machine(who);
                let takes_part = machine.is_some_and(|machine| !machine.is_idle());
                let home = self.home(who);
                let incarnation = if takes_part { home.incarnation } else { 0 };
                let status = NodeStatus {
                    incarnation,
                    ..NodeStatus::default()
                };
                self.notify(world, who, Notice::Status(status));
            }
            _ => {}
        }
    }
}
