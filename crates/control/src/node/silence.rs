//! Who is silent: drives the detector, and says what it finds.

use std::collections::VecDeque;

use outlive_base::machine::{Cx, Machine};
use outlive_base::{NodeId, Time};
use outlive_protocols::commit;
use outlive_protocols::detector::{self, Detector};

use super::core::{Core, News};
use super::machines::{Driver, Effect};
use super::service::{self, Service};
use super::shell::Shell;
use crate::orders::{Notice, Order};

/// The number under which words about who is silent travel between nodes.
pub(crate) const fn word_of_silence() -> u8 {
    <Silence as Service>::NUMBER
}

/// The detector, once the job is known.
pub struct Silence {
    detector: Option<Driver<Detector>>,
}

impl Service for Silence {
    type Word = detector::Msg;
    const NUMBER: u8 = 1;

    fn new(_: Time) -> Silence {
        Silence { detector: None }
    }

    fn on_word<S: Shell>(&mut self, core: &mut Core<S>, from: NodeId, word: detector::Msg) {
        self.input(core, |machine, cx| {
            machine.on_message(cx, from.0, word, None);
        });
    }

    fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
        match news {
            News::Configured { joined } => {
                for &node in joined {
                    self.input(core, |machine, cx| {
                        machine.on_command(cx, detector::Command::Joined { node });
                    });
                }
                if self.detector.is_none() {
                    self.start(core);
                }
            }
            &News::Heard(node) => self.input(core, |machine, cx| {
                machine.on_command(cx, detector::Command::Heard { node });
            }),
            _ => {}
        }
    }

    fn on_order<S: Shell>(&mut self, core: &mut Core<S>, order: Order) -> Option<Order> {
        let Order::Silent { node } = order else {
            return Some(order);
        };
        self.input(core, |machine, cx| {
            let message = detector::Msg::Silent { node: node.0 };
            machine.on_message(cx, NodeId::LAUNCHER.0, message, None);
        });
        None
    }

    fn on_time<S: Shell>(&mut self, core: &mut Core<S>) {
        self.input(core, |machine, cx| machine.on_timeout(cx));
    }

    fn deadline<S: Shell>(&self, core: &Core<S>) -> Option<Time> {
        self.detector.as_ref()?.deadline(core.now())
    }
}

impl Silence {
    fn start<S: Shell>(&mut self, core: &mut Core<S>) {
        let Some(config) = core.config() else { return };
        let bounds = config.bounds;
        let detector = detector::Config {
            nodes: config.members.len() as u32,
            interval: Time::from_ms(bounds.heartbeat_ms),
            suspect_timeout: Time::from_ms(bounds.suspect_ms),
            dead_timeout: Time::from_ms(bounds.silence_ms()),
            ..detector::Config::default()
        };
        let (me, seed, now) = (core.me().0, core.spec().job_hash, core.now());
        self.detector = Some(Driver::recover(detector, me, seed, now, Vec::new()));
        self.input(core, |_, _| {});
    }

    fn input<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        input: impl FnOnce(&mut Detector, &Cx<'_, Detector>),
    ) {
        let mut effects = VecDeque::new();
        if let Some(driver) = &mut self.detector {
            driver.input(core.now(), &mut effects, input);
        }
        for effect in effects {
            match effect {
                Effect::Send(to, msg) if to == NodeId::LAUNCHER.0 => tell(core, msg),
                Effect::Send(to, msg) => service::say::<Silence, S>(core, NodeId(to), &msg),
                Effect::Persist(..) => {}
                Effect::Event(event) => found(core, event),
            }
        }
    }
}

fn tell<S: Shell>(core: &mut Core<S>, msg: detector::Msg) {
    match msg {
        detector::Msg::Heartbeat => {
            let (offered, held) = (core.ranks().called_max(), core.has_waiting());
            core.tell(&Notice::Alive { offered, held });
        }
        detector::Msg::Silent { node } => {
            let node = NodeId(node);
            let epoch = core.epoch_of(node);
            core.tell(&Notice::Silent { node, epoch });
        }
        _ => {}
    }
}

fn found<S: Shell>(core: &mut Core<S>, event: detector::Event) {
    match event {
        detector::Event::Suspected { node, silent_for } => {
            let notice = Notice::Suspected {
                node,
                epoch: core.epoch_of(node),
                silent_ms: silent_for.as_ms() as u64,
            };
            core.tell(&notice);
        }
        detector::Event::Cleared { node } => {
            core.tell(&Notice::Cleared { node });
            core.command(commit::Command::Heard { node });
        }
        detector::Event::Dead { node, .. } => {
            let epoch = core.epoch_of(node);
            core.tell(&Notice::Dead { node, epoch });
            core.command(commit::Command::Lost { node });
        }
    }
}
