//! Bodies of simulated collectives: an operand that remembers whose it is.
//!
//! The exact operator appends lists of ranks: it does not commute, and what it yields
//! tells who contributed, how often, and in which order. For very many processes only
//! the number of operands and their sum are kept.

use outlive_base::machine::{Body, Peer};
use outlive_protocols::agreement::Absent;

/// What a body holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// Whose operands were combined, in order; empty if the run is not exact.
    pub ranks: Vec<Peer>,
    /// How many operands.
    pub count: u64,
    /// Their sum; the operand of rank r is r + 1.
    pub sum: u64,
    /// Who did not contribute.
    pub absent: Absent,
}

impl Value {
    /// The operand of a rank.
    pub fn of(rank: Peer, exact: bool) -> Value {
        Value {
            ranks: if exact { vec![rank] } else { Vec::new() },
            count: 1,
            sum: u64::from(rank) + 1,
            absent: Absent::default(),
        }
    }

    /// The operator; `left` is the operand to the left.
    fn combine(left: &Value, right: &Value) -> Value {
        let mut ranks = left.ranks.clone();
        ranks.extend_from_slice(&right.ranks);
        let mut absent = left.absent.clone();
        absent.unite(&right.absent);
        Value {
            ranks,
            count: left.count + right.count,
            sum: left.sum.wrapping_add(right.sum),
            absent,
        }
    }
}

/// All bodies of a run.
#[derive(Debug, Default)]
pub struct Arena {
    values: Vec<Option<Value>>,
    free: Vec<u32>,
}

impl Arena {
    /// A new body.
    pub fn put(&mut self, value: Value) -> Body {
        match self.free.pop() {
            Some(at) => {
                self.values[at as usize] = Some(value);
                Body(at)
            }
            None => {
                self.values.push(Some(value));
                Body(self.values.len() as u32 - 1)
            }
        }
    }
    /// A body that is held; a released one is a fault of the machine under test.
    pub fn get(&self, body: Body) -> Option<&Value> {
        self.values.get(body.0 as usize)?.as_ref()
    }
    /// Lets a body go. False if it was not held.
    pub fn release(&mut self, body: Body) -> bool {
        let place = self.values.get_mut(body.0 as usize);
        let held = place.is_some_and(|place| place.take().is_some());
        if held {
            self.free.push(body.0);
        }
        held
    }
    /// Puts a rank on the list of a body.
    pub fn absent(&mut self, body: Body, peer: Peer) {
        if let Some(Some(value)) = self.values.get_mut(body.0 as usize) {
            value.absent.add(peer);
        }
    }
    /// Combines two bodies into `acc`. False if one is not held.
    pub fn combine(&mut self, acc: Body, arg: Body, acc_left: bool) -> bool {
        let (Some(a), Some(b)) = (self.get(acc), self.get(arg)) else {
            return false;
        };
        let value = if acc_left {
            Value::combine(a, b)
        } else {
            Value::combine(b, a)
        };
        self.values[acc.0 as usize] = Some(value);
        true
    }
    /// How many bodies are held.
    pub fn held(&self) -> usize {
        self.values.len() - self.free.len()
    }
}
