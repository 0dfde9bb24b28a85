//! Load balancing that stays local: task graphs, diffusion between neighbouring
//! processes, hierarchical balancing, and the metrics by which they are judged.
//!
//! A *task* is a vertex of a [`Graph`], a *process* is a part; the assignment is
//! a slice `parts` with `parts[task] = process`. Everything here is pure: no
//! clock, file, socket or environment, and every result is a function of its
//! arguments (P8). Sums run in index order and transcendental functions come
//! from `libm`, so the same seed gives the same bits on every machine.
//!
//! | module | what |
//! |---|---|
//! | [`graph`], [`parse`] | the task graph and its text formats |
//! | [`processes`] | speeds, fixed background loads, absent processes |
//! | [`metrics`] | imbalance, migration, edge-cut, volume |
//! | [`flow`] | first- and second-order diffusion on the process graph |
//! | [`machine`] | the same diffusion as a protocol between neighbours |
//! | [`select`], [`refine`] | which tasks realise a flow; pairwise FM |
//! | [`outline`] | who cuts far more than others, and what is done about it |
//! | [`diffusion`] | the whole method, with its cost |
//! | [`multilevel`], [`relabel`], [`scratch`] | a fresh partition, names that keep tasks at home, the choice |
//! | [`central`], [`geometric`], [`hybrid`] | greedy, refine; bisection, curve; tree of domains |
//! | [`scenario`], [`replay`], [`command`], [`plot`] | loads that change with time, and what the command line shows |

pub mod band;
pub mod borders;
pub mod central;
pub mod command;
pub mod cost;
pub mod diffusion;
pub mod error;
pub mod flow;
pub mod geometric;
pub mod graph;
pub mod hybrid;
pub mod links;
pub mod machine;
pub mod metrics;
pub mod multilevel;
pub mod outline;
pub mod parse;
pub mod plot;
pub mod processes;
pub mod refine;
pub mod relabel;
pub mod replay;
pub mod scenario;
pub mod schedule;
pub mod scratch;
pub mod select;

pub use error::BalanceError;
pub use graph::Graph;
pub use processes::Processes;
