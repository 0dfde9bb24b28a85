//! The agent of a node.
//!
//! Its keeper ([`outlive_keeper`]) owns the node's staging memory and starts it. What an agent
//! decides is [`outlive_control::node`], and what is done with bytes is [`outlive_copies`]; here is
//! what joins them: one thread that serves the ranks over a Unix socket and its peers over TCP, and
//! pools for what may wait. `docs/design/first-rescue.md` shows how they meet,
//! `docs/design/node.md` where the lines are.

mod daemon;
mod health;
mod ipc_server;
mod jobs;
mod run;
mod stacks;
mod turns;
mod word;
mod world;

pub use run::run;
