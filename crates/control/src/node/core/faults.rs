//! Faults that the user has asked for, where they are done to what this node lives in.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::Result;

use super::{Core, News, Planted};
use crate::node::shell::{Ask, Shell};
use crate::orders::{Fault, Notice};

/// What was carried out here, by number.
#[derive(Default)]
pub(super) struct Faults {
    /// Each once.
    begun: BTreeSet<u32>,
    /// What became of damage that was ordered.
    damage: BTreeMap<u32, Result<()>>,
}

impl<S: Shell> Core<S> {
    /// What a fault does to what this node lives in happens here and now, once, however often the
    /// launcher says it.
    pub(super) fn inject(&mut self, id: u32, fault: Fault) {
        let once = matches!(fault, Fault::Corrupt(_) | Fault::Isolate { .. });
        let again = once && !self.faults.begun.insert(id);
        match fault {
            _ if self.is_planted(Planted::InjectNothing) && fault.is_effect() => {
                self.say_injected(id, fault, Ok(()));
            }
            // Told when it is done.
            Fault::Corrupt(_) if again && !self.faults.damage.contains_key(&id) => {}
            Fault::Corrupt(_) if again => self.say_corrupted(id, fault),
            Fault::Corrupt(level) => self.shell.ask(Ask::Corrupt { id, level }),
            Fault::FailPoint { .. } => self.shell.inject(id, fault),
            Fault::Slow(_) | Fault::Full(_) => {
                self.shell.inject(id, fault.clone());
                self.say_injected(id, fault, Ok(()));
            }
            Fault::Isolate { .. } => {
                // Before it: nothing goes out afterwards.
                self.say_injected(id, fault.clone(), Ok(()));
                if !again {
                    self.shell.isolate(true);
                    self.news(News::Injected { id, fault });
                }
            }
            Fault::AtVersion { .. } => self.news(News::Injected { id, fault }),
        }
    }

    /// Damage that was ordered was done, or could not be.
    pub(super) fn on_corrupted(&mut self, id: u32, fault: Fault, result: Result<()>) {
        self.faults.damage.insert(id, result);
        self.say_corrupted(id, fault);
    }

    fn say_injected(&mut self, id: u32, fault: Fault, outcome: Result<()>) {
        self.tell(&Notice::Injected { id, fault, outcome });
    }

    fn say_corrupted(&mut self, id: u32, fault: Fault) {
        if let Some(outcome) = self.faults.damage.get(&id).cloned() {
            self.say_injected(id, fault, outcome);
        }
    }

    /// A place at which an injection may wait; what was ordered while it did happens here.
    pub(in crate::node) fn fail_point(&mut self, name: &'static str) {
        for (id, fault) in self.shell.point(name) {
            self.inject(id, fault);
        }
    }
}
