//! What the comparison must show, and whether it does.

use outlive_balance::cost::Network;
use outlive_balance::flow::tree_depth;
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
    /// What the figures are made of.
    note: Option<String>,
}

/// What no method can save against a peer's time that is divided by the processes as if
/// it scaled perfectly and sent no message.
struct Floor {
    /// How many times faster than the peer.
    wanted: f64,
    /// The bound that this makes, in milliseconds.
    bound: f64,
    /// A message, L + 2o, in milliseconds.
    message: f64,
    /// The messages in a row that any method waits for that knows all loads: a sum up and
    /// down the tree, and what is handed over.
    messages: f64,
    /// Milliseconds of an operation, as measured.
    operation: f64,
    /// Tasks of a process: each is looked at once.
    tasks: f64,
    /// What ours waits for, and what it looks at before it begins.
    ours: (f64, f64),
}

impl Floor {
    fn new(ours: &Line, peer_ms: f64) -> Floor {
        let wanted = 10.0;
        let network = Network::default();
        Floor {
            wanted,
            bound: peer_ms / wanted,
            message: (network.latency_us + 2.0 * network.overhead_us) * 1e-3,
            messages: f64::from(2 * tree_depth(ours.processes) + 1),
            operation: ours.figures.operation_ns * 1e-6,
            tasks: ours.tasks as f64 / ours.processes as f64,
            ours: (ours.figures.rounds, ours.figures.operations_borders),
        }
    }

    /// Milliseconds of any method.
    fn any(&self) -> f64 {
        self.messages * self.message + self.tasks * self.operation
    }

    fn text(&self) -> String {
        let waits = self.ours.0 * self.message;
        let left = match self.operation > 0.0 {
            true => ((self.bound - waits) / self.operation).max(0.0),
            false => 0.0,
        };
        format!(
            "{:.0} times under it: {:.3} ms; any method: {:.3} ms, {:.0} messages {:.3} and a \
             look at each task {:.3}; ours: {:.0} messages {:.3}, which leaves {left:.0} \
             operations of {:.1} ns, of which a look at each edge takes {:.0}",
            self.wanted,
            self.bound,
            self.any(),
            self.messages,
            self.messages * self.message,
            self.tasks * self.operation,
            self.ours.0,
            waits,
            self.operation * 1e6,
            self.ours.1
        )
    }
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
            note: None,
        }
    }

    /// A row of the summary.
    pub fn row(&self) -> String {
        let possible = self
            .possible
            .map_or(String::new(), |most| format!("{most:.2}"));
        let verdict = if self.is_met { "met" } else { "NOT MET" };
        format!(
            "{:32}{:30}{:11.4}{:12.4}{:8.2}{:9.2}{:>10}  {}: {verdict}",
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
        if let Some(note) = &self.note {
            text += &format!("\n    {note}");
        }
        text
    }
}

/// The repartitioning peer that moves least.
pub fn best_repartitioner(lines: &[Line]) -> Option<&Line> {
    let peers = lines.iter().filter(|line| !line.ours && line.repartitions);
    peers.min_by(|a, b| a.figures.migration.total_cmp(&b.figures.migration))
}

/// On loads that are large and in one place: the choice against those that name the parts of
/// a fresh partition, or start from the old one.
fn surge(lines: &[Line], ours: &Line) -> Vec<Goal> {
    let mut goals = Vec::new();
    for peer in lines.iter().filter(|line| !line.ours && line.repartitions) {
        let (mine, theirs) = (&ours.figures, &peer.figures);
        let cut = (mine.edge_cut_total, theirs.edge_cut_total);
        goals.push(Goal::new(
            "weight of cut edges",
            cut.0,
            cut.1,
            &peer.who,
            1.0,
        ));
        let moved = (mine.migration_total, theirs.migration_total);
        goals.push(Goal::new(
            "tasks that move, of all",
            moved.0,
            moved.1,
            &peer.who,
            1.0,
        ));
    }
    goals
}

/// The goals that these lines, all of one case, can tell about.
pub fn of(lines: &[Line]) -> Vec<Goal> {
    let mut goals = Vec::new();
    let Some(ours) = lines.first() else {
        return goals;
    };
    if ours.scenario.starts_with("surge") {
        goals = surge(lines, ours);
    }
    if let Some(peer) = best_repartitioner(lines) {
        let asked = peer.figures.imbalance.max(ours.tolerance);
        // Who ends no less balanced than the peer is at its imbalance or below.
        let balanced = |line: &&Line| {
            line.ours && (line.tolerance == asked || line.figures.imbalance <= asked)
        };
        let best = lines
            .iter()
            .filter(balanced)
            .min_by(|a, b| a.figures.migration.total_cmp(&b.figures.migration));
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
        let floor = Floor::new(ours, ms(scotch));
        let mut goal = Goal::new("modelled ms", ms(ours), ms(scotch), "scotch", floor.wanted);
        goal.possible = Some(ms(scotch) / floor.any());
        goal.note = Some(floor.text());
        goals.push(goal);
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
    fn the_floor_counts_the_messages_and_the_look_that_nobody_is_spared() {
        let mut ours = line("ours", true, true, 0.02, 0.2);
        ours.figures.operation_ns = 10.0;
        ours.figures.rounds = 110.0;
        ours.figures.operations_borders = 8_000.0;
        ours.figures.seconds_max_per_process = 1e-3;
        let mut scotch = line("scotch", false, false, 0.02, 2.0);
        scotch.figures.seconds_max_per_process = 4e-3;
        let goals = of(&[ours, scotch]);
        let goal = goals.iter().find(|goal| goal.possible.is_some()).unwrap();
        // 96 processes hang three deep: 7 messages of 1.9 us; 1000 tasks of 10 ns.
        let floor = 7.0 * 0.0019 + 0.01;
        assert!((goal.possible.unwrap() - 4.0 / floor).abs() < 1e-9);
        let text = goal.text();
        assert!(!goal.is_met && text.contains("7 messages 0.013"), "{text}");
        // 0.4 ms less 110 messages of 1.9 us leave 0.191 ms.
        assert!(text.contains("leaves 19100 operations"), "{text}");
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
        // A lower imbalance than the peer's is no advantage; a higher one would be.
        for (imbalance, ratio) in [(0.025, 6.6), (0.031, 3.3)] {
            let other = line("ours, price 3", true, true, imbalance, 0.05);
            let goals = of(&[&lines[..], &[other]].concat());
            assert!((goals[0].ratio - ratio).abs() < 1e-9, "{}", goals[0].text());
        }
    }
}
