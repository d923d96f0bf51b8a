"""The operator on a cluster: Kopf watches and enqueues, one reconciler per key looks, plans, applies and says so.

``handlers`` is all that knows Kopf, ``store`` what is seen, ``reconciler`` one pass, ``operator`` puts it together.
"""
