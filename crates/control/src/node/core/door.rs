//! Processes that have connected and are no ranks yet.

use std::collections::BTreeMap;

use outlive_base::ipc::ToAgent;

use crate::node::shell::{CommandLine, Link};

/// See the module.
#[derive(Default)]
pub(super) struct Door {
    strangers: BTreeMap<u64, Link>,
    /// Greetings that came before this agent, started anew, knew what is open: whose, their
    /// numbers, what they say.
    early: Vec<(u64, u32, ToAgent)>,
    /// The command of the only rank, once others took themselves for it.
    contested: Option<CommandLine>,
}

impl Door {
    /// Somebody has connected, or stays outside.
    pub fn keep(&mut self, link: Link) {
        self.strangers.insert(link.token, link);
    }

    /// Who is at this connection, if it is a stranger.
    pub fn take(&mut self, token: u64) -> Option<Link> {
        self.strangers.remove(&token)
    }

    /// Its greeting waits.
    pub fn delay(&mut self, token: u64, sequence: u32, greeting: ToAgent) {
        self.early.push((token, sequence, greeting));
    }

    /// The greetings that have waited.
    pub fn take_delayed(&mut self) -> Vec<(u64, u32, ToAgent)> {
        std::mem::take(&mut self.early)
    }

    /// The connection is gone.
    pub fn forget(&mut self, token: u64) {
        self.strangers.remove(&token);
        self.early.retain(|(early, ..)| *early != token);
    }

    /// Another process took itself for the only rank, which has this command.
    pub fn contest(&mut self, command_of_rank: impl FnOnce() -> Option<CommandLine>) {
        if self.contested.is_none() {
            self.contested = command_of_rank();
        }
    }

    /// The command of the only rank, if others took themselves for it.
    pub const fn contested(&self) -> Option<&CommandLine> {
        self.contested.as_ref()
    }
}
