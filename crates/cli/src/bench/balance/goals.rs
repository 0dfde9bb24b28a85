//! What the comparison must show, and whether it does.

use serde::Serialize;

use super::Line;

/// Edge-cut counts at coarse granularity: so many tasks a process.
const COARSE_TASKS: usize = 500;
/// Processes at which the modelled time has a bound.
const MANY: usize = 6144;

/// One goal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// Scenario and processes.
    case: String,
    what: &'static str,
    ours: f64,
    /// The peer's figure, or the bound.
    theirs: f64,
    who: String,
    /// `theirs` over `ours`.
    ratio: f64,
    /// What the ratio should be at least.
    wanted: f64,
    is_met: bool,
    /// The largest ratio that any method could have, where that is known.
    possible: Option<f64>,
}

impl Goal {
    fn new(what: &'static str, ours: f64, theirs: f64, who: &str, wanted: f64) -> Goal {
        let ratio = if ours > 0.0 {
            theirs / ours
        } else {
            f64::INFINITY
        };
        Goal {
            case: String::new(),
            what,
            ours,
            theirs,
            who: who.to_owned(),
            ratio,
            wanted,
            is_met: ratio >= wanted,
            possible: None,
        }
    }

    /// A row of the summary.
    pub fn row(&self) -> String {
        let possible = self
            .possible
            .map_or(String::new(), |most| format!("{most:.2}"));
        let verdict = if self.is_met { "met" } else { "NOT MET" };
        format!(
            "{:24}{:30}{:9.4}{:9.4}{:8.2}{:9.2}{:>10}  {}: {verdict}",
            self.case,
            self.what,
            self.ours,
            self.theirs,
            self.ratio,
            self.wanted,
            possible,
            self.who
        )
    }

    /// One line.
    pub fn text(&self) -> String {
        let verdict = if self.is_met { "met" } else { "NOT MET" };
        let mut text = format!(
            "{}: {:.4}, {} {:.4}: ratio {:.2}, wanted {:.2}: {verdict}",
            self.what, self.ours, self.who, self.theirs, self.ratio, self.wanted
        );
        if let Some(possible) = self.possible {
            text += &format!("; no method can exceed {possible:.2}");
        }
        text
    }
}

/// The repartitioning peer that moves least.
pub fn best_repartitioner(lines: &[Line]) -> Option<&Line> {
    let peers = lines.iter().filter(|line| !line.ours && line.repartitions);
    peers.min_by(|a, b| a.figures.migration.total_cmp(&b.figures.migration))
}

/// The goals that these lines, all of one case, can tell about.
pub fn of(lines: &[Line]) -> Vec<Goal> {
    let mut goals = Vec::new();
    let Some(ours) = lines.first() else {
        return goals;
    };
    if let Some(peer) = best_repartitioner(lines) {
        let asked = peer.figures.imbalance.max(ours.tolerance);
        let equal = lines
            .iter()
            .filter(|line| line.ours && line.tolerance == asked);
        let best = equal.min_by(|a, b| a.figures.migration.total_cmp(&b.figures.migration));
        let line = best.unwrap_or(ours);
        let theirs = peer.figures.migration;
        let wanted = if ours.scenario == "shock" { 3.0 } else { 1.0 };
        let mut goal = Goal::new(
            "migration at equal imbalance",
            line.figures.migration,
            theirs,
            &peer.who,
            wanted,
        );
        let least = line.figures.migration_least;
        goal.possible = (least > 0.0).then(|| theirs / least);
        goals.push(goal);
    }
    let cut = |line: &&Line| line.figures.edge_cut_max;
    let peers = || lines.iter().filter(|line| !line.ours);
    let best = peers().min_by(|a, b| cut(a).total_cmp(&cut(b)));
    if let Some(peer) = best.filter(|_| ours.tasks / ours.processes >= COARSE_TASKS) {
        let (mine, theirs) = (cut(&ours), cut(&peer));
        goals.push(Goal::new(
            "largest edge-cut",
            mine,
            theirs,
            &peer.who,
            1.0 / 1.1,
        ));
    }
    let ms = |line: &Line| line.figures.seconds_max_per_process * 1e3;
    if ours.processes == MANY {
        goals.push(Goal::new("modelled ms", ms(ours), 2.5, "bound", 1.0));
    }
    if let Some(scotch) = peers().find(|line| line.who == "scotch") {
        goals.push(Goal::new(
            "modelled ms",
            ms(ours),
            ms(scotch),
            "scotch",
            10.0,
        ));
    }
    let case = format!(
        "{}, {}, {} steps",
        ours.scenario, ours.processes, ours.steps
    );
    goals
        .iter_mut()
        .for_each(|goal| goal.case.clone_from(&case));
    goals
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_balance::replay::Figures;

    fn line(who: &str, ours: bool, repartitions: bool, imbalance: f64, migration: f64) -> Line {
        Line {
            scenario: "shock",
            processes: 96,
            tasks: 96_000,
            steps: 1,
            who: who.into(),
            ours,
            repartitions,
            tolerance: 0.02,
            seconds_sequential: None,
            figures: Figures {
                imbalance,
                migration,
                migration_least: migration / 2.0,
                edge_cut_max: 1.0,
                ..Figures::default()
            },
        }
    }

    #[test]
    fn migration_is_compared_at_the_imbalance_of_the_peer() {
        let mut again = line("ours again", true, true, 0.03, 0.1);
        again.tolerance = 0.03;
        let lines = [
            line("ours", true, true, 0.02, 0.2),
            line("fresh", false, false, 0.02, 0.01),
            line("remap", false, true, 0.03, 0.33),
            again,
        ];
        let goals = of(&lines);
        assert_eq!(goals[0].who, "remap");
        assert!(goals[0].is_met && (goals[0].ratio - 3.3).abs() < 1e-9);
        assert!((goals[0].possible.unwrap() - 6.6).abs() < 1e-9);
        assert!(goals[1].is_met, "{}", goals[1].text());
        let without = of(&lines[..3]);
        assert!(!without[0].is_met && without[0].text().contains("NOT MET"));
    }
}
