"""Train on a cluster: ray job submit --working-dir . -- python jobs/train.py jobs/configs/quickstart.toml

Takes what `raybcgd train` takes. The job joins the cluster that it was submitted to.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the working directory's package, whatever is installed

from raybcgd.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "train")
    main()
