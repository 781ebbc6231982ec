"""Try a grid on a cluster:

ray job submit --working-dir . -- python jobs/sweep.py jobs/configs/demo.toml --grid algorithm.lr=0.03,0.1,0.3

Takes what `raybcgd sweep` takes. The job joins the cluster that it was submitted to.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the working directory's package, whatever is installed

from raybcgd.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "sweep")
    main()
