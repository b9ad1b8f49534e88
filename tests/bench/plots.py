"""A plot per table of a run."""
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def draw(report):
    """Writes the plots that the rows of a run allow; returns their paths."""
    done = []
    for name, function in (("prefill", _speed), ("decode", _speed), ("bytes", _bytes),
                           ("stages", _stages), ("synthetic", _synthetic), ("scaling", _scaling)):
        figure, axes = plt.subplots(figsize=(7, 4.5))
        if function(axes, report.rows, name):
            path = report.out / f"{name}-{report.isa}.png"
            axes.grid(alpha=0.3)
            handles, _ = axes.get_legend_handles_labels()
            if handles:
                axes.legend(fontsize=8)
            figure.tight_layout()
            figure.savefig(path, dpi=120)
            done.append(path)
        plt.close(figure)
    return done


def _line(axes, points, label, **style):
    if points:
        axes.plot(*zip(*sorted(set(points))), marker="o", label=label, **style)


def _speed(axes, rows, name):
    rows = [r for r in rows if r["bench"] == name]
    for sessions in sorted({r["sessions"] for r in rows}):
        mine = [r for r in rows if r["sessions"] == sessions]
        suffix = f", {sessions} streams" if sessions > 1 else ""
        _line(axes, [(r["depth"], r["value"]) for r in mine], "ours" + suffix, linewidth=2)
        for peer in sorted({r["baseline"] for r in mine if r["baseline"]}):
            _line(axes, [(r["depth"], r["baseline_value"]) for r in mine
                         if r["baseline"] == peer], peer + suffix, linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="depth, tokens", ylabel="tokens/s", title=name)
    return rows


def _bytes(axes, rows, name):
    rows = [r for r in rows if r["bench"] == name]
    _line(axes, [(r["depth"], r["value"] / 1e6) for r in rows], "state")
    _line(axes, [(r["depth"], r["baseline_value"] / 1e6) for r in rows], "dense bf16")
    axes.set(xscale="log", yscale="log", xlabel="depth, tokens", ylabel="MB", title=name)
    return rows


def _stages(axes, rows, _):
    rows = [r for r in rows if r["bench"] == "stage"]
    axes.barh([r["config"] for r in rows], [r["value"] for r in rows])
    if rows:
        axes.axvline(rows[0]["baseline_value"], color="k", linestyle="--", label="copy, same run")
    axes.tick_params(axis="y", labelsize=6)
    axes.set(xlabel="GB/s read")
    return rows


def _synthetic(axes, rows, _):
    rows = [r for r in rows if r["bench"] == "decode_synthetic"]
    _line(axes, [(r["depth"], r["ms"]) for r in rows], "decode step")
    if rows:
        last = max(rows, key=lambda r: r["depth"])
        depths = sorted(r["depth"] for r in rows)
        axes.plot(depths, [last["ms"] * d / last["depth"] for d in depths], "k:", label="linear")
    axes.set(xscale="log", yscale="log", xlabel="depth, tokens", ylabel="ms")
    return rows


def _scaling(axes, rows, _):
    rows = [r for r in rows if r["bench"] == "scaling" and r["metric"] == "requests_per_s"]
    models = [r for r in rows if r["config"].endswith("model")]
    for decodes in sorted({r["decodes"] for r in models}):
        _line(axes, [(r["prefills"], r["value"]) for r in models if r["decodes"] == decodes],
              f"model, {decodes} decode nodes, a core each")
    for row in (r for r in rows if r["baseline"]):
        axes.plot(row["prefills"], row["value"], "kx")
        axes.annotate(f"{row['prefills']}x{row['decodes']}", (row["prefills"], row["value"]))
    axes.set(xlabel="prefill nodes", ylabel="requests/s", title="crosses: measured on two cores")
    return rows
