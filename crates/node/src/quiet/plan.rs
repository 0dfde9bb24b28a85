//! What is to be changed on this machine so that the compute cores are left alone, and what cannot
//! be. Nothing here changes anything.

use std::collections::BTreeMap;

use super::partition::{self, Partition};
use super::step::{Form, Item, Rule, Step, What};
use super::threads;
use super::tree::Tree;
use crate::cpus::Cpus;
use crate::placement;

/// Idle states that take longer to leave than this stay unused on compute cores, microseconds.
const IDLE_LATENCY_US: u64 = 10;
/// Seconds between two rounds of statistics that the kernel collects on each core.
const STAT_INTERVAL_S: &str = "120";

/// What becomes of threads of other programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Others {
    /// They stay where they are.
    Leave,
    /// They go to service cores.
    Move,
    /// Those of these processes do, for tests.
    Only(Vec<u32>),
}

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The name of the run.
    pub id: String,
    /// Cores for the command.
    pub compute: Cpus,
    /// Cores for all else.
    pub service: Cpus,
    /// The command is kept in a control group. Threads of one process that are to run on both
    /// kinds of cores cannot be.
    pub contained: bool,
    /// The command has a real-time class.
    pub real_time: bool,
    /// Threads of others.
    pub others: Others,
    /// This process is root's.
    pub root: bool,
    /// This process, which goes to the service cores by itself.
    pub own: u32,
    /// Settings that others who run have changed: where they are as they should be already, that
    /// must outlive the others.
    pub shared: Vec<What>,
}

/// All of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The partition's group, if one can be made, and its kind.
    pub partition: Option<(String, &'static str)>,
    /// Changes, in their order.
    pub items: Vec<Item>,
    /// What is left as it is, and why.
    pub notes: Vec<String>,
}

struct Planner<'a> {
    tree: &'a dyn Tree,
    request: &'a Request,
    items: Vec<Item>,
    notes: Vec<String>,
}

/// Threads that were started while others were moved, by one that had not been moved yet.
pub fn late(tree: &dyn Tree, request: &Request) -> Vec<Item> {
    let mut planner = Planner {
        tree,
        request,
        items: Vec::new(),
        notes: Vec::new(),
    };
    planner.threads();
    planner.forbidden();
    planner.items
}

/// Makes the plan.
pub fn plan(tree: &dyn Tree, request: &Request) -> Plan {
    let mut planner = Planner {
        tree,
        request,
        items: Vec::new(),
        notes: Vec::new(),
    };
    planner.far();
    planner.interrupts();
    planner.workqueues();
    planner.daemons();
    planner.power();
    planner.threads();
    let partition = planner.partition();
    planner.last();
    planner.forbidden();
    planner.boot();
    let Planner { items, notes, .. } = planner;
    Plan {
        partition: partition.map(|made| (made.group, made.kind)),
        items,
        notes,
    }
}

impl Planner<'_> {
    /// Says which compute cores are helped from another NUMA node.
    fn far(&mut self) {
        let read = |path: &str| self.tree.read(&format!("sys/{path}")).ok();
        let nodes = placement::nodes_by(&read);
        if nodes.len() < 2 {
            return;
        }
        let Request {
            compute, service, ..
        } = self.request;
        for (node, cpus) in &nodes {
            let here = compute.and(cpus);
            if !here.is_empty() && service.is_disjoint(cpus) {
                self.notes.push(format!(
                    "cores {here} lie on NUMA node {node}, which has no service core: who helps them (partners of \
                     decoupled threads, agents) reaches their memory from another node; leave one of \
                     {cpus} to --service"
                ));
            }
        }
    }

    /// Adds a change, if its file is there and it is one.
    fn set(&mut self, group: &'static str, path: &str, form: Form, after: &str, why: &'static str) {
        let what = What::File {
            path: path.to_owned(),
            form,
        };
        let Ok(before) = what.now(self.tree) else {
            return;
        };
        if what.same(&before, after) && !self.is_shared(&what) {
            return;
        }
        self.items.push(Item {
            step: Step {
                what,
                before,
                after: after.to_owned(),
            },
            rule: Rule::Alone,
            group,
            why,
        });
    }

    fn is_shared(&self, what: &What) -> bool {
        self.request.shared.iter().any(|shared| shared.is(what))
    }

    /// Where cores that lie in `now` go: without compute cores; `None` if none is among them.
    fn cleared(&self, now: &Cpus) -> Option<Cpus> {
        let Request {
            compute, service, ..
        } = self.request;
        if now.and(compute).is_empty() {
            return None;
        }
        let rest = now.and(service);
        Some(if rest.is_empty() {
            service.clone()
        } else {
            rest
        })
    }

    /// A file with a set of cores.
    fn clear(&mut self, group: &'static str, path: &str, form: Form, why: &'static str) {
        let text = self.tree.read(path).unwrap_or_default();
        let now = match form {
            Form::Mask => Cpus::of_mask(&text),
            _ => Cpus::of_list(&text),
        };
        // What lies right because of somebody else is shared: `set` leaves the rest out.
        let cleared = now.map(|now| self.cleared(&now).unwrap_or(now));
        if let Some(cleared) = cleared {
            let after = match form {
                Form::Mask => cleared.mask(),
                _ => cleared.to_string(),
            };
            self.set(group, path, form, &after, why);
        }
    }

    fn interrupts(&mut self) {
        let why = "new interrupts go to service cores";
        self.clear(
            "interrupts",
            "proc/irq/default_smp_affinity",
            Form::Mask,
            why,
        );
        let why = "interrupts of devices go to service cores";
        for name in self.tree.names("proc/irq") {
            let path = format!("proc/irq/{name}/smp_affinity_list");
            self.clear("interrupts", &path, Form::List, why);
        }
    }

    fn workqueues(&mut self) {
        let base = "sys/devices/virtual/workqueue";
        let why = "deferred work of the kernel goes to service cores (writeback and others)";
        for name in self.tree.names(base) {
            let path = format!("{base}/{name}/cpumask");
            self.clear("workqueues", &path, Form::Mask, why);
        }
        self.clear("workqueues", &format!("{base}/cpumask"), Form::Mask, why);
    }

    fn daemons(&mut self) {
        let group = "services of the kernel";
        let why = "watchdogs of lock-ups watch service cores only";
        self.clear(group, "proc/sys/kernel/watchdog_cpumask", Form::List, why);
        let mut set = |path, after, why| self.set(group, path, Form::Text, after, why);
        let why = "statistics of memory are collected less often";
        set("proc/sys/vm/stat_interval", STAT_INTERVAL_S, why);
        let path = "sys/kernel/mm/transparent_hugepage/khugepaged/defrag";
        set(path, "0", "no memory is moved to make huge pages");
        let path = "proc/sys/vm/compaction_proactiveness";
        set(path, "0", "no memory is moved in advance");
        let path = "proc/sys/kernel/numa_balancing";
        set(path, "0", "no page is unmapped to see who uses it");
        let swaps = self.tree.read("proc/swaps").unwrap_or_default();
        if swaps.lines().count() > 1 {
            let why = "memory of programs is swapped out last";
            self.set(group, "proc/sys/vm/swappiness", Form::Text, "0", why);
        }
        let merging = self.tree.read("sys/kernel/mm/ksm/run");
        if merging.is_ok_and(|text| text.trim() == "1") {
            let why = "equal pages are not looked for";
            self.set(group, "sys/kernel/mm/ksm/run", Form::Text, "0", why);
        }
    }

    fn power(&mut self) {
        let (tree, group) = (self.tree, "frequency and idle states");
        let cores: Vec<u32> = self.request.compute.iter().collect();
        for core in cores {
            let base = format!("sys/devices/system/cpu/cpu{core}");
            let offered = tree.read(&format!("{base}/cpufreq/scaling_available_governors"));
            let offered = offered.unwrap_or_default();
            if offered.split_whitespace().any(|word| word == "performance") {
                let path = format!("{base}/cpufreq/scaling_governor");
                let why = "the frequency stays up";
                self.set(group, &path, Form::Text, "performance", why);
            }
            for state in tree.names(&format!("{base}/cpuidle")) {
                let place = format!("{base}/cpuidle/{state}");
                let latency = tree.read(&format!("{place}/latency")).unwrap_or_default();
                let deep = latency
                    .trim()
                    .parse::<u64>()
                    .is_ok_and(|us| us > IDLE_LATENCY_US);
                if deep {
                    let why = "no idle state that is slow to leave";
                    self.set(group, &format!("{place}/disable"), Form::Text, "1", why);
                }
            }
        }
    }

    fn threads(&mut self) {
        let mut left = 0;
        for thread in threads::all(self.tree) {
            if thread.name == "irqbalance" && !thread.kernel {
                let list = &self.request.compute;
                self.notes.push(format!(
                    "irqbalance runs and may move interrupts back: stop it, or give it \
                     IRQBALANCE_BANNED_CPULIST={list}"
                ));
            }
            let what = What::Thread {
                pid: thread.pid,
                tid: thread.tid,
                start: thread.start,
                name: thread.name.clone(),
            };
            let cleared = self.cleared(&thread.allowed);
            let shared = || self.is_shared(&what).then(|| thread.allowed.clone());
            let Some(after) = cleared.or_else(shared).filter(|_| thread.movable) else {
                continue;
            };
            let wanted = match (&self.request.others, thread.kernel) {
                // Those of an interrupt follow it by themselves.
                (_, true) => !thread.name.starts_with("irq/"),
                (_, false) if thread.pid == self.request.own => false,
                (Others::Move, _) => true,
                (Others::Only(pids), _) => pids.contains(&thread.pid),
                (Others::Leave, _) => {
                    left += 1;
                    false
                }
            };
            if !wanted {
                continue;
            }
            let (group, why) = match thread.kernel {
                true => (
                    "threads of the kernel",
                    "they work on service cores (RCU's too)",
                ),
                false => ("threads of other programs", "they run on service cores"),
            };
            let step = Step {
                what,
                before: thread.allowed.to_string(),
                after: after.to_string(),
            };
            self.items.push(Item {
                step,
                rule: Rule::Alone,
                group,
                why,
            });
        }
        if left > 0 {
            self.notes.push(format!(
                "threads of other programs that may run on compute cores: {left}; they were left \
                 where they are (--others leave)"
            ));
        }
    }

    fn partition(&mut self) -> Option<Partition> {
        let Request {
            id,
            compute,
            service,
            ..
        } = self.request;
        if !self.request.contained {
            self.notes.push(
                "the command's partners run on service cores, and a control group would keep them with \
                 it: the command is bound to its cores by affinity alone, which it can change"
                    .to_owned(),
            );
            return None;
        }
        let Some(mount) = partition::mount(self.tree) else {
            self.notes.push(
                "no control groups with cores are mounted (cpuset, version 1 or 2): the command is \
                 bound to its cores by affinity alone, which it can change"
                    .to_owned(),
            );
            return None;
        };
        let part = self.request.others != Others::Leave && self.request.root;
        let made = partition::plan(self.tree, &mount, id, compute, service, part);
        let base = match &mount {
            partition::Mount::One(base) | partition::Mount::Two(base) => base,
        };
        if !self.tree.writable(base) {
            self.notes.push(format!(
                "no control group can be made in /{base}, which takes root: the command is bound \
                 to its cores by affinity alone, which it can change"
            ));
            return None;
        }
        self.items.extend(made.items.iter().cloned());
        Some(made)
    }

    /// What disturbs the steps before it comes after them.
    fn last(&mut self) {
        let group = "services of the kernel";
        let why = "no hurried grace periods of RCU, which interrupt all cores";
        self.set(group, "sys/kernel/rcu_normal", Form::Text, "1", why);
        if self.request.real_time {
            let path = "proc/sys/kernel/sched_rt_runtime_us";
            let why = "a real-time command is not stopped for 50 ms of each second";
            self.set("the real-time limit", path, Form::Text, "-1", why);
        }
    }

    /// Takes out what this user may not change.
    fn forbidden(&mut self) {
        let (tree, root) = (self.tree, self.request.root);
        let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
        self.items.retain(|item| {
            let allowed = match &item.step.what {
                // Those in a group are there when the group is.
                What::File { path, .. } => item.rule != Rule::Alone || tree.writable(path),
                What::Group { .. } => true,
                What::Thread { .. } => root,
            };
            if !allowed {
                *counts.entry(item.group).or_default() += 1;
            }
            allowed
        });
        if !counts.is_empty() {
            let parts = counts
                .iter()
                .map(|(group, count)| format!("{group} ({count})"));
            let parts: Vec<String> = parts.collect();
            let who = match root {
                true => {
                    "they cannot be written here (a container, or a file system that is read-only)"
                }
                false => "to change them takes root",
            };
            self.notes
                .push(format!("stay as they are: {}; {who}", parts.join(", ")));
        }
    }

    /// What only the boot line can do.
    fn boot(&mut self) {
        let Request {
            compute, service, ..
        } = self.request;
        let line = self.tree.read("proc/cmdline").unwrap_or_default();
        let has = |name: &str| {
            let mut words = line
                .split_whitespace()
                .filter_map(|word| word.split_once('='));
            words.any(|(key, _)| key == name)
        };
        let wanted = [
            ("isolcpus", format!("isolcpus=managed_irq,domain,{compute}")),
            ("nohz_full", format!("nohz_full={compute}")),
            ("rcu_nocbs", format!("rcu_nocbs={compute}")),
            ("irqaffinity", format!("irqaffinity={service}")),
        ];
        let missing: Vec<String> = wanted
            .into_iter()
            .filter(|(name, _)| !has(name))
            .map(|(_, words)| words)
            .collect();
        if !missing.is_empty() {
            self.notes.push(format!(
                "only at boot (timer ticks, RCU callbacks, interrupts that drivers manage), to be \
                 added to the kernel's line: {}",
                missing.join(" ")
            ));
        }
        if self.tree.read("sys/devices/system/cpu/nohz_full").is_err() {
            self.notes.push(
                "this kernel is built without NO_HZ_FULL: the timer ticks on each busy core, \
                 whatever its line says"
                    .to_owned(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::planted::Planted;
    use super::super::tests::{dead, list};
    use super::*;

    #[test]
    fn cores_that_are_helped_from_another_numa_node_are_told() {
        let tree = Planted::new(1);
        let told = |request: &Request| {
            let notes = plan(&tree, request).notes.into_iter();
            notes
                .filter(|note| note.contains("NUMA"))
                .collect::<Vec<_>>()
        };
        let request = Request {
            compute: list("1-3"),
            service: list("0"),
            ..dead()
        };
        assert_eq!(told(&request), [""; 0], "the kernel tells of no nodes");
        tree.plant("sys/devices/system/node/online", "0-1");
        tree.plant("sys/devices/system/node/node0/cpulist", "0-1");
        tree.plant("sys/devices/system/node/node1/cpulist", "2-3");
        let notes = told(&request);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(
            notes[0].starts_with("cores 2-3 lie on NUMA node 1,"),
            "{notes:?}"
        );
        let request = Request {
            compute: list("1,3"),
            service: list("0,2"),
            ..request
        };
        assert_eq!(told(&request), [""; 0]);
    }
}
