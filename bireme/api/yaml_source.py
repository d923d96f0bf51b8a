"""YAML as kubectl reads it, with the line of every field: a key twice is an error and a date is a string.

Imported only when a text is read, because PyYAML comes with the extras that read files.
"""

from dataclasses import dataclass, field
from typing import Any

import yaml

from bireme.api.errors import InvalidDeployment, Location, Problem


@dataclass(frozen=True)
class YamlSource:
    """One document, the line of each of its fields, and what is wrong with it as YAML."""

    document: Any
    lines: dict[Location, int]
    problems: list[Problem]


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without dates: `revision: 2026-11-01` is a string, as it is to kubectl."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML's own class attribute
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_yaml(text: str) -> YamlSource:
    """Parse one YAML document.

    Raises:
        InvalidDeployment: the text is empty, is not YAML, or holds several documents.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise InvalidDeployment([Problem(0, (), "the text is empty; begin with apiVersion and kind")])
        survey = _Survey()
        survey.visit(root, ())
        return YamlSource(loader.construct_document(root), survey.lines, survey.problems)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise InvalidDeployment([Problem(line, (), f"correct the YAML: {error.problem}")]) from None
    except yaml.YAMLError as error:
        raise InvalidDeployment([Problem(0, (), f"correct the YAML: {error}")]) from None


@dataclass
class _Survey:
    """A walk over the nodes of a document."""

    lines: dict[Location, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _open: list[yaml.Node] = field(default_factory=list)

    def visit(self, node: yaml.Node, location: Location) -> None:
        if any(node is parent for parent in self._open):
            raise InvalidDeployment([Problem(_line(node), location, "remove the alias that contains itself")])
        self._open.append(node)
        if isinstance(node, yaml.SequenceNode):
            self._visit_items(node, location)
        elif isinstance(node, yaml.MappingNode):
            self._visit_fields(node, location)
        self._open.pop()

    def _visit_items(self, node: yaml.SequenceNode, location: Location) -> None:
        for index, item in enumerate(node.value):
            self.lines[(*location, index)] = _line(item)
            self.visit(item, (*location, index))

    def _visit_fields(self, node: yaml.MappingNode, location: Location) -> None:
        seen: set[str] = set()
        for key, value in node.value:
            here = (*location, str(key.value))
            if here[-1] in seen:
                self.problems.append(Problem(_line(key), here, "remove one of the two, the key stands twice"))
            seen.add(str(key.value))
            self.lines[here] = _line(key)
            self.visit(value, here)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
