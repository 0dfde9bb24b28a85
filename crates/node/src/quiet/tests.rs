//! Runs on a machine made of files: cut short everywhere, refused, disturbed, overlapping. Afterwards
//! every file must be as before.

use std::collections::BTreeMap;

use outlive_base::{Code, Error, Result};

use super::act::{Fate, Undone, has_partition};
use super::journal::{self, Head, JOURNAL, Record, parse};
use super::plan::{Others, Plan, Request, plan};
use super::planted::{Planted, in_memory};
use super::step::{Rule, What};
use super::store::{self, Here, Owner, Store, cores, look};
use super::tree::Tree;
use crate::cpus::Cpus;

pub(super) fn list(text: &str) -> Cpus {
    Cpus::of_list(text).unwrap()
}

fn here() -> Here {
    Here {
        boot: "boot-1".into(),
        namespace: "pid:[1]".into(),
    }
}

/// A run on these cores; the process of its owner is that number.
fn request(pid: u32, compute: &str, service: &str) -> Request {
    Request {
        id: format!("{pid}-90"),
        compute: list(compute),
        service: list(service),
        contained: true,
        real_time: true,
        others: Others::Move,
        root: true,
        own: pid,
        shared: Vec::new(),
    }
}

fn head(request: &Request) -> Head {
    Head {
        schema: JOURNAL.into(),
        id: request.id.clone(),
        pid: request.own,
        start: 90,
        boot: "boot-1".into(),
        namespace: "pid:[1]".into(),
        compute: request.compute.to_string(),
        service: request.service.to_string(),
        command: "app".into(),
    }
}

/// Cuts a run short at its `at`-th point.
fn cut(at: usize) -> impl FnMut() -> Result<()> {
    let mut passed = 0;
    move || {
        passed += 1;
        match passed == at {
            true => Err(Error::internal("cut")),
            false => Ok(()),
        }
    }
}

struct World {
    tree: Planted,
    journals: tempfile::TempDir,
    before: BTreeMap<String, String>,
}

impl World {
    fn new(version: u32) -> World {
        let tree = Planted::new(version);
        let before = tree.snapshot();
        World {
            tree,
            journals: in_memory(),
            before,
        }
    }

    fn store(&self) -> Store {
        Store::open(self.journals.path()).unwrap()
    }

    fn begin(&self, request: &Request, at: usize) -> Result<(Plan, Vec<Fate>)> {
        let request = &Request {
            shared: store::shared(&look(self.journals.path()).unwrap()),
            ..request.clone()
        };
        let plan = plan(&self.tree, request);
        let head = head(request);
        let store = self.store();
        let mut journal = store.journal(&head)?;
        let fates = store.begin(&self.tree, &mut journal, request, &plan, &mut cut(at))?;
        Ok((plan, fates))
    }

    fn end(&self, request: &Request) -> Undone {
        self.store()
            .end(&self.tree, &request.id, None, &mut cut(0))
            .unwrap()
    }

    fn restore(&self, at: usize) -> Result<Vec<(Head, Owner, Undone)>> {
        self.store().restore(&self.tree, &here(), &mut cut(at))
    }

    /// Everything is as before, and no journal is left.
    fn is_as_before(&self, what: &str) {
        let now = self.tree.snapshot();
        let differs = |key: &&String| now.get(*key) != self.before.get(*key);
        let keys = now.keys().chain(self.before.keys());
        let different: Vec<_> = keys
            .filter(differs)
            .map(|key| (key, self.before.get(key), now.get(key)))
            .collect();
        assert!(different.is_empty(), "{what}: {different:?}");
        assert_eq!(look(self.journals.path()).unwrap(), [], "{what}");
    }
}

/// A run whose owner, process 99, is dead.
pub(super) fn dead() -> Request {
    request(99, "3", "0-2")
}

#[test]
fn all_is_changed_and_all_comes_back() {
    for version in 0..3 {
        let world = World::new(version);
        let (plan, fates) = world.begin(&dead(), 0).unwrap();
        for (item, fate) in plan.items.iter().zip(&fates) {
            let spare = item.rule == Rule::IfRefused;
            let wanted = if spare { Fate::Already } else { Fate::Made };
            assert_eq!(*fate, wanted, "{item:?}");
        }
        let now = world.tree.snapshot();
        for (path, text) in [
            ("proc/irq/24/smp_affinity_list", "0-2"),
            // It was on the compute core alone.
            ("proc/irq/25/smp_affinity_list", "0-2"),
            // It has nothing to do with compute cores.
            ("proc/irq/26/smp_affinity_list", "0"),
            ("proc/irq/default_smp_affinity", "00000007"),
            (
                "sys/devices/system/cpu/cpu3/cpufreq/scaling_governor",
                "performance",
            ),
            ("sys/devices/system/cpu/cpu3/cpuidle/state0/disable", "0"),
            ("sys/devices/system/cpu/cpu3/cpuidle/state1/disable", "1"),
            ("proc/sys/kernel/sched_rt_runtime_us", "-1"),
            ("proc/sys/vm/swappiness", "0"),
        ] {
            assert_eq!(now[path], text, "{path}");
        }
        for (thread, allowed) in [("2/task/2", "0-2"), ("9/task/9", "3"), ("70/task/71", "2")] {
            let status = &now[&format!("proc/{thread}/status")];
            assert!(status.ends_with(&format!("\t{allowed}")), "{status}");
        }
        let (one, two) = ("sys/fs/cgroup/cpuset", "sys/fs/cgroup");
        match version {
            0 => assert!(plan.notes[0].contains("affinity alone"), "{:?}", plan.notes),
            1 => {
                assert_eq!(now[&format!("{one}/cpuset.sched_load_balance")], "0");
                let own = format!("{one}/outlive-quiet-99-90");
                assert_eq!(now[&format!("{own}/cpuset.cpus")], "3");
                assert_eq!(now[&format!("{own}/cpuset.sched_load_balance")], "0");
                assert_eq!(now[&format!("{own}-service/cpuset.cpus")], "0-2");
            }
            _ => {
                let own = format!("{two}/outlive-quiet-99-90");
                assert_eq!(now[&format!("{own}/cpuset.cpus.partition")], "isolated");
                assert_eq!(
                    now[&format!("{two}/cgroup.subtree_control")],
                    "cpu io cpuset"
                );
            }
        }
        // What is on the boot line already is not asked for.
        let line = plan
            .notes
            .iter()
            .find(|note| note.contains("rcu_nocbs=3"))
            .unwrap();
        assert!(!line.contains("nohz_full="), "{line}");
        assert_eq!(plan.items, {
            let mut same = plan.clone();
            same.items
                .retain(|item| item.step.before != item.step.after);
            same.items
        });
        let undone = world.end(&dead());
        assert_eq!(
            (undone.foreign.len(), undone.stuck.len()),
            (0, 0),
            "{undone:?}"
        );
        world.is_as_before("ended");
    }
}

#[test]
fn a_run_that_is_cut_short_anywhere_is_undone_wherever_that_is_cut_short() {
    for version in 0..3 {
        let mut points = 0;
        for at in 1.. {
            let world = World::new(version);
            let begun = world.begin(&dead(), at);
            if begun.is_ok() {
                break;
            }
            points = at;
            // Undoing is cut short too, at a point that moves along.
            let _ = world.restore(at % 40 + 1);
            world.restore(0).unwrap();
            world.is_as_before(&format!("version {version}, point {at}"));
        }
        assert!(points > 40, "{points}");
        for at in 1.. {
            let world = World::new(version);
            world.begin(&dead(), 0).unwrap();
            let cut_short = world.restore(at).is_err();
            world.restore(0).unwrap();
            world.is_as_before(&format!("version {version}, way back {at}"));
            if !cut_short {
                assert!(at > 15, "{at}");
                break;
            }
        }
    }
}

#[test]
fn a_journal_cut_at_any_byte_undoes_what_was_done() {
    let whole = World::new(1);
    whole.begin(&dead(), 0).unwrap();
    let path = look(whole.journals.path()).unwrap()[0].path.clone();
    let name = path.file_name().unwrap().to_owned();
    let text = std::fs::read_to_string(path).unwrap();
    let (records, bytes) = parse(&text);
    assert_eq!(bytes, text.len());
    let (mut lines, mut end) = (0, 0);
    for at in 0..=text.len() {
        if at > 0 && text.as_bytes()[at - 1] == b'\n' {
            (lines, end) = (lines + 1, at);
        }
        // Only the torn line matters: those before are whole.
        assert_eq!(parse(&text[end..at]).0, [], "byte {at}");
        if at != end && at != end + 30 {
            continue;
        }
        // The newest change may have been made or not if nothing says so.
        for made in [true, false] {
            let world = World::new(1);
            let whole_ones = &records[..lines];
            let steps = whole_ones.iter().enumerate();
            for (n, record) in steps {
                if let Some(Record::Step(step)) = record
                    && (made || n + 1 < lines)
                {
                    step.what.put(&world.tree, &step.after).unwrap();
                }
            }
            drop(world.store());
            std::fs::write(world.journals.path().join(&name), &text[..at]).unwrap();
            world.restore(0).unwrap();
            world.is_as_before(&format!("byte {at}"));
        }
    }
}

/// A run that lives needs no file to undo what it did: directories in /var are purged.
#[test]
fn who_has_changed_it_undoes_it_without_its_file() {
    for damaged in [false, true] {
        let world = World::new(1);
        let (request, plan) = (dead(), plan(&world.tree, &dead()));
        let mut journal = world.store().journal(&head(&request)).unwrap();
        let store = world.store();
        let begun = store.begin(&world.tree, &mut journal, &request, &plan, &mut cut(0));
        begun.unwrap();
        let path = look(world.journals.path()).unwrap()[0].path.clone();
        match damaged {
            true => damage(&path, 7),
            false => std::fs::remove_file(path).unwrap(),
        }
        let known = journal.account();
        let undone = store.end(&world.tree, &request.id, known, &mut cut(0));
        assert_eq!(undone.unwrap().stuck, Vec::<String>::new());
        world.is_as_before("without its file");
    }
}

/// Changes a letter in a line of a journal.
fn damage(path: &std::path::Path, line: usize) {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    lines[line] = lines[line].replacen(':', ";", 1);
    std::fs::write(path, lines.concat()).unwrap();
}

#[test]
fn of_a_damaged_journal_the_rest_is_undone_and_the_damage_is_told() {
    let count = {
        let world = World::new(1);
        world.begin(&dead(), 0).unwrap();
        let path = &look(world.journals.path()).unwrap()[0].path;
        std::fs::read_to_string(path).unwrap().lines().count()
    };
    for line in 0..count - 1 {
        let world = World::new(1);
        world.begin(&dead(), 0).unwrap();
        let path = look(world.journals.path()).unwrap()[0].path.clone();
        damage(&path, line);
        if line == 0 {
            let refused = world.restore(0).unwrap_err();
            assert_eq!(refused.code(), Code::Corrupt, "{refused}");
        } else {
            let undone = world.restore(0).unwrap().remove(0).2;
            let told = |what: &String| what.contains("are damaged");
            assert!(undone.stuck.iter().any(told), "line {line}: {undone:?}");
            let now = world.tree.snapshot();
            let differ = world
                .before
                .iter()
                .filter(|(key, was)| now.get(*key) != Some(was));
            let differ: Vec<_> = differ.map(|(key, _)| key).collect();
            // What the line is of, and what cannot be without it.
            assert!(differ.len() <= 2, "line {line}: {differ:?}");
        }
        assert!(path.exists(), "line {line}");
    }
}

#[test]
fn what_is_refused_is_told_and_the_rest_is_done() {
    for version in 1..3 {
        let items = plan(&World::new(version).tree, &dead()).items;
        for refused in items {
            let path = match &refused.step.what {
                What::File { path, .. } | What::Group { path } => path.clone(),
                What::Thread { pid, tid, .. } => format!("proc/{pid}/task/{tid}/status"),
            };
            let world = World::new(version);
            world.tree.refused.borrow_mut().insert(path.clone());
            let (plan, fates) = world.begin(&dead(), 0).unwrap();
            let is_refused = |fate: &Fate| matches!(fate, Fate::Refused(_));
            assert!(fates.iter().any(is_refused), "{path}");
            let whole = has_partition(&plan.items, &fates);
            assert_eq!(whole, refused.rule != Rule::Vital, "{path}");
            for (item, fate) in plan.items.iter().zip(&fates) {
                let part = item.group == "partition";
                let same = item.step.what == refused.step.what;
                assert!(
                    part || same == is_refused(fate),
                    "{path}: {item:?} {fate:?}"
                );
            }
            world.end(&dead());
            world.is_as_before(&path);
        }
    }
}

#[test]
fn without_an_isolated_partition_the_next_best_is_taken_and_the_reason_is_known() {
    let world = World::new(2);
    let path = "sys/fs/cgroup/outlive-quiet-99-90/cpuset.cpus.partition";
    let says = "isolated invalid (Cpu list in cpuset.cpus not exclusive)";
    let reads_back = &world.tree.reads_back;
    reads_back.borrow_mut().insert(path.into(), says.into());
    let (plan, fates) = world.begin(&dead(), 0).unwrap();
    let of_it =
        plan.items.iter().zip(&fates).filter(
            |(item, _)| matches!(&item.step.what, What::File { path: of, .. } if of == path),
        );
    let of_it: Vec<&Fate> = of_it.map(|(_, fate)| fate).collect();
    assert!(
        matches!(of_it[0], Fate::Refused(why) if why.contains("not exclusive")),
        "{of_it:?}"
    );
    assert_eq!(of_it.len(), 3);
    world.end(&dead());
    world.is_as_before("no partition");
}

#[test]
fn files_that_round_or_vanish_are_no_obstacle() {
    let world = World::new(1);
    let rounds = "proc/sys/vm/stat_interval";
    let mut reads_back = world.tree.reads_back.borrow_mut();
    reads_back.insert(rounds.into(), "119".into());
    drop(reads_back);
    world.begin(&dead(), 0).unwrap();
    assert_eq!(world.tree.snapshot()[rounds], "119");
    world.tree.reads_back.borrow_mut().clear();
    let undone = world.end(&dead());
    assert_eq!(undone.foreign, [""; 0]);
    world.is_as_before("rounded");

    let mut world = World::new(1);
    let gone = "proc/irq/24/smp_affinity_list";
    world.tree.vanishing.borrow_mut().insert(gone.into());
    world.begin(&dead(), 0).unwrap();
    world.tree.drop_thread(70);
    world.end(&dead());
    world
        .before
        .retain(|path, _| path != gone && !path.starts_with("proc/70"));
    world.is_as_before("vanished");
}

#[test]
fn what_somebody_else_has_changed_is_left_alone_and_told() {
    let mut world = World::new(1);
    world.begin(&dead(), 0).unwrap();
    world.tree.plant("proc/irq/24/smp_affinity_list", "1");
    world.tree.plant("proc/sys/vm/stat_interval", "7");
    // Another thread of the same number is another one.
    world.tree.drop_thread(2);
    world
        .tree
        .thread(2, 2, 0, "rcu_preempt", 0x0020_8040, 6, "1");
    let undone = world.end(&dead());
    assert_eq!(undone.foreign.len(), 2, "{undone:?}");
    assert!(undone.foreign.iter().all(|what| what.contains("before")));
    let now = world.tree.snapshot();
    for path in [
        "proc/irq/24/smp_affinity_list",
        "proc/sys/vm/stat_interval",
        "proc/2/task/2/status",
        "proc/2/task/2/stat",
    ] {
        world.before.insert(path.into(), now[path].clone());
    }
    assert!(now["proc/2/task/2/status"].ends_with("\t1"));
    world.is_as_before("foreign");
}

#[test]
fn runs_beside_each_other_end_in_any_order() {
    for version in 0..3 {
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let world = World::new(version);
            let runs = [
                request(101, "3", "0"),
                request(102, "2", "0"),
                request(103, "1", "0"),
            ];
            for run in &runs {
                world.begin(run, 0).unwrap();
            }
            for (n, which) in order.into_iter().enumerate() {
                let undone = world.end(&runs[which]);
                assert!(undone.stuck.is_empty(), "{undone:?}");
                assert!(undone.foreign.is_empty(), "{order:?} {which}: {undone:?}");
                if n < 2 {
                    // The last one still has what it needs.
                    let now = world.tree.snapshot();
                    assert_eq!(now["proc/sys/vm/stat_interval"], "120");
                    assert_eq!(now["proc/irq/24/smp_affinity_list"], "0");
                    assert!(now["proc/70/task/70/status"].ends_with("\t0"));
                }
            }
            world.is_as_before(&format!("version {version}, {order:?}"));
        }
    }
}

#[test]
fn threads_started_meanwhile_come_back_with_those_that_were_moved() {
    let mut world = World::new(1);
    world.begin(&dead(), 0).unwrap();
    // A thread of a moved process, a child of a child of it, and a stranger of the same place.
    world.tree.thread(70, 75, 1, "late", 0x0040_0000, 95, "0-2");
    world
        .tree
        .thread(200, 200, 70, "child", 0x0040_0000, 96, "0-1");
    world
        .tree
        .thread(201, 201, 200, "grandchild", 0x0040_0000, 97, "0-2");
    world
        .tree
        .thread(300, 300, 0, "stranger", 0x0040_0000, 98, "0-2");
    // What the command left running.
    world.tree.thread(400, 400, 0, "left", 0x0040_0000, 99, "3");
    world
        .tree
        .plant("proc/400/environ", "A=b\0OUTLIVE_QUIET=99-90\0");
    let places = [
        ("70/task/75", "0-3"),
        ("200/task/200", "0-1"),
        ("201/task/201", "0-3"),
        ("300/task/300", "0-2"),
        ("400/task/400", "0-3"),
    ];
    world.end(&dead());
    let now = world.tree.snapshot();
    for (thread, allowed) in places {
        let status = &now[&format!("proc/{thread}/status")];
        assert!(
            status.ends_with(&format!("\t{allowed}")),
            "{thread}: {status}"
        );
    }
    let new = |path: &str| {
        let mut of = [
            "proc/70/task/75",
            "proc/200",
            "proc/201",
            "proc/300",
            "proc/400",
        ]
        .iter();
        of.any(|start| path.starts_with(start))
    };
    let added = now.into_iter().filter(|(path, _)| new(path));
    world.before.extend(added);
    world.is_as_before("heirs");
}

#[test]
fn what_cannot_be_undone_is_tried_again() {
    let world = World::new(1);
    world.begin(&dead(), 0).unwrap();
    let path = "proc/sys/vm/swappiness";
    world.tree.refused.borrow_mut().insert(path.into());
    let done = world.restore(0).unwrap();
    assert!(done[0].2.stuck[0].contains(path), "{done:?}");
    assert_eq!(look(world.journals.path()).unwrap().len(), 1);
    world.tree.refused.borrow_mut().clear();
    let done = world.restore(0).unwrap();
    assert_eq!(done[0].2.restored, 1);
    world.is_as_before("again");
}

#[test]
fn whose_a_journal_is() {
    let world = World::new(1);
    // Process 80 lives; another one of its number does not count.
    let alive = request(80, "3", "0-2");
    world.begin(&alive, 0).unwrap();
    assert_eq!(world.restore(0).unwrap(), []);
    world.tree.drop_thread(80);
    world
        .tree
        .thread(80, 80, 1, "other", 0x0040_0000, 91, "0-2");
    assert_eq!(world.restore(0).unwrap()[0].1, Owner::Dead);

    let world = World::new(1);
    world.begin(&dead(), 0).unwrap();
    let elsewhere = Here {
        namespace: "pid:[2]".into(),
        ..here()
    };
    let store = world.store();
    assert_eq!(
        store.restore(&world.tree, &elsewhere, &mut cut(0)).unwrap(),
        []
    );
    // After a boot nothing of it is there any more, and nothing is written.
    let booted = Here {
        boot: "boot-2".into(),
        ..here()
    };
    let changed = world.tree.snapshot();
    let done = store.restore(&world.tree, &booted, &mut cut(0)).unwrap();
    assert_eq!((done[0].1, done[0].2.restored), (Owner::Rebooted, 0));
    assert_eq!(world.tree.snapshot(), changed);
    assert_eq!(look(world.journals.path()).unwrap(), []);
}

#[test]
fn a_directory_that_others_may_write_is_refused_and_so_are_other_forms() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new(1);
    world.begin(&dead(), 0).unwrap();
    let path = look(world.journals.path()).unwrap()[0].path.clone();
    let mut strange = head(&dead());
    strange.schema = "outlive.quiet-journal/2".into();
    std::fs::remove_file(&path).unwrap();
    drop(journal::Journal::create(world.journals.path(), &strange).unwrap());
    let error = look(world.journals.path()).unwrap_err();
    assert_eq!(error.code(), Code::FormatUnknown);
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(world.journals.path(), open).unwrap();
    let error = Store::open(world.journals.path()).unwrap_err();
    assert_eq!(error.code(), Code::Permission);
}

#[test]
fn cores_are_checked() {
    let tree = Planted::new(1);
    let all = list("0-3");
    let taken = [head(&request(80, "3", "0"))];
    let ask = |compute, service, claimed| cores(&tree, &all, compute, service, claimed);
    let (compute, service) = ask("3", None, &[]).unwrap();
    assert_eq!((compute, service), (list("3"), list("0-2")));
    let (_, service) = ask("2", None, &taken).unwrap();
    assert_eq!(service, list("0-1"));
    for (compute, service, word) in [
        ("0-3", None, "all cores"),
        ("0-2", None, "all cores"),
        ("7", None, "does not exist"),
        ("4", None, "is offline"),
        ("x", None, "no list"),
        ("", None, "no list"),
        ("1", Some("1"), "compute core too"),
        ("1", Some("9"), "does not exist"),
    ] {
        let claimed: &[Head] = if compute == "0-2" { &taken } else { &[] };
        let error = ask(compute, service, claimed).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{compute}");
        assert!(error.reason().contains(word), "{error}");
    }
    for (compute, service) in [("3", None), ("2-3", None), ("2", Some("3"))] {
        let error = ask(compute, service, &taken).unwrap_err();
        assert_eq!(error.code(), Code::JobBusy);
        assert!(error.reason().contains("process 80 (app)"), "{error}");
    }
    // A container with a reduced set.
    let error = cores(&tree, &list("0-1"), "2", None, &[]).unwrap_err();
    assert!(error.reason().contains("may use"), "{error}");
    let error = cores(&tree, &list("0"), "0", None, &[]).unwrap_err();
    assert!(error.reason().contains("all cores"), "{error}");
}

#[test]
fn a_command_that_runs_on_both_kinds_of_cores_is_in_no_group() {
    let tree = Planted::new(1);
    let request = dead();
    assert!(plan(&tree, &request).partition.is_some());
    let request = Request {
        contained: false,
        ..request
    };
    let plan = plan(&tree, &request);
    assert!(plan.partition.is_none() && plan.notes.iter().any(|note| note.contains("partners")));
}

#[test]
fn an_ordinary_user_is_told_what_stays() {
    let tree = Planted::new(1);
    tree.writable.set(false);
    let request = Request {
        root: false,
        others: Others::Leave,
        ..dead()
    };
    let plan = plan(&tree, &request);
    assert_eq!((plan.items.len(), &plan.partition), (0, &None));
    let notes = plan.notes.join("\n");
    for word in [
        "affinity alone",
        "takes root",
        "interrupts (3)",
        "threads of the kernel (1)",
    ] {
        assert!(notes.contains(word), "{word}: {notes}");
    }
    assert!(tree.read("proc/irq/24/smp_affinity_list").is_ok());
}
