"""bench/failures: records in the form of LANL's, made up with known answers.

The true data are not in the repository. What is made up here has the same columns, local times
to the minute and down times in minutes; gaps are long beside a minute, so that rounding
tells nothing.
"""

import datetime
import lzma
import math
import random
import subprocess
import sys
import zoneinfo
from pathlib import Path

import pytest
from harness import OUTLIVE, ROOT

sys.path.insert(0, str(ROOT / "bench" / "failures"))
import lanl
import replay

ZONE = zoneinfo.ZoneInfo("America/Denver")
BEGIN = datetime.datetime(1997, 2, 3, 4, 5, tzinfo=ZONE)
ERRORS = 5.0  # standard errors by which a figure may be off: once in two million
SYSTEM = "20"
NODES = replay.SYSTEMS[SYSTEM]
HOUR = 3600.0
DAY = 24 * HOUR

Events = list[tuple[float, int, float, bool]]
"""Seconds from the beginning, node, seconds of repair, whether it is fatal."""


def local(seconds: float) -> str:
    """A moment as the record has it."""
    at = (BEGIN.astimezone(datetime.UTC) + datetime.timedelta(seconds=seconds)).astimezone(ZONE)
    return f"{at.month}/{at.day}/{at.year} {at.hour}:{at.minute:02}"


def row(started: str, node: str = "3", **more: str) -> dict:
    """A line of the record."""
    found = dict.fromkeys(("System", "nodes", *lanl.COLUMNS[1:], "Software", "Same Event"), "")
    found |= {"System": SYSTEM, "Prob Started": started, "nodenumz": node, "Software": "OS"}
    return found | {name.replace("_", " "): value for name, value in more.items()}


def rows_of(events: Events) -> list[dict]:
    """Lines of the record."""
    return [
        row(
            local(at),
            str(node),
            Prob_Fixed=local(at + repair),
            Down_Time=str(round(repair / 60)),
            Hardware="Memory Dimm" if fatal else "",
        )
        for at, node, repair, fatal in events
    ]


def answer_of(events: Events, place: Path) -> dict:
    """What the real command says of them."""
    return replay.plan(str(OUTLIVE), rows_of(events), SYSTEM, place)


def utc(*words: int) -> datetime.datetime:
    return datetime.datetime(*words, tzinfo=datetime.UTC)


def write(place: Path, rows: list[dict], names: list[str]) -> Path:
    lines = [",".join(names), *(",".join(one[name] for name in names) for one in rows)]
    text = "\n".join([*lines, ""]).encode("latin-1")
    place.write_bytes(lzma.compress(text) if place.suffix == ".xz" else text)
    return place


def test_columns_may_stand_in_any_order_packed_or_not(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    rows = rows_of([(number * DAY, number % NODES, 600.0, number % 2 == 0) for number in range(9)])
    rows[4]["Software"] = "caf\u00e9"
    rows.append(row("1/1/1999 0:00") | {"System": "2"})
    chance.shuffle(rows)
    names = list(rows[0])
    whole = lanl.records(rows, SYSTEM)
    assert [one[1] for one in whole] == list(range(9)), "ascending, of one system"
    for name in ("plain.csv", "packed.csv.xz"):
        chance.shuffle(names)
        again = lanl.rows_of(str(write(tmp_path / name, rows, names)))
        assert lanl.records(again, SYSTEM) == whole


def test_a_repair_ends_after_its_minutes_else_when_it_was_fixed_else_nobody_knows() -> None:
    start = utc(2003, 6, 5, 18, 0)
    for down, fixed, end in (
        ("90", "6/5/2003 13:29", utc(2003, 6, 5, 19, 30)),
        ("", "6/5/2003 13:29", utc(2003, 6, 5, 19, 29)),
        ("90", "", utc(2003, 6, 5, 19, 30)),
        ("", "", None),
        ("-5", "", start),
        ("", "6/5/2003 11:00", start),
    ):
        one = row("6/5/2003 12:00", Down_Time=down, Prob_Fixed=fixed)
        assert lanl.records([one], SYSTEM) == [(start, 3, end, "light")], (down, fixed)
    found = lanl.records([row("6/5/2003 12:00"), row("6/6/2003 12:00", Down_Time="6")], SYSTEM)
    assert lanl.trace_of(found).splitlines() == [
        "start,node,end,kind",
        "2003-06-05T18:00:00Z,3,,light",
        "2003-06-06T18:00:00Z,3,2003-06-06T18:06:00Z,light",
    ]


def test_what_is_written_twice_is_one_failure() -> None:
    one = row("6/5/2003 12:00", Hardware="CPU", Down_Time="9")
    other = one | {"nodenumz": "4"}
    again = one | {"Down Time": "12"}
    cause = one | {"Hardware": "", "Software": "Kernel"}
    found = lanl.records([one, other, dict(one), again, cause, dict(one), dict(other)], SYSTEM)
    assert len(found) == 4
    assert sorted(one[1] for one in found) == [3, 3, 3, 4]
    assert [one[3] for one in found].count("light") == 1


def test_clocks_that_are_set_forward_and_back() -> None:
    """2003: forward on 6 April at 2:00, back on 26 October at 2:00."""
    assert lanl.moment("1/15/2003 12:00") == utc(2003, 1, 15, 19, 0)
    assert lanl.moment("7/15/2003 12:00") == utc(2003, 7, 15, 18, 0)
    # An hour apart on the wall, and at once; an hour that is twice: the first is taken.
    assert lanl.moment("4/6/2003 1:59") == utc(2003, 4, 6, 8, 59)
    assert lanl.moment("4/6/2003 3:00") == utc(2003, 4, 6, 9, 0)
    assert lanl.moment("10/26/2003 1:30") == utc(2003, 10, 26, 7, 30)
    assert lanl.moment("10/26/2003 2:00") == utc(2003, 10, 26, 9, 0)
    # A repair over the change lasts for its minutes, whatever the walls say.
    over = row("10/26/2003 0:30", Down_Time="120", Prob_Fixed="10/26/2003 1:30")
    [(start, _, end, _)] = lanl.records([over], SYSTEM)
    assert end is not None and (end - start).total_seconds() == 120 * 60


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"Prob Started": "26.10.2003 1:30"}, "line 3: time data"),
        ({"nodenumz": ""}, "line 3: invalid literal"),
        ({"Down Time": "long"}, "line 3: could not convert"),
        ({"Prob Fixed": "soon"}, "line 3: time data"),
        ({"System": "21"}, ""),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, bad: dict, said: str) -> None:
    rows = [row("6/5/2003 12:00"), row("6/6/2003 12:00") | bad]
    file = write(tmp_path / "f.csv", rows, list(rows[0]))
    line = [sys.executable, str(ROOT / "bench" / "failures" / "lanl.py"), str(file), SYSTEM]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 1) == bool(said)
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_header_that_lacks_a_column_and_a_system_without_failures(tmp_path: Path) -> None:
    rows = [row("6/5/2003 12:00")]
    names = [name for name in rows[0] if name not in ("Prob Fixed", "nodenumz")]
    found = lanl.rows_of(str(write(tmp_path / "f.csv", rows, names)))
    with pytest.raises(lanl.Refused, match="line 1: the header lacks nodenumz, Prob Fixed"):
        lanl.records(found, SYSTEM)
    with pytest.raises(lanl.Refused, match="no failures of system 99"):
        lanl.records(rows, "99")


def fit_of(fits: list[dict], name: str) -> dict:
    return next(fit for fit in fits if fit["distribution"] == name)


def test_fits_find_the_parameters_that_were_drawn(tmp_path: Path, seed: int) -> None:
    """Weibull gaps and lognormal repairs: each parameter within its error (asymptotic
    standard errors: 0.78 k / sqrt n of the shape, 1.05 / (k sqrt n) of the logarithm of the
    scale, sigma / sqrt n and sigma / sqrt 2n of a lognormal)."""
    chance = random.Random(seed)
    count, shape, scale, mu, sigma = 900, 0.7, 60 * HOUR, math.log(120 * 60), 1.0
    events, at = [], 0.0
    for _ in range(count):
        repair = math.exp(chance.gauss(mu, sigma))
        events.append((at, chance.randrange(NODES), repair, chance.random() < 0.5))
        at += chance.weibullvariate(scale, shape)
    trace = answer_of(events, tmp_path)["trace"]
    assert trace["failures"] == count
    root = math.sqrt(count)
    found = fit_of(trace["between"], "Weibull")
    a, b = found["parameters"]
    assert abs(a - shape) < ERRORS * 0.78 * shape / root, (a, b)
    assert abs(math.log(b / scale)) < ERRORS * 1.05 / (shape * root), (a, b)
    # Another kind is refused by its test, and less likely.
    wrong = fit_of(trace["between"], "exponential")
    assert wrong["p"] == pytest.approx(1 / 200) and wrong["distance"] > found["distance"]
    assert wrong["log_likelihood"] < found["log_likelihood"]
    found = fit_of(trace["repair"], "lognormal")
    a, b = found["parameters"]
    assert abs(a - mu) < ERRORS * sigma / root, (a, b)
    assert abs(b - sigma) < ERRORS * sigma / (math.sqrt(2) * root), (a, b)
    assert fit_of(trace["repair"], "exponential")["p"] == pytest.approx(1 / 200)


def test_the_test_of_fit_does_not_refuse_what_is_true(tmp_path: Path, seed: int) -> None:
    """Of ten records with exponential gaps most have a p above 0.1 for that kind: all but two or
    fewer with probability 0.93, fewer than five never (once in 7,000)."""
    chance = random.Random(seed)
    kept = 0
    for number in range(10):
        events, at = [], 0.0
        for _ in range(150):
            events.append((at, chance.randrange(NODES), 600.0, True))
            at += chance.expovariate(1 / (40 * HOUR))
        place = tmp_path / str(number)
        place.mkdir()
        trace = answer_of(events, place)["trace"]
        kept += fit_of(trace["between"], "exponential")["p"] > 0.1
    assert kept >= 5


def clusters(chance: random.Random, days: int, a_day: float, size: int, next_to: bool) -> Events:
    """Bursts that come at random, each of `size` failures within minutes; on nodes beside each
    other, or anywhere."""
    events: Events = [(0.0, 0, 60.0, True)]
    at = 0.0
    while (at := at + chance.expovariate(a_day / DAY)) < days * DAY:
        first = chance.randrange(NODES - size)
        for member in range(size):
            node = first + member if next_to else chance.randrange(NODES)
            events.append((at + 90.0 * member, node, 600.0, True))
    events.append((days * DAY, 0, 60.0, True))
    return sorted(events)


def close_pairs(events: Events) -> tuple[int, int]:
    """Pairs of failures within ten minutes, by the record's minutes: on nodes that differ, and
    of these on nodes whose numbers differ by one."""
    of = [(at.timestamp(), node) for at, node, _, _ in lanl.records(rows_of(events), SYSTEM)]
    apart = [
        abs(node - other)
        for place, (at, node) in enumerate(of)
        for later, other in of[place + 1 : place + 60]
        if later - at <= 600.0 and node != other
    ]
    return len(apart), apart.count(1)


@pytest.mark.parametrize(("size", "next_to"), [(1, False), (4, False), (4, True)])
def test_clusters_in_time_and_over_nodes(
    tmp_path: Path, seed: int, size: int, next_to: bool
) -> None:
    """Variance over mean of a day's failures is the size of the bursts (compound Poisson);
    pairs on neighbouring nodes are counted exactly, and by chance are 2 / n of the close ones."""
    chance = random.Random(seed)
    days, a_day = 300, 2.0
    events = clusters(chance, days, a_day, size, next_to)
    trace = answer_of(events, tmp_path)["trace"]
    # Relative error of a variance from `days` counts, whose kurtosis is 3 + 1 / mean.
    error = math.sqrt((2 + 1 / a_day) / days)
    assert trace["dispersion_per_day"] / size == pytest.approx(1, abs=ERRORS * error + 0.02)
    close, beside = close_pairs(events)
    assert trace["neighbour_pairs"] == beside
    # 199 exchanges; what each gives is nearly Poisson, but for bursts of nodes that fail together.
    by_chance = close * 2 / NODES
    error = math.sqrt(max(by_chance, 0.01) * (1 + 2 * size) / 199)
    assert trace["neighbour_pairs_expected"] == pytest.approx(by_chance, abs=ERRORS * error)
    if next_to:
        assert beside >= 3 * len(events) / 4 - 10 and trace["neighbour_p"] == pytest.approx(1 / 200)
    else:
        assert beside < by_chance + ERRORS * math.sqrt(by_chance * (1 + 2 * size)) + 3


YEARS = 3 * 365 * DAY


def steady(every: float, first: float, last: float, chance: random.Random) -> Events:
    count = int((last - first) / every)
    return [
        (first + number * every, chance.randrange(NODES), 600.0, True) for number in range(count)
    ]


PLANNED = ("levels", "interval_seconds", "expected", "stops_per_hour", "methods")


def test_plans_are_made_of_the_first_half_of_the_years_alone(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    half = YEARS / 2
    before = steady(20 * HOUR, 0.0, half, chance)
    last = (YEARS, 7, 600.0, True)
    answers = []
    for number, every in enumerate((200 * HOUR, 7 * HOUR)):
        place = tmp_path / str(number)
        place.mkdir()
        after = steady(every, half + HOUR, YEARS - every, chance)
        events = [*before, *after, last]
        # Halves of the time, not of the failures.
        for which, rest in (("first", before), ("second", [*after, last])):
            assert len(lanl.half_of(lanl.records(rows_of(events), SYSTEM), which)) == len(rest)
        answers.append(answer_of(events, place))
    calm, wild = answers
    assert calm["stops_per_hour"] == pytest.approx(1 / 20, rel=0.01)
    missing = [name for name in PLANNED if name not in calm]
    assert not missing, (missing, sorted(calm))
    assert {name: calm[name] for name in PLANNED} == {name: wild[name] for name in PLANNED}
    for answer in answers:
        assert answer["trace"]["replayed_days"] == pytest.approx(YEARS / 2 / DAY)
    lost = [
        {one["name"]: one["node_hours_lost"] for one in answer["trace"]["replay"]}
        for answer in answers
    ]
    assert set(lost[0]) >= {"this plan", "young", "daly", "scr", "di", "benoit", "gholami"}
    assert all(lost[1][name] > lost[0][name] for name in lost[0])


def test_without_failures_a_replay_loses_what_the_checkpoints_of_each_plan_cost(
    tmp_path: Path, seed: int
) -> None:
    """The second half has one failure, at its end: the share that is lost is that of the
    writes of the plan, by hand."""
    chance = random.Random(seed)
    events = [*steady(20 * HOUR, 0.0, YEARS / 2, chance), (YEARS, 7, 600.0, True)]
    answer = answer_of(events, tmp_path)
    replayed = {one["name"]: one["share"] for one in answer["trace"]["replay"]}
    every = {level["name"]: level["every"] for level in answer["levels"] if level["every"]}
    writes = {level["name"]: level["cost_seconds"] for level in answer["levels"]}
    cost = sum(writes[name] / every for name, every in every.items())
    share = cost / (answer["interval_seconds"] + cost)
    # What was computed since the last version when the record ends is all that is beside it.
    assert replayed["this plan"] == pytest.approx(share, rel=0.02)
