//! Stacks for people.

use std::fmt::Write;

use crate::{Frame, Process, Thread};

/// In words, a line for each frame.
pub fn describe(process: &Process) -> String {
    let mut text = format!("process {} ({})\n", process.pid, process.command);
    for why in &process.incomplete {
        let _ = writeln!(text, "  not all is told: {why}");
    }
    if let Some(python) = &process.python {
        let _ = writeln!(text, "  Python:");
        for line in python.lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    for thread in &process.threads {
        let _ = writeln!(
            text,
            "  thread {} {}, {}",
            thread.tid,
            thread.name,
            does(thread)
        );
        for (number, frame) in thread.frames.iter().enumerate() {
            let _ = writeln!(text, "    {number:>3}  {}", place(frame));
        }
    }
    text
}

fn does(thread: &Thread) -> String {
    match (&thread.call, thread.state) {
        (Some(call), 'D') => format!("in {call}, cannot be interrupted"),
        (Some(call), _) => format!("in {call}"),
        (None, 'R') => "running".to_owned(),
        (None, 'T' | 't') => "stopped".to_owned(),
        (None, 'Z' | 'X') => "ended".to_owned(),
        (None, _) => "sleeping".to_owned(),
    }
}

fn place(frame: &Frame) -> String {
    let function = frame.function.clone();
    let mut text = function.unwrap_or_else(|| format!("{:#x}", frame.address));
    if let Some(source) = &frame.source {
        let _ = write!(text, " at {}", source.file);
        if source.line != 0 {
            let _ = write!(text, ":{}", source.line);
        }
    }
    if let Some(name) = frame.object.as_deref().and_then(|path| path.file_name()) {
        let _ = write!(text, " in {}", name.display());
    }
    if frame.inlined {
        text += " (inlined)";
    }
    text
}
