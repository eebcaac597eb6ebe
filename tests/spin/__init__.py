"""The Promela model of joins, losses and barriers, and the mutants that show that it can find something."""
