//! The bodies of one instance: reference-counted, so that a payload is sent to many,
//! kept, or combined without more copies than its sharing demands.
//!
//! Invariants: a handle is valid while it is held at least once; a body that is
//! being sent does not change (combining into it copies it first).

use std::sync::Arc;

use outlive_base::machine::{Body, Peer};

use outlive_network::rail::Content;

/// Combines two operands, as the caller of a reduction wants it.
pub trait Operator {
    /// `acc` becomes `acc (op) arg` if `acc_left`, else `arg (op) acc`. `call` is the
    /// collective that `acc` belongs to (see [`crate::Wired::call`]). False if this is
    /// not the operator of that call, or if it cannot be carried out.
    fn combine(&mut self, call: u32, acc: &mut Vec<u8>, arg: &[u8], acc_left: bool) -> bool;
}

struct Held {
    holders: u32,
    call: u32,
    content: Content,
}

/// See the module.
#[derive(Default)]
pub struct Arena {
    places: Vec<Option<Held>>,
    free: Vec<u32>,
}

impl Arena {
    /// Stores a body of the collective `call`, held once.
    pub fn put(&mut self, call: u32, content: Content) -> Body {
        let place = Some(Held {
            holders: 1,
            call,
            content,
        });
        if let Some(index) = self.free.pop() {
            self.places[index as usize] = place;
            return Body(index);
        }
        self.places.push(place);
        Body((self.places.len() - 1) as u32)
    }
    fn place(&mut self, body: Body) -> Option<&mut Held> {
        self.places.get_mut(body.0 as usize)?.as_mut()
    }
    /// What a body that is held holds.
    pub fn get(&self, body: Body) -> Option<&Content> {
        let place = self.places.get(body.0 as usize)?.as_ref();
        place.map(|place| &place.content)
    }
    /// Holds a body once more; false if nobody holds it.
    pub fn retain(&mut self, body: Body) -> bool {
        let place = self.place(body);
        place.map(|place| place.holders += 1).is_some()
    }
    /// Lets a body go; it is freed with its last holder. False if nobody holds it.
    pub fn release(&mut self, body: Body) -> bool {
        let Some(place) = self.place(body) else {
            return false;
        };
        place.holders -= 1;
        if place.holders == 0 {
            self.places[body.0 as usize] = None;
            self.free.push(body.0);
        }
        true
    }
    /// Puts a rank on a body's list of the absent; false if nobody holds the body.
    pub fn absent(&mut self, body: Body, peer: Peer) -> bool {
        let Some(place) = self.place(body) else {
            return false;
        };
        if let Err(at) = place.content.absent.binary_search(&peer) {
            Arc::make_mut(&mut place.content.absent).insert(at, peer);
        }
        true
    }
    /// Combines `arg` into `acc` and unites their lists of the absent; false if one of
    /// them is not held or `op` declines.
    pub fn combine(&mut self, acc: Body, arg: Body, left: bool, op: &mut dyn Operator) -> bool {
        let Some(operand) = self.get(arg).cloned() else {
            return false;
        };
        let Some(place) = self.place(acc) else {
            return false;
        };
        let bytes = Arc::make_mut(&mut place.content.bytes);
        let done = op.combine(place.call, bytes, &operand.bytes, left);
        for peer in operand.absent.iter() {
            self.absent(acc, *peer);
        }
        done
    }
    /// Bytes of all bodies, shared ones counted here too.
    pub fn bytes(&self) -> usize {
        let held = self.places.iter().flatten();
        held.map(|place| place.content.wire_bytes()).sum()
    }
    /// How many bodies are held.
    pub fn held(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Append;
    impl Operator for Append {
        fn combine(&mut self, call: u32, acc: &mut Vec<u8>, arg: &[u8], left: bool) -> bool {
            if left {
                acc.extend_from_slice(arg);
            } else {
                acc.splice(0..0, arg.iter().copied());
            }
            call == 5
        }
    }

    #[test]
    fn bodies_live_while_held_and_sent_bytes_never_change() {
        let mut arena = Arena::default();
        let a = arena.put(5, Content::new(vec![1]));
        let b = arena.put(6, Content::new(vec![2]));
        let sent = arena.get(a).expect("held").clone();
        assert!(arena.absent(b, 9) && arena.absent(b, 3) && arena.absent(b, 9));
        assert!(arena.combine(a, b, true, &mut Append));
        assert!(arena.combine(a, b, false, &mut Append));
        assert_eq!(*arena.get(a).expect("held").bytes, [2, 1, 2]);
        assert_eq!(*arena.get(a).expect("held").absent, [3, 9]);
        assert_eq!(sent, Content::new(vec![1]));
        assert!(
            !arena.combine(b, a, true, &mut Append),
            "another call's operator"
        );
        assert!(arena.retain(b) && arena.release(b) && arena.release(b));
        assert!(!arena.release(b) && !arena.retain(b) && !arena.absent(b, 1));
        assert!(!arena.combine(a, b, true, &mut Append));
        assert_eq!(arena.held(), 1);
        assert_eq!(arena.put(0, Content::default()), b);
    }
}
