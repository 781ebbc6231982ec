"""Compare methods on a cluster: ray job submit --working-dir . -- python jobs/compare.py jobs/configs/demo.toml

Takes the arguments of `raybcgd compare`. The job joins the cluster to which it was submitted.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # prefer the package in the working directory

from raybcgd.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "compare")
    main()
