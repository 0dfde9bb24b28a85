//! What members say to each other.
//!
//! Each listens at an address of its own, which lies in its directory of the store, and all hold
//! one key, which follows from the coordinator's: nobody else is heard (P7). A call is answered once or not at all.
//!
//! Invariants: every call ends, at its bound; what waits for a member that cannot be reached is
//! bounded; an answer goes to the call with its number only.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::Receiver;
use openraft::error::{
    InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable,
};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use outlive_base::{Code, Entity, Error, NodeId, Result};
use outlive_control::orders;
use outlive_launch::coordinator::Address;
use outlive_network::{Endpoint, Event};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::{Raft, Types};

/// Addresses of the others are looked up so often.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Calls that may wait for a member to be reached: what is older is of no use to it.
const WAITING_MAX: usize = 8;

#[derive(Serialize, Deserialize)]
enum Call {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<u64>),
    Snapshot(InstallSnapshotRequest<Types>),
}

#[derive(Serialize, Deserialize)]
enum Back {
    Append(std::result::Result<AppendEntriesResponse<u64>, RaftError<u64>>),
    Vote(std::result::Result<VoteResponse<u64>, RaftError<u64>>),
    Snapshot(
        std::result::Result<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>>,
    ),
}

#[derive(Serialize, Deserialize)]
enum Message {
    Call(u64, Call),
    Back(u64, Back),
}

/// The number of a member on the network.
pub(crate) fn node(member: u64) -> NodeId {
    NodeId(member as u32)
}

/// A member's connections to the others.
pub(crate) struct Wire {
    /// None where there are no others.
    endpoint: Option<Endpoint>,
    /// Where the addresses of the members lie.
    dirs: BTreeMap<u64, PathBuf>,
    calls: Mutex<BTreeMap<u64, oneshot::Sender<Back>>>,
    next: AtomicU64,
}

/// Forgets a call that nobody waits for any more.
struct Waits<'a>(&'a Wire, u64);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.calls().remove(&self.1);
    }
}

impl Wire {
    /// Of a member, with the directories of the others.
    pub(crate) fn new(endpoint: Option<Endpoint>, dirs: BTreeMap<u64, PathBuf>) -> Arc<Wire> {
        Arc::new(Wire {
            endpoint,
            dirs,
            calls: Mutex::default(),
            next: AtomicU64::new(1),
        })
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, oneshot::Sender<Back>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, to: NodeId, message: &Message) -> Result<()> {
        match &self.endpoint {
            Some(endpoint) if endpoint.queued(to) < WAITING_MAX => {
                endpoint.send(to, &orders::encode(message)?)
            }
            _ => Err(Error::new(
                Code::AgentUnreachable,
                Entity::Node(to.0),
                "what it was told before waits still",
                "start outlive coordinator there",
            )),
        }
    }

    async fn call(&self, to: u64, call: Call, bound: Duration) -> std::result::Result<Back, Lost> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.calls().insert(number, answer);
        let _waits = Waits(self, number);
        self.post(node(to), &Message::Call(number, call))
            .map_err(|error| Lost::Unreachable(error.to_string()))?;
        match tokio::time::timeout(bound, answered).await {
            Ok(Ok(back)) => Ok(back),
            _ => Err(Lost::Silent(format!("member {to} has not answered"))),
        }
    }

    /// Carries messages, on threads of its own, as long as the process lives.
    pub(crate) fn start(
        self: &Arc<Wire>,
        raft: &Raft,
        events: Receiver<Event>,
        runtime: &Handle,
    ) -> Result<()> {
        let spawn = |what: &str, body: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(what.to_owned());
            let made = thread.spawn(body).map(drop);
            made.map_err(|error| Error::internal(format!("no thread: {error}")))
        };
        let (wire, raft, runtime) = (self.clone(), raft.clone(), runtime.clone());
        spawn(
            "members",
            Box::new(move || {
                for event in events {
                    wire.hear(&raft, &runtime, event);
                }
            }),
        )?;
        let wire = self.clone();
        spawn("addresses", Box::new(move || wire.look()))
    }

    fn hear(self: &Arc<Wire>, raft: &Raft, runtime: &Handle, event: Event) {
        let (from, bytes) = match event {
            Event::Message { from, bytes } => (from.peer, bytes),
            Event::Refused { addr, error } => {
                return tracing::warn!(%addr, %error, "no member");
            }
            _ => return,
        };
        match orders::decode::<Message>(&bytes) {
            Ok(Message::Call(number, call)) => {
                let (wire, raft) = (self.clone(), raft.clone());
                runtime.spawn(async move {
                    let back = match call {
                        Call::Append(call) => Back::Append(raft.append_entries(call).await),
                        Call::Vote(call) => Back::Vote(raft.vote(call).await),
                        Call::Snapshot(call) => Back::Snapshot(raft.install_snapshot(call).await),
                    };
                    if let Err(error) = wire.post(from, &Message::Back(number, back)) {
                        tracing::info!(%error, "a member is not answered");
                    }
                });
            }
            Ok(Message::Back(number, back)) => {
                let waits = self.calls().remove(&number);
                // Nobody waits any more if it came late.
                waits.map(|waits| waits.send(back).ok());
            }
            Err(error) => tracing::warn!(%error, ?from, "not understood"),
        }
    }

    /// Looks where the others are. One that was started anew is elsewhere.
    fn look(&self) {
        let Some(endpoint) = &self.endpoint else {
            return;
        };
        let mut known: BTreeMap<u64, Address> = BTreeMap::new();
        loop {
            for (&member, dir) in &self.dirs {
                match Address::load(&dir.join("address.json")) {
                    Ok(address) if known.get(&member) != Some(&address) => {
                        endpoint.replace(node(member), address.epoch, address.address);
                        known.insert(member, address);
                    }
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, member, "no address"),
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

enum Lost {
    Unreachable(String),
    Silent(String),
}

impl<E: std::error::Error> From<Lost> for RPCError<u64, (), E> {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Unreachable(why) => {
                RPCError::Unreachable(Unreachable::new(&std::io::Error::other(why)))
            }
            Lost::Silent(why) => RPCError::Network(NetworkError::new(&std::io::Error::other(why))),
        }
    }
}

/// Makes connections for the consensus library.
pub(crate) struct Peers(pub(crate) Arc<Wire>);

/// One member, as another calls it.
pub(crate) struct Peer {
    wire: Arc<Wire>,
    member: u64,
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, member: u64, _: &()) -> Peer {
        let wire = self.0.clone();
        Peer { wire, member }
    }
}

fn other<E: std::error::Error>() -> RPCError<u64, (), E> {
    Lost::Silent("it answers another call".to_owned()).into()
}

impl Peer {
    // The library's own error, by value as it asks for it.
    #[allow(clippy::result_large_err)]
    fn remote<T, E: std::error::Error>(
        &self,
        result: std::result::Result<T, E>,
    ) -> std::result::Result<T, RPCError<u64, (), E>> {
        result.map_err(|error| RPCError::RemoteError(RemoteError::new(self.member, error)))
    }
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> std::result::Result<AppendEntriesResponse<u64>, RPCError<u64, (), RaftError<u64>>> {
        let call = self
            .wire
            .call(self.member, Call::Append(rpc), option.hard_ttl());
        match call.await? {
            Back::Append(result) => self.remote(result),
            _ => Err(other()),
        }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> std::result::Result<
        InstallSnapshotResponse<u64>,
        RPCError<u64, (), RaftError<u64, InstallSnapshotError>>,
    > {
        let call = self
            .wire
            .call(self.member, Call::Snapshot(rpc), option.hard_ttl());
        match call.await? {
            Back::Snapshot(result) => self.remote(result),
            _ => Err(other()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> std::result::Result<VoteResponse<u64>, RPCError<u64, (), RaftError<u64>>> {
        let call = self
            .wire
            .call(self.member, Call::Vote(rpc), option.hard_ttl());
        match call.await? {
            Back::Vote(result) => self.remote(result),
            _ => Err(other()),
        }
    }
}
