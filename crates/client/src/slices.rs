//! The safe way in: state is lent for the length of a call.

use outlive_base::{Code, Entity, Error, Result};
use outlive_capture::region::Region;
use std::collections::HashMap;

use crate::job::capture::Source;
use crate::job::restore::{Restored, unclaimed};
use crate::job::{Job, Outcome};

impl Job {
    /// Offers a checkpoint of the given bytes (and of the regions of `protect`).
    ///
    /// # Errors
    /// As [`Job::checkpoint`].
    pub fn checkpoint_slices(&mut self, version: u64, state: &[(&str, &[u8])]) -> Result<Outcome> {
        // SAFETY: the sources are borrowed until this call returns.
        unsafe { self.capture_with(version, || Ok(sources(state))) }
    }

    /// As [`Job::checkpoint_now`], of the given bytes.
    ///
    /// # Errors
    /// As [`Job::checkpoint_now`].
    pub fn checkpoint_slices_now(
        &mut self,
        version: u64,
        state: &[(&str, &[u8])],
    ) -> Result<Outcome> {
        // SAFETY: the sources are borrowed until this call returns.
        unsafe { self.capture_now_with(version, || Ok(sources(state))) }
    }

    /// Fills the given slices (and the regions of `protect`) with the newest version
    /// that can be rebuilt; all or nothing.
    ///
    /// # Errors
    /// As [`Job::restore`].
    pub fn restore_slices(&mut self, state: &mut [(&str, &mut [u8])]) -> Result<Restored> {
        self.restore_with(|version, rest| {
            let mut index: HashMap<&str, &mut [u8]> = HashMap::with_capacity(state.len());
            for (name, bytes) in state.iter_mut() {
                index.insert(name, bytes);
            }
            let refuse = |code, name: &str, reason: String| {
                let entity = Entity::Region(name.to_owned());
                Err(Error::new(
                    code,
                    entity,
                    reason,
                    "restore the state that was captured",
                ))
            };
            for one in rest {
                match index.get(one.region.name.as_str()) {
                    None => return Err(unclaimed(one)),
                    Some(bytes) if bytes.len() != one.data.len() => {
                        let reason = format!(
                            "{}, not {}",
                            outlive_base::count(one.data.len() as u64, "byte"),
                            bytes.len()
                        );
                        return refuse(Code::RegionSize, &one.region.name, reason);
                    }
                    Some(_) => {}
                }
            }
            if index.len() != rest.len() {
                let held: std::collections::HashSet<&str> =
                    rest.iter().map(|one| one.region.name.as_str()).collect();
                if let Some(name) = index.keys().filter(|name| !held.contains(*name)).min() {
                    let reason = format!("version {version} has no such region");
                    return refuse(Code::RegionMissing, name, reason);
                }
            }
            for one in rest {
                if let Some(bytes) = index.get_mut(one.region.name.as_str()) {
                    bytes.copy_from_slice(one.data);
                }
            }
            Ok(())
        })
    }
}

fn sources(state: &[(&str, &[u8])]) -> Vec<Source> {
    state
        .iter()
        .map(|(name, bytes)| Source {
            region: Region::memory(*name, bytes.len() as u64),
            data: bytes.as_ptr(),
        })
        .collect()
}
