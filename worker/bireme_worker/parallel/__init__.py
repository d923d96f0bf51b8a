"""How ranks exchange tensors: one communicator per epoch, freed at once when the epoch ends.

`gate` is the switch that ends an epoch from any thread, `link` one connection, `communicator` what the model sees,
`data_listener` and `mesh` make the connections of an epoch. There is no global process group.
"""
