//! The services of a node: the list, and whom each thing that happens goes to.

use outlive_base::ipc::ToAgent;
use outlive_base::{NodeId, Rank, Time};

use super::core::{CORE_POINTS, Core, News};
use super::service::{Haste, Service};
use super::shell::{Done, Shell};
use crate::orders::Order;

/// The named points at which `Fault::FailPoint` can wait.
pub fn fail_points() -> Vec<&'static str> {
    let services = POINTS.iter().copied().flatten();
    CORE_POINTS.iter().chain(services).copied().collect()
}

macro_rules! services {
    ($($(#[$doc:meta])* $field:ident: $name:ident),* $(,)?) => {
        /// The services of a node.
        pub(super) struct Services {
            $(pub $field: super::$field::$name),*
        }

        /// The places of services at which a crash can be tested.
        const POINTS: &[&[&str]] = &[$(super::$field::$name::POINTS),*];

        #[cfg(test)]
        const NUMBERS: &[u8] = &[$(super::$field::$name::NUMBER),*];

        impl Services {
            pub fn new(now: Time) -> Services {
                Services { $($field: Service::new(now)),* }
            }
            /// What is of no service here, or cannot be read, comes from another release.
            pub fn on_word<S: Shell>(
                &mut self,
                core: &mut Core<S>,
                from: NodeId,
                (service, bytes): (u8, &[u8]),
            ) {
                $(if service != 0 && service == super::$field::$name::NUMBER {
                    match postcard::from_bytes(bytes) {
                        Ok(word) => self.$field.on_word(core, from, word),
                        Err(error) => tracing::debug!(service, %error, "not understood"),
                    }
                })*
            }
            pub fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
                $(self.$field.on_news(core, news);)*
            }
            pub fn on_order<S: Shell>(&mut self, core: &mut Core<S>, order: Order) -> Option<Order> {
                $(let order = self.$field.on_order(core, order)?;)*
                Some(order)
            }
            pub fn on_rank<S: Shell>(
                &mut self,
                core: &mut Core<S>,
                from: (Rank, u32),
                message: ToAgent,
            ) -> Option<ToAgent> {
                $(let message = self.$field.on_rank(core, from, message)?;)*
                Some(message)
            }
            pub fn on_done<S: Shell>(
                &mut self,
                core: &mut Core<S>,
                done: Done<S::Slab>,
            ) -> Option<Done<S::Slab>> {
                $(let done = self.$field.on_done(core, done)?;)*
                Some(done)
            }
            pub fn on_time<S: Shell>(&mut self, core: &mut Core<S>) {
                $(if self.$field.deadline(core).is_some_and(|at| at <= core.now()) {
                    self.$field.on_time(core);
                })*
            }
            pub fn deadline<S: Shell>(&self, core: &Core<S>) -> Option<Time> {
                [$(self.$field.deadline(core)),*].into_iter().flatten().min()
            }
            pub fn on_look<S: Shell>(&mut self, core: &mut Core<S>) {
                $(self.$field.on_look(core);)*
            }
            pub fn look_at<S: Shell>(&self, core: &Core<S>) -> Option<Time> {
                [$(self.$field.look_at(core)),*].into_iter().flatten().min()
            }
            pub fn haste<S: Shell>(&self, core: &Core<S>) -> Haste {
                [$(self.$field.haste(core)),*].into_iter().fold(Haste::Calm, Haste::max)
            }
        }
    };
}

services! {
    /// Who is silent.
    silence: Silence,
    /// Parities of a group's containers.
    parity: Parity,
    /// When a checkpoint is wanted.
    policy: Policy,
    /// Ranks that wait for a version to be safe.
    waits: Waits,
    /// Faults that wait for a version or end by the clock.
    injection: Injection,
    /// What is removed, and when.
    collection: Collection,
    /// What is read before it is needed.
    scrub: Scrub,
    /// Copies at `shared` of what lies in node storage.
    transfer: Transfer,
    /// When that is done which need not be done at once.
    slots: Slots,
    /// The end of the job.
    ending: Ending,
    /// What the regions hold.
    contents: Contents,
    /// Room for the next version.
    room: Room,
    /// How the machine is.
    health: Health,
    /// What `outlive status` says.
    status: Status,
    /// What the ranks are doing.
    stacks: Stacks,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_services_have_a_number_or_a_point_in_common() {
        let said: Vec<u8> = NUMBERS.iter().copied().filter(|it| *it != 0).collect();
        let different: BTreeSet<u8> = said.iter().copied().collect();
        assert_eq!(said.len(), different.len(), "{said:?}");
        let points = fail_points();
        let different: BTreeSet<&str> = points.iter().copied().collect();
        assert_eq!(points.len(), different.len(), "{points:?}");
    }
}
