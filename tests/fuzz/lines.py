"""Which lines of a package were reached, by sys.monitoring: each line costs its first time only."""

import sys
from pathlib import Path
from types import CodeType, TracebackType

TOOL = 4  # of sys.monitoring's six; debuggers and coverage tools have 0 and 1


class Lines:
    """A context in which lines are counted."""

    def __init__(self, package: Path) -> None:
        self._package = f"{package}/"
        self._seen: dict[str, set[int]] = {}
        # as they are now: a checkout may change under a long run
        self._all = {file: _lines_of_functions(file) for file in sorted(package.glob("*.py"))}
        self.count = 0

    def __enter__(self) -> "Lines":
        events = sys.monitoring.events
        sys.monitoring.use_tool_id(TOOL, "credgate-fuzz")
        sys.monitoring.register_callback(TOOL, events.LINE, self._line)
        sys.monitoring.set_events(TOOL, events.LINE)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        sys.monitoring.set_events(TOOL, 0)
        sys.monitoring.free_tool_id(TOOL)

    def _line(self, code: CodeType, line: int) -> object:
        if code.co_filename.startswith(self._package):
            self._seen.setdefault(code.co_filename, set()).add(line)
            self.count += 1
        return sys.monitoring.DISABLE

    def report(self) -> list[str]:
        """Lines inside functions: reached, of all, by file."""
        out, all_hit, all_lines = [], 0, 0
        for file, lines in self._all.items():
            hit = len(self._seen.get(str(file), set()) & lines)
            if lines:
                out.append(f"{file.name} {hit}/{len(lines)}")
            all_hit, all_lines = all_hit + hit, all_lines + len(lines)
        return [f"lines in functions of the gateway: {all_hit} of {all_lines}", ", ".join(out)]


def _lines_of_functions(file: Path) -> set[int]:
    found: set[int] = set()
    todo = [(compile(file.read_text(), str(file), "exec"), False)]
    while todo:
        code, inside = todo.pop()
        if inside and not code.co_name.startswith("<generic"):
            found |= {line for _, _, line in code.co_lines() if line and line != code.co_firstlineno}
        for const in code.co_consts:
            if isinstance(const, CodeType):
                is_function = const.co_flags & 0x2  # CO_NEWLOCALS: functions, not the bodies of classes
                todo.append((const, bool(is_function)))
    return found
