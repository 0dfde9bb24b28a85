//! The detector under delays, loss, starvation and real deaths, from seeds.

use outlive_base::rng::Sequence;
use outlive_base::{NodeId, Time};
use outlive_protocols::detector::{Config, Detector, Event, Record};
use outlive_simulator::network::{Lossy, LossyOptions};
use outlive_simulator::world::{Driver, Faults, Process, World};

type W = World<Detector, Lossy, Watchers>;

#[derive(Default)]
struct Watchers {
    dead: Vec<(Time, Process, NodeId, Option<NodeId>)>,
    suspected: u32,
    cleared: u32,
}

enum Action {
    Kill(Process),
    Pause(Process, Time),
}

impl Driver<Detector, Lossy> for Watchers {
    type Action = Action;
    fn on_event(&mut self, world: &mut W, who: Process, event: Event) {
        match event {
            Event::Dead { node, by_witness } => self.dead.push((world.now, who, node, by_witness)),
            Event::Suspected { .. } => self.suspected += 1,
            Event::Cleared { .. } => self.cleared += 1,
        }
    }
    fn on_durable(&mut self, _: &mut W, _: Process, record: Record) {
        match record {}
    }
    fn on_crash(&mut self, _: &mut W, _: Process) {}
    fn on_action(&mut self, world: &mut W, action: Action) {
        match action {
            Action::Kill(who) => drop(world.kill(who)),
            Action::Pause(who, length) => {
                let until = world.now + length;
                world.pause(who, until);
            }
        }
    }
}

/// Nodes `0..nodes` and the launcher; `act` adds what happens to them.
fn run(seed: u64, nodes: u32, end: Time, act: impl FnOnce(&mut W, &mut Sequence)) -> Watchers {
    let mut random = Sequence::new(seed, 77);
    let net = LossyOptions {
        loss: random.below(100_000) as u32,
        duplicate: 20_000,
        delay_min: Time(50_000),
        delay_max: Time::from_ms(1 + random.below(300)),
        straggle: 5_000,
        straggle_max: Time::from_secs(3),
    };
    let faults = Faults {
        crash: 0,
        refuse: 0,
        sync_max: Time(1),
    };
    let config = Config {
        nodes,
        ..Config::default()
    };
    let mut world: W = World::new(config, Lossy::new(net, seed), faults, seed, false);
    for node in (0..nodes).chain([NodeId::LAUNCHER.0]) {
        let who = world.add(node);
        world.start(who);
    }
    act(&mut world, &mut random);
    let mut watchers = Watchers::default();
    world.run(&mut watchers, end);
    watchers
}

#[test]
fn nobody_is_called_dead_under_delays_loss_and_starvation() {
    let mut suspected = 0;
    for seed in outlive_base::seeds!(40) {
        let nodes = 2 + (seed % 8) as u32;
        let seen = run(seed, nodes, Time::from_secs(60), |world, random| {
            // Every process, the launcher too, is starved again and again: alone for
            // less than dead_timeout, and once all together for much longer.
            for who in 0..=nodes {
                for k in 0..5 {
                    let length = Time::from_ms(random.below(8_000));
                    let at = Time::from_secs(1 + k * 9) + Time::from_ms(random.below(900));
                    world.after(at, Action::Pause(who, length));
                }
                world.after(Time::from_secs(47), Action::Pause(who, Time::from_secs(11)));
            }
        });
        assert!(seen.dead.is_empty(), "seed {seed}: {:?}", seen.dead);
        suspected += seen.suspected;
    }
    assert!(suspected > 0, "without a suspicion the test shows nothing");
}

#[test]
fn a_dead_node_is_found_within_the_bound_by_two_witnesses() {
    for seed in outlive_base::seeds!(40) {
        let nodes = 2 + (seed % 8) as u32;
        let victim = (seed % u64::from(nodes)) as u32;
        let died = Time::from_secs(5);
        let seen = run(seed, nodes, Time::from_secs(30), |world, _| {
            world.after(died, Action::Kill(victim));
        });
        assert!(!seen.dead.is_empty(), "seed {seed}: death not found");
        for &(at, who, node, witness) in &seen.dead {
            assert_eq!(node.0, victim, "seed {seed}: a living node called dead");
            let late = at.since(died);
            // dead_timeout, late heartbeats that were under way, and the exchange.
            let bound = Time::from_secs(10 + 3) + Time::from_secs(1);
            assert!(
                late >= Time::from_secs(9) && late <= bound,
                "seed {seed}: {late}"
            );
            assert!(
                witness.is_some_and(|other| other.0 != who),
                "seed {seed}: one witness only"
            );
        }
    }
}
