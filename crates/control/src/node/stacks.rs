//! What the ranks of this node are doing, for a job that stands still.
//!
//! Invariants: one look at a time; an answer is never longer than it may be, and says what it
//! leaves out.

use outlive_base::Time;

use super::core::Core;
use super::service::{Service, Silent};
use super::shell::{Ask, Done, Shell};
use crate::orders::{MESSAGE_BYTES_MAX, Notice, Order, RankStacks};
use crate::whereabouts;

/// What an answer takes beside what was found, at most.
const AROUND_BYTES: usize = 1 << 10;

/// The look that is under way.
pub struct Stacks {
    looking: Option<Look>,
}

struct Look {
    number: u32,
    bytes_max: usize,
    ranks: usize,
}

impl Service for Stacks {
    type Word = Silent;

    fn new(_: Time) -> Stacks {
        Stacks { looking: None }
    }

    fn on_order<S: Shell>(&mut self, core: &mut Core<S>, order: Order) -> Option<Order> {
        let Order::Stacks {
            number,
            within_ms,
            bytes_max,
        } = order
        else {
            return Some(order);
        };
        if self.looking.as_ref().is_some_and(|it| it.number >= number) {
            return None;
        }
        let connected = core.ranks().iter();
        let ranks: Vec<_> = connected
            .filter_map(|entry| Some((entry.rank, entry.link?.pid)))
            .collect();
        self.looking = Some(Look {
            number,
            bytes_max: (bytes_max as usize).min(MESSAGE_BYTES_MAX - AROUND_BYTES),
            ranks: ranks.len(),
        });
        core.begin(Ask::Stacks {
            number,
            ranks,
            within: Time::from_ms(within_ms),
        });
        None
    }

    fn on_done<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        done: Done<S::Slab>,
    ) -> Option<Done<S::Slab>> {
        let Done::Stacks { number, ranks } = done else {
            return Some(done);
        };
        // One that is older is of nobody's interest any more.
        if let Some(look) = self.looking.take_if(|look| look.number == number) {
            look.answer(core, ranks);
        }
        None
    }
}

impl Look {
    fn answer<S: Shell>(&self, core: &mut Core<S>, ranks: Vec<RankStacks>) {
        let found = whereabouts::fit(ranks, self.ranks, self.bytes_max);
        let number = self.number;
        core.tell(&Notice::Stacks { number, found });
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::Rank;

    use super::*;
    use crate::node::Input;
    use crate::node::still::alone;
    use crate::orders::{Place, encode};

    fn order(number: u32) -> Input<crate::node::plain::PlainSlab> {
        Input::Order(Order::Stacks {
            number,
            within_ms: 8_000,
            bytes_max: 4_096,
        })
    }

    fn found(text: usize) -> RankStacks {
        RankStacks {
            rank: Rank(0),
            place: Place::default(),
            text: "x".repeat(text),
        }
    }

    #[test]
    fn a_question_that_is_repeated_is_one_look_and_its_answer_is_bounded() {
        let mut node = alone(0);
        let now = Time::ZERO;
        node.shell().told.clear();
        node.on(now, order(1));
        node.on(now, order(1));
        let asked = std::mem::take(&mut node.shell().asked);
        let looks: Vec<_> = asked
            .into_iter()
            .filter_map(|ask| match ask {
                Ask::Stacks { number, ranks, .. } => Some((number, ranks)),
                _ => None,
            })
            .collect();
        assert_eq!(looks, [(1, Vec::new())], "nobody is connected");
        // A later question takes the place of one that is not answered yet.
        node.on(now, order(2));
        let ranks = vec![found(1 << 20)];
        for number in [1, 2, 2] {
            let ranks = ranks.clone();
            node.on(now, Input::Done(Done::Stacks { number, ranks }));
        }
        let told = std::mem::take(&mut node.shell().told);
        let [answer @ Notice::Stacks { number: 2, found }] = &told[..] else {
            panic!("{told:?}");
        };
        assert!(encode(answer).unwrap().len() <= 4_096 + AROUND_BYTES);
        assert!(found.ranks[0].text.contains("bytes more"), "{found:?}");
    }
}
