"""The placeholders of every run that is served, so that one run's is known for what it is in another one's request."""

from credgate.runs import Run


class LiveDecoys:
    """One for the whole daemon, in memory alone. A placeholder lives as long as its run is served."""

    def __init__(self) -> None:
        self._of_run: dict[str, frozenset[str]] = {}
        # by run, what `others` returned; forgotten when any run comes or goes
        self.computed: dict[str, frozenset[str]] = {}

    def add(self, run: Run) -> None:
        """A run begins."""
        self._of_run[run.id] = frozenset(value for value in run.decoys.values() if value)
        self.computed.clear()

    def drop(self, run_id: str) -> None:
        """A run has ended; one that never began is no error."""
        self._of_run.pop(run_id, None)
        self.computed.clear()

    def others(self, run: Run) -> frozenset[str]:
        """Those of all runs but this one. A child run's parent is another run."""
        found = self.computed.get(run.id)
        if found is None:
            found = frozenset[str]().union(*(d for run_id, d in self._of_run.items() if run_id != run.id))
            self.computed[run.id] = found = found - frozenset(run.decoys.values())
        return found
