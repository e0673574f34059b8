"""What is done before a version goes out; no part of the package."""
