//! Reads the sensors of a machine: what `/proc`, `/sys` and a few calls say of its processors,
//! memory, storage, network and clock. [`outlive_control::health`] judges it.
//!
//! Invariants: nothing is changed by reading; a value that is not there makes no sample, one that
//! is there and cannot be read makes an unknown one; what one file does says nothing of others.
//! Each reading may hang, as a dead disk or a driver wants: who must not wait reads on a thread
//! of its own ([`read_within`]).

mod clock;
mod memory;
mod network;
mod nvme;
mod processor;
mod root;
mod storage;

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Result};
use outlive_control::health::Sample;

pub use root::Root;

/// Reads all sensors; `storage` lies in the node's storage.
pub fn read(root: &Root, storage: Option<&Path>) -> Vec<Sample> {
    let mut samples = Vec::new();
    processor::read(root, &mut samples);
    memory::read(root, &mut samples);
    storage::read(root, storage, &mut samples);
    network::read(root, &mut samples);
    if root.is_machine() {
        nvme::read(root, &mut samples);
        clock::read(&mut samples);
    }
    samples
}

/// The same, given up after so long. The thread that reads stays where it hangs.
///
/// # Errors
/// [`Code::TimedOut`] if it takes longer.
pub fn read_within(root: &Root, storage: Option<PathBuf>, within: Duration) -> Result<Vec<Sample>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let read_from = root.clone();
    let work = move || drop(sender.send(read(&read_from, storage.as_deref())));
    std::thread::Builder::new()
        .name("outlive-health".into())
        .spawn(work)
        .map_err(|error| Error::io("thread", "read the sensors", &error))?;
    receiver.recv_timeout(within).map_err(|_| {
        Error::new(
            Code::TimedOut,
            Entity::Call,
            format!("the sensors did not answer within {} s", within.as_secs()),
            "a device or its driver hangs: see the kernel's log",
        )
    })
}
