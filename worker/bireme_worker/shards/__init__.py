"""Files with one rank's part of a model: which parts these are, how they are written, converted and cached."""
