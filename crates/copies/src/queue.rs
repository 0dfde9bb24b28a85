//! A bounded queue between threads whose readers sleep until something comes. A queue that
//! first yields the core a few times, as channels do, costs a program that keeps all cores
//! busy a change of thread for each.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// One end of a queue at which things are put in. The readers' end comes when it is dropped.
pub struct Inlet<T>(Arc<Inner<T>>);

/// The other end. Clones take turns.
pub struct Outlet<T>(Arc<Inner<T>>);

struct Inner<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    room: usize,
}

struct State<T> {
    waiting: VecDeque<T>,
    /// Nothing more will come.
    closed: bool,
    readers: usize,
}

/// Why something was not taken.
pub enum Refused<T> {
    /// As many wait as may.
    Full(T),
    /// Nobody is left to take it.
    Ended(T),
}

impl<T> Refused<T> {
    /// What was not taken.
    pub fn into_inner(self) -> T {
        match self {
            Refused::Full(it) | Refused::Ended(it) => it,
        }
    }
}

/// A queue in which at most `room` things wait.
pub fn queue<T>(room: usize) -> (Inlet<T>, Outlet<T>) {
    let inner = Arc::new(Inner {
        state: Mutex::new(State {
            waiting: VecDeque::new(),
            closed: false,
            readers: 1,
        }),
        filled: Condvar::new(),
        room,
    });
    (Inlet(Arc::clone(&inner)), Outlet(inner))
}

impl<T> Inner<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Nothing here panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Inlet<T> {
    /// Puts something in; never waits for room.
    ///
    /// # Errors
    /// With the thing, if there is no room or no reader.
    pub fn put(&self, it: T) -> Result<(), Refused<T>> {
        let mut state = self.0.state();
        if state.readers == 0 {
            return Err(Refused::Ended(it));
        }
        if state.waiting.len() >= self.0.room {
            return Err(Refused::Full(it));
        }
        state.waiting.push_back(it);
        drop(state);
        self.0.filled.notify_one();
        Ok(())
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.0.state().waiting.len()
    }
}

impl<T> Drop for Inlet<T> {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.filled.notify_all();
    }
}

impl<T> Outlet<T> {
    /// Waits for the next one; `None` at the end, when all are taken.
    pub fn take(&self) -> Option<T> {
        let mut state = self.0.state();
        loop {
            if let Some(it) = state.waiting.pop_front() {
                return Some(it);
            }
            if state.closed {
                return None;
            }
            let filled = self.0.filled.wait(state);
            state = filled.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next one, if it is there.
    pub fn take_now(&self) -> Option<T> {
        self.0.state().waiting.pop_front()
    }
}

impl<T> Clone for Outlet<T> {
    fn clone(&self) -> Outlet<T> {
        self.0.state().readers += 1;
        Outlet(Arc::clone(&self.0))
    }
}

impl<T> Drop for Outlet<T> {
    fn drop(&mut self) {
        self.0.state().readers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_was_put_in_comes_out_once_whoever_takes_it() {
        const COUNT: u32 = 20_000;
        let (inlet, outlet) = queue(8);
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let outlet = outlet.clone();
                std::thread::spawn(move || std::iter::from_fn(|| outlet.take()).collect::<Vec<_>>())
            })
            .collect();
        drop(outlet);
        for mut number in 0..COUNT {
            while let Err(Refused::Full(back)) = inlet.put(number) {
                number = back;
                std::thread::yield_now();
            }
        }
        drop(inlet);
        let mut all: Vec<u32> = readers
            .into_iter()
            .flat_map(|reader| {
                let taken = reader.join().unwrap();
                assert!(taken.is_sorted(), "in order");
                taken
            })
            .collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..COUNT));
    }

    #[test]
    fn it_is_bounded_and_ends_at_both_sides() {
        let (inlet, outlet) = queue(1);
        assert!(inlet.put(1).is_ok());
        assert!(matches!(inlet.put(2), Err(Refused::Full(2))));
        assert_eq!((inlet.len(), outlet.take_now()), (1, Some(1)));
        assert_eq!(outlet.take_now(), None);
        assert!(inlet.put(3).is_ok());
        let second = outlet.clone();
        drop(inlet);
        assert_eq!((second.take(), second.take()), (Some(3), None));
        let (inlet, outlet) = queue(1);
        drop(outlet);
        assert_eq!(inlet.put(4).err().map(Refused::into_inner), Some(4));
    }
}
