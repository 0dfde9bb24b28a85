//! What every rail must do, as a test of any.

use std::time::{Duration, Instant};

use outlive_base::Time;

use super::{Content, Frame, Key, News, Rail, STALL};

/// A call that may not block returns within this.
const AT_ONCE: Duration = Duration::from_secs(2);
/// So long nothing more may come, where nothing is to come.
const AFTERWARDS: Duration = Duration::from_millis(300);

macro_rules! holds {
    ($what:expr, $($text:tt)+) => {
        if !$what {
            return Err(format!($($text)+));
        }
    };
}

type Outcome = Result<(), String>;

/// Whether rails keep the promises of [`Rail`]. `open` makes those of a new job of so many
/// processes; one that is dropped is a process that dies. `bound` is how long anything may take
/// that is to happen. `disturb` breaks the connections of
/// one, where [`Can::reliable`](super::Can) says that this loses nothing. Everything runs in
/// one thread, so a rail that waits for another process in a call is found.
///
/// # Errors
/// The first promise that is broken, for people.
pub fn conform<R: Rail + Send>(
    open: impl Fn(u32) -> Vec<R>,
    disturb: impl Fn(&mut R),
    bound: Duration,
) -> Outcome {
    frames_come_once_and_in_order(Process::all(open(3), bound), disturb)?;
    nobody_waits_for_another(Process::all(open(2), bound))?;
    a_death_is_told_once_and_last(Process::all(open(4), bound))?;
    who_leaves_is_not_dead(Process::all(open(3), bound))
}

fn frame(number: u32, bytes: usize) -> Frame {
    let key = Key {
        comm: 7,
        sequence: number,
        incarnation: 0,
        protocol: 1,
    };
    let body = (0..bytes).map(|at| (at as u32 ^ number) as u8).collect();
    Frame {
        key,
        msg: [number as u8; 32],
        body: (number % 5 != 4).then(|| Content::new(body)),
    }
}

/// Lengths of bodies, of which some take many turns to leave.
fn length(number: u32) -> usize {
    [0, 1, 300, 9_000, 0, 70_000, 1 << 20, 17][number as usize % 8]
}

/// A rail, and what came out of it.
struct Process<R: Rail> {
    rail: R,
    bound: Duration,
    /// Sender and frame, in order.
    frames: Vec<(u32, Frame)>,
    /// How many frames had come before each.
    news: Vec<(News, usize)>,
}

/// Runs a call that may not block.
fn at_once<T>(what: &str, call: impl FnOnce() -> T) -> Result<T, String> {
    let begin = Instant::now();
    let result = call();
    let took = begin.elapsed();
    holds!(took < AT_ONCE, "{what} took {took:?}");
    Ok(result)
}

impl<R: Rail> Process<R> {
    fn all(rails: Vec<R>, bound: Duration) -> Vec<Process<R>> {
        let process = |rail| Process {
            rail,
            bound,
            frames: Vec::new(),
            news: Vec::new(),
        };
        rails.into_iter().map(process).collect()
    }

    fn me(&self) -> u32 {
        self.rail.me()
    }

    fn send(&mut self, to: u32, frame: Frame) -> Outcome {
        at_once("send", || self.rail.send(to, frame))
    }

    /// Takes in what is there, and sleeps for a moment if nothing is.
    fn turn(&mut self) -> Outcome {
        let before = (self.frames.len(), self.news.len());
        while let Some(came) = at_once("receive", || self.rail.receive())? {
            self.frames.push(came);
        }
        at_once("look", || self.rail.look())?;
        // What came with the look is given out before the news.
        while let Some(came) = at_once("receive", || self.rail.receive())? {
            self.frames.push(came);
        }
        while let Some(news) = at_once("news", || self.rail.news())? {
            self.news.push((news, self.frames.len()));
        }
        at_once("flushed", || self.rail.flushed())?;
        if before == (self.frames.len(), self.news.len()) {
            self.rail.wait(self.rail.now() + Time::from_ms(1));
        }
        Ok(())
    }

    fn from(&self, sender: u32) -> impl Iterator<Item = &Frame> {
        let sent = move |came: &&(u32, Frame)| came.0 == sender;
        self.frames.iter().filter(sent).map(|came| &came.1)
    }
}

/// Turns all until `done`.
fn turn<R: Rail>(
    all: &mut [Process<R>],
    what: &str,
    mut done: impl FnMut(&mut [Process<R>]) -> bool,
) -> Outcome {
    let bound = all[0].bound;
    let end = Instant::now() + bound;
    while !done(all) {
        all.iter_mut().try_for_each(Process::turn)?;
        holds!(Instant::now() < end, "{what}: not within {bound:?}");
    }
    Ok(())
}

/// Turns all for a while in which nothing is to happen.
fn nothing_more<R: Rail>(all: &mut [Process<R>], what: &str) -> Outcome {
    let counts = |all: &[Process<R>]| -> Vec<_> {
        let count = |one: &Process<R>| (one.frames.len(), one.news.len());
        all.iter().map(count).collect()
    };
    let (before, end) = (counts(all), Instant::now() + AFTERWARDS);
    turn(all, what, |_| Instant::now() >= end)?;
    let news: Vec<_> = all.iter().map(|one| &one.news).collect();
    holds!(
        before == counts(all),
        "{what}: more came, or {news:?} twice"
    );
    Ok(())
}

fn frames_come_once_and_in_order<R: Rail>(
    mut all: Vec<Process<R>>,
    disturb: impl Fn(&mut R),
) -> Outcome {
    const FRAMES: u32 = 60;
    let size = all.len() as u32;
    for (me, one) in (0..).zip(&all) {
        holds!(
            (one.rail.me(), one.rail.size()) == (me, size),
            "another place"
        );
        holds!(!one.rail.name().is_empty(), "it has no name");
    }
    let reliable = all[0].rail.can().reliable;
    for number in 0..FRAMES {
        for me in 0..size {
            for to in (0..size).filter(|to| *to != me) {
                all[me as usize].send(to, frame(number, length(number)))?;
            }
        }
        if reliable && number % 20 == 10 {
            disturb(&mut all[number as usize % 3].rail);
        }
        if number % 8 == 0 {
            all.iter_mut().try_for_each(Process::turn)?;
        }
    }
    let whole = (FRAMES * (size - 1)) as usize;
    turn(&mut all, "frames", |all| {
        all.iter().all(|one| one.frames.len() >= whole)
    })?;
    nothing_more(&mut all, "frames")?;
    for one in &all {
        for from in (0..size).filter(|from| *from != one.me()) {
            let in_order = one.from(from).eq(&(0..FRAMES)
                .map(|number| frame(number, length(number)))
                .collect::<Vec<_>>());
            holds!(
                in_order,
                "from {from} to {}: lost, twice, or out of order",
                one.me()
            );
        }
        holds!(one.news.is_empty(), "{:?} of processes that live", one.news);
    }
    turn(&mut all, "the last bytes", |all| {
        all.iter_mut()
            .all(|one| one.rail.flushed() && one.rail.waiting() == 0)
    })
}

fn nobody_waits_for_another<R: Rail>(mut both: Vec<Process<R>>) -> Outcome {
    const FRAMES: u32 = 24;
    // The other one computes meanwhile.
    for number in 0..FRAMES {
        both[0].send(1, frame(number, 1 << 20))?;
    }
    let stalled = Instant::now() + 3 * STALL;
    turn(&mut both[..1], "a receiver that is late", |one| {
        Instant::now() >= stalled && one[0].rail.waiting() == 0
    })?;
    holds!(
        both[0].news.is_empty(),
        "late is not dead: {:?}",
        both[0].news
    );
    turn(&mut both, "what waited", |both| {
        both[1].frames.len() == FRAMES as usize
    })?;
    let numbers = both[1].from(0).map(|frame| frame.key.sequence);
    holds!(numbers.eq(0..FRAMES), "out of order after waiting");
    Ok(())
}

/// All have heard of all: a rail that connects at first use is connected.
fn acquaint<R: Rail>(all: &mut [Process<R>]) -> Outcome {
    let size = all.len() as u32;
    for (me, one) in (0..).zip(all.iter_mut()) {
        for to in (0..size).filter(|to| *to != me) {
            one.send(to, frame(1000, 1))?;
        }
    }
    let others = all.len() - 1;
    turn(all, "a greeting", |all| {
        all.iter().all(|one| one.frames.len() == others)
    })?;
    all.iter_mut().for_each(|one| one.frames.clear());
    Ok(())
}

fn a_death_is_told_once_and_last<R: Rail>(mut all: Vec<Process<R>>) -> Outcome {
    const FRAMES: u32 = 50;
    acquaint(&mut all)?;
    if !all[0].rail.can().tells_deaths {
        return Ok(());
    }
    let dead = all.len() as u32 - 1;
    for number in 0..FRAMES {
        for to in 0..dead {
            all[dead as usize].send(to, frame(number, 3_000))?;
        }
    }
    turn(&mut all, "the last words", |all| {
        all[dead as usize].rail.flushed()
    })?;
    drop(all.pop());
    turn(&mut all, "a death", |all| {
        all.iter().all(|one| !one.news.is_empty())
    })?;
    for one in &mut all {
        let told = (News::Dead(dead), FRAMES as usize);
        holds!(one.news == [told], "{:?}, not {told:?}", one.news);
        // What is sent to it vanishes.
        for number in 0..10 {
            one.send(dead, frame(number, 100_000))?;
        }
    }
    turn(&mut all, "what is sent to the dead", |all| {
        all.iter_mut()
            .all(|one| one.rail.flushed() && one.rail.waiting() == 0)
    })?;
    nothing_more(&mut all, "after a death")?;
    // The others go on.
    all[0].send(1, frame(7, 70_000))?;
    turn(&mut all, "after a death", |all| {
        all[1].from(0).any(|came| *came == frame(7, 70_000))
    })
}

fn who_leaves_is_not_dead<R: Rail + Send>(mut all: Vec<Process<R>>) -> Outcome {
    const FRAMES: u32 = 10;
    // One has only heard from it; to the other one it says something, at the end.
    all[0].send(2, frame(0, 10))?;
    turn(&mut all, "a greeting", |all| all[2].frames.len() == 1)?;
    for number in 0..FRAMES {
        all[2].send(1, frame(number, 2_000))?;
    }
    let Some(mut leaving) = all.pop() else {
        return Err("three are needed".into());
    };
    std::thread::scope(|scope| {
        // It may wait here, and be dropped as soon as it likes.
        scope.spawn(move || leaving.rail.leave(leaving.bound / 2));
        turn(&mut all, "a goodbye", |all| {
            all.iter().all(|one| !one.news.is_empty())
        })
    })?;
    for (one, came) in all.iter().zip([0, FRAMES as usize]) {
        let told = (News::Left(2), came);
        holds!(one.news == [told], "{:?}, not {told:?}", one.news);
    }
    for one in &mut all {
        one.send(2, frame(0, 100_000))?;
    }
    turn(&mut all, "what is sent to who left", |all| {
        all.iter_mut()
            .all(|one| one.rail.flushed() && one.rail.waiting() == 0)
    })?;
    nothing_more(&mut all, "after a goodbye")
}
