"""What regions hold: those that used to change and do not any more, numbers that are none, and what
was written to while it was captured."""

import json
import re

import pytest
from harness import Job, damage
from test_ranks import lines, misuse, single

DOUBLE = 4  # OUTLIVE_FLOAT64


@pytest.mark.parametrize("levels", ["memory", "disk", "memory,disk"])
def test_a_program_that_has_replaced_its_buffer(job: Job, levels: str) -> None:
    result = single(job).run("--levels", levels, program=misuse("replaced", "forgotten"))
    assert result.status == 0, result.out + result.err
    (warning,) = result.report["warnings"]
    assert warning["code"] == "OL-205" and "'field'" in warning["entity"], warning
    # It has worked on another one from version 9 on; the third without a change is 11.
    assert "of rank 0: the same bytes in versions 8 to 11" in result.err, result.err
    assert len(re.findall("OL-205", result.err)) == 1, result.err


def test_one_that_has_protected_the_new_one(job: Job) -> None:
    result = single(job).run(program=misuse("replaced", "again"))
    assert result.status == 0 and result.report["warnings"] == [], result.err


LEVELS = ["memory", "disk", "memory,disk"]


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize(("number", "told"), [("nan", "1 NaN"), ("-inf", "1 infinite")])
def test_numbers_that_are_none_are_told_of(job: Job, levels: str, number: str, told: str) -> None:
    result = single(job).run("--levels", levels, program=misuse("census", number, DOUBLE))
    assert result.status == 0, result.out + result.err
    (warning,) = result.report["warnings"]
    assert warning["code"] == "OL-206" and "'field'" in warning["entity"], warning
    assert warning["reason"].endswith(f"in version 5: {told}"), warning
    # They are kept, and a restart goes on with them.
    assert lines(result, "restore")[1] == ["restore", "4", "6", number], result.out
    assert result.report["checkpoints"]["aborted"] == 0, result.report


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_numbers_that_are_none_are_refused(job: Job, levels: str, number: str) -> None:
    program = misuse("census", number, DOUBLE)
    result = single(job).run("--levels", levels, "--refuse", "nan,inf", program=program)
    assert result.status == 0, result.out + result.err
    # The restart goes on from the last one without.
    assert lines(result, "restore")[1] == ["restore", "4", "4", "0.25"], result.out
    said = {int(words[1]): words[2:] for words in lines(result, "version")[:6]}
    assert said[4] == ["1", "0"] and said[5] == said[6] == ["1", "-501"], result.out
    assert result.report["checkpoints"]["last"][levels.rpartition(",")[2]] == 9
    assert {one["code"] for one in result.report["warnings"]} == {"OL-206"}, result.report
    assert "numbers that are none in version 5, which is given up: 1 " in result.err, result.err


@pytest.mark.parametrize(
    ("element", "refused"), [("none", "nan"), (DOUBLE, "inf"), (DOUBLE, "off")]
)
def test_what_is_not_refused_is_kept(job: Job, element: object, refused: str) -> None:
    program = misuse("census", "nan", element)
    result = single(job).run("--levels", "disk", "--refuse", refused, program=program)
    assert result.status == 0, result.out + result.err
    assert lines(result, "restore")[1] == ["restore", "4", "6", "nan"], result.out
    warned = [one["code"] for one in result.report["warnings"]]
    assert warned == ([] if element == "none" else ["OL-206"]), result.report


def test_what_can_not_be_refused(job: Job) -> None:
    result = job.run("--refuse", "nan,zero")
    assert result.status == 64 and "OL-100" in result.err, result.err
    assert "'zero' is neither nan nor inf" in result.err and "remedy:" in result.err, result.err
    program = misuse("census", "nan", 7)
    result = single(job).run("--levels", "disk", program=program)
    assert lines(result, "describe")[0][1:3] == ["-100", "OL-100"], result.out


def test_what_is_written_to_while_it_is_captured(job: Job) -> None:
    job.extra |= {"OUTLIVE_CHECK_CAPTURES": "1"}
    result = single(job).run("--levels", "memory", program=misuse("torn", 500))
    assert result.status == 0, result.out + result.err
    (torn,) = lines(result, "torn")
    assert torn[1:3] == ["-207", "OL-207"] and "'field'" in " ".join(torn), result.out
    assert lines(result, "version") == [["version", "1", "0"]], result.out


@pytest.mark.parametrize("word", ["", "0"])
def test_it_is_looked_for_only_if_that_is_wanted(job: Job, word: str) -> None:
    job.extra |= {"OUTLIVE_CHECK_CAPTURES": word}
    result = single(job).run("--levels", "memory", program=misuse("torn", 10))
    assert result.status == 0 and lines(result, "torn") == [], result.out + result.err


def test_a_word_that_nobody_understands(job: Job) -> None:
    job.extra |= {"OUTLIVE_CHECK_CAPTURES": "perhaps"}
    result = single(job).run("--levels", "memory", program=misuse("ranks", 1))
    assert lines(result, "open")[0][2] == "-600", result.out
    assert "'perhaps' is neither 1 nor 0" in result.out, result.out


def test_which_stored_versions_hold_numbers_that_are_none(job: Job) -> None:
    result = single(job).run("--levels", "disk", program=misuse("numbers"))
    assert result.status == 0, result.out + result.err
    table = [line.split() for line in job.outlive("checkpoints", "values").splitlines()]
    assert table[1] == ["3", "1179648", "0", "0", "-"], table
    assert table[2] == ["2", "1179648", "2", "1", "field"], table
    said = job.outlive("checkpoints", "values", 2)
    assert said.splitlines()[1].split() == ["field", "float64", "1", "1", "1179648", "2", "1"]
    assert "1 region of 1 rank: what they consist of was not said" in said, said

    def versions(*words: object, status: int = 0) -> dict[int, dict]:
        text = job.outlive("checkpoints", "values", *words, "--json", status=status)
        found, _ = json.JSONDecoder().raw_decode(text)  # errors follow
        return {one["version"]: one for one in found["versions"]}

    (field,) = versions(2, "--rank", 0)[2]["regions"]
    assert field == {
        "name": "field",
        "element": "float64",
        "ranks": 1,
        "ranks_not_finite": 1,
        "elements": 1179648,
        "nan": 2,
        "infinite": 1,
        "bytes_unread": 0,
    }
    assert "OL-200" in job.outlive("checkpoints", "values", "--rank", 1, status=69)
    assert "OL-404" in job.outlive("checkpoints", "values", 1, status=74)
    # What can be read of a damaged copy is counted, and no more than that.
    (path,) = [path for path in job.containers(0) if "v2-" in path.name]
    damage(path)
    after = versions(status=65)
    assert after[3]["complete"] and not after[2]["complete"], after
    (field,) = after[2]["regions"]
    assert 0 < field["bytes_unread"] < 9 << 20, field
    assert 8 * field["elements"] + field["bytes_unread"] == 9 << 20, field
    path.unlink()
    gone = versions(status=0)
    assert list(gone) == [3], gone
