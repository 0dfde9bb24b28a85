//! Faults, drawn one after another from the seed.

use outlive_base::{Level, Time};

use super::*;
use crate::network::LossyOptions;
use crate::world::Faults;

impl History {
    pub(super) fn chaos(&mut self, world: &mut W) {
        if self.calm {
            return;
        }
        let tick = self.options.tick.0;
        let delay = Time(tick / 2 + self.random.below(tick));
        world.after(delay, Action::Chaos);
        let node = self.random.below(u64::from(self.options.nodes)) as u32;
        let who = world.at(node);
        let fault = self.options.weights.draw(&mut self.random);
        world.note(|| format!("fault {fault:?} for n{node} (p{who})"));
        match fault {
            Some(0) if self.home(who).up => {
                for record in world.kill(who) {
                    self.on_durable(world, who, record);
                }
                self.agent_crashed(world, who);
            }
            Some(1) if !self.home(who).lost => self.lose_node(world, who),
            Some(2) => self.rank_fails(world),
            Some(3) => {
                world
                    .net
                    .partition(self.random.u64() & ((1 << self.options.nodes) - 1));
                let length = Time::from_ms(50 + self.random.below(2000));
                world.after(length, Action::Rejoin);
            }
            Some(4) => {
                let until = world.now + Time::from_ms(20 + self.random.below(1500));
                world.pause(who, until);
            }
            Some(5) => self.damage(world, who),
            Some(6) if self.home(who).up => {
                // Frozen, taken for dead, not killed; wakes up later.
                let until = world.now + Time::from_ms(100 + self.random.below(2000));
                world.pause(who, until);
                world.after(Time::from_ms(60), Action::Noticed { who });
            }
            Some(7) => {
                for node in 0..self.options.nodes {
                    let who = world.at(node);
                    if !self.home(who).lost {
                        self.lose_node(world, who);
                    }
                }
            }
            Some(8) => self.next_run(world),
            _ => {}
        }
    }

    /// Something stored at a node goes bad: the node counts as a failed domain.
    fn damage(&mut self, world: &mut W, who: Process) {
        let node = self.home(who).node;
        let mut random = self.random.clone();
        let key = match random.below(3) {
            0 => {
                world.disk(who).damage(&mut random);
                None
            }
            1 => {
                let found = self.home(who).disk.iter_mut().next_back();
                found.map(|(&key, blob)| {
                    blob.flip(&mut random);
                    Place {
                        level: Level::Disk,
                        key,
                        owner: node,
                    }
                })
            }
            _ => {
                let found = self.home(who).partner.iter_mut().next_back();
                found.map(|(&(key, owner), blob)| {
                    blob.flip(&mut random);
                    Place {
                        level: Level::Partner,
                        key,
                        owner,
                    }
                })
            }
        };
        self.random = random;
        self.judge.fails(world.now, node);
        if let Some(place) = key {
            self.judge.copy_fails(place);
        }
    }

    /// A node's memory is gone; what it stored stays.
    pub(super) fn forgets(&mut self, world: &mut W, who: Process) {
        let (node, level) = (self.home(who).node, Level::Memory);
        let gone: Vec<Key> = std::mem::take(&mut self.home(who).mem)
            .into_keys()
            .collect();
        for key in gone {
            let owner = node;
            self.judge.copy_fails(Place { level, key, owner });
        }
        self.judge.fails(world.now, node);
    }

    /// A node's storage is out of reach for good.
    pub(super) fn wiped(&mut self, world: &mut W, who: Process) {
        let home = self.home(who);
        home.wiped = true;
        let node = home.node;
        let mut places = Vec::new();
        let own = |level| {
            move |key: &Key| Place {
                level,
                key: *key,
                owner: node,
            }
        };
        places.extend(home.mem.keys().map(own(Level::Memory)));
        places.extend(home.disk.keys().map(own(Level::Disk)));
        let held = |(key, owner): &(Key, u32)| Place {
            level: Level::Partner,
            key: *key,
            owner: *owner,
        };
        places.extend(home.partner.keys().map(held));
        for place in places {
            self.judge.copy_fails(place);
        }
        self.judge.fails(world.now, node);
    }

    pub(super) fn heal(&mut self, world: &mut W) {
        self.calm = true;
        world.net.partition(0);
        world.net.options = LossyOptions::CALM;
        world.faults = Faults {
            crash: 0,
            refuse: 0,
            sync_max: Time::from_ms(2),
        };
        world.note(|| "all faults end".to_string());
    }

    /// The largest version any rank has called.
    pub(super) fn furthest(&mut self, world: &W) -> u64 {
        let nodes = 0..self.options.nodes;
        nodes
            .map(|node| {
                self.homes
                    .get(&world.at(node))
                    .map_or(0, agent::Home::furthest)
            })
            .max()
            .unwrap_or(0)
    }
}
