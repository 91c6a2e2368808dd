"""Sign-in by a provider of OpenID Connect: the authorization code flow with PKCE."""
