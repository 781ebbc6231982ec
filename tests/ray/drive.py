"""A driver that a test can kill: runs or resumes an experiment in a folder. Arguments: folder, rounds, engine."""

import sys
from pathlib import Path

from raybcgd import run
from tests.conftest import small


def main() -> None:
    """Run, or go on with, the experiment in a folder."""
    folder, rounds, engine = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    config = small(rounds=rounds, engine=engine, local={"epochs": 8}, checkpoint={"every": 2})
    result = run(config, out=folder, resume=folder.exists())
    print(result.summary["sha256"])


if __name__ == "__main__":
    main()
