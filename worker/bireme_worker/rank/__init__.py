"""The rank process: one shard of one stage on one device.

`main` is the process, `control` its line to the supervisor, `loading` reads the checkpoint, `serving` connects and
serves one epoch, `runner` computes plans, `slots` and `inputs` are what it keeps at fixed addresses between them.
"""
