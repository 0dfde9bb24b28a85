//! The processes that carry the tasks: how fast each is, what it has to carry
//! anyway, and which are absent.
//!
//! Invariants: as many speeds as backgrounds; speeds are finite and not
//! negative, at least one is above zero; backgrounds are finite and not
//! negative. A process of speed 0 is absent (lost, or about to leave): it must
//! end up without tasks.

use crate::error::BalanceError;
use crate::graph::{Graph, finite};

/// Most processes of one call: what is kept of each must fit into memory, also where
/// a mistyped number asks for it.
pub const PROCESSES_MAX: usize = 1 << 24;

/// Speeds and fixed loads of the processes.
#[derive(Clone, PartialEq, Debug)]
pub struct Processes {
    speeds: Vec<f64>,
    background: Vec<f64>,
}

impl Processes {
    /// `count` processes of speed 1 without background load.
    ///
    /// # Errors
    /// A count of zero or above [`PROCESSES_MAX`].
    pub fn uniform(count: usize) -> Result<Processes, BalanceError> {
        bounded(count)?;
        Processes::new(vec![1.0; count], vec![0.0; count])
    }

    /// With speeds (task weight per unit of time; 0: absent) and background
    /// loads (task weight that cannot migrate).
    ///
    /// # Errors
    /// Whatever breaks an invariant of the module's comment.
    pub fn new(speeds: Vec<f64>, background: Vec<f64>) -> Result<Processes, BalanceError> {
        if speeds.len() != background.len() {
            return Err(BalanceError::Length {
                what: "background loads",
                found: background.len(),
                expected: speeds.len(),
            });
        }
        bounded(speeds.len())?;
        let bad = |value: &&f64| !(value.is_finite() && **value >= 0.0);
        if let Some(&value) = speeds.iter().find(bad) {
            return Err(BalanceError::Value {
                what: "the speed of a process",
                value,
            });
        }
        if let Some(&value) = background.iter().find(bad) {
            return Err(BalanceError::Value {
                what: "the background load of a process",
                value,
            });
        }
        if !speeds.iter().any(|&speed| speed > 0.0) {
            return Err(BalanceError::NoProcess);
        }
        finite("the sum of the speeds", speeds.iter().sum())?;
        finite("the sum of the background loads", background.iter().sum())?;
        Ok(Processes { speeds, background })
    }

    /// The number of processes, absent ones included.
    pub fn count(&self) -> usize {
        self.speeds.len()
    }
    /// The speed of every process; 0 is absent.
    pub fn speeds(&self) -> &[f64] {
        &self.speeds
    }
    /// The fixed load of every process.
    pub fn background(&self) -> &[f64] {
        &self.background
    }
    /// True if the process can take load.
    pub fn present(&self, process: u32) -> bool {
        self.speeds[process as usize] > 0.0
    }
    /// Marks a process absent.
    ///
    /// # Errors
    /// If none would be left.
    pub fn remove(&mut self, process: u32) -> Result<(), BalanceError> {
        let others = |p: usize| p != process as usize && self.speeds[p] > 0.0;
        if !(0..self.count()).any(others) {
            return Err(BalanceError::NoProcess);
        }
        self.speeds[process as usize] = 0.0;
        self.background[process as usize] = 0.0;
        Ok(())
    }
    /// Changes the speed of a process that is present.
    ///
    /// # Errors
    /// A speed that is not finite and above zero.
    pub fn set_speed(&mut self, process: u32, speed: f64) -> Result<(), BalanceError> {
        if !(speed.is_finite() && speed > 0.0) {
            return Err(BalanceError::Value {
                what: "the speed of a process",
                value: speed,
            });
        }
        let others = self.speeds.iter().sum::<f64>() - self.speeds[process as usize];
        finite("the sum of the speeds", others + speed)?;
        self.speeds[process as usize] = speed;
        Ok(())
    }

    /// The load of every process: its background and its tasks, summed in task
    /// order.
    pub fn loads(&self, graph: &Graph, parts: &[u32]) -> Vec<f64> {
        let mut loads = self.background.clone();
        for (task, &part) in parts.iter().enumerate() {
            loads[part as usize] += graph.weights()[task];
        }
        loads
    }

    /// The load per speed that all present processes would have in perfect
    /// balance.
    pub fn ideal(&self, loads: &[f64]) -> f64 {
        loads.iter().sum::<f64>() / self.speeds.iter().sum::<f64>()
    }

    /// Checks that `parts` gives every task of `graph` a process, and that all loads
    /// together are a number.
    ///
    /// # Errors
    /// A wrong length, a part out of range, loads that add up to infinity.
    pub fn check(&self, graph: &Graph, parts: &[u32]) -> Result<(), BalanceError> {
        if parts.len() != graph.tasks() {
            return Err(BalanceError::Length {
                what: "parts",
                found: parts.len(),
                expected: graph.tasks(),
            });
        }
        let background = self.background.iter().sum::<f64>();
        let total = background + graph.weights().iter().sum::<f64>();
        finite("the sum of all loads", total)?;
        match parts.iter().find(|&&part| part as usize >= self.count()) {
            None => Ok(()),
            Some(&part) => Err(BalanceError::Range {
                what: "part",
                value: u64::from(part),
                bound: self.count() as u64,
            }),
        }
    }
}

fn bounded(count: usize) -> Result<(), BalanceError> {
    match count {
        0..=PROCESSES_MAX => Ok(()),
        _ => Err(BalanceError::Range {
            what: "number of processes",
            value: count as u64,
            bound: PROCESSES_MAX as u64 + 1,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senseless_processes_are_refused() {
        assert_eq!(Processes::uniform(0), Err(BalanceError::NoProcess));
        assert_eq!(
            Processes::new(vec![0.0], vec![0.0]),
            Err(BalanceError::NoProcess)
        );
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(Processes::new(vec![bad, 1.0], vec![0.0; 2]).is_err());
            assert!(Processes::new(vec![1.0; 2], vec![bad, 0.0]).is_err());
        }
        assert!(Processes::new(vec![f64::MAX; 2], vec![0.0; 2]).is_err());
        assert!(Processes::new(vec![1.0; 2], vec![f64::MAX; 2]).is_err());
        let mut two = Processes::uniform(2).unwrap();
        two.remove(0).unwrap();
        assert_eq!(two.remove(1), Err(BalanceError::NoProcess));
    }
}
