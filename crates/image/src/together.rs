//! Lists of calls in many processes at the same time.
//!
//! Requests of ptrace are one tracer thread's, but between its start and its trap a list
//! needs no tracer: the lists of several processes are started one after the other and
//! then waited for, so that the processes work side by side.
//!
//! Invariants: one list at a time in each process, in the order in which they were added;
//! at the end nothing runs, also after an error.

use std::fs::File;
use std::io;

use crate::blame::blame;
use crate::gate::{self, List, Ran, Running};

/// Lanes that run at a time: each has a file open.
const AT_ONCE: usize = 128;

/// What one process has to do: lists of calls, each by one of its threads.
pub(crate) struct Calls {
    /// Its memory.
    pub(crate) memory: File,
    /// The list that calls are added to.
    pub(crate) list: List,
    tid: i32,
    lists: Vec<(i32, List)>,
    next: usize,
    running: Option<Running>,
    ran: Ran,
    /// Whom an error concerns: the process; or, if it bears any, the one that is not there.
    whose: i32,
    bears: Vec<i32>,
}

impl Calls {
    /// Nothing to do yet, for the stopped thread `tid` of a process with a gate, which is
    /// `whose` in the image.
    pub(crate) fn new(tid: i32, whose: i32) -> io::Result<Calls> {
        Ok(Calls {
            memory: gate::memory(tid)?,
            list: List::new(),
            tid,
            lists: Vec::new(),
            next: 0,
            running: None,
            ran: Ran::default(),
            whose,
            bears: Vec::new(),
        })
    }

    /// The next process that it makes.
    pub(crate) fn bear(&mut self, pid: i32) {
        self.bears.push(pid);
    }

    /// Begins another list where the current one might not hold that much more.
    pub(crate) fn room(&mut self, calls: usize, bytes: usize) {
        if self.list.is_full(calls, bytes + 64) {
            self.turn(self.tid);
        }
    }

    /// What is added from now on is done by the thread `tid`, after all that was before.
    pub(crate) fn turn(&mut self, tid: i32) {
        let list = std::mem::take(&mut self.list);
        if !list.is_empty() {
            self.lists.push((self.tid, list));
        }
        self.tid = tid;
    }

    fn start(&mut self) -> io::Result<()> {
        if let Some((tid, list)) = self.lists.get(self.next) {
            self.running = Some(gate::start(*tid, &self.memory, list)?);
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        let Some(running) = self.running.take() else {
            return Ok(());
        };
        let (_, list) = &self.lists[self.next];
        self.next += 1;
        running
            .finish(&self.memory, list, &mut self.ran)
            .map_err(|error| {
                let unborn = self.bears.get(self.ran.born.len());
                blame(&[*unborn.unwrap_or(&self.whose)], error)
            })
    }
}

/// Runs lanes of different processes side by side, each from the moment that it is made.
/// After an error nothing is started any more, and what runs is waited for. With the first
/// error, the threads and processes that each lane brought forth before: they will stop.
pub(crate) fn run(
    mut lanes: impl Iterator<Item = io::Result<Calls>>,
) -> (Vec<Vec<i32>>, io::Result<()>) {
    let (mut born, mut result) = (Vec::new(), Ok(()));
    while result.is_ok() {
        let mut begun = Vec::new();
        result = lanes.by_ref().take(AT_ONCE).try_for_each(|lane| {
            let mut lane = lane?;
            lane.turn(lane.tid);
            let started = lane.start();
            begun.push(lane);
            started
        });
        if begun.is_empty() {
            break;
        }
        while begun.iter().any(|lane| lane.running.is_some()) {
            for lane in &mut begun {
                let finished = lane.finish();
                result = result.and(finished);
                if result.is_ok() {
                    result = lane.start();
                }
            }
        }
        born.extend(begun.into_iter().map(|lane| lane.ran.born));
    }
    (born, result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_cut_where_they_are_full_and_keep_their_threads() {
        let own = std::process::id() as i32;
        let mut lane = Calls::new(own, 1).unwrap();
        for _ in 0..1000 {
            lane.room(1, 0);
            lane.list.call(libc::SYS_getpid, &[]);
        }
        lane.turn(7);
        lane.turn(8);
        lane.list.call(libc::SYS_getpid, &[]);
        lane.turn(8);
        let tids: Vec<i32> = lane.lists.iter().map(|(tid, _)| *tid).collect();
        assert_eq!(tids, [own, own, own, 8]);
    }

    #[test]
    fn what_cannot_begin_is_told_and_the_rest_left_out() {
        let mut asked = 0;
        let (born, result) = run((0..5).map(|place| {
            asked += 1;
            let lane = Calls::new(std::process::id() as i32, 1);
            if place == 2 {
                return Err(io::ErrorKind::NotFound.into());
            }
            lane
        }));
        assert_eq!((born.len(), asked), (2, 3));
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
