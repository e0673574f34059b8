"""Models as files that score without fieldwise."""
