//! What the sensors of simulated machines say: all is well, unless a test plants something.

use outlive_base::Time;
use outlive_control::health::{Sample, Sensor};
use outlive_control::node::shell::Done;

use super::node::Process;
use super::{Action, Job};

/// How long a reading takes. Always the same: sensors are no part of what is drawn.
const TAKES: Time = Time::from_ms(1);

/// What a test plants: from some time on a sensor of a node says something else.
#[derive(Clone, Debug)]
pub struct Unwell {
    /// The node.
    pub node: u32,
    /// From when on, and until when.
    pub from: Time,
    /// The end of it.
    pub until: Time,
    /// The sensor.
    pub sensor: Sensor,
    /// What it says.
    pub value: f64,
}

impl Job {
    /// Reads the sensors under an agent.
    pub(super) fn read_sensors(&mut self, who: Process, life: u32) {
        let mut samples = vec![
            Sample::of(Sensor::MemoryAvailable, "", 50.0),
            Sample::of(Sensor::EccUncorrected, "mc0", 0.0),
        ];
        let node = self.home(who).node;
        let here = |it: &&Unwell| it.node == node && (it.from..it.until).contains(&self.now);
        if let Some(planted) = self.options.unwell.as_ref().filter(here) {
            samples.retain(|sample| sample.sensor != planted.sensor);
            samples.push(Sample::of(planted.sensor, "planted", planted.value));
        }
        let done = Box::new(Done::Health(samples));
        self.after(TAKES, Action::Done { who, life, done });
    }
}
