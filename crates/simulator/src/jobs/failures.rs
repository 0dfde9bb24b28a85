//! When which component of a machine fails.
//!
//! Components with exponential lives are drawn together: the time to the next of them, then
//! which it is. Each component with a Weibull life has a clock of its own in the event
//! engine's queue; the machine is in service, so that the first of its times is that of the
//! equilibrium, not of a new part.

use outlive_base::Time;
use outlive_base::rng::Sequence;
use outlive_planner::machine::{Life, Machine, Members};

use crate::engine::{Happening, Queue};

/// What happens to a job.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Processes die, nodes stay.
    Light,
    /// Nodes of the job are lost; none: it was not hit.
    Nodes(Vec<u32>),
    /// Shared storage loses what it held.
    Servers {
        /// Place in the machine's list.
        place: usize,
        /// Whether that stops the job.
        stops: bool,
    },
    /// It is announced that the machines will be taken away.
    Announced {
        /// Seconds until then.
        seconds: f64,
    },
    /// The machines were taken away, as announced, with all that lies on them.
    Preempted,
}

/// Where failures come from.
pub trait Failing {
    /// When the next failure comes, in seconds; infinite: never.
    fn next_at(&self) -> f64;
    /// The next failure; only if [`Failing::next_at`] is finite.
    fn take(&mut self) -> (f64, Event);
}

/// Failures that were recorded: their times, ascending.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a>(pub &'a [(f64, Event)]);

impl Failing for Recorded<'_> {
    fn next_at(&self) -> f64 {
        self.0.first().map_or(f64::INFINITY, |first| first.0)
    }
    fn take(&mut self) -> (f64, Event) {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                first.clone()
            }
            None => (f64::INFINITY, Event::Nodes(Vec::new())),
        }
    }
}

/// Failures of one machine up to a moment, then of another.
pub struct Changing<'a> {
    first: Failures<'a>,
    then: Failures<'a>,
    at: f64,
}

impl<'a> Changing<'a> {
    /// From `at` seconds on `then`, which begins there.
    pub fn new(first: Failures<'a>, then: Failures<'a>, at: f64) -> Changing<'a> {
        Changing { first, then, at }
    }
}

impl Failing for Changing<'_> {
    fn next_at(&self) -> f64 {
        let first = self.first.next_at();
        match first < self.at {
            true => first,
            false => self.at + self.then.next_at(),
        }
    }
    fn take(&mut self) -> (f64, Event) {
        if self.first.next_at() < self.at {
            return self.first.take();
        }
        let (at, event) = self.then.take();
        (self.at + at, event)
    }
}

/// Failures, and preemptions that come at a constant rate, each announced some time before. After
/// one the next may be announced at once.
pub struct Preempting<F> {
    failures: F,
    random: Sequence,
    every: f64,
    notice: f64,
    /// When the next is announced, or the machines are taken away.
    next: f64,
    announced: bool,
}

impl<F> Preempting<F> {
    /// Preemptions `every` so many seconds on average, announced `notice` seconds before; of
    /// stream `stream` under a seed.
    pub fn new(failures: F, every: f64, notice: f64, seed: u64, stream: u64) -> Preempting<F> {
        let mut preempting = Preempting {
            failures,
            random: Sequence::new(seed, stream),
            every,
            notice,
            next: 0.0,
            announced: false,
        };
        preempting.next = preempting.wait();
        preempting
    }

    fn wait(&mut self) -> f64 {
        let unit = ((self.random.u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -self.every * libm::log(unit)
    }
}

impl<F: Failing> Failing for Preempting<F> {
    fn next_at(&self) -> f64 {
        self.failures.next_at().min(self.next)
    }
    fn take(&mut self) -> (f64, Event) {
        if self.failures.next_at() < self.next {
            return self.failures.take();
        }
        let at = self.next;
        self.announced = !self.announced;
        if self.announced {
            self.next += self.notice;
            let seconds = self.notice;
            return (at, Event::Announced { seconds });
        }
        self.next += self.wait();
        (at, Event::Preempted)
    }
}

/// A kind of component, all of one life.
struct ComponentClass {
    life: Life,
    count: u32,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Light,
    Node,
    Group(usize),
    Servers(usize),
}

/// What can fail on a machine, for a job on its first nodes.
pub struct Source<'a> {
    machine: &'a Machine,
    nodes: u32,
    kinds: Vec<ComponentClass>,
}

impl<'a> Source<'a> {
    /// The components that matter to a job on the first `nodes` nodes.
    pub fn new(machine: &'a Machine, nodes: u32) -> Source<'a> {
        let mut kinds = Vec::new();
        let mut add = |life: Option<Life>, count, what| {
            if let Some(life) = life {
                kinds.push(ComponentClass { life, count, what });
            }
        };
        add(machine.nodes.light, nodes, What::Light);
        add(machine.nodes.fatal, nodes, What::Node);
        for (place, group) in machine.groups.iter().enumerate() {
            add(Some(group.life), group.sets(nodes), What::Group(place));
        }
        for (place, servers) in machine.servers.iter().enumerate() {
            add(servers.life, servers.count, What::Servers(place));
        }
        Source {
            machine,
            nodes,
            kinds,
        }
    }
}

const NANOS: f64 = 1e9;
/// Components per kind that have clocks of their own: indices have 28 bits.
const CLOCKS_MAX: u32 = 1 << 27;

/// The failures, one after the other.
pub struct Failures<'a> {
    source: Source<'a>,
    random: Sequence,
    /// Failures per second of each kind that is exponential, else 0.
    rates: Vec<f64>,
    total: f64,
    /// The next failure of any exponential component.
    next: f64,
    clocks: Queue,
    /// The first of the queue.
    first: Option<(Time, Happening)>,
}

impl<'a> Failures<'a> {
    /// The failures of stream `stream` under a seed.
    pub fn new(source: Source<'a>, seed: u64, stream: u64) -> Failures<'a> {
        let pooled = |kind: &ComponentClass| kind.life.shape == 1.0 || kind.count > CLOCKS_MAX;
        let rate = |kind: &ComponentClass| {
            if pooled(kind) {
                f64::from(kind.count) / kind.life.mtbf
            } else {
                0.0
            }
        };
        let rates: Vec<f64> = source.kinds.iter().map(rate).collect();
        let total = rates.iter().sum();
        let mut failures = Failures {
            random: Sequence::new(seed, stream),
            rates,
            total,
            next: 0.0,
            clocks: Queue::default(),
            first: None,
            source,
        };
        failures.next = failures.exponential(total);
        for kind in 0..failures.source.kinds.len() {
            let of = &failures.source.kinds[kind];
            if failures.rates[kind] == 0.0 {
                let (life, count) = (of.life, of.count);
                for component in 0..count {
                    let at = failures.equilibrium(life);
                    failures.clock(at, kind, component);
                }
            }
        }
        failures.first = failures.clocks.pop();
        failures
    }

    fn clock(&mut self, at: f64, kind: usize, component: u32) {
        // Beyond five hundred years nothing is simulated.
        if at * NANOS < u64::MAX as f64 {
            self.clocks.push(
                Time((at * NANOS) as u64),
                Happening::new(component, kind as u32, 0),
            );
        }
    }

    /// Uniform in (0, 1).
    fn unit(&mut self) -> f64 {
        ((self.random.u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, rate: f64) -> f64 {
        match rate > 0.0 {
            true => -libm::log(self.unit()) / rate,
            false => f64::INFINITY,
        }
    }

    fn weibull(&mut self, life: Life) -> f64 {
        life.scale() * libm::pow(-libm::log(self.unit()), 1.0 / life.shape)
    }

    /// What is left of a life that is met at a random time: a uniform part of one that is
    /// drawn with a probability in proportion to its length, for which (x / scale)^shape has
    /// a Gamma distribution of 1 + 1 / shape.
    fn equilibrium(&mut self, life: Life) -> f64 {
        let gamma = self.gamma(1.0 + 1.0 / life.shape);
        let whole = life.scale() * libm::pow(gamma, 1.0 / life.shape);
        whole * self.unit()
    }

    /// Gamma of a shape of at least 1 (G. Marsaglia, W. W. Tsang, *A simple method for
    /// generating gamma variables*, ACM TOMS 26, 2000).
    fn gamma(&mut self, shape: f64) -> f64 {
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / libm::sqrt(9.0 * d);
        loop {
            let x = libm::sqrt(-2.0 * libm::log(self.unit()))
                * libm::cos(core::f64::consts::TAU * self.unit());
            let v = libm::pow(1.0 + c * x, 3.0);
            if v > 0.0 && libm::log(self.unit()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v;
            }
        }
    }

    fn event(&mut self, kind: usize, component: u32) -> Event {
        match self.source.kinds[kind].what {
            What::Light => Event::Light,
            What::Node => Event::Nodes(vec![component]),
            What::Servers(place) => {
                let stops = self.source.machine.servers[place].stops_jobs;
                Event::Servers { place, stops }
            }
            What::Group(place) => {
                let group = &self.source.machine.groups[place];
                let mut nodes = group.set(component, self.source.nodes);
                let hits = group.hits;
                if hits < 1.0 {
                    nodes.retain(|_| self.unit() < hits);
                }
                debug_assert!(matches!(group.members, Members::Every(_)) || component == 0);
                Event::Nodes(nodes)
            }
        }
    }
}

impl Failing for Failures<'_> {
    fn next_at(&self) -> f64 {
        let clock = self
            .first
            .map_or(f64::INFINITY, |(at, _)| at.0 as f64 / NANOS);
        self.next.min(clock)
    }

    fn take(&mut self) -> (f64, Event) {
        let at = self.next_at();
        if self.next <= at {
            let mut left = self.unit() * self.total;
            let mut kind = 0;
            while kind + 1 < self.rates.len() && left >= self.rates[kind] {
                left -= self.rates[kind];
                kind += 1;
            }
            self.next = at + self.exponential(self.total);
            let component = self.random.below(u64::from(self.source.kinds[kind].count)) as u32;
            return (at, self.event(kind, component));
        }
        let Some((_, what)) = self.first else {
            return (at, Event::Nodes(Vec::new()));
        };
        let kind = what.kind() as usize;
        let life = self.source.kinds[kind].life;
        let again = at + self.weibull(life);
        self.clock(again, kind, what.who);
        self.first = self.clocks.pop();
        (at, self.event(kind, what.who))
    }
}

#[cfg(test)]
mod tests {
    use outlive_planner::machine;

    use super::*;

    const TEXT: &str = r#"
        [nodes]
        count = 40
        mtbf = "4000 s"
        SHAPE
        light-mtbf = "8000 s"
        [[groups]]
        name = "rack"
        size = 8
        hits = 0.5
        mtbf = "1000 s"
        [[servers]]
        name = "buffer"
        count = 2
        mtbf = "500 s"
        [[levels]]
        kind = "shared"
        servers = "buffer"
        cost = "1 s"
        restart = "1 s"
    "#;

    /// Long-run rates are those of the machine, for exponential and Weibull lives; from the
    /// first second on, because the machine is in service.
    #[test]
    fn rates_are_those_of_the_machine_from_the_beginning() {
        let seed = outlive_base::seed!();
        for shape in ["", "shape = 0.7", "shape = 2.0"] {
            let machine = machine::machine(&TEXT.replace("SHAPE", shape), "m").expect("good");
            // Many short stretches: each as likely as any other time.
            let (mut light, mut nodes, mut hit, mut servers) = (0.0, 0.0, 0.0, 0.0);
            let (streams, span) = (4_000, 200.0);
            for stream in 0..streams {
                let mut failures = Failures::new(Source::new(&machine, 40), seed, stream);
                while failures.next_at() < span {
                    match failures.take().1 {
                        Event::Light => light += 1.0,
                        Event::Nodes(lost) if lost.len() == 1 => nodes += 1.0,
                        Event::Nodes(lost) => hit += lost.len() as f64,
                        Event::Servers { .. } => servers += 1.0,
                        Event::Announced { .. } | Event::Preempted => panic!("none is asked for"),
                    }
                }
            }
            let all = streams as f64 * span;
            // A rack event takes one node with probability 8/256; else 4 - 8/256 on average.
            let racks = all * 5.0 / 1000.0;
            for (what, found, want) in [
                ("light", light, all * 40.0 / 8000.0),
                ("nodes", nodes, all * 40.0 / 4000.0 + racks * 8.0 / 256.0),
                ("racks", hit, racks * (4.0 - 8.0 / 256.0)),
                ("servers", servers, all * 2.0 / 500.0),
            ] {
                let spread = if what == "racks" { 5.0 } else { 1.0 };
                let error = 7.0
                    * libm::sqrt(want * spread)
                    * if shape == "shape = 0.7" { 1.5 } else { 1.0 };
                assert!(
                    (found - want).abs() < error,
                    "seed {seed}: {shape} {what}: {found}, not {want}"
                );
            }
        }
    }
}
