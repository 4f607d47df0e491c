"""Break `lib` on purpose, one small change at a time, and see whether its tests notice.

    make mutate                              the cores of reference and fast, and what they share: a long run
    make mutate FILES=lib/reference/softmax.py             one module
    python -m scripts.mutate --help                        the options

A mutant (scripts/mutants.py says what can change) lives in memory alone, in a forked child of a pytest that has
collected its tests already. The child runs those tests that execute the changed line: first those that noticed the
mutants before, then the fastest, until one fails or does not end. A mutant that fails none has survived. Then either a
test is missing, or the change changes nothing that anybody could see; the latter are listed in
tests/mutation_survivors.toml, each with its reason. The run fails on a survivor that is not listed, and on a listed one
that does not survive any more.
"""

import argparse
import os
import pickle
import signal
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from scripts.mutants import ROOT, Mutant, mutants

SURVIVORS = ROOT / "tests" / "mutation_survivors.toml"
WORKERS = 2
PATIENCE = 20  # a test may need this many times the processor time that it needs without a change, and 5 s more
PLUGINS_OFF = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# The tests that prove a module: those of its room, and those of the whole contract.
CONTRACT = ["tests/test_contract.py", "tests/test_bad_input.py", "tests/test_properties.py"]
TESTS = {
    "lib/reference/softmax.py": ["tests/reference/test_softmax.py"],
    "lib/reference/attention.py": ["tests/reference/test_attention.py", *CONTRACT],
    "lib/reference/merging.py": ["tests/reference/test_merging.py"],
    "lib/reference/gradients.py": ["tests/reference/test_gradients.py"],
    "lib/reference/heads.py": ["tests/reference/test_heads.py"],
    "lib/reference/positions.py": ["tests/reference/test_positions.py"],
    "lib/reference/cache.py": ["tests/reference/test_cache.py"],
    "lib/fast/attention.py": ["tests/fast/test_attention.py", *CONTRACT],
    "lib/fast/merging.py": ["tests/fast/test_merging.py"],
    "lib/fast/heads.py": ["tests/fast/test_heads.py"],
    "lib/fast/positions.py": ["tests/fast/test_positions.py"],
    "lib/fast/cache.py": ["tests/fast/test_cache.py"],
    "lib/fast/module.py": ["tests/fast/test_module.py"],
    "lib/fast/language_model.py": ["tests/fast/test_language_model.py"],
    "lib/masks.py": ["tests/test_masks.py"],
    "lib/arguments.py": ["tests/test_arguments.py", "tests/reference/test_merging.py", "tests/fast/test_merging.py",
                         *CONTRACT],
    "lib/heads.py": ["tests/reference/test_heads.py", "tests/fast/test_heads.py"],
    "lib/positions.py": ["tests/reference/test_positions.py", "tests/fast/test_positions.py"],
    "lib/cache.py": ["tests/reference/test_cache.py", "tests/fast/test_cache.py"],
    "lib/reference/streaming.py": ["tests/reference/test_streaming.py", *CONTRACT],
    "lib/reference/tiles.py": ["tests/reference/test_streaming.py"],
    "lib/fast/plan.py": ["tests/fast/test_tiles.py", "tests/fast/test_attention.py"],
    "lib/fast/tiles.py": ["tests/fast/test_tiles.py", "tests/fast/test_attention.py"],
}  # fmt: skip


class Runner:
    """A pytest plugin: instead of running the collected tests once, run some of them on every mutant."""

    def __init__(self, paths: list[str], only: str, workers: int) -> None:
        self.paths, self.only, self.workers = paths, only, workers
        self.listed = tomllib.loads(SURVIVORS.read_text(encoding="utf8"))
        self.table: list[str] = []
        self.complaints: list[str] = []

    def pytest_runtestloop(self, session: Any) -> bool:
        """Measure the unchanged modules, then break them."""
        self.session = session
        self.seconds, self.reached = self._measure()
        for path in self.paths:
            self._report(path, *self._break(path))
        return True

    def _report(self, path: str, count: int, alive: list[Mutant], seconds: float) -> None:
        equivalent, names = self.listed.get(path, {}), [mutant.name for mutant in alive]
        known = [name for name in names if name in equivalent]
        self.complaints += [f"{path}:{m.lines[0]} {m.name}: survived" for m in alive if m.name not in equivalent]
        if not self.only:
            gone = [name for name in equivalent if name not in names]
            self.complaints += [f"{path} {name}: listed as equivalent, but killed or gone" for name in gone]
        figures = f"{count:7} {count - len(alive):7} {len(known):11} {len(alive) - len(known):5} {seconds:7.0f}"
        self.table.append(f"{path:30} {figures}")
        print(self.table[-1], flush=True)

    # -- which test reaches which line --------------------------------------------------------------------------------

    def _measure(self) -> tuple[dict[int, float], dict[str, dict[int, set[int]]]]:
        """Run every test once, unchanged, in children: how long each took, and which tests run each line."""
        import pytest

        seconds: dict[int, float] = {}
        reached: dict[str, dict[int, set[int]]] = {path: defaultdict(set) for path in self.paths}
        with tempfile.TemporaryDirectory() as folder:
            parts = [range(start, len(self.session.items), self.workers) for start in range(self.workers)]
            children = []
            for i, part in enumerate(parts):
                file = Path(folder) / str(i)
                children.append(fork(lambda part=part, file=file: file.write_bytes(pickle.dumps(self._trace(part)))))
            for child in children:
                os.waitpid(child, 0)
            for i in range(len(parts)):
                failed, took, lines = pickle.loads((Path(folder) / str(i)).read_bytes())
                if failed:
                    pytest.exit(f"these tests fail without any change: {', '.join(failed)}", returncode=2)
                seconds |= took
                for path, line, test in lines:
                    reached[path][line].add(test)
        return seconds, reached

    def _trace(self, part: range) -> tuple[list[str], dict[int, float], list[tuple[str, int, int]]]:
        """Run some tests under coverage, each as a context of its own."""
        import coverage

        files = {str(ROOT / path): path for path in self.paths}
        tracer = coverage.Coverage(data_file=None, include=list(files), config_file=False)
        tracer.start()
        failed, took = [], {}
        for test in part:
            tracer.switch_context(str(test))
            began = time.process_time()
            if not self._passes(test):
                failed.append(self.session.items[test].nodeid)
            took[test] = time.process_time() - began
        tracer.stop()
        data, lines = tracer.get_data(), []
        for file, path in files.items():
            for line, tests in data.contexts_by_lineno(file).items():
                lines += [(path, line, int(test)) for test in tests if test]
        return failed, took, lines

    def _passes(self, test: int) -> bool:
        item, before = self.session.items[test], self.session.testsfailed
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return self.session.testsfailed == before

    # -- mutants ------------------------------------------------------------------------------------------------------

    def _break(self, path: str) -> tuple[int, list[Mutant], float]:
        """Run all mutants of a module, a few at a time: how many there are, who survived, and how long it took."""
        began, alive, count = time.monotonic(), [], 0
        running: dict[int, tuple[Mutant, int]] = {}
        best: list[int] = []  # the tests that noticed mutants before, the last one first

        def wait() -> None:
            child, status = os.wait()
            mutant, pipe = running.pop(child)
            with os.fdopen(pipe) as file:
                told = file.read().split()
            if status == 0:
                alive.append(mutant)
                if mutant.name not in self.listed.get(path, {}):
                    print(f"{path}:{mutant.lines[0]} {mutant.name}", flush=True)
            elif told:
                killer = int(told[-1])
                best[:] = [killer, *(test for test in best if test != killer)]

        for mutant in mutants(path):
            if self.only not in mutant.name:
                continue
            if len(running) == self.workers:
                wait()
            tests = self._tests(mutant, best)
            out, into = os.pipe()
            child = fork(lambda mutant=mutant, tests=tests, into=into: self._survives(mutant, tests, into))
            running[child] = mutant, out
            os.close(into)
            count += 1
        while running:
            wait()
        return count, alive, time.monotonic() - began

    def _tests(self, mutant: Mutant, best: list[int]) -> list[int]:
        """Give the tests that run the mutant's lines, the most promising first. What runs at import concerns all."""
        reached, chosen = self.reached[mutant.path], set(TESTS[mutant.path])
        tests = set().union(*(reached.get(line, ()) for line in mutant.lines))
        tests = {test for test in tests if self.session.items[test].nodeid.split("::")[0] in chosen}
        rank = {test: i for i, test in enumerate(best[:30])}
        return sorted(tests, key=lambda test: (rank.get(test, len(rank)), self.seconds[test]))

    def _survives(self, mutant: Mutant, tests: list[int], pipe: int) -> None:
        """Run the tests on the mutant, in a child; say into the pipe which test runs, and end with 1 when it fails."""
        transplant(mutant)
        for test in tests:
            os.write(pipe, f"{test} ".encode())
            limit = 5 + PATIENCE * self.seconds[test]
            signal.setitimer(signal.ITIMER_VIRTUAL, limit)  # ends the child: a loop without an end is noticed too
            signal.alarm(60 + round(20 * limit))  # the same for one that sleeps
            if not self._passes(test):
                os._exit(1)


def fork(work: Callable[[], object]) -> int:
    """Do something in a forked child, which inherits all that is slow to import, and is silent; give its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setsid()
        silent = os.open(os.environ.get("MUTATE_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        work()
        status = 0
    finally:
        os._exit(status)


def transplant(mutant: Mutant) -> None:
    """Give the loaded module's functions, whoever holds them already, the code of the mutant's."""
    module = sys.modules[mutant.path.removesuffix(".py").replace("/", ".")]
    fresh = {name: value for name, value in vars(module).items() if name.startswith("__")}
    exec(mutant.code(), fresh)
    for name in set(vars(module)) - set(fresh):
        delattr(module, name)
    for name, new in fresh.items():
        old = vars(module).get(name)
        if old is new or name.startswith("__"):
            continue
        if not _graft(old, new, module.__name__) and repr(old) != repr(new):
            for place in [vars(m) for key, m in sys.modules.items() if key.split(".")[0] == "lib"]:
                if place.get(name) is old:
                    place[name] = new


def _graft(old: Any, new: Any, module: str) -> bool:
    """Change a function, property, method or class in place; False where that cannot be done."""
    if getattr(old, "__module__", module) != module:
        return True  # imported from elsewhere
    pairs = list(_functions(old, new))
    for before, after in pairs:
        if len(before.__code__.co_freevars) != len(after.__code__.co_freevars):
            return False
        before.__code__ = after.__code__
        before.__defaults__, before.__kwdefaults__ = after.__defaults__, after.__kwdefaults__
    if isinstance(old, type) and isinstance(new, type):
        for name, value in vars(new).items():
            before = vars(old).get(name)
            if name.startswith("__") and not isinstance(value, FunctionType):
                continue
            if not _graft(before, value, module) and (callable(value) or repr(before) != repr(value)):
                setattr(old, name, value)
        return True
    return bool(pairs)


def _functions(old: Any, new: Any) -> Iterator[tuple[FunctionType, FunctionType]]:
    """Give the plain functions under a function, a decorated one, a property, a class method or a static one."""
    if isinstance(old, property) and isinstance(new, property):
        yield from _functions(old.fget, new.fget)
    elif isinstance(old, staticmethod | classmethod) and isinstance(new, staticmethod | classmethod):
        yield from _functions(old.__func__, new.__func__)
    elif isinstance(old, FunctionType) and isinstance(new, FunctionType):
        while hasattr(old, "__wrapped__") and hasattr(new, "__wrapped__"):
            old, new = old.__wrapped__, new.__wrapped__
        yield old, new


def prepare() -> None:
    """Use one thread, as forks want it, and keep no example that fails for a mutant; import what is slow."""
    os.environ |= PLUGINS_OFF
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = tempfile.mkdtemp()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    sys.dont_write_bytecode = True
    import hypothesis
    import torch

    torch.set_num_threads(1)
    unshrunk = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.shrink]  # any failure will do
    hypothesis.settings.register_profile("mutate", phases=unshrunk, database=None, deadline=None)
    hypothesis.settings.load_profile("mutate")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    first, *rest = __doc__.split("\n\n")
    parser = argparse.ArgumentParser("python -m scripts.mutate", description=first, epilog=" ".join(rest[1:]))
    parser.add_argument("files", nargs="*", metavar="FILE", help="modules of lib; all that are known unless given")
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutants whose name contains this text")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run none")
    parser.add_argument("--workers", type=int, default=WORKERS, metavar="N", help=f"children at a time: {WORKERS}")
    given = parser.parse_args()
    given.files = given.files or list(TESTS)
    unknown = [path for path in given.files if path not in TESTS]
    if unknown:
        parser.error(f"no tests are named for {', '.join(unknown)}; known: {', '.join(TESTS)}")
    return given


def main() -> None:
    """Run the modules asked for, or all; report, and fail where the list of survivors is not right."""
    given = arguments()
    if given.list:
        for path in given.files:
            for mutant in mutants(path):
                print(f"{path}:{mutant.lines[0]} {mutant.name}")
        return
    prepare()
    import pytest

    runner = Runner(given.files, given.only, given.workers)
    tests = dict.fromkeys(test for path in given.files for test in TESTS[path])
    calm = ["-qq", "-s", "--no-header", "--no-summary", "--tb=line", "-p", "no:cacheprovider"]
    status = pytest.main([*calm, *tests], plugins=[runner])
    head = f"{'':30} {'mutants':>7} {'killed':>7} {'equivalent':>11} {'new':>5} {'seconds':>7}"
    print("", head, *runner.table, *([""] if runner.complaints else []), *runner.complaints, sep="\n")
    sys.exit(1 if runner.complaints else int(status) if len(runner.table) < len(given.files) else 0)


if __name__ == "__main__":
    main()
