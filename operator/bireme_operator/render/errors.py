"""Why a template can't be rendered. The message is an instruction and ends up in condition Stalled."""


class InvalidTemplate(Exception):
    """`spec.template` asks for something that Bireme itself decides."""
