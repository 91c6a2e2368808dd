"""`python -m holdfast.agent`: the same as running the zipapp."""

import sys

from holdfast.agent.main import main

sys.exit(main())
