//! What a coordinator knows, as the file `state.json` beside its address says it.

use outlive_control::turns::{Counts, JobSeen, Service, TierSeen};
use serde::Serialize;

/// What the service knows, for people and programs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct State {
    schema: &'static str,
    pid: u32,
    /// Who leads, of how many.
    member: u64,
    members: u8,
    jobs: Vec<StateJob>,
    /// On all tiers.
    turns: Counts,
    tiers: Vec<StateTier>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct StateJob {
    name: String,
    /// Anywhere.
    writing: bool,
    /// Where it takes turns.
    tiers: Vec<StatePlace>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct StatePlace {
    tier: String,
    writing: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct StateTier {
    tier: String,
    jobs: u64,
    writing: u64,
    turns: Counts,
}

impl State {
    /// Of this process, which is a member of so many.
    pub(crate) fn of(service: &Service, member: u64, members: u8) -> State {
        State {
            schema: "outlive.coordinator-state/1",
            pid: std::process::id(),
            member,
            members,
            jobs: service.jobs().map(job).collect(),
            turns: service.counts(),
            tiers: service.tiers().map(tier).collect(),
        }
    }

    pub(crate) const fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }
}

fn job(seen: JobSeen<'_>) -> StateJob {
    StateJob {
        name: seen.name.to_string(),
        writing: seen.writes(),
        tiers: seen
            .tiers
            .into_iter()
            .map(|(tier, writing)| StatePlace {
                tier: tier.to_string(),
                writing,
            })
            .collect(),
    }
}

fn tier(seen: TierSeen<'_>) -> StateTier {
    StateTier {
        tier: seen.tier.to_string(),
        jobs: seen.jobs,
        writing: seen.writing,
        turns: seen.counts,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use outlive_control::turns::Kept;

    use super::*;
    use crate::testing::{TIER, entry};

    #[test]
    fn jobs_and_turns_are_told_of_each_tier() {
        let mut kept = Kept::default();
        for index in 0..2 {
            if let openraft::EntryPayload::Normal(batch) = entry(1, index).payload {
                kept.apply(&batch);
            }
        }
        let state = State::of(kept.service(), 1, 3);
        let found = serde_json::to_value(&state).unwrap();
        let place = serde_json::json!({"tier": TIER, "writing": true});
        let job = serde_json::json!({"name": "job", "writing": true, "tiers": [place]});
        assert_eq!(found["jobs"], serde_json::json!([job]));
        let tier = &found["tiers"][0];
        assert_eq!((&tier["tier"], &tier["jobs"]), (&TIER.into(), &1.into()));
        assert_eq!(tier["turns"], found["turns"]);
        assert_eq!(tier["turns"]["accepted"], 1);
    }
}
