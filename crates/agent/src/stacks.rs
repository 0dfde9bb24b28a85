//! What the ranks of this node are doing, looked at by threads of their own: stopping, reading
//! and naming takes its time, and a process that sleeps in the kernel may hold who looks at it.
//!
//! Invariant: the answer comes within its time, whatever becomes of those who look; what they find
//! later is dropped, and they end after the process that they are at.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};
use outlive_base::Rank;
use outlive_control::orders::{Place, RankStacks};
use outlive_copies::memory::Work;
use outlive_copies::reports::Reports;

/// Processes that are looked at together: this is on a node whose cores may be busy.
const TOGETHER: usize = 4;

type Ranks = Vec<(Rank, u32)>;

/// Looks at the processes of these ranks and reports; never waits.
pub fn look(number: u32, ranks: Ranks, within: Duration, work: Reports<Work>) {
    let until = Instant::now() + within;
    let reporter = work.clone();
    let begun = std::thread::Builder::new()
        .name("outlive-stacks".into())
        .spawn(move || {
            let ranks = find(ranks, until);
            let _ = reporter.send(Work::Stacks { number, ranks });
        });
    if let Err(error) = begun {
        tracing::warn!(%error, "nobody can look at the ranks");
        let ranks = Vec::new();
        let _ = work.send(Work::Stacks { number, ranks });
    }
}

/// What the ranks are doing, in their order.
fn find(ranks: Ranks, until: Instant) -> Vec<RankStacks> {
    let (found_to, found) = unbounded();
    let waiting = Arc::new(Mutex::new(ranks.iter().copied().collect::<VecDeque<_>>()));
    for _ in 0..ranks.len().min(TOGETHER) {
        let (waiting, found_to) = (Arc::clone(&waiting), found_to.clone());
        let begun = std::thread::Builder::new()
            .name("outlive-look".into())
            .spawn(move || look_at_those(&waiting, until, &found_to));
        if let Err(error) = begun {
            tracing::warn!(%error, "one thread less looks at the ranks");
        }
    }
    // It ends with the last who looks.
    drop(found_to);
    let mut all: Vec<RankStacks> = Vec::new();
    while let Ok(one) = found.recv_deadline(until) {
        all.push(one);
    }
    for (rank, pid) in ranks {
        if !all.iter().any(|one| one.rank == rank) {
            all.push(RankStacks {
                rank,
                place: Place {
                    does: "not looked at in time".to_owned(),
                    ..Place::default()
                },
                text: format!("process {pid}: no time was left to look at it\n"),
            });
        }
    }
    all.sort_by_key(|one| one.rank);
    all
}

fn look_at_those(
    waiting: &Mutex<VecDeque<(Rank, u32)>>,
    until: Instant,
    found: &Sender<RankStacks>,
) {
    while Instant::now() < until {
        let mut queue = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((rank, pid)) = queue.pop_front() else {
            return;
        };
        drop(queue);
        if found.send(look_at(rank, pid)).is_err() {
            return;
        }
    }
}

fn look_at(rank: Rank, pid: u32) -> RankStacks {
    let looked = outlive_stacks::of(pid as i32);
    let (place, text) = match looked {
        Ok(process) => {
            let outlive_stacks::Place { does, file, line } = outlive_stacks::place_of(&process);
            let text = outlive_stacks::describe(&process);
            (Place { does, file, line }, text)
        }
        Err(error) => {
            let does = "gone".to_owned();
            let place = Place {
                does,
                ..Place::default()
            };
            (place, format!("process {pid}: {error}\n"))
        }
    };
    RankStacks { rank, place, text }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    struct Blocked(Child);

    impl Blocked {
        fn start() -> Blocked {
            let command = Command::new("cat").stdin(Stdio::piped()).spawn();
            Blocked(command.unwrap())
        }
    }

    impl Drop for Blocked {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn all_ranks_are_told_with_those_that_are_gone() {
        let blocked: Vec<Blocked> = (0..6).map(|_| Blocked::start()).collect();
        let mut ranks: Ranks = (0..)
            .map(Rank)
            .zip(blocked.iter().map(|it| it.0.id()))
            .collect();
        ranks.push((Rank(6), u32::MAX >> 1));
        let found = find(ranks.clone(), Instant::now() + Duration::from_secs(60));
        assert_eq!(found.len(), 7);
        for (at, one) in found.iter().enumerate() {
            assert_eq!(one.rank, Rank(at as u32));
            assert_eq!(one.place.does == "gone", at == 6, "{one:?}");
        }
        assert!(found[0].text.contains("(cat)"), "{found:?}");
        // Without time nobody is looked at, and all are named.
        let late = find(ranks, Instant::now());
        assert_eq!(late.len(), 7);
        let unseen = |one: &RankStacks| one.place.does == "not looked at in time";
        assert!(late.iter().all(unseen), "{late:?}");
    }
}
