//! What earlier runs of a job have learned, for the next one.

use outlive_base::{Code, Entity, Error, Result};
use outlive_control::steering::{Energy, Wishes};
use outlive_planner::online::learned::Learned;

use crate::layout;
use crate::store::Store;

/// Adds what earlier runs have learned; what of that is not used.
pub(crate) fn recall(wishes: &mut Wishes, store: &Store) -> impl Iterator<Item = Error> + use<> {
    let (learned, powers) = (learned(store), powers(store));
    let notes = [
        learned.as_ref().err().cloned(),
        powers.as_ref().err().cloned(),
    ];
    wishes.learned = learned.unwrap_or(std::mem::take(&mut wishes.learned));
    wishes.energy = powers.unwrap_or(wishes.energy);
    notes.into_iter().flatten()
}

/// What earlier runs have learned; nonsense is named and not used.
fn learned(store: &Store) -> Result<Learned> {
    let learned = store.job().learned.clone().unwrap_or_default();
    match learned.fault() {
        None => Ok(learned),
        Some(fault) => Err(Error::new(
            Code::Corrupt,
            Entity::File(store.dir().join(layout::JOB).display().to_string()),
            format!("what was learned of costs and failures is not used: {fault}"),
            "nothing: it is learned again, from the defaults",
        )),
    }
}

/// The powers of the job's nodes by this run or, if it says nothing of them, an earlier one;
/// nonsense is named and not used.
fn powers(store: &Store) -> Result<Option<Energy>> {
    match store.job().powers {
        Some(powers) if !powers.is_sound() => Err(Error::new(
            Code::Corrupt,
            Entity::File(store.dir().join(layout::JOB).display().to_string()),
            "the powers of the job's nodes are not used: they are none",
            "give --watts-compute and --watts-checkpoint again, or off for both",
        )),
        powers => Ok(powers),
    }
}
