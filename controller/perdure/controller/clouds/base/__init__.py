"""The protocols that clouds implement, and code that their implementations share."""
