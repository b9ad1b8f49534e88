"""Runs fidelity over suites of prompts and shows the outcome: table, results.json, plots."""
import argparse
import json
import pathlib
import subprocess
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
METHODS = ["full", "paper@0.05", "paper+layout=compact+scale=lsq+domain=post@0.05",
           "pooled+widths=2@0.05", "pooled@0.1", "pooled@0.05", "pooled@0.025"]
# Figures of the golden files by our method's name.
EXPECTED = {"full": "full", "paper@0.05": "paper_20x", "pooled@0.05": "pooled_20x",
            "pooled@0.025": "pooled_40x"}


def golden_files(_):
    return sorted(GOLDEN.glob("longcontext/*.json"))


def length_files(out):
    """A number hidden in licence text, asked for at the end; tokenised by fidelity itself."""
    words = (GOLDEN / "text/licence.txt").read_text().split()
    files = []
    for tokens in (1000, 2000, 4000, 6000):
        body = words[:int(tokens * 0.72)]
        body.insert(len(body) // 3, "The secret number of the archive is 4830157.")
        prompt = (f"<|im_start|>user\n{' '.join(body)}\n\nWhat is the secret number of the archive?"
                  "<|im_end|>\n<|im_start|>assistant\nThe secret number of the archive is")
        path = out / f"needle_{tokens}.json"
        path.write_text(json.dumps({"prompt": prompt, "answer": " 4830157."}))
        files.append(path)
    return files


SUITES = {"golden": golden_files, "lengths": length_files}


def fidelity(model, methods, files):
    tool = ROOT / "build/release/tests/fidelity"
    rows = []
    with subprocess.Popen([tool, "--model", model, *methods, *files], text=True,
                          stdout=subprocess.PIPE) as process:
        for line in process.stdout:
            rows.append(json.loads(line))
            print(f"  {rows[-1]['file']} {rows[-1]['method']}", file=sys.stderr)
    if process.returncode != 0:
        sys.exit(f"fidelity ended with status {process.returncode}")
    return rows


def table(suite, rows):
    lines = [f"suite {suite}", f"{'file':32} {'method':46} {'tokens':>6} {'ratio':>6} {'nll':>7} "
                               f"{'kl':>8}  right  expected nll"]
    for row in rows:
        expected = ""
        if suite == "golden" and row["method"] in EXPECTED:
            figures = json.loads((GOLDEN / "longcontext" / row["file"]).read_text())["figures"]
            expected = f"{figures[EXPECTED[row['method']]][0]:.3f}"
        lines.append(f"{row['file']:32} {row['method']:46} {row['prompt_tokens']:6} "
                     f"{row['dense_bytes'] / row['state_bytes']:6.2f} {row['nll']:7.3f} "
                     f"{row['kl']:8.4f}  {'yes' if row['correct'] else 'no':5}  {expected}")
    return "\n".join(lines)


def plot(suite, rows, path):
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for method in dict.fromkeys(row["method"] for row in rows if row["method"] != "full"):
        points = sorted((row["prompt_tokens"], max(row["kl"], 1e-5))
                        for row in rows if row["method"] == method)
        axes.plot(*zip(*points), marker="o", label=method)
    axes.set_yscale("log")
    axes.set_xlabel("prompt tokens")
    axes.set_ylabel("KL(full || compressed), nats a token")
    axes.set_title(f"{suite}: cost of compression")
    axes.legend(fontsize=7)
    axes.grid(True, which="both", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("suites", nargs="*")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(SUITES))
        return
    unknown = [s for s in arguments.suites if s not in SUITES]
    if unknown:
        sys.exit(f"no suite {unknown[0]}; there are {', '.join(SUITES)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = {}
    for suite in arguments.suites or SUITES:
        rows = fidelity(arguments.model, METHODS, SUITES[suite](arguments.out))
        results[suite] = rows
        print(table(suite, rows), flush=True)
        plot(suite, rows, arguments.out / f"{suite}.png")
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1))
    print(f"results.json and plots are in {arguments.out}")


if __name__ == "__main__":
    main()
