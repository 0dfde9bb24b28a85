//! What a balancing gives one process.

/// What one process hands over or takes in.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Own tasks that go: (task, new process), by task.
    pub exports: Vec<(u64, u32)>,
    /// Tasks that come: (task, old process), by task.
    pub imports: Vec<(u64, u32)>,
    /// Imbalance before and after, the same at all.
    pub imbalance: (f64, f64),
    /// Rounds of flow and selection.
    pub rounds: u32,
    /// Iterations of the diffusion.
    pub iterations: u32,
    /// True if one process partitioned the graph anew ([`outlive_balance::diffusion::Approach`]).
    pub is_fresh: bool,
}
