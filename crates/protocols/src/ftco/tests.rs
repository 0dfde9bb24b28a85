//! Sizes and bytes; behaviour is tested in the simulator.

use super::collective::Collective;
use super::*;
use crate::collective::CollectiveKind;

#[test]
fn sizes_are_bounded() {
    assert!(size_of::<Msg>() <= outlive_base::machine::MESSAGE_BYTES_MAX);
    assert!(size_of::<Event>() <= 24);
    assert!(size_of::<Collective>() <= 64, "{}", size_of::<Collective>());
    assert!(size_of::<Machine>() <= 256, "{}", size_of::<Machine>());
}

#[test]
fn messages_survive_the_wire_and_unknown_ones_are_refused() {
    for kind in 0..9 {
        for verb in 0..9 {
            let mut bytes = [7; Msg::BYTES];
            (bytes[12], bytes[13]) = (kind, verb);
            match Msg::decode(bytes) {
                Some(msg) => assert_eq!(msg.encode(), bytes),
                None => assert!(kind >= 7 || verb >= 8),
            }
        }
    }
}

fn outputs(machine: &mut Machine, cx: &Cx<Machine>) -> Vec<Output<Machine>> {
    use outlive_base::machine::Machine as _;
    std::iter::from_fn(|| machine.poll(cx, Ready::ALL)).collect()
}

#[test]
fn a_plan_runs_many_times_and_one_not_prepared_is_refused() {
    use crate::broadcast::LogP;
    use crate::broadcast::tree::{Order, Shape};
    use outlive_base::machine::Machine as _;
    let logp = LogP {
        latency: 1,
        overhead: 1,
        gap: 1,
    };
    let plan = Plan::new(Shape::Binomial, Order::InOrder, 1, &logp).expect("valid");
    let config = Config::new(plan);
    let cx = Cx {
        me: 0,
        now: Time::ZERO,
        config: &config,
        seed: 0,
    };
    let mut machine = Machine::new();
    let call = Call {
        kind: CollectiveKind::Allreduce,
        root: 0,
        value: None,
        ordered: true,
    };
    machine.on_command(&cx, Command::Prepare { handle: 3, call });
    for seq in 0..5 {
        let value = Some(Body(seq));
        machine.on_command(&cx, Command::Run { handle: 3, value });
        let done = Event::Done { seq, value, by: 0 };
        let said = outputs(&mut machine, &cx);
        assert!(
            matches!(said[..], [Output::Event(event)] if event == done),
            "{said:?}"
        );
    }
    let value = Some(Body(9));
    machine.on_command(&cx, Command::Run { handle: 4, value });
    let said = outputs(&mut machine, &cx);
    let why = Why::Argument;
    assert!(matches!(said[0], Output::Event(Event::Failed { seq: 5, why: w }) if w == why));
    assert!(matches!(said[1], Output::Release { body: Body(9) }));
    assert_eq!(
        machine.next_seq(),
        5,
        "a call that was never made has no number"
    );
}
