//! The hidden subcommands `keeper` and `agent`, which `outlive run` and the keeper
//! start. Who they are comes from the environment.

use outlive_agent::protocol::{AgentSpec, SPEC_VARIABLE};
use outlive_base::{Code, Entity, Error, Result};

/// `outlive keeper`.
pub fn keeper() -> Result<u8> {
    let _spec = spec()?;
    Err(Error::internal("this build has no keeper"))
}

/// `outlive agent`.
pub fn agent() -> Result<u8> {
    let _spec = spec()?;
    Err(Error::internal("this build has no agent"))
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
