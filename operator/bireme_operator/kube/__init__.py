"""The one door to the API server: plain dicts in and out, errors of our own.

``client`` speaks, ``resources`` knows where each kind lives, ``errors`` says what to do when it fails.
"""
