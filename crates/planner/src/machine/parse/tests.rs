use super::*;

const GOOD: &str = r#"name = "small"
[nodes]
count = 100
mtbf = "10 years"
shape = 0.7
light-mtbf = "2 years"
repair = { median = "2 h", sigma = 1.3 }
spares = 2
[[groups]]
name = "rack"
size = 10
mtbf = "50 years"
[[groups]]
name = "old row"
nodes = ["0-19", "40"]
hits = 0.5
mtbf = "5 years"
[[servers]]
name = "buffer"
count = 4
mtbf = "3 years"
[[levels]]
kind = "local"
write = "2 GB/s"
read = "4 GB/s"
latency = "1 s"
[[levels]]
kind = "partner"
distance = 10
write = "1 GB/s"
read = "1 GB/s"
asynchronous = true
[[levels]]
kind = "shared"
servers = "buffer"
cost = "60 s"
restart = "90 s"
"#;

#[test]
fn a_machine_is_read() {
    let machine = machine(GOOD, "m.toml").expect("good");
    assert_eq!((machine.name.as_str(), machine.nodes.count), ("small", 100));
    assert_eq!(machine.groups[0].sets(100), 10);
    assert_eq!(machine.groups[1].set(0, 100).len(), 21);
    assert_eq!(machine.groups[1].set(0, 10), (0..10).collect::<Vec<u32>>());
    let text = "nodes = 50\nwork = \"100 h\"\ncheckpoint = \"20 GB\"\nrestart = \"1 min\"";
    let job = job(text, "j.toml", &machine).expect("good");
    let levels = crate::machine::priced(&machine, &job);
    assert_eq!(
        (levels[0].cost, levels[0].background, levels[0].restart),
        (11.0, 0.0, 66.0)
    );
    assert_eq!(
        (levels[1].cost, levels[1].background, levels[1].restart),
        (0.0, 20.0, 80.0)
    );
    assert_eq!((levels[2].cost, levels[2].restart), (60.0, 150.0));
    assert_eq!(levels[2].name, "buffer");
}

/// Every mistake: what is changed, the line that is named, and words of what was seen.
#[test]
fn mistakes_are_told_with_line_and_remedy() {
    for (from, to, line, seen) in [
        ("count = 100", "count = 0", 3, "0 nodes"),
        ("count = 100", "count = -5", 3, "invalid value"),
        ("mtbf = \"10 years\"", "mtbf = 87600", 4, "has no unit"),
        ("mtbf = \"10 years\"", "mtbf = \"-1 h\"", 4, "negative"),
        ("mtbf = \"10 years\"", "mtbf = \"0 h\"", 4, "MTBF of 0"),
        (
            "mtbf = \"10 years\"",
            "mtbf = \"10 yaers\"",
            4,
            "unknown unit",
        ),
        ("shape = 0.7", "shape = 0", 5, "shape"),
        ("sigma = 1.3", "sigma = -1", 7, "repair"),
        (
            "repair = { median = \"2 h\", sigma = 1.3 }\n",
            "",
            7,
            "spares",
        ),
        ("size = 10", "size = 0", 11, "size 0"),
        ("size = 10", "", 9, "twice or not at all"),
        ("hits = 0.5", "hits = 1.5", 16, "hits"),
        ("\"0-19\"", "\"90-119\"", 15, "node 119 does not exist"),
        ("\"0-19\"", "\"rack1\"", 15, "names no nodes"),
        ("[\"0-19\", \"40\"]", "[]", 15, "no nodes"),
        ("count = 4", "count = 0", 20, "count of 0"),
        (
            "servers = \"buffer\"",
            "servers = \"bufer\"",
            35,
            "not described",
        ),
        ("distance = 10", "distance = 100", 29, "100 nodes away"),
        ("distance = 10", "distance = 0", 29, "0 nodes away"),
        ("cost = \"60 s\"", "cost = \"0 s\"", 36, "costs nothing"),
        ("restart = \"90 s\"", "", 33, "restart and read"),
        ("write = \"2 GB/s\"", "write = \"2 GB\"", 24, "no rate"),
        (
            "kind = \"partner\"",
            "kind = \"buddy\"",
            28,
            "unknown variant",
        ),
        (
            "kind = \"partner\"",
            "kind = \"local\"",
            27,
            "two levels are called local",
        ),
        ("name = \"rack\"", "nmae = \"rack\"", 10, "unknown field"),
        ("[nodes]", "[nodes", 2, ""),
        (
            "light-mtbf = \"2 years\"",
            "light-mtbf = \"0 s\"",
            6,
            "MTBF of 0",
        ),
        (
            "light-mtbf = \"2 years\"",
            "light-mtbf = \"2 years\"\nlight-shape = 99",
            7,
            "shape of 99",
        ),
        (
            "kind = \"partner\"\ndistance = 10",
            "kind = \"xor\"\ngroup = 4\nstride = 40",
            30,
            "none is whole",
        ),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let text = GOOD.replacen(from, to, 1);
        let error = machine(&text, "m.toml").expect_err(to);
        assert_eq!(error.code(), Code::Config);
        assert_eq!(error.entity(), &Entity::File("m.toml".into()));
        let reason = error.reason();
        assert!(
            reason.starts_with(&format!("line {line}: ")),
            "{to}: {reason}"
        );
        assert!(reason.contains(seen), "{to}: {reason}");
        assert!(
            !reason.contains(REMEDY) && error.remedy().len() > 10,
            "{error}"
        );
    }
}

#[test]
fn a_machine_that_never_fails_or_saves_is_told() {
    let quiet =
        "[nodes]\ncount = 3\n[[levels]]\nkind = \"local\"\ncost = \"1 s\"\nrestart = \"1 s\"";
    assert!(
        machine(quiet, "m")
            .expect_err("no failures")
            .reason()
            .contains("nothing fails")
    );
    assert!(
        machine("[nodes]\ncount = 3", "m")
            .expect_err("no levels")
            .reason()
            .contains("0 levels")
    );
}

#[test]
fn jobs_that_cannot_be_are_told() {
    let machine = machine(GOOD, "m.toml").expect("good");
    for (text, seen) in [
        (
            "nodes = 101\nwork = \"1 h\"\ncheckpoint = \"1 GB\"",
            "line 1: a job of 101 nodes",
        ),
        (
            "nodes = 0\nwork = \"1 h\"\ncheckpoint = \"1 GB\"",
            "line 1: a job of 0 nodes",
        ),
        (
            "nodes = 8\nwork = \"1 h\"\ncheckpoint = \"1 GB\"",
            "too few for level partner",
        ),
        (
            "nodes = 20\nwork = \"0 h\"\ncheckpoint = \"1 GB\"",
            "line 2: a job without work",
        ),
        (
            "nodes = 20\nwork = 5\ncheckpoint = \"1 GB\"",
            "line 2: '5' has no unit",
        ),
        (
            "nodes = 20\nwork = \"1 h\"\ncheckpoint = \"0 GB\"",
            "line 3: a checkpoint of nothing",
        ),
        ("nodes = 20\nwork = \"1 h\"", "missing field"),
    ] {
        let error = job(text, "j.toml", &machine).expect_err(text);
        assert!(error.reason().contains(seen), "{error}");
    }
}

/// Times of repair of servers: read, and refused with line and remedy.
#[test]
fn repairs_of_servers_are_read_or_refused() {
    let with = |line: &str| machine(&GOOD.replace("mtbf = \"3 years\"", line), "m.toml");
    let found = with("mtbf = \"3 years\"\nrepair = { median = \"4 h\", sigma = 1.2 }");
    let repair = found.expect("good").servers[0].repair.expect("given");
    assert_eq!((repair.median, repair.sigma), (14_400.0, 1.2));
    assert_eq!(with("").expect("good").servers[0].repair, None);
    for (line, at, seen) in [
        (
            "mtbf = \"3 years\"\nrepair = { median = \"0 s\", sigma = 1 }",
            22,
            "a repair that cannot be",
        ),
        (
            "repair = { median = \"2 h\", sigma = 1 }",
            21,
            "servers buffer: a time of repair, and they never fail",
        ),
    ] {
        let error = with(line).expect_err(line);
        let want = format!("line {at}: {seen}");
        assert!(error.reason().starts_with(&want), "{error}");
        assert!(error.remedy().starts_with("give"), "{error}");
    }
}
