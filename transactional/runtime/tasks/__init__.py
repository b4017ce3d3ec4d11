"""Running bolts, in a task or in the commit phase: what they are fed, what they emit."""
