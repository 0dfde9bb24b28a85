//! Collectives over point-to-point messages.
//!
//! Each call takes the next number of the communicator as its tag, so calls in
//! the same order on every rank cannot mix. Small and plain: dissemination for
//! barriers (Hensgen, Finkel, Manber 1988), binomial trees, recursive doubling
//! and pairwise exchange (Thakur, Rabenseifner, Gropp 2005).

use outlive_base::{Code, Entity, Error};

use crate::comm::Comm;
use crate::state::{CONTEXT_COLLECTIVE, State};

/// What the elements are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ElementKind {
    /// `double`
    F64,
    /// `int32_t`
    I32,
    /// `int64_t`
    I64,
}

/// How two elements become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operator {
    /// The sum; integers wrap.
    Sum,
    /// The larger one.
    Max,
    /// The smaller one.
    Min,
}

impl ElementKind {
    /// Length of an element, in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            ElementKind::I32 => 4,
            ElementKind::F64 | ElementKind::I64 => 8,
        }
    }
}

/// `left` becomes `left` op `right`, element by element.
fn combine(kind: ElementKind, operator: Operator, left: &mut [u8], right: &[u8]) {
    macro_rules! each {
        ($type:ty, $sum:expr) => {
            for (l, r) in left
                .chunks_exact_mut(kind.bytes())
                .zip(right.chunks_exact(kind.bytes()))
            {
                let mut word = [0; size_of::<$type>()];
                word.copy_from_slice(l);
                let a = <$type>::from_le_bytes(word);
                word.copy_from_slice(r);
                let b = <$type>::from_le_bytes(word);
                let sum: fn($type, $type) -> $type = $sum;
                let value = match operator {
                    Operator::Sum => sum(a, b),
                    Operator::Max => a.max(b),
                    Operator::Min => a.min(b),
                };
                l.copy_from_slice(&value.to_le_bytes());
            }
        };
    }
    match kind {
        ElementKind::F64 => each!(f64, |a, b| a + b),
        ElementKind::I32 => each!(i32, i32::wrapping_add),
        ElementKind::I64 => each!(i64, i64::wrapping_add),
    }
}

fn sized(expected: usize, found: usize) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    Err(Error::new(
        Code::InvalidArgument,
        Entity::Call,
        format!("{found} bytes where {expected} are due"),
        "give every rank the same counts",
    ))
}

impl State {
    fn turn(&mut self) -> u32 {
        let tag = self.collectives;
        // The largest number means any tag.
        self.collectives = (tag + 1) % u32::MAX;
        tag
    }

    fn get(&mut self, out: &mut [u8], from: u32, tag: u32) -> Result<(), Error> {
        let status = self.recv(out, from, CONTEXT_COLLECTIVE, tag)?;
        sized(out.len(), status.bytes)
    }

    fn put(&mut self, body: &[u8], to: u32, tag: u32) -> Result<(), Error> {
        self.send(body, to, CONTEXT_COLLECTIVE, tag)
    }

    fn barrier(&mut self) -> Result<(), Error> {
        let (me, size, tag) = (self.mesh.rank(), self.mesh.size(), self.turn());
        let mut distance = 1;
        while distance < size {
            self.put(&[], (me + distance) % size, tag)?;
            self.get(&mut [], (me + size - distance) % size, tag)?;
            distance *= 2;
        }
        Ok(())
    }

    fn broadcast(&mut self, data: &mut [u8], root: u32, tag: u32) -> Result<(), Error> {
        let size = self.mesh.size();
        let me = (self.mesh.rank() + size - root) % size;
        let mut mask = 1;
        while mask < size {
            if me & mask != 0 {
                self.get(data, (me - mask + root) % size, tag)?;
                break;
            }
            mask *= 2;
        }
        mask /= 2;
        while mask > 0 {
            if me + mask < size {
                self.put(data, (me + mask + root) % size, tag)?;
            }
            mask /= 2;
        }
        Ok(())
    }

    /// To rank 0 along a binomial tree; lower ranks stand to the left.
    fn fold(
        &mut self,
        kind: ElementKind,
        operator: Operator,
        data: &mut [u8],
        tag: u32,
    ) -> Result<(), Error> {
        let (me, size) = (self.mesh.rank(), self.mesh.size());
        let mut other = vec![0; data.len()];
        let mut mask = 1;
        while mask < size {
            if me & mask != 0 {
                return self.put(data, me - mask, tag);
            }
            if me + mask < size {
                self.get(&mut other, me + mask, tag)?;
                combine(kind, operator, data, &other);
            }
            mask *= 2;
        }
        Ok(())
    }

    /// Recursive doubling where the ranks are a power of two: both partners
    /// compute lower op higher, so all get the same bits.
    fn allreduce(
        &mut self,
        kind: ElementKind,
        operator: Operator,
        data: &mut [u8],
    ) -> Result<(), Error> {
        let (me, size, tag) = (self.mesh.rank(), self.mesh.size(), self.turn());
        if !size.is_power_of_two() {
            self.fold(kind, operator, data, tag)?;
            return self.broadcast(data, 0, tag);
        }
        let mut other = vec![0; data.len()];
        let mut mask = 1;
        while mask < size {
            let partner = me ^ mask;
            let status =
                self.exchange(data, partner, &mut other, partner, CONTEXT_COLLECTIVE, tag)?;
            sized(data.len(), status.bytes)?;
            if partner > me {
                combine(kind, operator, data, &other);
            } else {
                combine(kind, operator, &mut other, data);
                data.copy_from_slice(&other);
            }
            mask *= 2;
        }
        Ok(())
    }
}

impl Comm {
    /// Waits until every rank has called it.
    ///
    /// # Errors
    /// Here and below: that of a session that failed, and
    /// [`Code::InvalidArgument`] if lengths do not agree.
    pub fn barrier(&self) -> Result<(), Error> {
        self.call()?.state.barrier()
    }

    /// `data` of `root` to all.
    ///
    /// # Errors
    /// As [`Comm::barrier`].
    pub fn broadcast(&self, data: &mut [u8], root: u32) -> Result<(), Error> {
        self.check_root(root)?;
        let mut call = self.call()?;
        let tag = call.state.turn();
        call.state.broadcast(data, root, tag)
    }

    /// All ranks' `data` becomes one at `root`; elsewhere it is left undefined.
    ///
    /// # Errors
    /// As [`Comm::barrier`].
    pub fn reduce(
        &self,
        kind: ElementKind,
        operator: Operator,
        data: &mut [u8],
        root: u32,
    ) -> Result<(), Error> {
        self.check_root(root)?;
        sized(data.len() / kind.bytes() * kind.bytes(), data.len())?;
        let mut call = self.call()?;
        let tag = call.state.turn();
        call.state.fold(kind, operator, data, tag)?;
        match (self.rank(), root) {
            (_, 0) => Ok(()),
            (0, _) => call.state.put(data, root, tag),
            (me, root) if me == root => call.state.get(data, 0, tag),
            _ => Ok(()),
        }
    }

    /// All ranks' `data` becomes one, the same bits everywhere.
    ///
    /// # Errors
    /// As [`Comm::barrier`].
    pub fn allreduce(
        &self,
        kind: ElementKind,
        operator: Operator,
        data: &mut [u8],
    ) -> Result<(), Error> {
        sized(data.len() / kind.bytes() * kind.bytes(), data.len())?;
        self.call()?.state.allreduce(kind, operator, data)
    }

    /// The part `out_parts[r]` (offset, bytes) of `body` to every rank `r`, and
    /// that of every rank into `in_parts[r]` of `out`.
    ///
    /// # Errors
    /// As [`Comm::barrier`].
    pub fn alltoallv(
        &self,
        body: &[u8],
        out_parts: &[(usize, usize)],
        out: &mut [u8],
        in_parts: &[(usize, usize)],
    ) -> Result<(), Error> {
        let size = self.size();
        sized(size as usize, out_parts.len())?;
        sized(size as usize, in_parts.len())?;
        let part = |(offset, bytes): (usize, usize), whole: usize| {
            let end = offset.checked_add(bytes).filter(|end| *end <= whole);
            end.map(|end| offset..end).ok_or_else(|| {
                Error::new(
                    Code::InvalidArgument,
                    Entity::Call,
                    format!("a part at {offset} of {bytes} bytes in {whole}"),
                    "check counts and offsets",
                )
            })
        };
        let mut call = self.call()?;
        let tag = call.state.turn();
        for step in 0..size {
            let to = (self.rank() + step) % size;
            let from = (self.rank() + size - step) % size;
            let given = &body[part(out_parts[to as usize], body.len())?];
            let range = part(in_parts[from as usize], out.len())?;
            let taken = &mut out[range];
            if step == 0 {
                sized(taken.len(), given.len())?;
                taken.copy_from_slice(given);
                continue;
            }
            let expected = taken.len();
            let status = call
                .state
                .exchange(given, to, taken, from, CONTEXT_COLLECTIVE, tag)?;
            sized(expected, status.bytes)?;
        }
        Ok(())
    }

    fn check_root(&self, root: u32) -> Result<(), Error> {
        if root < self.size() {
            return Ok(());
        }
        Err(Error::new(
            Code::InvalidArgument,
            Entity::Call,
            format!(
                "root {root} of {}",
                outlive_base::count(self.size(), "rank")
            ),
            "name a rank of the job",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_combine_as_their_kind_says() {
        let mut left = [1.5f64, -2.0].map(f64::to_le_bytes).concat();
        let right = [0.25f64, 7.0].map(f64::to_le_bytes).concat();
        combine(ElementKind::F64, Operator::Sum, &mut left, &right);
        assert_eq!(left, [1.75f64, 5.0].map(f64::to_le_bytes).concat());
        combine(ElementKind::F64, Operator::Max, &mut left, &right);
        assert_eq!(left, [1.75f64, 7.0].map(f64::to_le_bytes).concat());
        let mut left = [i32::MAX, -4].map(i32::to_le_bytes).concat();
        let right = [1i32, 3].map(i32::to_le_bytes).concat();
        combine(ElementKind::I32, Operator::Sum, &mut left, &right);
        assert_eq!(left, [i32::MIN, -1].map(i32::to_le_bytes).concat());
        combine(ElementKind::I32, Operator::Min, &mut left, &right);
        assert_eq!(left, [i32::MIN, -1].map(i32::to_le_bytes).concat());
    }
}
