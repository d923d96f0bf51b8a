"""Where a rank's time goes: marks around the parts of a step, a recorder of torch's traces, and what they say.

`parts` names the parts, `marks` puts them into traces, `recorder` and `session` record while the rank serves, `digest`
is the process that reads a written trace, by the sums of `shares`.
"""
