"""`python -m perdure.agent` does the same as running the zipapp."""

import sys

from perdure.agent.main import main

sys.exit(main())
