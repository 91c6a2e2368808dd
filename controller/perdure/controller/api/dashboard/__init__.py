"""The dashboard's server side: sign-in of browsers, and the static files that `make dashboard` builds."""
