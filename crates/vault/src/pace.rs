//! Memory that is made while bytes arrive.

use std::sync::{Condvar, Mutex, PoisonError};

use outlive_base::Error;

use crate::error::ReadError;

/// How far the memory of a rank is there: who receives waits for who makes it.
#[derive(Debug, Default)]
pub struct Pace {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ready: u64,
    failed: Option<Error>,
}

impl Pace {
    /// The first `ready` bytes of the rank's data may be touched.
    pub fn advance(&self, ready: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ready = state.ready.max(ready);
        drop(state);
        self.moved.notify_all();
    }

    /// No more memory will be made.
    pub fn fail(&self, error: Error) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failed.get_or_insert(error);
        drop(state);
        self.moved.notify_all();
    }

    /// Waits until the first `bytes` bytes are there. Whoever makes them must end
    /// with [`Pace::advance`] to the end or [`Pace::fail`].
    ///
    /// # Errors
    /// What [`Pace::fail`] was given.
    pub fn wait(&self, bytes: u64) -> Result<(), ReadError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(error) = &state.failed {
                return Err(ReadError::Sink(error.clone()));
            }
            if state.ready >= bytes {
                return Ok(());
            }
            let woken = self.moved.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_receives_waits_for_who_makes() {
        let pace = Pace::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pace.wait(10));
            pace.advance(4);
            pace.advance(10);
            assert!(waiting.join().unwrap().is_ok());
            let waiting = scope.spawn(|| pace.wait(11));
            pace.fail(Error::internal("no memory"));
            assert!(waiting.join().unwrap().is_err());
        });
        assert!(pace.wait(1).is_err(), "a failure stays");
    }
}
