"""Offline use: a private group of stage pods that lives as long as a Python object, in a notebook or a script.

`engine` is the object, `pods` the processes (the very supervisors, coordinator and ranks of a deployment), `line` the
conversation with their coordinator, `batch` the requests under way, `params` and `outputs` what goes in and comes out.
"""
