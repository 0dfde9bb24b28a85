//! One change of one setting: how its value is read, compared and written.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::threads;
use super::tree::Tree;
use crate::cpus::Cpus;

/// The value of a directory that is there, and of one that is not.
const THERE: &str = "there";
const ABSENT: &str = "absent";
/// How often a control group is tried to be removed, and what lies between: its last members may be
/// ending.
const REMOVE_MAX: u32 = 200;
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// How two values of a file are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// Word by word.
    Text,
    /// As lists of cores.
    List,
    /// As masks of cores.
    Mask,
    /// A controller that is switched on or off for groups below: `+cpuset`, `-cpuset`.
    Controller,
}

/// What is changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// The text of a file.
    File {
        /// Without the slash at its begin.
        path: String,
        /// How it is compared.
        form: Form,
    },
    /// Whether a control group is there.
    Group {
        /// Without the slash at its begin.
        path: String,
    },
    /// Where a thread may run.
    Thread {
        /// Its process.
        pid: u32,
        /// Its number.
        tid: u32,
        /// When it began: another thread may get the number.
        start: u64,
        /// Its name.
        name: String,
    },
}

/// A change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Of what.
    pub what: What,
    /// The value before.
    pub before: String,
    /// The value after.
    pub after: String,
}

/// When a change is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// For itself.
    Alone,
    /// Without it there is no partition.
    Vital,
    /// Of the partition, which does without.
    Part,
    /// Of the partition, if what stands before it was refused.
    IfRefused,
}

/// A change to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// The change.
    pub step: Step,
    /// When.
    pub rule: Rule,
    /// Of which kind, in the plural.
    pub group: &'static str,
    /// What it is good for.
    pub why: &'static str,
}

impl Step {
    /// That a group shall be there.
    pub fn group(path: &str) -> Step {
        Step {
            what: What::Group { path: path.into() },
            before: ABSENT.into(),
            after: THERE.into(),
        }
    }
}

impl What {
    /// For people: `/proc/sys/vm/swappiness`.
    pub fn shown(&self) -> String {
        match self {
            What::File { path, .. } | What::Group { path } => format!("/{path}"),
            What::Thread { tid, name, .. } => format!("thread {tid} ({name})"),
        }
    }

    /// The value now.
    ///
    /// # Errors
    /// Those of the file; [`io::ErrorKind::NotFound`] if file or thread is gone.
    pub fn now(&self, tree: &dyn Tree) -> io::Result<String> {
        match self {
            What::File { path, form } => {
                let text = tree.read(path)?;
                Ok(match form {
                    Form::Controller => {
                        let on = text.split_whitespace().any(|word| word == "cpuset");
                        if on { "+cpuset" } else { "-cpuset" }.to_owned()
                    }
                    _ => text.trim().to_owned(),
                })
            }
            What::Group { path } => match tree.read(&format!("{path}/cgroup.procs")) {
                Ok(_) => Ok(THERE.to_owned()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ABSENT.to_owned()),
                Err(error) => Err(error),
            },
            What::Thread {
                pid, tid, start, ..
            } => {
                let found = threads::one(tree, *pid, *tid).filter(|found| found.start == *start);
                let found = found.ok_or(io::ErrorKind::NotFound)?;
                Ok(found.allowed.to_string())
            }
        }
    }

    /// Gives it this value.
    ///
    /// # Errors
    /// What the kernel has against it.
    pub fn put(&self, tree: &dyn Tree, value: &str) -> io::Result<()> {
        match self {
            What::File { path, .. } => tree.write(path, value),
            What::Group { path } if value == THERE => tree.make(path),
            What::Group { path } => remove(tree, path),
            What::Thread { pid, tid, .. } => {
                let cpus = Cpus::of_list(value).ok_or(io::ErrorKind::InvalidData)?;
                tree.confine(*pid, *tid, &cpus)
            }
        }
    }

    /// Whether two values are one.
    pub fn same(&self, one: &str, other: &str) -> bool {
        let form = match self {
            What::File { form, .. } => *form,
            What::Group { .. } => Form::Text,
            What::Thread { .. } => Form::List,
        };
        let both = |read: fn(&str) -> Option<Cpus>| match (read(one), read(other)) {
            (Some(one), Some(other)) => one == other,
            _ => one == other,
        };
        match form {
            Form::List => both(Cpus::of_list),
            Form::Mask => both(Cpus::of_mask),
            Form::Text | Form::Controller => one.split_whitespace().eq(other.split_whitespace()),
        }
    }

    /// The same setting: a thread's name may change.
    pub fn is(&self, other: &What) -> bool {
        let key = |what: &What| match what {
            What::File { path, .. } | What::Group { path } => (path.clone(), 0, 0),
            What::Thread { tid, start, .. } => (String::new(), *tid, *start),
        };
        key(self) == key(other)
    }

    /// A file that comes and goes with this group.
    pub fn holds(&self, other: &What) -> bool {
        match (self, other) {
            (What::Group { path }, What::File { path: file, .. }) => file
                .strip_prefix(path.as_str())
                .is_some_and(|rest| rest.starts_with('/')),
            _ => false,
        }
    }
}

/// Removes a control group. What is still in it goes on in the group above.
fn remove(tree: &dyn Tree, path: &str) -> io::Result<()> {
    let above = path.rsplit_once('/').map_or("", |pair| pair.0);
    let mut tried = 0;
    loop {
        let members = tree.read(&format!("{path}/cgroup.procs"));
        for member in members.unwrap_or_default().split_whitespace() {
            // One that has ended meanwhile is no fault.
            let _ = tree.write(&format!("{above}/cgroup.procs"), member);
        }
        match tree.remove(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tried < REMOVE_MAX => {
                tried += 1;
                std::thread::sleep(REMOVE_PAUSE);
            }
            done => return done,
        }
    }
}
