"""From what is wanted to the objects of the API, as plain dicts. Pure: the same input renders the same object.

``pods`` are made once and never changed, everything else is applied again whenever it differs.
"""
