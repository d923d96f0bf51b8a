"""Drawing the next token from logits that are sharded over ranks, with the same result on every rank.

`noise` is the counter-based generator over tensors, `draw` what the host knows of a step, `state` what each slot
carries, `adjust` penalties and bias, `threshold` and `filters` top-k, top-p and min-p, `pick` the choice over ranks,
`logprobs` the report, `sampler` puts them in order. Nothing here asks the device for a value.
"""
