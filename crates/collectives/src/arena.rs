//! The bodies of one instance: reference-counted, so that a payload is sent to many,
//! kept, or combined without more copies than its sharing demands.
//!
//! Invariants: a handle is valid while it is held at least once; a body that is
//! being sent does not change (combining into it copies it first).

use std::sync::Arc;

use outlive_base::machine::Body;

use crate::frame::Bytes;

/// Combines two operands, as the caller of a reduction wants it.
pub trait Operator {
    /// `acc` becomes `acc (op) arg` if `acc_left`, else `arg (op) acc`.
    fn combine(&mut self, acc: &mut Vec<u8>, arg: &[u8], acc_left: bool);
}

impl<F: FnMut(&mut Vec<u8>, &[u8], bool)> Operator for F {
    fn combine(&mut self, acc: &mut Vec<u8>, arg: &[u8], acc_left: bool) {
        self(acc, arg, acc_left);
    }
}

/// See the module.
#[derive(Default, Debug)]
pub struct Arena {
    places: Vec<Option<(u32, Bytes)>>,
    free: Vec<u32>,
}

impl Arena {
    /// Stores a body, held once.
    pub fn put(&mut self, bytes: Bytes) -> Body {
        if let Some(index) = self.free.pop() {
            self.places[index as usize] = Some((1, bytes));
            return Body(index);
        }
        self.places.push(Some((1, bytes)));
        Body((self.places.len() - 1) as u32)
    }
    /// The bytes of a body that is held.
    pub fn get(&self, body: Body) -> Option<&Bytes> {
        let place = self.places.get(body.0 as usize)?.as_ref();
        place.map(|(_, bytes)| bytes)
    }
    /// Holds a body once more; false if nobody holds it.
    pub fn retain(&mut self, body: Body) -> bool {
        match self.places.get_mut(body.0 as usize) {
            Some(Some((count, _))) => {
                *count += 1;
                true
            }
            _ => false,
        }
    }
    /// Lets a body go; it is freed with its last holder. False if nobody holds it.
    pub fn release(&mut self, body: Body) -> bool {
        let Some(place) = self.places.get_mut(body.0 as usize) else {
            return false;
        };
        match place {
            Some((1, _)) => {
                *place = None;
                self.free.push(body.0);
                true
            }
            Some((count, _)) => {
                *count -= 1;
                true
            }
            None => false,
        }
    }
    /// Combines `arg` into `acc`; false if one of them is not held.
    pub fn combine(&mut self, acc: Body, arg: Body, left: bool, op: &mut dyn Operator) -> bool {
        let Some(operand) = self.get(arg).cloned() else {
            return false;
        };
        match self.places.get_mut(acc.0 as usize) {
            Some(Some((_, bytes))) => {
                op.combine(Arc::make_mut(bytes), &operand, left);
                true
            }
            _ => false,
        }
    }
    /// Bytes of all bodies, shared ones counted here too.
    pub fn bytes(&self) -> usize {
        let held = self.places.iter().flatten();
        held.map(|(_, bytes)| bytes.len()).sum()
    }
    /// How many bodies are held.
    pub fn held(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_live_while_held_and_sent_bytes_never_change() {
        let mut arena = Arena::default();
        let a = arena.put(Arc::new(vec![1]));
        let b = arena.put(Arc::new(vec![2]));
        let sent = Arc::clone(arena.get(a).expect("held"));
        let mut append = |acc: &mut Vec<u8>, arg: &[u8], left: bool| {
            if left {
                acc.extend_from_slice(arg);
            } else {
                acc.splice(0..0, arg.iter().copied());
            }
        };
        assert!(arena.combine(a, b, true, &mut append));
        assert!(arena.combine(a, b, false, &mut append));
        assert_eq!(**arena.get(a).expect("held"), [2, 1, 2]);
        assert_eq!(*sent, [1]);
        assert!(arena.retain(b) && arena.release(b) && arena.release(b));
        assert!(!arena.release(b) && !arena.retain(b) && !arena.combine(a, b, true, &mut append));
        assert_eq!(arena.held(), 1);
        assert_eq!(arena.put(Arc::new(vec![])), b);
    }
}
