"""A bucket as an ordinary folder whose content is uploaded in the background."""
