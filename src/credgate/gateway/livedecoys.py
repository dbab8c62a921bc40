"""The placeholders of every run that is served, so that one run's is known for what it is in another one's request."""

from credgate.runs import Run


class LiveDecoys:
    """One for the whole daemon, in memory alone. A placeholder lives as long as its run is served."""

    def __init__(self) -> None:
        self._of_run: dict[str, frozenset[str]] = {}
        self._others: dict[str, frozenset[str]] = {}  # computed when asked for, forgotten when a run comes or goes

    def add(self, run: Run) -> None:
        """A run begins."""
        self._of_run[run.id] = frozenset(value for value in run.decoys.values() if value)
        self._others.clear()

    def drop(self, run_id: str) -> None:
        """A run has ended; one that never began is no error."""
        self._of_run.pop(run_id, None)
        self._others.clear()

    def others(self, run: Run) -> frozenset[str]:
        """Those of all runs but this one. A child run's parent is another run."""
        found = self._others.get(run.id)
        if found is None:
            found = frozenset[str]().union(*(d for run_id, d in self._of_run.items() if run_id != run.id))
            self._others[run.id] = found = found - frozenset(run.decoys.values())
        return found
