//! Starting a program under the supervisor.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use outlive_base::{Code, Entity, Error, Result};
use outlive_image::sys as traced;
use outlive_node::cpus::Cpus;

use crate::filter;
use crate::supervisor::{Policy, Supervisor};
use crate::sys;

/// What the C library's allocator is told unless the environment says it already: it takes
/// memory in steps that have room for a huge page, and keeps what was freed, as it does by
/// itself once a program freed a block of 32 MiB. Calls that change the map, and first
/// touches of pages outside of huge ones, are what protection makes dear.
const ALLOCATOR: [(&str, &str); 3] = [
    ("MALLOC_TOP_PAD_", "2097152"),
    ("MALLOC_MMAP_THRESHOLD_", "33554432"),
    ("MALLOC_TRIM_THRESHOLD_", "67108864"),
];

/// Starts `words` (program and arguments), stopped at its first instruction by the
/// supervisor; [`Supervisor::run`] then lets it run.
///
/// # Errors
/// [`Code::CommandFailed`] if it cannot be executed, [`Code::Permission`] if it may not
/// be traced.
pub fn start(supervisor: &mut Supervisor<'_>, policy: &Policy, words: &[String]) -> Result<()> {
    start_on(supervisor, policy, None, words)
}

/// As [`start`], on these CPUs only, which all its threads and processes inherit.
///
/// # Errors
/// As [`start`]; [`Code::CommandFailed`] if none of them is there.
pub fn start_on(
    supervisor: &mut Supervisor<'_>,
    policy: &Policy,
    cpus: Option<&Cpus>,
    words: &[String],
) -> Result<()> {
    let [program, arguments @ ..] = words else {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Call,
            "no program was named",
            "write it after --",
        ));
    };
    find(program)?;
    check_memory(&policy.memory)?;
    supervisor.forget_calls()?;
    let failed = |error: io::Error| {
        let what = format!("start {program}: {error}");
        Error::new(
            Code::CommandFailed,
            Entity::Call,
            what,
            "check the path and the permissions",
        )
    };
    let (mut number, number_to) = pipe().map_err(failed)?;
    let (go_from, go) = pipe().map_err(failed)?;
    let code = filter::program(policy.special, policy.files);
    let mut command = Command::new(program);
    command.args(arguments);
    for (name, value) in ALLOCATOR {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let ends = [number_to.as_raw_fd(), go_from.as_raw_fd()];
    let closed = [number.as_raw_fd(), go.as_raw_fd()];
    // SAFETY: the closure makes system calls on numbers and on memory that it owns.
    unsafe {
        command.pre_exec(move || sys::wait_for_tracer(ends, closed, &code));
    }
    // Spawning returns when the program is executed, for which it needs us.
    let spawned = std::thread::spawn(move || {
        let result = command.spawn();
        drop((number_to, go_from));
        result.map(drop)
    });
    let mut pid = [0; 4];
    let seized = number.read_exact(&mut pid).and_then(|()| {
        let pid = i32::from_le_bytes(pid);
        traced::seize_for_life(pid)?;
        if let Some(cpus) = cpus {
            traced::set_affinity(pid, &cpus.affinity().bytes())?;
        }
        Ok(pid)
    });
    let pid = match seized {
        Ok(pid) => pid,
        Err(error) => {
            drop(go);
            let _ = spawned.join();
            return Err(failed(error));
        }
    };
    supervisor.adopt(pid);
    let mut go = go;
    go.write_all(&[1]).map_err(failed)?;
    // The spawning thread ends with the exec, which the supervisor now handles.
    Ok(())
}

fn pipe() -> io::Result<(File, File)> {
    let mut pair = [0; 2];
    // SAFETY: the array has room for two descriptors, which then belong to the files.
    unsafe {
        if libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((File::from_raw_fd(pair[0]), File::from_raw_fd(pair[1])))
    }
}

/// Looks for the program as exec will, so that a wrong name is told before anything
/// starts.
fn find(program: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let runs = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = if program.contains('/') {
        runs(Path::new(program))
    } else {
        std::env::split_paths(&paths).any(|dir| runs(&dir.join(program)))
    };
    if found {
        return Ok(());
    }
    Err(Error::new(
        Code::CommandFailed,
        Entity::File(program.to_owned()),
        "no such program, or not executable",
        "check the path and the permissions",
    ))
}

/// Refuses a directory in which memory cannot be executed or made.
fn check_memory(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| Error::io(dir, "make", &error))?;
    if sys::is_root() {
        // Programs of all users enter it, and find only what they know the name of.
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(dir, mode).map_err(|error| Error::io(dir, "protect", &error))?;
    }
    let probe = dir.join(format!("probe-{}", std::process::id()));
    let made = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&probe);
    let checked = made.and_then(|file| {
        file.set_len(crate::space::FILE_BYTES - 4096)?;
        if !crate::space::holes(&file)? {
            return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
        }
        sys::try_execute(&file)
    });
    let _ = std::fs::remove_file(&probe);
    checked.map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::new(
            Code::Permission,
            Entity::File(dir.display().to_string()),
            "memory there cannot be executed: the file system is mounted noexec",
            "remount it with exec, or choose another directory",
        ),
        Some(libc::EFBIG | libc::EINVAL) => Error::new(
            Code::InvalidArgument,
            Entity::File(dir.display().to_string()),
            "the file system has no sparse files of 4 TiB with holes that can be punched",
            "use ext4 with blocks of 4 KiB, xfs or tmpfs",
        ),
        _ => Error::io(dir, "probe", &error),
    })
}
