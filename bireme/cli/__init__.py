"""The command line. One module per verb, imported only when that verb is used, so that `--help` answers at once."""
