//! The hidden subcommands `keeper` and `agent`, which `outlive run` and the keeper
//! start. Who they are comes from the environment.

use std::ffi::CStr;

use outlive_base::{Code, Entity, Error, Result};
use outlive_control::orders::{AgentSpec, LAUNCHER_VARIABLE, SPEC_VARIABLE};
use outlive_keeper::KeeperOptions;

/// `outlive keeper`.
pub fn keeper() -> Result<u8> {
    // To refuse a start by hand, and for the title: the agent reads it again.
    let spec = spec()?;
    // For the agent too: a batch system may warn every process of a job.
    outlive_launch::sys::ignore_warnings();
    let title = spec.title().map(Into::into);
    name(c"outlive-keeper");
    let agent = ["/proc/self/exe", "agent"].map(Into::into).into_iter();
    let agent = agent.chain(title).collect();
    let mut options = KeeperOptions::new(agent);
    options.parent = std::env::var(LAUNCHER_VARIABLE)
        .ok()
        .and_then(|text| text.parse().ok());
    let launcher = options.parent;
    outlive_keeper::run(options, || {
        outlive_launch::segments::after_launcher(&spec.job_dir, launcher);
    })?;
    Ok(0)
}

/// `outlive agent`.
pub fn agent() -> Result<u8> {
    let spec = spec()?;
    name(c"outlive-agent");
    outlive_agent::run(spec)?;
    Ok(0)
}

/// What `top` and `ps -o comm` show: it is started as `/proc/self/exe`.
fn name(name: &CStr) {
    // A process without its name works as well.
    let _ = rustix::thread::set_name(name);
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
