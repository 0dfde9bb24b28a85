//! What a command would take of memory is compared with what there is before it begins:
//! nothing ends by an allocation that fails.

use outlive_base::{Code, Entity, Error, Result};
use outlive_control::units::show_bytes;
use rustix::process::{Resource, getrlimit};

use outlive_launch::sys::available_memory;

/// Memory that this process may still take, in bytes; without end if the system does not
/// say.
pub fn available() -> u64 {
    let limits = [Resource::As, Resource::Data].map(|limit| getrlimit(limit).current);
    let bounds = limits.into_iter().chain([available_memory()]);
    bounds.flatten().min().unwrap_or(u64::MAX)
}

/// Refuses what takes more than there is.
///
/// # Errors
/// [`Code::InvalidArgument`], which says how much it would take.
pub fn fits(option: &str, what: &str, bytes: u64) -> Result<()> {
    let available = available();
    if bytes <= available {
        return Ok(());
    }
    let reason = format!(
        "{what} would take about {} of memory; {} are free",
        show_bytes(bytes),
        show_bytes(available)
    );
    let remedy = "give less, or use a machine with more memory";
    let entity = Entity::Option(option.into());
    Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
}
