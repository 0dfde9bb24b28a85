//! Two lanes on one piece of memory: in one thread, step by step, and in two.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use super::*;

/// Memory of a lane, and its two ends.
struct Both {
    base: *mut u8,
    lanes: [Lane; 2],
}

fn layout() -> Layout {
    Layout::from_size_align(BYTES, 4096).expect("a layout")
}

impl Both {
    fn new() -> Both {
        // SAFETY: of some size; the lanes go before it does.
        unsafe {
            let base = alloc_zeroed(layout());
            let lanes = [Lane::at(base, 0, None), Lane::at(base, 1, None)];
            Both { base, lanes }
        }
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; nobody uses it any more.
        unsafe { dealloc(self.base, layout()) };
    }
}

/// Waits for the other thread; ends a test that hangs.
struct Patient(u64);

impl Wait for Patient {
    fn idle(&mut self, _: impl FnOnce() -> bool) -> Option<Over> {
        self.0 += 1;
        std::thread::yield_now();
        (self.0 > 20_000_000).then_some(Over::Bound)
    }
    fn moved(&mut self) {
        self.0 = 0;
    }
}

/// Says at once that the wait is over.
struct At(Over);

impl Wait for At {
    fn idle(&mut self, _: impl FnOnce() -> bool) -> Option<Over> {
        Some(self.0)
    }
    fn moved(&mut self) {}
}

fn dead() -> At {
    At(Over::Dead)
}

fn head(call: u32, kind: CallKind, bytes: usize) -> Head {
    Head {
        call,
        kind,
        root: 0,
        long: false,
        bytes: bytes as u32,
        chunk: ring::CHUNK.min(bytes) as u32,
    }
}

fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    let byte = |at| (seed * 31 + at * 7 + at / 251) as u8;
    (0..bytes).map(byte).collect()
}

fn give(lane: &mut Lane, own: Head, data: &[u8], wait: &mut impl Wait) -> Ended {
    assert_eq!(data.len(), own.inside());
    // SAFETY: the data have the head's bytes.
    unsafe { lane.exchange(own, Some(data.as_ptr()), None, false, wait) }
}

fn take(lane: &mut Lane, own: Head, wait: &mut impl Wait) -> (Ended, Vec<u8>) {
    let mut got = vec![0xee; own.inside()];
    let mut copy = |at: usize, from: *mut u8, bytes: usize| {
        // SAFETY: what is offered is readable; the index checks the room.
        got[at..at + bytes].copy_from_slice(unsafe { std::slice::from_raw_parts(from, bytes) });
        0
    };
    // SAFETY: nothing is given.
    let ended = unsafe { lane.exchange(own, None, Some(&mut copy), false, wait) };
    (ended, got)
}

/// Gives and takes at once; `after` as in place.
fn swap(lane: &mut Lane, own: Head, data: &mut [u8], wait: &mut impl Wait) -> Ended {
    let base = data.as_mut_ptr();
    let mut add = |at: usize, from: *mut u8, bytes: usize| {
        for k in 0..bytes {
            // SAFETY: within the data; what is offered is readable.
            unsafe {
                let to = base.add(at + k);
                *to = (*to).wrapping_add(*from.add(k));
            }
        }
        0
    };
    // SAFETY: the data have the head's bytes.
    unsafe { lane.exchange(own, Some(base), Some(&mut add), true, wait) }
}

const SIZES: [usize; 14] = [
    0,
    1,
    8,
    ring::INLINE,
    ring::INLINE + 1,
    4096,
    ring::CHUNK - 1,
    ring::CHUNK,
    ring::CHUNK + 1,
    3 * ring::CHUNK,
    ring::AREA,
    ring::AREA + 1,
    5 * ring::AREA + 17,
    100_003,
];

#[test]
fn data_of_every_length_arrive_in_both_directions() {
    let mut both = Both::new();
    let [zero, one] = &mut both.lanes;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for (round, bytes) in SIZES.into_iter().cycle().take(200).enumerate() {
                let call = zero.begin();
                let own = head(call, CallKind::Bcast, bytes);
                if round % 2 == 0 {
                    let ended = give(zero, own, &pattern(round, bytes), &mut Patient(0));
                    assert_eq!(ended, Ended::Done(None));
                } else {
                    let (ended, got) = take(zero, own, &mut Patient(0));
                    assert_eq!(ended, Ended::Done(Some(own)));
                    assert!(got == pattern(round, bytes), "{round}: {bytes}");
                }
            }
        });
        for (round, bytes) in SIZES.into_iter().cycle().take(200).enumerate() {
            let call = one.begin();
            let own = head(call, CallKind::Bcast, bytes);
            if round % 2 == 1 {
                give(one, own, &pattern(round, bytes), &mut Patient(0));
            } else {
                let (ended, got) = take(one, own, &mut Patient(0));
                assert_eq!(ended, Ended::Done(Some(own)));
                assert!(got == pattern(round, bytes), "{round}: {bytes}");
            }
        }
    });
}

#[test]
fn both_give_and_take_at_once_from_one_buffer() {
    let mut both = Both::new();
    let [zero, one] = &mut both.lanes;
    let side = |lane: &mut Lane, me: usize| {
        for (round, bytes) in SIZES.into_iter().cycle().take(200).enumerate() {
            let own = head(lane.begin(), CallKind::Allreduce, bytes);
            let mut data = pattern(2 * round + me, bytes);
            let ended = swap(lane, own, &mut data, &mut Patient(0));
            assert_eq!(ended, Ended::Done(Some(own)));
            let other = pattern(2 * round + 1 - me, bytes);
            let own = pattern(2 * round + me, bytes);
            let sum = own.iter().zip(&other).map(|(a, b)| a.wrapping_add(*b));
            assert!(data == sum.collect::<Vec<_>>(), "{round}: {bytes}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || side(zero, 0));
        side(one, 1);
    });
}

#[test]
fn a_giver_runs_ahead_as_far_as_there_are_slots() {
    let mut both = Both::new();
    let [zero, one] = &mut both.lanes;
    for call in 1..=ring::SLOTS as u32 {
        let data = call.to_le_bytes();
        let ended = give(zero, head(call, CallKind::Reduce, 4), &data, &mut dead());
        assert_eq!(ended, Ended::Done(None), "{call}");
    }
    // The next waits, and the other is said to be dead: not given.
    let next = head(ring::SLOTS as u32 + 1, CallKind::Reduce, 4);
    assert_eq!(give(zero, next, &[0; 4], &mut dead()), Ended::Alone);
    assert_eq!(zero.closed(), Some(Over::Dead));
    // What was given arrives, also after a death.
    for call in 1..=ring::SLOTS as u32 {
        let (ended, got) = take(one, head(call, CallKind::Reduce, 4), &mut dead());
        assert!(matches!(ended, Ended::Done(Some(_))), "{call}");
        assert_eq!(got, call.to_le_bytes());
    }
    let (ended, _) = take(one, next, &mut dead());
    assert_eq!(ended, Ended::Alone);
    assert_eq!(one.closed(), Some(Over::Dead));
}

/// A giver that stops after any number of chunks: all of the message, or none.
#[test]
fn half_a_message_of_a_dead_process_is_none() {
    let chunks = 6;
    let bytes = ring::CHUNK * (chunks - 1) + 100;
    for stops in 0..=chunks {
        let mut both = Both::new();
        let [zero, one] = &mut both.lanes;
        let own = head(1, CallKind::Allreduce, bytes);
        let data = pattern(3, bytes);
        for chunk in 0..stops {
            let at = chunk * ring::CHUNK;
            let free = one.out.free(own.next(at)).expect("there are more slots");
            // SAFETY: the data have the head's bytes.
            unsafe { one.put(free, &own, data.as_ptr(), at) };
        }
        if stops < chunks {
            // Data of the next without its number: it died in between.
            let free = one.out.free(ring::CHUNK).expect("there are more slots");
            let data = one.out.ring.data(free.slot, free.at, ring::CHUNK);
            // SAFETY: the slot is free, and nobody looks at it.
            unsafe { data.write_bytes(0x66, ring::CHUNK) };
        }
        let mut mine = pattern(4, bytes);
        let ended = swap(zero, own, &mut mine, &mut dead());
        if stops == chunks {
            assert_eq!(ended, Ended::Done(Some(own)));
            assert_eq!(zero.closed(), None);
        } else {
            assert_eq!(ended, Ended::Alone, "{stops}");
            assert_eq!(zero.closed(), Some(Over::Dead));
        }
    }
}

#[test]
fn what_differs_is_told_and_the_next_call_is_right_again() {
    let mut both = Both::new();
    let [zero, one] = &mut both.lanes;
    // The root gives more, or less, than the other asks for: nothing of it is used.
    for (call, gives, asks) in [(1, 16, 8), (2, 8, 16), (3, 3 * ring::CHUNK, 8)] {
        give(
            zero,
            head(call, CallKind::Bcast, gives),
            &pattern(1, gives),
            &mut dead(),
        );
        let (ended, got) = take(one, head(call, CallKind::Bcast, asks), &mut dead());
        assert_eq!(
            ended,
            Ended::Differs(Some(head(call, CallKind::Bcast, gives)))
        );
        assert!(got.iter().all(|byte| *byte == 0xee), "untouched");
    }
    // Another kind, another root.
    give(zero, head(4, CallKind::Reduce, 8), &[1; 8], &mut dead());
    let (ended, _) = take(one, head(4, CallKind::Bcast, 8), &mut dead());
    assert_eq!(ended, Ended::Differs(Some(head(4, CallKind::Reduce, 8))));
    let turned = Head {
        root: 1,
        ..head(5, CallKind::Reduce, 8)
    };
    give(zero, turned, &[1; 8], &mut dead());
    let (ended, _) = take(one, head(5, CallKind::Reduce, 8), &mut dead());
    assert_eq!(ended, Ended::Differs(Some(turned)));
    // A message that nobody asked for is found in the next call, and is over with it.
    give(zero, head(6, CallKind::Bcast, 8), &[6; 8], &mut dead());
    give(zero, head(7, CallKind::Bcast, 8), &[7; 8], &mut dead());
    let (ended, _) = take(one, head(7, CallKind::Bcast, 8), &mut dead());
    assert_eq!(ended, Ended::Differs(Some(head(7, CallKind::Bcast, 8))));
    give(zero, head(8, CallKind::Bcast, 8), &[8; 8], &mut dead());
    let (ended, got) = take(one, head(8, CallKind::Bcast, 8), &mut dead());
    assert_eq!(ended, Ended::Done(Some(head(8, CallKind::Bcast, 8))));
    assert_eq!(got, [8; 8]);
}

#[test]
fn swapped_data_that_differ_in_length_are_an_error_on_both_sides() {
    let mut both = Both::new();
    let [zero, one] = &mut both.lanes;
    let side = |lane: &mut Lane, bytes: usize| {
        let own = head(lane.begin(), CallKind::Allreduce, bytes);
        let mut data = pattern(1, bytes);
        let ended = swap(lane, own, &mut data, &mut Patient(0));
        assert!(matches!(ended, Ended::Differs(Some(_))), "{ended:?}");
        assert!(data == pattern(1, bytes), "untouched");
        let own = head(lane.begin(), CallKind::Barrier, 0);
        assert_eq!(
            swap(lane, own, &mut [], &mut Patient(0)),
            Ended::Done(Some(own))
        );
    };
    std::thread::scope(|scope| {
        scope.spawn(move || side(zero, 8));
        side(one, 3 * ring::AREA);
    });
}

#[test]
fn a_call_that_the_other_passed_by_closes_the_lane() {
    let mut both = Both::new();
    let [zero, one] = &mut both.lanes;
    give(zero, head(2, CallKind::Bcast, 8), &[2; 8], &mut dead());
    let (ended, _) = take(one, head(1, CallKind::Bcast, 8), &mut dead());
    assert_eq!(ended, Ended::Differs(None));
    assert_eq!(one.closed(), Some(Over::Bound));
    // The other does not wait for its bound.
    let (ended, _) = take(zero, head(3, CallKind::Bcast, 8), &mut Patient(0));
    assert_eq!(ended, Ended::Closed);
}

#[test]
fn who_gives_up_at_its_bound_tells_the_other() {
    let mut both = Both::new();
    let [zero, one] = &mut both.lanes;
    let (ended, _) = take(one, head(1, CallKind::Bcast, 8), &mut At(Over::Bound));
    assert_eq!(ended, Ended::Closed);
    let own = head(1, CallKind::Barrier, 0);
    let ended = swap(zero, own, &mut [], &mut Patient(0));
    assert_eq!(ended, Ended::Closed);
    assert_eq!(zero.closed(), Some(Over::Bound));
}

#[test]
fn words_that_are_no_head_close_the_lane() {
    for words in [[0, 0], [9 << 32 | 1, 8 | 8 << 32], [2 << 32 | 1, 8]] {
        let mut both = Both::new();
        let [zero, one] = &mut both.lanes;
        let free = zero.out.free(0).expect("fresh");
        // SAFETY: the slot is free.
        unsafe { zero.out.ring.describe(free.slot, words) };
        zero.out.publish(free);
        let (ended, _) = take(one, head(1, CallKind::Bcast, 8), &mut dead());
        assert_eq!(ended, Ended::Differs(None), "{words:?}");
    }
}

#[test]
fn an_operator_that_fails_does_not_leave_the_lane_out_of_step() {
    let mut both = Both::new();
    let [zero, one] = &mut both.lanes;
    let own = head(1, CallKind::Reduce, 3 * ring::CHUNK);
    give(zero, own, &pattern(1, 3 * ring::CHUNK), &mut dead());
    let mut calls = 0;
    let mut fail = |_, _: *mut u8, _| {
        calls += 1;
        17
    };
    // SAFETY: nothing is given.
    let ended = unsafe { one.exchange(own, None, Some(&mut fail), false, &mut dead()) };
    assert_eq!((ended, calls), (Ended::Failed(17), 1));
    give(zero, head(2, CallKind::Bcast, 8), &[2; 8], &mut dead());
    let (_, got) = take(one, head(2, CallKind::Bcast, 8), &mut dead());
    assert_eq!(got, [2; 8]);
}

#[test]
fn a_head_is_read_as_it_was_written() {
    for kind in [
        CallKind::Barrier,
        CallKind::Bcast,
        CallKind::Reduce,
        CallKind::Allreduce,
        CallKind::Ready,
    ] {
        for long in [false, true] {
            let one = Head {
                call: u32::MAX,
                kind,
                root: 1,
                long,
                bytes: u32::MAX,
                chunk: ring::CHUNK as u32,
            };
            assert_eq!(Head::of(one.words()), Some(one));
        }
    }
}
