"""How a bash script that runs for the user begins: see `login.sh`."""

from __future__ import annotations

SH = "sh"
"""The shell of an image without bash, which cannot read the login files."""

LOGIN = 'if [ -r "$PERDURE_TOOLS/login.sh" ]; then source "$PERDURE_TOOLS/login.sh"; fi; '
"""The beginning of every bash script that runs for the user: makes a login shell with the tools on its PATH."""
LOGIN_WITHOUT_FILES = f"perdure_skip_rc=1; {LOGIN}"
"""As LOGIN, without the files of the image and the user, of which one has ended the shell."""
