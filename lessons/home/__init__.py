"""The course's home page on the reader's own machine, and the lessons that it opens."""
