//! The failure detector.

mod types;

use outlive_base::Time;
use outlive_base::machine::{Body, Cx, Fault, Machine, Op, Output, Peer, Ready};

pub use types::*;

/// One instance per node, and one in the launcher.
#[derive(Debug, Default)]
pub struct Detector {}

impl Machine for Detector {
    type Config = Config;
    type Msg = Msg;
    type Command = Command;
    type Record = Record;
    type Event = Event;
    fn on_message(&mut self, _cx: &Cx<Self>, _from: Peer, _msg: Msg, _body: Option<Body>) {}
    fn on_command(&mut self, _cx: &Cx<Self>, _command: Command) {}
    fn on_timeout(&mut self, _cx: &Cx<Self>) {}
    fn on_done(&mut self, _cx: &Cx<Self>, _op: Op, _result: Result<(), Fault>) {}
    fn poll(&mut self, _cx: &Cx<Self>, _ready: Ready) -> Option<Output<Self>> {
        None
    }
    fn deadline(&self, _cx: &Cx<Self>) -> Option<Time> {
        None
    }
    fn recover(_cx: &Cx<Self>, _log: impl Iterator<Item = Record>) -> Self {
        Self::default()
    }
}
