//! Second processes that take themselves for a rank: they are none while the first one lives.

use outlive_base::control_block::CONTROL_ABI;
use outlive_base::ipc::{ToAgent, ToRank};
use outlive_base::{Incarnation, Rank};

use super::program::{Program, Stage, TWIN};
use super::*;

/// How far the number of such a process is from that of the rank.
const TWIN_PID: u32 = 1_000_000_000;

impl Job {
    /// A second process greets the agent of a rank, as that rank: a fork, or a script whose
    /// processes know no number of their own.
    pub(super) fn twin(&mut self) {
        let met = |program: &&Program| {
            program.block.is_some() && !matches!(program.stage, Stage::Greeting(_))
        };
        let met: Vec<(u32, u32, u64)> = (self.programs.values().filter(met))
            .filter_map(|program| Some((program.rank, program.pid, program.token?)))
            .collect();
        let at = self.random.below(met.len().max(1) as u64) as usize;
        let (Some(&(rank, pid, held)), Some(running)) = (met.get(at), self.launcher.running())
        else {
            return;
        };
        let Some(&(who, life, ..)) = self.links.get(&held) else {
            return;
        };
        self.tokens += 1;
        let token = self.tokens;
        self.links.insert(token, (who, life, rank, TWIN));
        self.twins.insert(token, (rank, pid, held));
        self.joins(who, token, pid + TWIN_PID);
        let message = ToAgent::Hello {
            abi: CONTROL_ABI,
            rank: Rank(rank),
            ranks: self.ranks_total(),
            pid: pid + TWIN_PID,
            incarnation: Incarnation(running),
        };
        let delay = self.some_us(200);
        self.after(
            delay,
            Action::Said {
                who,
                life,
                token,
                sequence: 1,
                message,
            },
        );
    }

    /// A second process is answered: it is none of the job while the first one lives.
    pub(super) fn twin_answered(&mut self, token: u64, message: &ToRank) {
        let Some((rank, pid, held)) = self.twins.remove(&token) else {
            return;
        };
        let first = self.programs.get(&rank);
        let lives = first.is_some_and(|it| it.pid == pid && it.token == Some(held));
        if lives && matches!(message, ToRank::Welcome { .. }) {
            self.wrong(format!(
                "P2: rank {rank} lives, and another process is it too"
            ));
        }
        self.leaves(token, false);
    }
}
