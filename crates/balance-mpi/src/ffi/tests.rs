//! What C programs get that ask for what makes no sense: a code, a text with a remedy and
//! a result that may be freed.

#![allow(clippy::undocumented_unsafe_blocks)] // the queries of a test, on its own objects

use core::ffi::CStr;

use super::*;

/// Objects of one rank, by number and weight; `fail` is what the queries return.
struct Program {
    objects: Vec<(u64, f64)>,
    edges: Vec<Vec<(u64, f64)>>,
    count: u64,
    fail: [c_int; 5],
}

unsafe fn program<'a>(context: *mut c_void) -> &'a Program {
    // SAFETY: every test hands over a live one.
    unsafe { &*context.cast::<Program>() }
}
unsafe extern "C" fn count(context: *mut c_void, out: *mut u64) -> c_int {
    let program = unsafe { program(context) };
    unsafe { out.write(program.count) };
    program.fail[0]
}
unsafe extern "C" fn objects(c: *mut c_void, _: u64, to: *mut u64, weights: *mut f64) -> c_int {
    let program = unsafe { program(c) };
    for (slot, one) in program.objects.iter().enumerate() {
        unsafe { (to.add(slot).write(one.0), weights.add(slot).write(one.1)) };
    }
    program.fail[1]
}
unsafe extern "C" fn degrees(c: *mut c_void, _: u64, _: *const u64, out: *mut u32) -> c_int {
    let program = unsafe { program(c) };
    for (slot, row) in program.edges.iter().enumerate() {
        unsafe { out.add(slot).write(row.len() as u32) };
    }
    program.fail[2]
}
unsafe extern "C" fn edges(
    c: *mut c_void,
    _: u64,
    _: *const u64,
    to: *mut u64,
    weights: *mut f64,
) -> c_int {
    let program = unsafe { program(c) };
    for (slot, one) in program.edges.iter().flatten().enumerate() {
        unsafe { (to.add(slot).write(one.0), weights.add(slot).write(one.1)) };
    }
    program.fail[3]
}
unsafe extern "C" fn places(c: *mut c_void, count: u64, _: *const u64, out: *mut f64) -> c_int {
    for slot in 0..3 * count as usize {
        unsafe { out.add(slot).write(slot as f64) };
    }
    unsafe { program(c) }.fail[4]
}

/// The transport of a job of one rank.
unsafe extern "C" fn gather(_: *mut c_void, value: f64, out: *mut f64) -> c_int {
    unsafe { out.write(value) };
    0
}
unsafe extern "C" fn exchange(
    _: *mut c_void,
    out: *const u8,
    lengths: *const u64,
    into: *mut u8,
    incoming: *mut u64,
) -> c_int {
    let length = unsafe { lengths.read() };
    unsafe { incoming.write(length) };
    if !into.is_null() {
        unsafe { core::ptr::copy_nonoverlapping(out, into, length as usize) };
    }
    0
}

const ALONE: TransportC = TransportC {
    context: core::ptr::null_mut(),
    rank: 0,
    size: 1,
    send: None,
    wait: None,
    take: None,
    all_gather: Some(gather),
    all_to_all: Some(exchange),
};

/// Two objects, tied to each other.
fn pair() -> Program {
    Program {
        objects: vec![(1, 1.0), (u64::MAX, 2.0)],
        edges: vec![vec![(u64::MAX, 3.0)], vec![(1, 3.0)]],
        count: 2,
        fail: [0; 5],
    }
}

fn queries(program: &Program) -> Queries {
    Queries {
        context: core::ptr::from_ref(program).cast_mut().cast(),
        objects_count: Some(count),
        objects: Some(objects),
        edges_count: Some(degrees),
        edges: Some(edges),
        coordinates: Some(places),
    }
}

/// The status and the text of the error.
fn call(transport: &TransportC, queries: &Queries, options: &OptionsC) -> (c_int, String) {
    // SAFETY: a result is written before it is read.
    let mut result: ResultC = unsafe { core::mem::zeroed() };
    result.exports_count = 77;
    // SAFETY: all are live.
    let status = unsafe { outlive_balance_over(transport, queries, options, &mut result) };
    assert_eq!((result.exports_count, result.imports_count), (0, 0));
    // SAFETY: the text of this thread, read before the next call.
    let text = unsafe { CStr::from_ptr(outlive_balance_error()) };
    // SAFETY: filled by the call.
    unsafe { outlive_balance_free(&mut result) };
    (status, text.to_string_lossy().into_owned())
}

#[test]
fn one_rank_is_in_balance() {
    let program = pair();
    for method in 0..3 {
        let options = OptionsC {
            method,
            ..OptionsC::default()
        };
        let (status, text) = call(&ALONE, &queries(&program), &options);
        assert_eq!((status, text.as_str()), (0, ""), "{method}");
    }
    let none = Program {
        objects: Vec::new(),
        edges: Vec::new(),
        count: 0,
        fail: [0; 5],
    };
    assert_eq!(call(&ALONE, &queries(&none), &OptionsC::default()).0, 0);
}

#[test]
fn bad_objects_and_queries_that_fail_are_named() {
    type Change = fn(&mut Program);
    let cases: [(Change, &str); 14] = [
        (|p| p.objects[0].1 = 0.0, "task 1 has weight 0"),
        (|p| p.objects[1].1 = -2.5, "weight -2.5"),
        (|p| p.objects[1].1 = f64::NAN, "weight NaN"),
        (|p| p.objects[1].1 = f64::INFINITY, "weight inf"),
        (|p| p.objects[1].0 = 1, "the number 1 twice"),
        (|p| p.edges[0][0].1 = -1.0, "edge from task 1"),
        (|p| p.edges[0][0].1 = 4.0, "two weights"),
        (|p| p.edges[0][0].0 = 1, "its own neighbour"),
        (|p| p.edges[0].push((u64::MAX, 3.0)), "twice"),
        (|p| p.edges[1].clear(), "one end only"),
        (|p| p.edges[0][0].0 = 5, "task 5, which no process has"),
        (
            |p| p.count = u64::MAX,
            "objects_count gave 18446744073709551615",
        ),
        (|p| p.fail[0] = 3, "objects_count returned 3"),
        (|p| p.fail[4] = 9, "coordinates returned 9"),
    ];
    for (change, says) in cases {
        let mut program = pair();
        change(&mut program);
        let (status, text) = call(&ALONE, &queries(&program), &OptionsC::default());
        assert_eq!(status, -100, "{says}: {text}");
        assert!(text.contains(says), "{says}: {text}");
    }
}

#[test]
fn bad_options_and_missing_members_are_named() {
    let program = pair();
    let with = |change: fn(&mut OptionsC)| {
        let mut options = OptionsC::default();
        change(&mut options);
        call(&ALONE, &queries(&program), &options)
    };
    for (status, text) in [
        with(|o| o.tolerance = -0.1),
        with(|o| o.tolerance = f64::NAN),
        with(|o| o.migration_price = f64::INFINITY),
        with(|o| o.speed = -1.0),
        with(|o| o.speed = f64::NAN),
        with(|o| o.background = -1.0),
        with(|o| o.method = 3),
        with(|o| o.method = -1),
    ] {
        assert_eq!(status, -100, "{text}");
    }
    let mut missing = queries(&program);
    missing.edges = None;
    let (status, text) = call(&ALONE, &missing, &OptionsC::default());
    assert!(status == -100 && text.contains("no edges"), "{text}");
    let mute = TransportC {
        all_to_all: None,
        ..ALONE
    };
    let (status, text) = call(&mute, &queries(&program), &OptionsC::default());
    assert!(status == -100 && text.contains("no all_to_all"), "{text}");
    let (given, null) = (queries(&program), core::ptr::null());
    // SAFETY: null is what is tested.
    unsafe {
        let mut result: ResultC = core::mem::zeroed();
        assert_eq!(
            outlive_balance_over(null, &given, core::ptr::null(), &mut result),
            -100
        );
        assert_eq!(
            outlive_balance_over(&ALONE, core::ptr::null(), core::ptr::null(), &mut result),
            -100
        );
        let no = core::ptr::null_mut();
        assert_eq!(
            outlive_balance_over(&ALONE, &given, core::ptr::null(), no),
            -100
        );
        outlive_balance_free(core::ptr::null_mut());
    }
}
