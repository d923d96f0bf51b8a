"""The pure planner: what is wanted and what is seen go in, actions and status come out.

No clock, no I/O, no environment: time is an argument, so that a whole life of a deployment is a table in a test. One
policy per file; ``plan.py`` puts them in order. A cluster and a laptop run this same code behind different backends.
"""
