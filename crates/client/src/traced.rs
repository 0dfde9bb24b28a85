//! Who may look at the stacks of this process.
//!
//! Where the Yama module lets only ancestors trace (`kernel.yama.ptrace_scope=1`, the default of
//! some distributions), the agent of the node may not, for it is none. This process allows it to:
//! that one process, of the same user, which it has connected to, and nobody else.

use rustix::process::{PTracer, Pid, set_ptracer};

/// What the kernel's rule is.
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
/// Only ancestors may, and whom a process names.
const ANCESTORS: &str = "1";

/// Lets this process trace us. Without the rule there is nothing to allow, and with a stricter one
/// nothing can be; whom the program itself has named stays in both.
pub(crate) fn by(agent: i32) {
    let scope = std::fs::read_to_string(SCOPE).unwrap_or_default();
    if let (ANCESTORS, Some(agent)) = (scope.trim(), Pid::from_raw(agent)) {
        // Refused: the agent says that it may not look.
        let _ = set_ptracer(PTracer::ProcessID(agent));
    }
}
