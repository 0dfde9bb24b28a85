//! Nodes, continued: opening an incarnation, and the life and death of an agent.

use std::collections::BTreeSet;

use outlive_base::{Incarnation, Level, NodeId, Time};
use outlive_protocols::commit::{Command, Planted};

use super::agent::*;
use super::*;

impl History {
    pub(super) fn inventory(&mut self, world: &mut W, who: Process, incarnation: Incarnation) {
        let home = self.home(who);
        let node = home.node;
        let mut have: BTreeSet<(Key, u32)> = home.partner.keys().copied().collect();
        have.extend(
            home.mem
                .keys()
                .chain(home.disk.keys())
                .map(|&key| (key, node)),
        );
        have.extend(self.shared.keys().filter(|(_, owner)| *owner == node));
        let records = self.shared_records.clone();
        for (key, owner) in have {
            let (source, version) = (Incarnation(key.0), version(key.1));
            world.command(
                who,
                Command::Available {
                    source,
                    version,
                    node: NodeId(owner),
                },
            );
        }
        for record in records {
            world.command(who, Command::Found { record });
        }
        self.tell(world, who, 5000, Command::InventoryDone { incarnation });
    }

    pub(super) fn rebuild(&mut self, world: &mut W, who: Process, life: u32, key: Key) {
        let home = self.home(who);
        if home.life != life || !home.up {
            return;
        }
        let node = home.node;
        let mut sources: Vec<Blob> = home.mem.get(&key).into_iter().cloned().collect();
        sources.extend(home.disk.get(&key).cloned());
        let partner = world.at((node + 1) % self.options.nodes);
        sources.extend(self.home(partner).partner.get(&(key, node)).cloned());
        sources.extend(self.shared.get(&(key, node)).cloned());
        let skip = self.options.planted == Some(Planted::SkipReadBack);
        let found = sources.into_iter().find(|blob| blob.good() || skip);
        let ok = found.is_some();
        if let Some(blob) = found {
            let home = self.home(who);
            home.mem.insert(key, blob.clone());
            home.disk.insert(key, blob.clone());
            for level in [Level::Memory, Level::Disk] {
                self.judge.stores(
                    Place {
                        level,
                        key,
                        owner: node,
                    },
                    &blob.words,
                );
            }
        }
        let (source, version) = (Incarnation(key.0), version(key.1));
        self.tell(
            world,
            who,
            1000,
            Command::Rebuilt {
                source,
                version,
                ok,
            },
        );
    }

    /// An incarnation is open at this node: void versions go, ranks are filled.
    pub(super) fn opened(&mut self, world: &mut W, who: Process, number: u32, restored: Key) {
        self.judge.opens(world.now, number, restored);
        let home = self.home(who);
        if home.incarnation == number && home.opened == number {
            return;
        }
        home.incarnation = number;
        home.opened = number;
        home.armed = None;
        home.knows = false;
        home.stable.clear();
        home.work.clear();
        home.aborted.clear();
        let void = |key: &Key| {
            key.0 < number && (key.0 > restored.0 || key.0 == restored.0 && key.1 > restored.1)
        };
        home.mem.retain(|key, _| !void(key));
        home.disk.retain(|key, _| !void(key));
        home.partner.retain(|(key, _), _| !void(key));
        let node = home.node;
        self.shared
            .retain(|(key, owner), _| *owner != node || !void(key));
        let blob = self.home(who).mem.get(&restored).cloned();
        let home = self.home(who);
        for rank in 0..home.called.len() {
            home.called[rank] = restored.1;
            home.answered[rank] = 0;
            home.state[rank] = blob.as_ref().map_or(0, |blob| blob.words[rank]);
        }
        if restored.0 != 0 {
            let words = blob.map(|blob| blob.words).unwrap_or_default();
            self.judge.restores(world.now, node, restored, &words);
        }
        self.node_ready(world, who, number, restored);
    }

    /// The next holder of a slot finds what the last one stored on disk.
    pub(super) fn inherit(&mut self, world: &mut W, old: Process, new: Process) {
        *world.disk(new) = std::mem::take(world.disk(old));
        let home = self.home(old);
        let stored = (
            std::mem::take(&mut home.disk),
            std::mem::take(&mut home.partner),
        );
        (self.home(new).disk, self.home(new).partner) = stored;
    }

    pub(super) fn agent_crashed(&mut self, world: &mut W, who: Process) {
        let delay = Time::from_ms(2 + self.random.below(150));
        let home = self.home(who);
        home.up = false;
        if !home.lost {
            world.after(delay, Action::Restart { who });
        }
    }

    /// The keeper starts the agent again: it finds its slabs and control blocks.
    pub(super) fn restart(&mut self, world: &mut W, who: Process) {
        let home = self.home(who);
        if home.lost || home.up {
            return;
        }
        home.up = true;
        home.life += 1;
        self.restarts += 1;
        world.start(who);
        if !self.agent_is_back(world, who) {
            return;
        }
        let home = self.home(who);
        home.knows = false;
        if home.is_bare() {
            return home.work.clear();
        }
        let mut found = Vec::new();
        for (&v, work) in &mut home.work {
            work.levels = None;
            work.passed = false;
            let version = version(v);
            if home.armed == Some(v) || work.captured.iter().any(Option::is_none) {
                found.push(Command::Armed {
                    version,
                    ok: true,
                    max_called: None,
                });
            } else {
                found.push(Command::Captured { version });
            }
        }
        for command in found {
            self.tell(world, who, 1000, command);
        }
    }

    /// Work that is older than every bound allows.
    pub(super) fn overdue_work(&self, world: &W, bound: Time) -> Vec<String> {
        let mut late = Vec::new();
        for home in self
            .homes
            .iter()
            .filter(|(who, home)| world.at(home.node) == **who)
            .map(|one| one.1)
        {
            for (v, work) in &home.work {
                if world.now.since(work.since) > bound {
                    late.push(format!("P5: node {} still works on version {v}", home.node));
                }
            }
        }
        late
    }
}
