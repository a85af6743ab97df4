"""Crash tests of any unmodified program: what `logweir crashtest` does.

Two commands are all that is known of a program: one that works in a folder and prints a line for
everything that is safe, and one that looks at a folder and at those lines and says by its exit code
whether all is there. Between the two stands a fault.

`programs` starts and stops both; `kills` kills the first one; `keeping` keeps what broke a promise.
"""
