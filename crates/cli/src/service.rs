//! The hidden subcommands `keeper` and `agent`, which `outlive run` and the keeper
//! start. Who they are comes from the environment.

use outlive_agent::keeper::{self, KeeperOptions};
use outlive_agent::protocol::{AgentSpec, LAUNCHER_VARIABLE, SPEC_VARIABLE};
use outlive_base::{Code, Entity, Error, Result};

/// `outlive keeper`.
pub fn keeper() -> Result<u8> {
    // Only to refuse a start by hand: the agent reads it again.
    spec()?;
    let agent = ["/proc/self/exe", "agent"].map(Into::into).to_vec();
    let mut options = KeeperOptions::new(agent);
    options.parent = std::env::var(LAUNCHER_VARIABLE)
        .ok()
        .and_then(|text| text.parse().ok());
    keeper::run(options)?;
    Ok(0)
}

/// `outlive agent`.
pub fn agent() -> Result<u8> {
    outlive_agent::run(spec()?)?;
    Ok(0)
}

fn spec() -> Result<AgentSpec> {
    let refuse = |reason: String| {
        Error::new(
            Code::InvalidArgument,
            Entity::Option(SPEC_VARIABLE.to_owned()),
            reason,
            "this command is started by outlive run, not by hand",
        )
    };
    let text = std::env::var(SPEC_VARIABLE).map_err(|_| refuse("is not set".into()))?;
    serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))
}
