"""The times that the tests took note of, for the table at the end."""

from dataclasses import dataclass, field


@dataclass
class Times:
    """One row for each thing that a user would wait for."""

    rows: list[tuple[str, float, str]] = field(default_factory=list)

    def note(self, what: str, seconds: float, remark: str = "") -> None:
        """Add a row."""
        self.rows.append((what, seconds, remark))

    def table(self) -> list[str]:
        """The rows as a Markdown table."""
        head = ["| what | seconds | |", "|---|---:|---|"]
        return [*head, *(f"| {what} | {seconds:.1f} | {remark} |" for what, seconds, remark in self.rows)]
