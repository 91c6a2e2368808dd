"""`python -m scripts.docs`: see `build`."""

import sys

from scripts.docs.build import main

sys.exit(main())
