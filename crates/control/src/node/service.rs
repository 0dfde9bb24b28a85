//! What a node does beside taking versions, one service for each.
//!
//! A new service is a file of its own and one line in the [registry](super::registry): its words
//! for the same service on other nodes, with their bodies, come with it, and its fail points. It
//! sees what is known ([`Core`]'s questions) and says what is to be done; the fields of the core
//! and of other services are closed to it by the compiler.
//!
//! Invariants: a service hears news in the order in which they happened, after the step that made
//! them and before anything else is carried out; all services hear the same, in the order of the
//! list; none takes long.

use outlive_base::ipc::ToAgent;
use outlive_base::{NodeId, Rank, Time};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::core::{Core, News};
use super::shell::{Done, PeerMessage, Shell};
use crate::orders::Order;

/// Who hears and acts. All defaults do nothing, and take nothing that comes.
pub trait Service: Sized {
    /// What it says to itself on other nodes, by [`say`].
    type Word: Serialize + DeserializeOwned;
    /// Names it in messages between nodes; 0 for one that says nothing.
    const NUMBER: u8 = 0;
    /// Places of its own at which a crash can be tested, passed by [`Core::fail_point`].
    const POINTS: &'static [&'static str] = &[];

    /// As a node begins.
    fn new(now: Time) -> Self;
    /// The same service of another node says something.
    fn on_word<S: Shell>(&mut self, _: &mut Core<S>, _: NodeId, _: Self::Word) {}
    /// Something happened here.
    fn on_news<S: Shell>(&mut self, _: &mut Core<S>, _: &News) {}
    /// The launcher orders something; what is not its own it gives back.
    fn on_order<S: Shell>(&mut self, _: &mut Core<S>, order: Order) -> Option<Order> {
        Some(order)
    }
    /// A rank says something; what is not its own it gives back.
    fn on_rank<S: Shell>(
        &mut self,
        _: &mut Core<S>,
        _: (Rank, u32),
        message: ToAgent,
    ) -> Option<ToAgent> {
        Some(message)
    }
    /// Something that took time is done; what it has not asked for it gives back.
    fn on_done<S: Shell>(&mut self, _: &mut Core<S>, done: Done<S::Slab>) -> Option<Done<S::Slab>> {
        Some(done)
    }
    /// Its deadline has come.
    fn on_time<S: Shell>(&mut self, _: &mut Core<S>) {}
    /// When it must be woken.
    fn deadline<S: Shell>(&self, _: &Core<S>) -> Option<Time> {
        None
    }
    /// The node looks around ([`super::looks`]).
    fn on_look<S: Shell>(&mut self, _: &mut Core<S>) {}
    /// When the node is to look around at the latest.
    fn look_at<S: Shell>(&self, _: &Core<S>) -> Option<Time> {
        None
    }
    /// How closely the node is to look around.
    fn haste<S: Shell>(&self, _: &Core<S>) -> Haste {
        Haste::Calm
    }
}

/// How closely a node looks around.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Haste {
    /// As its time allows.
    Calm,
    /// Something may become possible without an event that tells.
    Waiting,
    /// Somebody waits for it.
    Awaited,
}

/// Of a service that says nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Silent {}

/// Says something to the same service of another node.
pub fn say<T: Service, S: Shell>(core: &mut Core<S>, to: NodeId, word: &T::Word) {
    // Nothing that a service says has parts that cannot be written.
    let Ok(bytes) = postcard::to_allocvec(word) else {
        return;
    };
    let service = T::NUMBER;
    core.send(to, &PeerMessage::Service { service, bytes });
}
