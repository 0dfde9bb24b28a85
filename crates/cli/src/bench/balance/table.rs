//! What `outlive bench balance` prints.

use super::Line;
use super::goals::Goal;

/// All methods on one case.
pub fn case(lines: &[Line], range: (u32, u32), goals: &[Goal]) {
    let Some(first) = lines.first() else {
        return;
    };
    println!(
        "{}, {} processes, {} tasks, steps {} to {}, tolerance {}",
        first.scenario,
        first.processes,
        first.tasks,
        range.0 + 1,
        range.0 + range.1,
        first.tolerance,
    );
    println!(
        "  {:32}{:>10}{:>10}{:>10}{:>10}{:>9}{:>10}{:>9}{:>11}{:>9}",
        "",
        "imbalance",
        "migration",
        "no less",
        "of all",
        "cut max",
        "cut",
        "ms",
        "operations",
        "messages"
    );
    for line in lines {
        let f = &line.figures;
        print!(
            "  {:32}{:10.4}{:10.4}{:10.4}{:10.4}{:9.4}{:10.0}{:9.3}",
            line.who,
            f.imbalance,
            f.migration,
            f.migration_least,
            f.migration_total,
            f.edge_cut_max,
            f.edge_cut_total,
            f.seconds_max_per_process * 1e3,
        );
        match line.ours {
            true => println!("{:11.0}{:9.0}", f.operations_max, f.messages_max),
            false => println!(),
        }
    }
    for goal in goals {
        println!("  {}", goal.text());
    }
    println!();
}

/// The goals of all cases, a line each.
pub fn summary(goals: &[Goal]) {
    println!(
        "{:32}{:30}{:>11}{:>12}{:>8}{:>9}{:>10}  against",
        "case", "goal", "ours", "theirs", "ratio", "wanted", "possible"
    );
    for goal in goals {
        println!("{}", goal.row());
    }
}
