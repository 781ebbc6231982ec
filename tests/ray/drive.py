"""A driver process that a test can kill. Arguments: folder, rounds, engine."""

import sys
from pathlib import Path

from raybcgd.experiment import run
from tests.conftest import ONE_BY_ONE, small

LOCAL = {"epochs": 4, **ONE_BY_ONE}


def main() -> None:
    """Run the experiment in a folder, or resume it if the folder exists."""
    folder, rounds, engine = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    config = small(rounds=rounds, engine=engine, local=LOCAL, checkpoint={"every": 2})
    result = run(config, out=folder, resume=folder.exists())
    print(result.summary["sha256"])


if __name__ == "__main__":
    main()
