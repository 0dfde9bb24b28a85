//! The rail over UCX: order and sizes, strangers, deaths, lateness, back-pressure, and what
//! a machine without the right UCX hears. `scripts/test.sh ucx` runs these under each kind
//! of transport, and the conformance suite with them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use outlive_base::{Code, Time};
use outlive_network::rail::STALL;
use outlive_network::rail::tcp::{KEY_BYTES, Listener};
use outlive_network::rail::ucx::{Door, Options, Ucx};
use outlive_network::rail::{Content, Frame, Key, News, Rail, conform};

const SECRET: [u8; KEY_BYTES] = [9; KEY_BYTES];
const BOUND: Duration = Duration::from_secs(60);
/// Tells a child of a test what to do.
const CHILD: &str = "OUTLIVE_TEST_CHILD";

fn door(library: Option<PathBuf>) -> outlive_base::Result<Door> {
    let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let options = Options {
        library,
        ..Options::default()
    };
    Door::open(listener, options)
}

fn job(size: u32) -> Vec<Ucx> {
    let doors: Vec<Door> = (0..size).map(|_| door(None).expect("UCX")).collect();
    let cards: Vec<Vec<u8>> = doors.iter().map(Door::card).collect();
    let rail = |(me, door)| Ucx::new(door, me as u32, &cards, SECRET).expect("a rail");
    doors.into_iter().enumerate().map(rail).collect()
}

fn two() -> (Ucx, Ucx) {
    let mut both = job(2).into_iter();
    (both.next().expect("one"), both.next().expect("another"))
}

fn frame(number: u32, bytes: usize, absent: Vec<u32>) -> Frame {
    let key = Key {
        comm: 7,
        sequence: number,
        incarnation: 0,
        protocol: 1,
    };
    let mut content = Content::new((0..bytes).map(|at| (at as u32 ^ number) as u8).collect());
    content.absent = absent.into();
    Frame {
        key,
        msg: [number as u8; 32],
        body: (number % 5 != 4).then_some(content),
    }
}

/// Turns all rails until `done` says so.
fn turn<T>(rails: &mut [&mut Ucx], mut done: impl FnMut(usize, Option<Frame>) -> Option<T>) -> T {
    let end = Instant::now() + BOUND;
    loop {
        for (place, rail) in rails.iter_mut().enumerate() {
            let came = rail.receive().map(|(_, frame)| frame);
            let quiet = came.is_none();
            if let Some(result) = done(place, came) {
                return result;
            }
            if quiet {
                rail.wait(rail.now() + Time::from_ms(1));
            }
        }
        assert!(Instant::now() < end, "nothing came");
    }
}

#[test]
fn ucx_conforms() {
    conform(job, |_| (), BOUND).expect("what every rail promises");
}

#[test]
fn frames_of_all_sizes_arrive_whole_and_in_order() {
    let (mut one, mut two) = two();
    let sizes = [0, 8 << 20, 1, 300, 9000, 70_000, 0, 1 << 20, 12, 3 << 20, 8];
    let sent: Vec<Frame> = (0..)
        .zip(sizes.iter().chain(&sizes))
        .map(|(number, size)| frame(number, *size, vec![3; number as usize % 3]))
        .collect();
    for frame in &sent {
        one.send(1, frame.clone());
        two.send(0, frame.clone());
    }
    let mut got = [Vec::new(), Vec::new()];
    turn(&mut [&mut one, &mut two], |place, came| {
        got[place].extend(came);
        got.iter().all(|got| got.len() == sent.len()).then_some(())
    });
    assert!(got.iter().all(|got| *got == sent));
    turn(&mut [&mut one, &mut two], |_, came| {
        assert_eq!(came, None, "nothing comes twice");
        Some(())
    });
    let end = Instant::now() + BOUND;
    while !one.flushed() || !two.flushed() {
        two.receive();
        assert!(Instant::now() < end, "all has left");
    }
    assert_eq!((one.waiting(), one.refused()), (0, 0));
}

/// Whose call was not answered before its frame was there and the other one left.
#[test]
fn a_goodbye_reaches_whoever_sent_something() {
    let (mut one, mut two) = two();
    let sent = frame(3, 300, Vec::new());
    one.send(1, sent.clone());
    let end = Instant::now() + BOUND;
    let came = loop {
        // Not `look` nor `wait`: the call of the other one stays unanswered.
        one.flushed();
        if let Some((_, came)) = two.receive() {
            break came;
        }
        assert!(Instant::now() < end, "nothing came");
    };
    assert_eq!(came, sent);
    thread::scope(|scope| {
        let leaving = scope.spawn(move || two.leave(BOUND));
        // Who has nothing to say to the other one is gone at once; a goodbye waits for its answer.
        let patience = Instant::now() + Duration::from_millis(100);
        while !leaving.is_finished() && Instant::now() < patience {
            thread::sleep(Duration::from_millis(1));
        }
        let end = Instant::now() + BOUND;
        let told = loop {
            one.look();
            if let Some(news) = one.news() {
                break news;
            }
            one.wait(one.now() + Time::from_ms(1));
            assert!(Instant::now() < end, "nothing was told");
        };
        assert_eq!(told, News::Left(1));
    });
}

#[test]
fn a_key_of_another_job_is_refused() {
    let doors: Vec<Door> = (0..2).map(|_| door(None).expect("UCX")).collect();
    let cards: Vec<Vec<u8>> = doors.iter().map(Door::card).collect();
    let mut doors = doors.into_iter();
    let mut rail = |me, key| {
        let door = doors.next().expect("a door");
        Ucx::new(door, me, &cards, key).expect("a rail")
    };
    let (mut one, mut stranger) = (rail(0, SECRET), rail(1, [8; KEY_BYTES]));
    // Short, and long: for that one no room is made.
    stranger.send(0, frame(0, 100, Vec::new()));
    stranger.send(0, frame(1, 4 << 20, Vec::new()));
    let end = Instant::now() + BOUND;
    while one.refused() < 2 {
        assert_eq!(one.receive(), None);
        assert_eq!(stranger.receive(), None);
        assert!(Instant::now() < end, "the stranger is heard");
    }
    assert_eq!(one.receive(), None);
    assert_eq!(one.news(), None);
}

#[test]
fn cards_are_checked() {
    let (one, two) = (door(None).expect("UCX"), door(None).expect("UCX"));
    let cards = [one.card(), two.card()];
    let Err(error) = Ucx::new(two, 0, &cards, SECRET) else {
        panic!("another's place");
    };
    assert_eq!(error.code(), Code::InvalidArgument);
    let cut = [cards[0].clone(), cards[1][..20].to_vec()];
    let Err(error) = Ucx::new(one, 0, &cut, SECRET) else {
        panic!("half a card");
    };
    assert!(error.to_string().contains("rank 1"), "{error}");
}

#[test]
fn who_dies_before_or_after_the_first_message_is_known_to_be_dead() {
    let mut rails = job(4);
    let doomed = rails.pop().expect("four");
    let mut never = rails.pop().expect("three");
    // Gone before anybody called it: its worker and its listener.
    drop(doomed);
    rails[0].send(3, frame(0, 10, Vec::new()));
    rails[0].send(3, frame(1, 4 << 20, Vec::new()));
    let end = Instant::now() + BOUND;
    while rails[0].news() != Some(News::Dead(3)) {
        rails[0].receive();
        assert!(Instant::now() < end, "its host refuses");
    }
    while !rails[0].flushed() {
        assert!(Instant::now() < end, "what is sent to the dead vanishes");
    }
    // Gone after it sent: what it sent comes first, then the news.
    for number in 0..100 {
        never.send(0, frame(number, 3000, Vec::new()));
    }
    let mut got = 0;
    while !never.flushed() {
        let until = rails[0].now() + Time::from_ms(1);
        rails[0].wait(until);
        // All but what comes last: shared memory holds only so many.
        got += usize::from(rails[0].receive().is_some());
        assert!(Instant::now() < end, "all has left");
    }
    drop(never);
    loop {
        while rails[0].receive().is_some() {
            got += 1;
        }
        if let Some(news) = rails[0].news() {
            // The news may come with the last frames.
            while rails[0].receive().is_some() {
                got += 1;
            }
            assert_eq!((news, got), (News::Dead(2), 100));
            break;
        }
        assert!(Instant::now() < end, "its host refuses");
    }
    // The others live.
    let mut others = rails.iter_mut();
    let (one, two) = (others.next().expect("one"), others.next().expect("two"));
    two.send(0, frame(5, 5, Vec::new()));
    let came = turn(&mut [one, two], |_, came| came);
    assert_eq!(came, frame(5, 5, Vec::new()));
    assert!(two.news().is_none(), "it called nobody who died");
}

#[test]
fn who_leaves_is_not_dead() {
    let (mut one, mut two) = two();
    one.send(1, frame(0, 10, Vec::new()));
    two.send(0, frame(1, 10, Vec::new()));
    let mut got = 0;
    turn(&mut [&mut one, &mut two], |_, came| {
        got += usize::from(came.is_some());
        (got == 2).then_some(())
    });
    for number in 0..10 {
        two.send(0, frame(number, 2000, Vec::new()));
    }
    two.leave(BOUND);
    drop(two);
    let end = Instant::now() + BOUND;
    let mut last = 0;
    while last < 9 {
        one.wait(one.now() + Time::from_ms(1));
        while let Some((_, frame)) = one.receive() {
            last = frame.key.sequence;
        }
        assert!(!matches!(one.news(), Some(News::Dead(_))));
        assert!(Instant::now() < end, "all that it sent comes");
    }
}

#[test]
fn a_late_process_is_not_dead_and_holds_up_nobody() {
    let (mut one, mut late) = two();
    let big = frame(0, 4 << 20, Vec::new());
    one.send(1, big.clone());
    assert!(one.waiting() >= 4 << 20, "it has not taken it");
    assert!(one.ready());
    for _ in 0..16 {
        one.send(1, big.clone());
    }
    assert!(!one.ready(), "enough waits");
    let end = Instant::now() + BOUND;
    let stalled = Instant::now() + STALL * 3;
    while one.waiting() > 0 || Instant::now() < stalled {
        one.wait(one.now() + Time::from_ms(5));
        assert_eq!((one.receive(), one.news()), (None, None));
        assert!(Instant::now() < end, "it is late, and no longer counted");
    }
    assert!(!one.flushed());
    let mut got = 0;
    turn(&mut [&mut one, &mut late], |_, came| {
        got += usize::from(came.is_some());
        (got == 17).then_some(())
    });
    while !one.flushed() {
        late.receive();
        assert!(Instant::now() < end, "all has left");
    }
    assert!(one.ready() && one.news().is_none());
}

#[test]
fn two_jobs_do_not_hear_each_other() {
    let mut jobs = [job(3), job(3)];
    for (number, job) in (0..).zip(&mut jobs) {
        for rail in job.iter_mut() {
            for to in 0..3 {
                rail.send(to, frame(number, 50_000, Vec::new()));
            }
        }
    }
    for (number, job) in (0..).zip(&mut jobs) {
        let mut rails: Vec<&mut Ucx> = job.iter_mut().collect();
        let mut got = 0;
        turn(&mut rails, |_, came| {
            if let Some(came) = came {
                assert_eq!(came.key.sequence, number);
                got += 1;
            }
            (got == 6).then_some(())
        });
    }
    assert!(jobs.iter().flatten().all(|rail| rail.refused() == 0));
}

#[test]
fn all_meet_who_are_there() {
    let mut rails = job(4);
    drop(rails.remove(2));
    thread::scope(|scope| {
        let threads = rails.into_iter().map(|mut rail| {
            scope.spawn(move || {
                rail.meet(BOUND).expect("reached");
                let dead: Vec<News> = std::iter::from_fn(|| rail.news()).collect();
                (dead, rail)
            })
        });
        let threads: Vec<_> = threads.collect();
        // All threads end before any rail does.
        let ended: Vec<_> = threads.into_iter().map(|one| one.join()).collect();
        for one in &ended {
            assert_eq!(one.as_ref().expect("no panic").0, [News::Dead(2)]);
        }
    });
}

/// Runs this test in a process of its own with these variables.
fn child(name: &str, variables: &[(&str, &str)]) -> Output {
    let own = std::env::current_exe().expect("this program");
    let mut command = Command::new(own);
    command.args(["--exact", name, "--nocapture"]);
    command.env_remove("UCX_TLS").env(CHILD, "1");
    command.env_remove("UCX_MM_ERROR_HANDLING");
    command.env_remove("UCX_MEM_EVENTS");
    command.envs(variables.iter().copied());
    command.output().expect("runs")
}

fn caught_signals() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("SigCgt"));
    line.expect("a line").to_owned()
}

/// What libc's code in memory is.
fn code_of_libc() -> Vec<u8> {
    use std::io::{Read, Seek, SeekFrom};
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let mut memory = std::fs::File::open("/proc/self/mem").expect("its own");
    let mut code = Vec::new();
    for line in maps
        .lines()
        .filter(|it| it.contains(" r-xp ") && it.contains("/libc.so"))
    {
        let (range, _) = line.split_once(' ').expect("a range");
        let mut ends = range
            .split('-')
            .map(|end| u64::from_str_radix(end, 16).expect("an address"));
        let (from, to) = (ends.next().expect("one"), ends.next().expect("another"));
        memory.seek(SeekFrom::Start(from)).expect("mapped");
        let mut part = vec![0; (to - from) as usize];
        memory.read_exact(&mut part).expect("readable");
        code.append(&mut part);
    }
    assert!(!code.is_empty(), "{maps}");
    code
}

/// UCX would hear what becomes of memory, for which it patches libc and moves the program's break: other
/// threads that allocate meanwhile crash.
#[test]
fn a_guest_leaves_the_programs_memory_functions_alone() {
    const NAME: &str = "a_guest_leaves_the_programs_memory_functions_alone";
    if std::env::var_os(CHILD).is_some() {
        let before = code_of_libc();
        let (mut one, mut two) = two();
        let sent = frame(1, 1 << 20, Vec::new());
        one.send(1, sent.clone());
        turn(&mut [&mut one, &mut two], |place, came| {
            came.filter(|came| place == 1 && *came == sent).map(drop)
        });
        let same = before == code_of_libc();
        println!("the same: {same}");
        return;
    }
    for (wanted, same) in [(&[][..], true), (&[("UCX_MEM_EVENTS", "y")], false)] {
        let ended = child(NAME, wanted);
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success(), "{text}");
        assert!(
            text.contains(&format!("the same: {same}")),
            "{wanted:?}: {text}"
        );
    }
}

#[test]
fn transports_that_do_not_exist_are_named_and_nothing_else_is_said() {
    const NAME: &str = "transports_that_do_not_exist_are_named_and_nothing_else_is_said";
    if std::env::var_os(CHILD).is_some() {
        let before = caught_signals();
        match door(None) {
            Err(error) => println!("told: {error}"),
            Ok(door) => println!("warned: {}", door.warning()),
        }
        assert_eq!(before, caught_signals(), "a guest takes no signals (P6)");
        return;
    }
    let said = |variables: &[(&str, &str)]| {
        let ended = child(NAME, variables);
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success(), "{text}");
        // UCX writes "[time] [host:pid] file.c:line UCX  WARN ..." to the standard output.
        assert!(!text.contains(" UCX  "), "{text}");
        text
    };
    let none = said(&[("UCX_TLS", "pigeon")]);
    assert!(
        none.contains("told: OL-600") && none.contains("pigeon"),
        "{none}"
    );
    let one = said(&[("UCX_TLS", "pigeon,tcp,self")]);
    assert!(one.contains("warned: ") && one.contains("pigeon"), "{one}");
    let fine = said(&[("UCX_TLS", "tcp,self")]);
    assert!(fine.contains("warned: \n"), "{fine}");
}

#[test]
fn a_transport_that_reaches_nobody_is_an_error_at_once() {
    const NAME: &str = "a_transport_that_reaches_nobody_is_an_error_at_once";
    if std::env::var_os(CHILD).is_some() {
        let done = AtomicUsize::new(0);
        let meet = |mut rail: Ucx| {
            let error = rail.meet(BOUND).expect_err("nobody is reached");
            done.fetch_add(1, Ordering::AcqRel);
            // The other one has to be answered, too.
            while done.load(Ordering::Acquire) < 2 {
                rail.look();
            }
            error
        };
        let (one, two) = two();
        let error = thread::scope(|scope| {
            scope.spawn(|| meet(two));
            meet(one)
        });
        println!("told: {error}");
        return;
    }
    let ended = child(NAME, &[("UCX_TLS", "self")]);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{text}");
    assert!(
        text.contains("told: OL-600") && text.contains("rank 1"),
        "{text}"
    );
}

#[test]
fn a_library_that_is_missing_or_too_old_or_none_is_named() {
    const NAME: &str = "a_library_that_is_missing_or_too_old_or_none_is_named";
    if std::env::var_os(CHILD).is_some() {
        let library = PathBuf::from(std::env::var_os("LIBRARY").expect("a path"));
        let Err(error) = door(Some(library)) else {
            panic!("it cannot be used");
        };
        println!("told: {error}");
        assert!(door(None).is_err(), "nor later");
        return;
    }
    let place = std::env::temp_dir().join(format!("outlive-ucx-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory");
    let build = |name: &str, source: &str| {
        let (from, to) = (place.join(format!("{name}.c")), place.join(name));
        std::fs::write(&from, source).expect("writes");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let mut command = Command::new(compiler);
        command.args(["-shared", "-fPIC", "-o"]).arg(&to).arg(&from);
        assert!(command.status().expect("compiles").success());
        to.to_string_lossy().into_owned()
    };
    let version = |minor: u32| {
        format!(
            "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) {{ *a = 1; *b = {minor}; *c = 0; }}"
        )
    };
    let old = build("libold.so", &version(8));
    let other = build("libother.so", &version(99));
    let missing = place.join("libmissing.so").to_string_lossy().into_owned();
    for (library, code, words) in [
        (&missing, "OL-404", "cannot open shared object file"),
        (&old, "OL-305", "it is version 1.8.0"),
        (&other, "OL-305", "it lacks: ucp_config_read"),
    ] {
        let ended = child(NAME, &[("LIBRARY", library.as_str())]);
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success(), "{text}");
        assert!(text.contains(code) && text.contains(words), "{text}");
        assert!(text.contains("libucx0"), "a remedy: {text}");
    }
    std::fs::remove_dir_all(&place).expect("is ours");
}
