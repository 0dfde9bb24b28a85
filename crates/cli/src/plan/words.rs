//! A plan in words.

use std::fmt::Write as _;

use outlive_planner::lifetime::{Lifetime, Pattern};
use outlive_planner::machine::{Level, Scheme};
use outlive_planner::spares::InRepair;
use outlive_planner::units::duration;

use super::Found;
use crate::output;

/// Inputs that are named as worth improving.
const WORTH: usize = 3;
/// A share of the expected time below which an improvement is not worth a word.
const WORTH_MIN: f64 = 1e-4;

/// What to do, what it costs, and what would help.
pub(super) fn describe(found: &Found) -> String {
    let mut out = String::new();
    let job = &found.job;
    let _ = writeln!(
        out,
        "{}: {} of computing on {} of {}, {} per node and checkpoint\n",
        job.name,
        duration(job.work),
        nodes(job.nodes),
        found.machine.name,
        outlive_control::units::show_bytes(job.bytes as u64),
    );
    what_to_do(found, &mut out);
    what_it_costs(&found.plan.lifetime, &mut out);
    what_fails(found, &mut out);
    what_is_spare(found, &mut out);
    what_is_odd(found, &mut out);
    what_would_help(found, &mut out);
    comparison(found, &mut out);
    out.trim_end().to_owned()
}

fn nodes(count: u32) -> String {
    match count {
        1 => "1 node".into(),
        count => format!("{count} nodes"),
    }
}

fn every(multiple: u32) -> String {
    match multiple {
        1 => "every checkpoint".into(),
        2 => "every 2nd".into(),
        3 => "every 3rd".into(),
        n => format!("every {n}th"),
    }
}

fn what_to_do(found: &Found, out: &mut String) {
    let pattern = &found.plan.pattern;
    let _ = writeln!(
        out,
        "Checkpoint after every {} of computing:",
        duration(pattern.interval)
    );
    let mut rows = Vec::new();
    let mut order: Vec<usize> = (0..found.plan.levels.len()).collect();
    order.sort_by_key(|&place| pattern.multiples[place]);
    for place in order {
        let level = &found.levels[found.plan.levels[place]];
        let multiple = pattern.multiples[place];
        let about = f64::from(multiple) * pattern.interval;
        rows.push(vec![
            format!("  {}", level.name),
            every(multiple),
            format!("about every {}", duration(about)),
            write_words(level),
        ]);
    }
    let _ = writeln!(out, "{}", output::table(&rows));
    let used = |place: &usize| found.plan.levels.contains(place);
    let unused = (0..found.levels.len()).filter(|place| !used(place));
    let unused: Vec<&str> = unused
        .map(|place| found.levels[place].name.as_str())
        .collect();
    if !unused.is_empty() {
        let _ = writeln!(out, "  not worth their cost: {}", unused.join(", "));
    }
    for (place, level) in found.levels.iter().enumerate() {
        let away = found.classes.away(place);
        if away > 0.0 {
            let _ = writeln!(
                out,
                "  {}: its servers are in repair for {:.2} % of the time, in which it is not written",
                level.name,
                100.0 * away
            );
        }
    }
    if let Some(options) = options(found) {
        let _ = writeln!(out, "  outlive run {options} -- COMMAND");
    }
    out.push('\n');
}

fn write_words(level: &Level) -> String {
    match (level.cost > 0.0, level.background > 0.0) {
        (true, _) => format!("stops the program for {}", duration(level.cost)),
        (false, true) => format!(
            "written in {} while the program goes on",
            duration(level.background)
        ),
        (false, false) => String::new(),
    }
}

/// The same for `outlive run`, where it has all levels of the plan.
fn options(found: &Found) -> Option<String> {
    let mut names = Vec::new();
    for (place, &level) in found.plan.levels.iter().enumerate() {
        let name = name_of(found.levels[level].scheme)?;
        names.push(match found.plan.pattern.multiples[place] {
            1 => name.to_owned(),
            multiple => format!("{name}/{multiple}"),
        });
    }
    // Each name once: two shared levels are more than a job has.
    let plain = |name: &String| name.split('/').next().map(str::to_owned);
    let mut distinct: Vec<Option<String>> = names.iter().map(plain).collect();
    distinct.sort();
    distinct.dedup();
    let interval = found.plan.pattern.interval.max(1.0).round();
    (distinct.len() == names.len())
        .then(|| format!("--interval {interval}s --levels {}", names.join(",")))
}

/// What `--levels` calls a scheme; `None` for sets that are smaller or larger than any there.
fn name_of(scheme: Scheme) -> Option<&'static str> {
    use outlive_base::Level;
    let level = match scheme {
        Scheme::Local => Level::DISK,
        Scheme::Partner { .. } => Level::PARTNER,
        Scheme::Shared { .. } => Level::SHARED,
        Scheme::Erasure { layout, parity } => {
            let data = u16::try_from(layout.size.checked_sub(parity)?).ok()?;
            match u16::try_from(parity).ok()? {
                1 => Level::xor(data.checked_add(1)?)?,
                parity => Level::rs(data, parity)?,
            }
        }
    };
    Some(level.name())
}

fn percent(part: f64, of: f64) -> String {
    format!("{:.2} %", 100.0 * part / of)
}

fn what_it_costs(of: &Lifetime, out: &mut String) {
    let _ = writeln!(
        out,
        "Expected: {}, {} more than the computing alone:",
        duration(of.total),
        percent(of.total - of.work, of.work)
    );
    let rows = [
        ("checkpoints", of.checkpoint),
        ("computing that is lost", of.lost),
        ("restarts", of.restart),
    ];
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|(what, seconds)| {
            vec![
                format!("  {what}"),
                percent(*seconds, of.work),
                duration(*seconds),
            ]
        })
        .collect();
    let _ = writeln!(out, "{}", output::table(&rows));
    if of.anew > 0.005 {
        let _ = writeln!(
            out,
            "  it begins anew {:.2} times on average: no level in use survives that",
            of.anew
        );
    }
    out.push('\n');
}

fn what_fails(found: &Found, out: &mut String) {
    let total = found.classes.total();
    let _ = writeln!(
        out,
        "A failure stops the job every {} on average. Not restored:",
        duration(1.0 / total)
    );
    let mut rows = Vec::new();
    for (place, level) in found.levels.iter().enumerate() {
        let fails = found.classes.fails(place);
        let mut said = match fails.rate > 0.0 {
            true => format!("one every {}", duration(1.0 / fails.rate)),
            false => "none".into(),
        };
        if fails.error > 0.0 {
            let error = 100.0 * fails.error / fails.rate;
            let error = match error < 0.1 {
                true => format!("{error:.1e}"),
                false => format!("{error:.1}"),
            };
            let _ = write!(said, " (estimated, +- {error} %)");
        }
        rows.push(vec![
            format!("  by {}", level.name),
            percent(fails.rate, total),
            said,
        ]);
    }
    let _ = writeln!(out, "{}\n", output::table(&rows));
}

/// Whether the job waits for nodes, and what one more spare is worth.
fn what_is_spare(found: &Found, out: &mut String) {
    let Some(repair) = InRepair::of(&found.machine, &found.job) else {
        return;
    };
    let _ = write!(out, "On average {:.2} nodes are in repair", repair.mean);
    if let Some(spares) = found.machine.nodes.spares {
        let waiting = |spares: u32| repair.waiting(found.plan.lifetime.total, spares);
        let now = waiting(spares);
        let saves = now - waiting(spares.saturating_add(1));
        let _ = match now.is_finite() {
            true => write!(
                out,
                ": with {} the job waits for nodes for {} besides, {} of its time; one more saves {}",
                spares_of(spares),
                duration(now),
                percent(repair.waits(spares), 1.0),
                duration(saves)
            ),
            false => write!(
                out,
                ": with {} it never has all its nodes",
                spares_of(spares)
            ),
        };
    }
    out.push_str(".\n\n");
}

fn spares_of(count: u32) -> String {
    match count {
        0 => "no spare".into(),
        1 => "1 spare".into(),
        count => format!("{count} spares"),
    }
}

/// What should make a person look again.
fn what_is_odd(found: &Found, out: &mut String) {
    let mtbf = 1.0 / found.classes.total();
    let mut odd = Vec::new();
    let capture = found.job.capture;
    if capture > mtbf {
        odd.push(format!(
            "a capture takes {}, longer than the {} between failures: fewer bytes, faster memory or fewer nodes would help",
            duration(capture),
            duration(mtbf)
        ));
    }
    for (place, level) in found.levels.iter().enumerate() {
        if found.classes.restores_nothing(place) {
            odd.push(format!(
                "{} survives no failure of this machine: leave it out, or describe the failures that it is for (light-mtbf)",
                level.name
            ));
        }
        let (write, name) = (level.cost + level.background, &level.name);
        if write > mtbf {
            odd.push(format!(
                "a write to {name} takes {}, longer than the {} between failures: a faster store, fewer bytes or fewer nodes would help",
                duration(write),
                duration(mtbf)
            ));
        }
        if level.restart > mtbf {
            odd.push(format!(
                "a restart from {name} takes {}, longer than the {} between failures: it is stopped more often than not",
                duration(level.restart),
                duration(mtbf)
            ));
        }
    }
    let survived = found
        .plan
        .levels
        .iter()
        .any(|&level| found.classes.fails(level).rate == 0.0);
    if !survived {
        odd.push("no level in use survives every failure: add one on shared storage, or expect new beginnings".into());
    }
    for line in &odd {
        let _ = writeln!(out, "Note: {line}.");
    }
    if !odd.is_empty() {
        out.push('\n');
    }
}

fn what_would_help(found: &Found, out: &mut String) {
    let total = found.plan.lifetime.total;
    let worth = found
        .sensitivity
        .iter()
        .filter(|one| one.saved > WORTH_MIN * total);
    let rows: Vec<Vec<String>> = worth
        .take(WORTH)
        .map(|one| {
            vec![
                format!("  {}", one.input),
                format!("saves {}", duration(one.saved)),
                percent(one.saved, total),
            ]
        })
        .collect();
    if !rows.is_empty() {
        let _ = writeln!(out, "What would help most:\n{}\n", output::table(&rows));
    }
}

fn comparison(found: &Found, out: &mut String) {
    if found.others.is_empty() {
        return;
    }
    let _ = writeln!(out, "Plans of the known methods, all in the same model:");
    let head = [
        "",
        "overhead",
        "more than this plan's",
        "interval",
        "levels",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mine = found.plan.lifetime.overhead();
    let mut row = |name: &str, levels: &[usize], pattern: &Pattern, of: &Lifetime| {
        let overhead = of.overhead();
        let (said, more) = match overhead.is_finite() {
            true => (percent(overhead, 1.0), percent(overhead - mine, mine)),
            false => ("never ends".into(), String::new()),
        };
        let used = levels.iter().zip(&pattern.multiples);
        let used = used.map(|(&level, multiple)| match multiple {
            1 => found.levels[level].name.clone(),
            n => format!("{}/{n}", found.levels[level].name),
        });
        let used = used.collect::<Vec<_>>().join(",");
        rows.push(vec![
            format!("  {name}"),
            said,
            more,
            duration(pattern.interval),
            used,
        ]);
    };
    row(
        "this plan",
        &found.plan.levels,
        &found.plan.pattern,
        &found.plan.lifetime,
    );
    for other in &found.others {
        row(
            other.method.source(),
            &other.levels,
            &other.pattern,
            &other.lifetime,
        );
    }
    let _ = writeln!(out, "{}", output::table(&rows));
    for method in &found.silent {
        let _ = writeln!(
            out,
            "Left out: {}: no level restores anything by its rules.",
            method.source()
        );
    }
    let _ = writeln!(
        out,
        "Left out: Herault et al., IPDPSW 2018: it is about several jobs that share storage, not about the levels of one: outlive simulate turns."
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{JOB, MACHINE, PlanOptions, find};
    use outlive_planner::machine::{self, Layout};

    fn found(machine: &str, job: &str) -> Found {
        let options = PlanOptions {
            machine: None,
            job: None,
            compare: Some(super::super::Compare::All),
            trace: None,
            train: None,
            plot: None,
            seed: 1,
            json: false,
            example: None,
            report: None,
            from_slurm: None,
        };
        let machine = machine::machine(machine, "machine.toml").expect("good");
        let job = machine::job(job, "job.toml", &machine).expect("good");
        find(machine, job, &options).expect("a plan")
    }

    #[test]
    fn the_example_is_planned_in_words() {
        let found = found(MACHINE, JOB);
        let said = describe(&found);
        for part in [
            "climate: 30 days of computing on 1024 nodes of example",
            "Checkpoint after every",
            "Expected: ",
            "checkpoints",
            "A failure stops the job every",
            "with 4 spares the job waits for nodes for ",
            "; one more saves ",
            "What would help most:",
            "Moody et al. (SCR), SC 2010",
            "Left out: Herault et al.",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!said.contains("NaN") && !said.contains("inf"), "{said}");
        let of = &found.plan.lifetime;
        assert!(
            found
                .others
                .iter()
                .all(|other| other.lifetime.total >= of.total * (1.0 - 1e-6))
        );
    }

    #[test]
    fn the_options_of_run_name_levels_that_it_has() {
        let mut text = MACHINE.replace("kind = \"xor\"", "kind = \"partner\"\nname = \"unused\"");
        text = text.replace("group = 8\nstride = 32\n", "");
        let plan = found(&text, JOB);
        if let Some(options) = options(&plan) {
            assert!(options.starts_with("--interval "), "{options}");
            for word in options
                .split_whitespace()
                .last()
                .unwrap_or_default()
                .split(',')
            {
                let name = word.split('/').next().unwrap_or_default();
                assert!(["disk", "partner", "shared"].contains(&name), "{options}");
            }
        }
    }

    #[test]
    fn sets_of_nodes_have_the_names_of_their_levels() {
        let name = |size, parity| {
            let layout = Layout { size, stride: 4 };
            name_of(Scheme::Erasure { layout, parity })
        };
        assert_eq!(name(8, 1), Some("xor:8"));
        assert_eq!(name(6, 2), Some("rs:4+2"));
        for (size, parity) in [
            (2, 1),
            (33, 1),
            (3, 2),
            (37, 4),
            (10, 5),
            (1, 2),
            (u32::MAX, 1),
        ] {
            assert_eq!(name(size, parity), None, "{size} {parity}");
        }
        assert_eq!(name_of(Scheme::Local), Some("disk"));
    }

    #[test]
    fn what_is_odd_is_said() {
        let slow = MACHINE.replace(
            "write = \"60 GB/s\"\nread = \"60 GB/s\"",
            "write = \"0.2 GB/s\"\nread = \"0.2 GB/s\"",
        );
        let said = describe(&found(&slow, JOB));
        assert!(said.contains("Note: a write to files takes"), "{said}");
        assert!(said.contains("longer than the"), "{said}");
        // Whatever it is that takes longer than the machine lives, and levels that are of no use.
        let slow = JOB.replace("capture = \"4 s\"", "capture = \"20 h\"");
        let said = describe(&found(MACHINE, &slow));
        assert!(
            said.contains("Note: a capture takes 20 h, longer"),
            "{said}"
        );
        let slow = JOB.replace("restart = \"2 min\"", "restart = \"20 h\"");
        let said = describe(&found(MACHINE, &slow));
        assert!(said.contains("a restart from files takes 20 h"), "{said}");
        let never = MACHINE.replace("light-mtbf = \"2 years\"", "");
        let said = describe(&found(&never, JOB));
        assert!(said.contains("Note: local survives no failure"), "{said}");
    }
}
