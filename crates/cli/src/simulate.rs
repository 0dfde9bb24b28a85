//! `outlive simulate`: protocols under seeded faults.

use outlive_base::{Code, Entity, Error, Result};

use crate::args::{SimulateOptions, Simulation};

/// Runs histories.
pub fn run(options: &SimulateOptions) -> Result<u8> {
    let what = match options.what {
        Simulation::Commit => "commit",
    };
    Err(Error::new(
        Code::InvalidArgument,
        Entity::Call,
        format!("this build cannot simulate {what}"),
        "use a build with the simulator",
    ))
}
