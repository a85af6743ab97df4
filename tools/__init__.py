"""The tools around the log: the program `logweir`, its documentation, the guided tour."""
