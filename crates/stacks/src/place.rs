//! Where a process is, in a few words: the innermost function of the program itself, and what it
//! has called of a library. Processes of one program at one place have the same words.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Frame, Process, Thread};

/// Where a process is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// What its first thread does and in which function, for example `running in solve` or
    /// `waiting in MPI_Recv, called by exchange`.
    pub does: String,
    /// The file of that function, without its directory; empty if it is not known.
    pub file: String,
    /// The line; 0 if it is not known.
    pub line: u32,
}

/// Directories of what comes with the system.
const SYSTEM: &[&str] = &["/usr/lib", "/lib", "/usr/local/lib", "/opt/"];
/// How files of libraries begin that programs wait in, wherever they lie.
const LIBRARIES: &[&str] = &[
    "[vdso]",
    "ld-",
    "libc.",
    "libm.",
    "libmpi",
    "libopen-",
    "libpmix",
    "libprrte",
    "libuc",
    "libfabric",
    "libpsm",
    "libhwloc",
    "libevent",
    "libpthread",
    "libgomp",
    "libgfortran",
    "libstdc++",
    "liboutlive",
];
/// What the compiler of the C library puts before its names.
const PREFIXES: &[&str] = &["__GI_", "__libc_", "___", "__", "_"];
/// Where Python's own modules lie.
const PYTHON_OWN: &[&str] = &["/lib/python", "/site-packages/", "<frozen "];

/// Where this process is.
pub fn place_of(process: &Process) -> Place {
    let Some(thread) = process.threads.first() else {
        return Place {
            does: "gone".to_owned(),
            ..Place::default()
        };
    };
    if let Some(place) = process.python.as_deref().and_then(|it| python(it, thread)) {
        return place;
    }
    if thread.frames.is_empty() {
        return blind(process, thread);
    }
    let program = fs::read_link(format!("/proc/{}/exe", process.pid)).ok();
    native(thread, program.as_deref())
}

/// How it is, in a word.
const fn manner(thread: &Thread) -> &'static str {
    match thread.state {
        'T' | 't' => "stopped",
        'Z' | 'X' => "ended",
        'D' => "sleeping in the kernel",
        'R' => "running",
        _ => "waiting",
    }
}

/// Of a thread that could not be stopped: what the kernel tells.
fn blind(process: &Process, thread: &Thread) -> Place {
    let mut does = manner(thread).to_owned();
    if let Some(call) = call(thread) {
        does += &format!(" in {call}");
    } else if let Some(why) = process.incomplete.first().filter(|_| thread.state != 'Z') {
        does += &format!("; it {why}");
    }
    Place {
        does,
        ..Place::default()
    }
}

/// The system call without its arguments, which differ between processes.
fn call(thread: &Thread) -> Option<&str> {
    thread.call.as_deref()?.split('(').next()
}

fn native(thread: &Thread, program: Option<&Path>) -> Place {
    let frames = &thread.frames;
    let own = |frame: &Frame| {
        frame
            .object
            .as_deref()
            .is_some_and(|it| is_own(it, program))
    };
    let named = |frame: &Frame| frame.function.is_some();
    let at = frames
        .iter()
        .position(|frame| own(frame) && named(frame))
        .or_else(|| frames.iter().position(named));
    let manner = manner(thread);
    let Some(at) = at else {
        let call = call(thread).map_or_else(String::new, |call| format!(" in {call}"));
        return Place {
            does: format!("{manner}{call}, in code without names"),
            ..Place::default()
        };
    };
    let frame = &frames[at];
    let function = frame.function.as_deref().unwrap_or_default();
    let called = frames[..at]
        .iter()
        .rev()
        .find_map(|it| it.function.as_deref());
    // Of a program with all libraries in it, only the system call tells.
    let called = called.map(plain).or_else(|| call(thread));
    let does = match called.filter(|called| *called != plain(function)) {
        Some(called) => format!("{manner} in {called}, called by {function}"),
        None => format!("{manner} in {}", plain(function)),
    };
    let source = frame.source.as_ref();
    Place {
        does,
        file: source.map_or_else(String::new, |source| base_name(&source.file)),
        line: source.map_or(0, |source| source.line),
    }
}

/// True for the program, and for objects that are no library of the system or of MPI.
fn is_own(object: &Path, program: Option<&Path>) -> bool {
    if Some(object) == program {
        return true;
    }
    let text = object.to_string_lossy();
    let name = base_name(&text);
    let system = SYSTEM.iter().any(|dir| text.starts_with(dir));
    !system && !LIBRARIES.iter().any(|begin| name.starts_with(begin))
}

/// A function's name as programs call it.
fn plain(name: &str) -> &str {
    if name.starts_with("PMPI_") {
        return &name[1..];
    }
    // C++ and Rust have names of their own.
    if name.contains(':') {
        return name;
    }
    let found = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
    match found {
        Some(rest) if !rest.is_empty() => plain(rest),
        _ => name,
    }
}

fn base_name(path: &str) -> String {
    let path = PathBuf::from(path);
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_default()
}

/// Of what Python says: the innermost function of the program in its first thread, which stands
/// last.
fn python(text: &str, thread: &Thread) -> Option<Place> {
    let (_, frames) = text.rsplit_once("(most recent call first):")?;
    let frames: Vec<(&str, u32, &str)> = frames.lines().filter_map(python_frame).collect();
    let own = |path: &str| !PYTHON_OWN.iter().any(|part| path.contains(part));
    let at = frames.iter().position(|(path, ..)| own(path)).unwrap_or(0);
    let (path, line, function) = *frames.get(at)?;
    let manner = manner(thread);
    let does = match at.checked_sub(1).map(|inner| frames[inner].2) {
        Some(called) => format!("{manner} in {called}, called by {function}"),
        None => format!("{manner} in {function}"),
    };
    Some(Place {
        does,
        file: base_name(path),
        line,
    })
}

/// `  File "job.py", line 12 in solve`.
fn python_frame(line: &str) -> Option<(&str, u32, &str)> {
    let rest = line.trim_start().strip_prefix("File \"")?;
    let (path, rest) = rest.rsplit_once("\", line ")?;
    let (number, function) = rest.split_once(" in ")?;
    Some((path, number.parse().ok()?, function))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    const PROGRAM: &str = "/home/u/heat";

    fn frame(function: &str, object: &str, line: u32) -> Frame {
        Frame {
            address: 1,
            function: Some(function.to_owned()).filter(|name| !name.is_empty()),
            object: Some(object.into()),
            source: (line > 0).then(|| Source {
                file: "/home/u/src/heat.c".to_owned(),
                line,
            }),
            inlined: false,
        }
    }

    fn thread(state: char, call: Option<&str>, frames: Vec<Frame>) -> Thread {
        Thread {
            tid: 1,
            name: "heat".to_owned(),
            state,
            call: call.map(str::to_owned),
            frames,
        }
    }

    fn said(thread: &Thread) -> (String, String, u32) {
        let place = native(thread, Some(Path::new(PROGRAM)));
        (place.does, place.file, place.line)
    }

    #[test]
    fn a_loop_is_where_the_program_is() {
        let frames = vec![frame("solve", PROGRAM, 88), frame("main", PROGRAM, 140)];
        let heat = "heat.c".to_owned();
        let running = said(&thread('R', None, frames.clone()));
        assert_eq!(running, ("running in solve".to_owned(), heat.clone(), 88));
        let stopped = said(&thread('T', None, frames));
        assert_eq!(stopped, ("stopped in solve".to_owned(), heat, 88));
    }

    #[test]
    fn who_waits_is_told_by_what_the_program_has_called() {
        let frames = vec![
            frame("__GI___poll", "/usr/lib/x86_64-linux-gnu/libc.so.6", 0),
            frame("opal_progress", "/home/u/mpi/libopen-pal.so.40", 0),
            frame("PMPI_Recv", "/home/u/mpi/libmpi.so.40", 0),
            frame("exchange", PROGRAM, 120),
            frame("main", PROGRAM, 140),
        ];
        let found = said(&thread('S', Some("poll()"), frames.clone()));
        assert_eq!(found.0, "waiting in MPI_Recv, called by exchange");
        assert_eq!(found.2, 120);
        // MPI libraries wait by turning.
        assert_eq!(
            said(&thread('R', None, frames)).0,
            "running in MPI_Recv, called by exchange"
        );
        // A program with all libraries in it.
        let frames = vec![frame("__libc_read", PROGRAM, 0), frame("main", PROGRAM, 0)];
        let found = said(&thread('S', Some("read(3: pipe:[7])"), frames));
        assert_eq!(found.0, "waiting in read");
        let plugin = vec![
            frame("", "/usr/lib/libc.so.6", 0),
            frame("step", "/home/u/plugins/model.so", 7),
        ];
        let found = said(&thread('S', Some("futex()"), plugin));
        assert_eq!(found.0, "waiting in futex, called by step");
    }

    #[test]
    fn without_names_the_system_call_is_told() {
        let frames = vec![frame("", PROGRAM, 0)];
        let found = said(&thread('S', Some("read(3: pipe:[7])"), frames));
        assert_eq!(found.0, "waiting in read, in code without names");
        let mut process = Process {
            pid: 0,
            command: String::new(),
            threads: vec![thread('D', Some("fsync(4: /x)"), Vec::new())],
            python: None,
            incomplete: vec!["may not be traced".to_owned()],
        };
        assert_eq!(place_of(&process).does, "sleeping in the kernel in fsync");
        process.threads = vec![thread('R', None, Vec::new())];
        assert_eq!(place_of(&process).does, "running; it may not be traced");
        process.threads.clear();
        assert_eq!(place_of(&process).does, "gone");
    }

    #[test]
    fn python_is_told_by_its_own_functions() {
        let text = "Thread 0x1 (most recent call first):\n  File \"/u/job.py\", line 9 in feeds\n\n\
                    Current thread 0x2 (most recent call first):\n  \
                    File \"/usr/lib/python3.13/threading.py\", line 1094 in join\n  \
                    File \"/u/job.py\", line 18 in waits_for_ever\n  \
                    File \"/u/job.py\", line 20 in <module>";
        let place = python(text, &thread('S', None, Vec::new())).unwrap();
        assert_eq!(place.does, "waiting in join, called by waits_for_ever");
        assert_eq!((&*place.file, place.line), ("job.py", 18));
        assert_eq!(python("nothing", &thread('S', None, Vec::new())), None);
    }
}
