//! What the balancing needs above what carries its messages: the caller's MPI, or an attempt
//! on a rail. A rail moves frames, never waits in silence and knows who died; here are tags,
//! waits for one message, and two collectives, which an MPI has as well.
//!
//! Invariants that an implementation keeps: messages between two processes with
//! one tag arrive in order and once; collectives are called by all in one order.

use outlive_base::Result;

/// Point-to-point messages and two collectives.
pub trait Transport {
    /// This process.
    fn rank(&self) -> u32;
    /// All processes.
    fn size(&self) -> u32;
    /// Sends; may return before the receiver has it.
    ///
    /// # Errors
    /// The medium's.
    fn send(&mut self, to: u32, tag: u32, bytes: &[u8]) -> Result<()>;
    /// Waits for the next message with this tag, from `from` or from anyone.
    ///
    /// # Errors
    /// The medium's.
    fn receive(&mut self, from: Option<u32>, tag: u32) -> Result<(u32, Vec<u8>)>;
    /// The value of every process, by rank. Unless the medium has a way of its own: a
    /// message to each.
    ///
    /// # Errors
    /// The medium's.
    fn all_gather(&mut self, value: f64) -> Result<Vec<f64>> {
        let own = vec![value.to_le_bytes().to_vec(); self.size() as usize];
        let word = |bytes: Vec<u8>| bytes[..].try_into().map_or(f64::NAN, f64::from_le_bytes);
        Ok(self.all_to_all(own)?.into_iter().map(word).collect())
    }
    /// Gives `bytes[p]` to process p; returns what each process gave. Unless the medium
    /// has a way of its own: a message to each.
    ///
    /// # Errors
    /// The medium's.
    fn all_to_all(&mut self, bytes: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        for (to, bytes) in bytes.iter().enumerate() {
            self.send(to as u32, ALL_TAG, bytes)?;
        }
        let from = 0..self.size();
        from.map(|from| Ok(self.receive(Some(from), ALL_TAG)?.1))
            .collect()
    }
}

/// The tag of an all-to-all by messages; the balancing's own are small.
const ALL_TAG: u32 = u32::MAX;

#[cfg(test)]
pub(crate) mod over;
