"""`outlive bench agents`: real agents, and what they say that they sent."""

import json
import subprocess

from harness import OUTLIVE
from skip import skip

NODES = 3


def test_what_agents_send_is_counted_and_the_job_recovers() -> None:
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    words = [str(OUTLIVE), "bench", "agents", "--nodes", str(NODES), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    counts = [row["ours"] for row in rows if row["what"].strip() == "a node: messages"]
    assert len(counts) == 3, rows
    opening, checkpoint, recovery = (count["min"] for count in counts)
    # The least that there can be, as docs/design/scale.md has it, but for what is written down
    # there as said on the way: three levels, each prepared, committed, acknowledged and stable.
    assert opening >= 8 and checkpoint >= 4 + 4 * 3 and recovery >= 8, counts
    (connections,) = (row["ours"] for row in rows if row["what"].startswith("connections"))
    assert NODES - 1 <= connections["min"] and connections["max"] <= 6, connections
    took = [row["ours"]["median"] for row in rows if "it took" in row["what"]]
    assert len(took) == 3 and min(took) > 0, rows
