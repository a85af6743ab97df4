"""Crash tests of any unmodified program: what `logweir crashtest` does.

Two commands are all that is known of a program: one that works in a folder and prints a line for
everything that is safe, and one that looks at a folder and at those lines and says by its exit code
whether all is there. Between the two stands a fault.

`programs` starts and stops both, `keeping` keeps what broke a promise. `kills` kills the program.
`recording` notes what it does to its folder, by the library in `preload/`; `replay` does that again
on a disk of `logweir.recovery.faults.surviving`, and `powercut` cuts its power. `faults` lets
single calls fail. `engines` names what is ready made.
"""
