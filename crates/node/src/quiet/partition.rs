//! The cores as a partition of their own: control groups of version 2 if they have the controller,
//! else of version 1, else none.

use super::step::{Form, Item, Rule, Step, What};
use super::tree::Tree;
use crate::cpus::Cpus;

/// Where control groups of cores can be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mount {
    /// Version 2, with the controller cpuset.
    Two(String),
    /// Version 1.
    One(String),
}

/// A partition that is to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// The group of the command, a path without the slash at its begin.
    pub group: String,
    /// In words.
    pub kind: &'static str,
    /// How.
    pub items: Vec<Item>,
}

/// What is mounted.
pub fn mount(tree: &dyn Tree) -> Option<Mount> {
    let text = tree.read("proc/self/mountinfo").unwrap_or_default();
    let mounts: Vec<(String, String, String)> = text
        .lines()
        .filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let place = before.split(' ').nth(4)?.trim_start_matches('/');
            let mut words = after.split(' ');
            let kind = words.next()?.to_owned();
            Some((place.to_owned(), kind, words.nth(1)?.to_owned()))
        })
        .collect();
    let two = mounts.iter().find(|(place, kind, _)| {
        let controllers = tree.read(&format!("{place}/cgroup.controllers"));
        kind == "cgroup2" && controllers.is_ok_and(|text| text.split_whitespace().any(is_cpuset))
    });
    let one = || {
        let of = |options: &str| options.split(',').any(is_cpuset);
        let mut mounts = mounts.iter();
        mounts.find(|(_, kind, options)| kind == "cgroup" && of(options))
    };
    match two {
        Some((place, ..)) => Some(Mount::Two(place.clone())),
        None => one().map(|(place, ..)| Mount::One(place.clone())),
    }
}

fn is_cpuset(word: &str) -> bool {
    word == "cpuset"
}

fn item(rule: Rule, path: String, form: Form, after: &str, why: &'static str) -> Item {
    let step = Step {
        what: What::File { path, form },
        before: String::new(),
        after: after.to_owned(),
    };
    Item {
        step,
        rule,
        group: "partition",
        why,
    }
}

fn group(path: &str) -> Item {
    Item {
        step: Step::group(path),
        rule: Rule::Vital,
        group: "partition",
        why: "a group for the command",
    }
}

/// The changes that make it. `part`: others are moved away, so that the kernel need not balance
/// load between compute and service cores.
pub fn plan(
    tree: &dyn Tree,
    mount: &Mount,
    id: &str,
    compute: &Cpus,
    service: &Cpus,
    part: bool,
) -> Partition {
    let cores = compute.to_string();
    match mount {
        Mount::Two(base) => {
            let own = format!("{base}/outlive-quiet-{id}");
            let file = |name: &str| format!("{own}/{name}");
            let mut items = Vec::new();
            let below = format!("{base}/cgroup.subtree_control");
            let why = "groups may have cores of their own";
            items.push(item(Rule::Vital, below, Form::Controller, "+cpuset", why));
            items.push(group(&own));
            let why = "the command's cores";
            items.push(item(
                Rule::Vital,
                file("cpuset.cpus"),
                Form::List,
                &cores,
                why,
            ));
            let partition = || file("cpuset.cpus.partition");
            let why = "nobody else's, no load balancing";
            items.push(item(Rule::Part, partition(), Form::Text, "isolated", why));
            let why = "nobody else's, where the kernel knows no isolated ones";
            items.push(item(Rule::IfRefused, partition(), Form::Text, "root", why));
            let why = "a plain group, where neither is possible";
            items.push(item(
                Rule::IfRefused,
                partition(),
                Form::Text,
                "member",
                why,
            ));
            Partition {
                group: own,
                kind: "cgroup v2, isolated partition",
                items,
            }
        }
        Mount::One(base) => one(tree, base, id, &cores, service, part),
    }
}

fn one(
    tree: &dyn Tree,
    base: &str,
    id: &str,
    cores: &str,
    service: &Cpus,
    part: bool,
) -> Partition {
    let own = format!("{base}/outlive-quiet-{id}");
    let helpers = format!("{base}/outlive-quiet-{id}-service");
    let mems = tree.read(&format!("{base}/cpuset.mems"));
    let mems = mems.map_or("0".to_owned(), |text| text.trim().to_owned());
    let place = |of: &str, name: &str| format!("{of}/{name}");
    let why = "memory of all nodes";
    let mut items = vec![
        group(&own),
        item(
            Rule::Vital,
            place(&own, "cpuset.mems"),
            Form::List,
            &mems,
            why,
        ),
        item(
            Rule::Vital,
            place(&own, "cpuset.cpus"),
            Form::List,
            cores,
            "the command's cores",
        ),
        item(
            Rule::Part,
            place(&own, "cpuset.cpu_exclusive"),
            Form::Text,
            "1",
            "no other group beside it may have them",
        ),
        item(
            Rule::Part,
            place(&own, "cpuset.sched_load_balance"),
            Form::Text,
            "0",
            "no load balancing within",
        ),
    ];
    if part {
        let service = service.to_string();
        items.push(Item {
            why: "load stays balanced among service cores",
            ..group(&helpers)
        });
        let path = place(&helpers, "cpuset.mems");
        items.push(item(Rule::Vital, path, Form::List, &mems, why));
        let why = "the service cores";
        let path = place(&helpers, "cpuset.cpus");
        items.push(item(Rule::Vital, path, Form::List, &service, why));
        let path = place(base, "cpuset.sched_load_balance");
        let why = "no load balancing with compute cores";
        items.push(item(Rule::Part, path, Form::Text, "0", why));
    }
    Partition {
        group: own,
        kind: "cgroup v1, cpuset",
        items,
    }
}
