//! What the processes of a command are doing, in words: those that are alike together.

use std::fmt::Write;

use outlive_base::count;
use serde::{Deserialize, Serialize};

use crate::orders::Place;

/// Letters of a command line that are shown.
const COMMAND_CHARS: usize = 60;
/// Kinds of processes that a line names.
const SHOWN: usize = 6;

/// A process of the command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Process {
    /// Its number on the launcher's machine.
    pub pid: u32,
    /// Its command line, words separated by blanks.
    pub command: String,
    /// What it does, and where.
    pub place: Place,
    /// The stacks of all its threads, for people.
    pub text: String,
}

/// Processes of one program that do the same.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Alike {
    /// The number of the first of them.
    pub pid: u32,
    /// Its command line, cut if it is long.
    pub command: String,
    /// How many they are.
    pub count: u32,
    /// What they do, and in which function.
    pub does: String,
}

impl core::fmt::Display for Alike {
    /// As in a line: `ssh n3 orted (4712) and 2 like it waiting in poll`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({})", self.command, self.pid)?;
        if self.count > 1 {
            write!(f, " and {} like it", self.count - 1)?;
        }
        write!(f, " {}", self.does)
    }
}

/// Those of one program that do the same together, in the order of the first of each.
pub fn alike(found: &[Process]) -> Vec<Alike> {
    let mut kinds: Vec<(&str, Alike)> = Vec::new();
    for one in found {
        let program = program(&one.command);
        let same =
            |(known, kind): &&mut (&str, Alike)| *known == program && kind.does == one.place.does;
        if let Some((_, kind)) = kinds.iter_mut().find(same) {
            kind.count += 1;
            continue;
        }
        let kind = Alike {
            pid: one.pid,
            command: shown(&one.command),
            count: 1,
            does: one.place.does.clone(),
        };
        kinds.push((program, kind));
    }
    kinds.into_iter().map(|(_, kind)| kind).collect()
}

/// The first word, without its directory.
fn program(command: &str) -> &str {
    let first = command.split(' ').next().unwrap_or_default();
    first.rsplit('/').next().unwrap_or_default()
}

/// On one line, cut if it is long.
fn shown(command: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    let mut letters = command.chars().map(plain);
    let mut text: String = letters.by_ref().take(COMMAND_CHARS).collect();
    if letters.next().is_some() {
        text += "...";
    }
    text
}

/// Kinds in a line, some of them if there are many.
pub fn line(kinds: &[Alike]) -> String {
    let shown = kinds.iter().take(SHOWN).map(ToString::to_string);
    let mut words: Vec<String> = shown.collect();
    let more: u32 = kinds[words.len()..].iter().map(|kind| kind.count).sum();
    if more > 0 {
        words.push(count(more, "other process"));
    }
    words.join("; ")
}

/// What is written of them: `head`, the kinds, then each one's stacks.
pub fn text(head: &str, found: &[Process]) -> String {
    let mut text = format!("{head}\n\n");
    for kind in alike(found) {
        let _ = writeln!(text, "  {kind}");
    }
    for one in found {
        let _ = write!(text, "\n{}", one.text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, command: &str, does: &str) -> Process {
        Process {
            pid,
            command: command.to_owned(),
            place: Place {
                does: does.to_owned(),
                ..Place::default()
            },
            text: format!("process {pid}\n"),
        }
    }

    #[test]
    fn those_that_are_alike_are_one_word() {
        let mut found = vec![process(10, "/opt/bin/mpirun -n 4 ./app", "waiting in poll")];
        for pid in 11..14 {
            let host = format!("ssh n{pid} orted");
            found.push(process(pid, &host, "waiting in read"));
        }
        found.push(process(14, "ssh n14 orted", "stopped"));
        let kinds = alike(&found);
        assert_eq!(
            line(&kinds),
            "/opt/bin/mpirun -n 4 ./app (10) waiting in poll; \
             ssh n11 orted (11) and 2 like it waiting in read; ssh n14 orted (14) stopped"
        );
        let text = text("Head.", &found);
        assert!(
            text.starts_with("Head.\n\n  /opt/bin/mpirun -n 4"),
            "{text}"
        );
        assert!(text.ends_with("\nprocess 13\n\nprocess 14\n"), "{text}");
    }

    #[test]
    fn long_lines_and_many_kinds_are_cut() {
        let long = format!("sh -c {}\nnext", "ä".repeat(100));
        let found: Vec<Process> = (0..9)
            .map(|pid| process(pid, &long, &format!("running in f{pid}")))
            .collect();
        let line = line(&alike(&found));
        assert!(line.ends_with("; 3 other processes"), "{line}");
        assert!(line.contains("ä... (0) running in f0"), "{line}");
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(alike(&[]), []);
        assert_eq!(super::line(&[]), "");
    }
}
