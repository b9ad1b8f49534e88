"""What a run of the suites says: JSON lines, failures, and the check against stored ratios."""
import json
import pathlib
import subprocess
import sys

BEYOND = 0.20  # of a stored ratio


def say(text):
    print(text, file=sys.stderr, flush=True)


class Report:
    def __init__(self, out, isa):
        self.out = pathlib.Path(out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.isa = isa
        self.rows = []
        self.failures = []
        self.file = (self.out / f"results-{isa}.jsonl").open("w")

    def emit(self, bench, config, metric, value, unit, baseline=None, baseline_value=None,
             ratio=None, **more):
        row = {"bench": bench, "config": config, "metric": metric, "value": value, "unit": unit,
               "baseline": baseline, "baseline_value": baseline_value, "ratio": ratio, **more}
        self.rows.append(row)
        line = json.dumps(row)
        print(line, flush=True)
        print(line, file=self.file, flush=True)

    def fail(self, what, why):
        """A configuration without a figure: said now, and again by the exit status."""
        self.failures.append(what)
        say(f"FAILED {what}: {why.strip()[-1500:]}")

    def json_lines(self, what, command, env=None, timeout_s=1800):
        """The JSON lines of a program; those it printed before it failed count, the failure too."""
        say("  " + " ".join(str(c) for c in command[:1] + command[-4:]))
        try:
            ran = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, errors="replace", env=env,
                                 timeout=timeout_s)
        except (OSError, subprocess.TimeoutExpired) as error:
            self.fail(what, str(error))
            return []
        rows = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        if ran.returncode != 0:
            self.fail(what, f"status {ran.returncode}\n{ran.stderr}")
        elif not rows:
            self.fail(what, f"printed no result\n{ran.stdout}{ran.stderr}")
        return rows

    def ratios(self):
        return {" | ".join((r["bench"], r["config"], r["metric"], r["baseline"])): r["ratio"]
                for r in self.rows if r["ratio"] is not None and r["baseline"] is not None}

    def check(self, path):
        """Warns of ratios that are more than a fifth from the stored ones of this instruction set,
        to either side: a gain is stored anew, a loss is looked at."""
        stored = json.loads(path.read_text()).get(self.isa, {}) if path.exists() else {}
        known = {key: value for key, value in self.ratios().items() if key in stored}
        for key, ratio in known.items():
            if abs(ratio / stored[key] - 1) > BEYOND:
                say(f"WARNING {key}: ratio {ratio}, stored {stored[key]}")
                self.emit("check", key, "ratio", ratio, "1", "stored", stored[key],
                          round(ratio / stored[key], 3))
        say(f"check: {len(known)} of {len(stored)} stored ratios of {self.isa} were measured")

    def store(self, path):
        every = json.loads(path.read_text()) if path.exists() else {}
        every.setdefault(self.isa, {}).update(self.ratios())
        path.write_text(json.dumps(every, indent=1, sort_keys=True) + "\n")

    def finish(self):
        """The exit status."""
        for what in self.failures:
            say(f"no figure: {what}")
        return 1 if self.failures else 0
