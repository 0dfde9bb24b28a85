//! What bad input gets: one enum, each variant with a stable code of
//! [`outlive_base::Code`] when it leaves the crate.

use outlive_base::{Code, Entity, Error, count};
use thiserror::Error as ThisError;

/// Why a graph, a partition or an option was refused. Nothing was changed.
#[derive(Clone, PartialEq, Debug, ThisError)]
pub enum BalanceError {
    /// A task weight that is zero, negative, infinite or not a number.
    #[error("task {task} has weight {weight}")]
    TaskWeight {
        /// The task, 0-based.
        task: usize,
        /// Its weight.
        weight: f64,
    },
    /// An edge weight that is zero, negative, infinite or not a number.
    #[error("the edge from task {from} to task {to} has weight {weight}")]
    EdgeWeight {
        /// One end, 0-based.
        from: usize,
        /// The other end.
        to: usize,
        /// Its weight.
        weight: f64,
    },
    /// An edge that is not listed, with the same weight, at its other end.
    #[error("the edge from task {from} to task {to} is missing or differs at its other end")]
    Asymmetric {
        /// The end that lists it.
        from: usize,
        /// The end that does not.
        to: usize,
    },
    /// A task that is its own neighbour.
    #[error("task {task} is its own neighbour")]
    SelfLoop {
        /// The task, 0-based.
        task: usize,
    },
    /// A neighbour listed twice.
    #[error("task {from} lists its neighbour {to} twice")]
    Duplicate {
        /// The task that lists it.
        from: usize,
        /// The neighbour.
        to: usize,
    },
    /// A number that has to be below a bound.
    #[error("{what} {value} is not below {bound}")]
    Range {
        /// What the number names.
        what: &'static str,
        /// The number.
        value: u64,
        /// The bound that it reaches.
        bound: u64,
    },
    /// Two arrays that must have one length.
    #[error("{what}: {} where {expected} are needed", count(*.found as u64, "entry"))]
    Length {
        /// What the array holds.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that is needed.
        expected: usize,
    },
    /// No process is left to carry the load.
    #[error("no process can take load")]
    NoProcess,
    /// A speed, background load or option that makes no sense.
    #[error("{what} is {value}")]
    Value {
        /// What the number is.
        what: &'static str,
        /// The number.
        value: f64,
    },
    /// The method needs coordinates and the graph has none.
    #[error("this method needs coordinates of the tasks")]
    NoCoordinates,
    /// A text file that ends early.
    #[error("line {line}: the file is cut off: {what}")]
    CutOff {
        /// The line at which it ends, 1-based.
        line: usize,
        /// What is missing.
        what: String,
    },
    /// A text file that cannot be understood.
    #[error("line {line}: {what}")]
    Syntax {
        /// The line, 1-based.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// A dialect that is not supported.
    #[error("line {line}: {what}")]
    Dialect {
        /// The line, 1-based.
        line: usize,
        /// What was found.
        what: String,
    },
    /// Loads were lost or doubled: a fault of ours, found by the cheap check.
    #[error("invariant broken: {0}")]
    Invariant(&'static str),
}

impl BalanceError {
    /// The stable code.
    pub const fn code(&self) -> Code {
        match self {
            BalanceError::CutOff { .. } => Code::Truncated,
            BalanceError::Syntax { .. } => Code::Corrupt,
            BalanceError::Dialect { .. } => Code::FormatUnknown,
            BalanceError::Invariant(_) => Code::Internal,
            _ => Code::InvalidArgument,
        }
    }

    /// What the caller can do about it.
    pub const fn remedy(&self) -> &'static str {
        match self {
            BalanceError::TaskWeight { .. } => "give every task a finite weight above zero",
            BalanceError::EdgeWeight { .. } => "give every edge a finite weight above zero",
            BalanceError::Asymmetric { .. } => {
                "list each edge at both ends with the same weight, or symmetrise the matrix"
            }
            BalanceError::SelfLoop { .. } => "drop the loop: a task talks to itself for free",
            BalanceError::Duplicate { .. } => "merge the two entries into one weight",
            BalanceError::Range { .. } | BalanceError::Length { .. } => {
                "check the sizes and numbers of the call"
            }
            BalanceError::NoProcess => "give at least one process, with a speed above zero",
            BalanceError::Value { .. } => "use a finite value in the documented range",
            BalanceError::NoCoordinates => {
                "supply coordinates, or choose diffusion, hybrid, greedy or refine"
            }
            BalanceError::CutOff { .. } => "copy the file again",
            BalanceError::Syntax { .. } => "correct the line",
            BalanceError::Dialect { .. } => "convert the file to a supported form",
            BalanceError::Invariant(_) => "please report this with the input",
        }
    }

    /// The error as a user meets it, about `entity`.
    pub fn at(&self, entity: Entity) -> Error {
        Error::new(self.code(), entity, self.to_string(), self.remedy())
    }
}

impl From<BalanceError> for Error {
    fn from(error: BalanceError) -> Error {
        error.at(Entity::Call)
    }
}
