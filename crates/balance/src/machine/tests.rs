//! A small deterministic driver: messages travel with random delays, and may be
//! lost or doubled.

use std::collections::BTreeMap;

use super::*;
use crate::flow::{self, Scheme};
use crate::links::Links;
use outlive_base::rng::Sequence;

struct World {
    config: Config,
    machines: Vec<Diffusion>,
    dead: Vec<bool>,
    mail: BTreeMap<(u64, u64), (Peer, Peer, Msg)>,
    sent: u64,
    now: u64,
    random: Sequence,
    loss_per_million: u32,
    flows: BTreeMap<(Peer, Peer), f64>,
    done: BTreeMap<Peer, (u32, bool)>,
}

impl World {
    fn new(size: usize, options: FlowOptions, seed: u64, loss_per_million: u32) -> World {
        let config = Config {
            size: size as u32,
            options,
            resend: Time(400),
        };
        World {
            machines: (0..size).map(|_| Diffusion::new(&config)).collect(),
            dead: vec![false; size],
            config,
            mail: BTreeMap::new(),
            sent: 0,
            now: 0,
            random: Sequence::new(seed, 1),
            loss_per_million,
            flows: BTreeMap::new(),
            done: BTreeMap::new(),
        }
    }

    fn with(&mut self, me: Peer, act: impl FnOnce(&mut Diffusion, &Cx<Diffusion>)) {
        if self.dead[me as usize] {
            return;
        }
        let config = self.config.clone();
        let cx = Cx {
            me,
            now: Time(self.now),
            config: &config,
            seed: 0,
        };
        let mut machine = self.machines[me as usize].clone();
        act(&mut machine, &cx);
        while let Some(output) = machine.poll(&cx, Ready::ALL) {
            match output {
                Output::Send { to, msg, .. } => self.post(me, to, msg),
                Output::Event(Event::Flow { to, amount }) => {
                    self.flows.insert((me, to), amount);
                }
                Output::Event(Event::Done {
                    iterations,
                    converged,
                }) => {
                    self.done.insert(me, (iterations, converged));
                }
                _ => unreachable!("this machine only sends and tells"),
            }
        }
        self.machines[me as usize] = machine;
    }

    fn post(&mut self, from: Peer, to: Peer, msg: Msg) {
        let copies = 1 + u64::from(self.random.chance(self.loss_per_million / 4));
        for _ in 0..copies {
            self.sent += 1;
            let at = self.now + 1 + self.random.below(60);
            if !self.random.chance(self.loss_per_million) {
                self.mail.insert((at, self.sent), (from, to, msg));
            }
        }
    }

    fn start(&mut self, links: &Links, loads: &[f64], speeds: &[f64], absent: &[Peer]) {
        for me in 0..links.count() as u32 {
            let neighbours = links
                .of(me)
                .map(|l| (links.to(l), links.contact(l)))
                .collect();
            let command = Command::Start {
                epoch: 1,
                load: loads[me as usize],
                speed: speeds[me as usize],
                neighbours,
                absent: absent.to_vec(),
            };
            if !absent.contains(&me) {
                self.with(me, |machine, cx| machine.on_command(cx, command));
            }
        }
    }

    fn run(&mut self, until: u64) {
        while self.now < until {
            let config = self.config.clone();
            let due = (0..self.machines.len() as u32).filter(|&p| !self.dead[p as usize]);
            let due = due.filter_map(|me| {
                let cx = Cx {
                    me,
                    now: Time(self.now),
                    config: &config,
                    seed: 0,
                };
                self.machines[me as usize]
                    .deadline(&cx)
                    .map(|at| (at.0, me))
            });
            let due = due.min();
            let first = self.mail.keys().next().copied();
            match (first, due) {
                (Some(key), timeout) if timeout.is_none_or(|(at, _)| key.0 <= at) => {
                    let Some((from, to, msg)) = self.mail.remove(&key) else {
                        return;
                    };
                    self.now = key.0;
                    self.with(to, |machine, cx| machine.on_message(cx, from, msg, None));
                }
                (_, Some((at, me))) => {
                    self.now = at.max(self.now);
                    self.with(me, |machine, cx| machine.on_timeout(cx));
                }
                (_, None) => return,
            }
        }
    }
}

fn case(seed: u64, count: usize) -> (Links, Vec<f64>, Vec<f64>) {
    let mut random = Sequence::new(seed, 2);
    let mut pairs: Vec<(u32, u32, f64)> = (1..count as u32).map(|i| (i - 1, i, 1.0)).collect();
    for _ in 0..2 * count {
        let (a, b) = (
            random.below(count as u64) as u32,
            random.below(count as u64) as u32,
        );
        pairs.push((a, b, 1.0 + random.below(9) as f64));
    }
    let loads = (0..count).map(|_| random.below(1000) as f64).collect();
    let speeds = (0..count).map(|_| 1.0 + random.below(3) as f64).collect();
    (Links::from_contacts(count, pairs), loads, speeds)
}

fn options(seed: u64) -> FlowOptions {
    FlowOptions {
        scheme: [
            Scheme::First,
            Scheme::Second { beta: 1.6 },
            Scheme::Adaptive { gamma: 0.97 },
        ][(seed % 3) as usize],
        check_every: 1 + (seed % 7) as u32,
        check_lag: (seed % 5) as u32,
        pair_threshold: [0.0, 1e-3, 0.02][(seed / 3 % 3) as usize],
        iterations_max: 600,
        ..FlowOptions::default()
    }
}

fn equals_reference(world: &World, links: &Links, loads: &[f64], speeds: &[f64], seed: u64) {
    let reference = flow::diffuse(links, loads, speeds, &world.config.options);
    for me in 0..links.count() as u32 {
        if speeds[me as usize] <= 0.0 {
            continue;
        }
        let done = world.done.get(&me).copied();
        assert_eq!(
            done,
            Some((reference.iterations, reference.converged)),
            "seed {seed}"
        );
        for link in links.of(me) {
            let flow = world.flows[&(me, links.to(link))];
            assert_eq!(flow, reference.amounts[link], "seed {seed} {me}");
        }
    }
}

#[test]
fn equal_to_the_reference_bit_by_bit_in_any_order_of_delivery() {
    for seed in outlive_base::seeds!(120) {
        let (links, loads, speeds) = case(seed, 2 + (seed as usize * 7) % 40);
        let mut world = World::new(links.count(), options(seed), seed, 0);
        world.start(&links, &loads, &speeds, &[]);
        world.run(3_000_000);
        equals_reference(&world, &links, &loads, &speeds, seed);
    }
}

#[test]
fn equal_to_the_reference_when_messages_are_lost_and_doubled() {
    for seed in outlive_base::seeds!(40) {
        let (links, loads, speeds) = case(seed, 2 + (seed as usize * 5) % 20);
        let mut world = World::new(links.count(), options(seed), seed, 100_000);
        world.start(&links, &loads, &speeds, &[]);
        world.run(3_000_000);
        equals_reference(&world, &links, &loads, &speeds, seed);
    }
}

#[test]
fn survivors_of_a_failure_agree_on_the_reference_without_the_dead() {
    for seed in outlive_base::seeds!(40) {
        let count = 6 + (seed as usize * 5) % 20;
        let (links, mut loads, mut speeds) = case(seed, count);
        let mut world = World::new(count, options(seed), seed, 20_000);
        world.start(&links, &loads, &speeds, &[]);
        let mut dead: Vec<Peer> = vec![
            (seed * 3 % count as u64) as u32,
            ((seed * 7 + 1) % count as u64) as u32,
        ];
        dead.dedup();
        for &gone in &dead {
            world.run(world.now + 300);
            world.dead[gone as usize] = true;
            world.done.remove(&gone);
            // The news reaches everyone at another time.
            for me in 0..count as u32 {
                world.run(world.now + 20);
                world.with(me, |machine, cx| {
                    machine.on_command(cx, Command::Failed(gone))
                });
            }
        }
        world.run(3_000_000);
        for &gone in &dead {
            loads[gone as usize] = 0.0;
            speeds[gone as usize] = 0.0;
        }
        let alive = |&(a, b, _): &(u32, u32, f64)| !dead.contains(&a) && !dead.contains(&b);
        let pairs = (0..count as u32).flat_map(|a| {
            let links = &links;
            links.of(a).map(move |l| (a, links.to(l), links.contact(l)))
        });
        let rest = Links::from_contacts(count, pairs.filter(|p| p.0 < p.1).filter(alive));
        equals_reference(&world, &rest, &loads, &speeds, seed);
    }
}

#[test]
fn messages_and_states_are_small_and_one_process_is_done_at_once() {
    assert!(size_of::<Msg>() <= outlive_base::machine::MESSAGE_BYTES_MAX);
    // Of this 24 bytes for each child in the tree of checks.
    assert!(size_of::<Diffusion>() <= 512, "{}", size_of::<Diffusion>());
    assert!(size_of::<Link>() <= 176, "{}", size_of::<Link>());
    let mut world = World::new(1, FlowOptions::default(), 1, 0);
    world.start(&Links::from_pairs(1, []), &[7.0], &[1.0], &[]);
    world.run(1000);
    assert_eq!(world.done.get(&0), Some(&(8, true)));
}
