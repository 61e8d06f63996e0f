"""Pure functions from a document, and what was found out about the place, to what the place runs."""
