"""The sections of the page of a run, from top to bottom."""

from __future__ import annotations

import math
import shlex
from html import escape

import torch

import idensenet
from idensenet.errors import NonFiniteError
from idensenet.lipschitz import Certificate
from idensenet.lipschitz.dense import DenseLayer
from idensenet.report.certified import certificate_of
from idensenet.report.concatenation import block_titles, heat_maps
from idensenet.report.curves import curves, panels
from idensenet.report.length import undertrained
from idensenet.report.markup import Cell, facts, figure, note, number, section, table, tile
from idensenet.report.story import Story

TERMS = {
    "base": "−log N(z; 0, I)",
    "log_det": "−log-determinant of the flow",
    "preprocess": "−log-determinant of the preprocessing",
    "levels": "dequantisation: D ln levels",
    "noise": "dequantisation: log q(u | x)",
    "categories": "−log p(nominal columns)",
}


def certified(story: Story) -> Certificate | str:
    """The certificate, or why there is none."""
    try:
        return certificate_of(story.run, story.flow, story.step)
    except NonFiniteError as error:
        return str(error)


def alarm(story: Story, certificate: Certificate | str) -> str:
    """What nobody may miss."""
    if isinstance(certificate, str):
        return f'<p class="alarm" role="alert">NOT CERTIFIED. {escape(certificate)}</p>\n'
    titles = block_titles(story.flow)
    bad = [f"{titles.get(b.name, b.name)} (L = {b.L:.4f})" for b in certificate.blocks if not b.contractive]
    if not bad:
        return ""
    return (
        f'<p class="alarm" role="alert">NOT CERTIFIED: the bound L of {escape(", ".join(bad))} is not below 1, '
        "so nothing guarantees that the model is invertible. Densities and samples below may be wrong.</p>\n"
    )


def enough(story: Story) -> str:
    """A warning that the model is undertrained, and why."""
    reasons = undertrained(story)
    if not reasons:
        return ""
    longer = max(2 * story.step, story.config.train.max_steps or 0)
    command = f"idensenet train --resume {shlex.quote(str(story.run.path))} --train.max_steps {longer}"
    return (
        f'<p class="warning"><strong>This model looks undertrained.</strong> {escape(" ".join(reasons))} '
        f"To continue it: <code>{escape(command)}</code></p>\n"
    )


# What was trained on what


def headline(story: Story, certificate: Certificate | str) -> str:
    last, flow = story.last("eval"), story.flow
    tiles = []
    if last is not None:
        name, unit = ("bits_per_dim", "bits per dimension") if "bits_per_dim" in last else ("nats", "nats")
        error = last.get(f"{name}_error", math.nan)
        spread = f"standard error {number(error)}" if math.isfinite(error) else "no standard error from one sample"
        when = "" if last["step"] == story.step else f" at step {last['step']:,}"
        tiles.append(tile(number(last[name]), f"{unit}, held out{when}<br>{spread}", "main"))
        if story.entropy is not None:
            gap = last["nats"] - story.entropy
            tiles.append(tile(number(story.entropy), f"nats, entropy of the data<br>gap {number(gap)}"))
        if "accuracy" in last:
            tiles.append(tile(f"{number(100 * last['accuracy'], 2)} %", "accuracy, held out", "main"))
            tiles.append(tile(number(last["calibration_error"]), "expected calibration error"))
    tiles.append(tile(f"{flow.num_parameters:,}", "parameters"))
    tiles.append(tile(f"{story.step:,}", "optimiser steps"))
    if isinstance(certificate, Certificate) and certificate.blocks:
        fine = certificate.contractive
        text = "largest L of a block<br>" + ("certified invertible" if fine else "NOT CERTIFIED")
        tiles.append(tile(number(certificate.L), text, "plain" if fine else "bad"))
    return f'<div class="tiles">{"".join(tiles)}</div>\n'


def overview(story: Story) -> str:
    t, m, source = story.config.train, story.config.model, story.source
    rows: list[tuple[str, Cell]] = []
    if story.recipe_name:
        recipe = story.recipe
        words = f": {escape(recipe.description)}" if recipe else ""
        rows.append(("Recipe", f"<code>{escape(story.recipe_name)}</code>{words}"))
        own = story.config.data.table or story.config.data.folder  # of which the paper says nothing
        if recipe and recipe.paper and not own:
            rows.append(("The paper reports", escape(recipe.paper)))
    if source is None:
        rows.append(("Data", f"{escape(story.data_name)}, which is not there any more: {escape(story.missing)}"))
    else:
        train = "drawn without end" if source.stream else f"{len(source.train):,} to train on"
        notes = "".join(f"<br>{escape(text)}" for text in source.notes)
        rows.append(("Data", f"{escape(story.data_name)}: {train}, {len(source.test):,} held out{notes}"))
    shape = f"{m.shape[0]} numbers" if len(m.shape) == 1 else " x ".join(map(str, m.shape))
    levels = f" with {m.levels} levels" if m.levels else ""
    blocks = " + ".join(map(str, m.blocks)) + (f" + {m.fc_blocks} fully connected" if m.fc_blocks else "")
    size = f"{story.flow.num_parameters:,} parameters"
    rows.append(("Model", f"{escape(m.block)} blocks ({blocks}) for samples of {shape}{levels}; {size}"))
    last = story.last("train") or {}
    length = f" of {t.max_steps:,}" if t.max_steps is not None else ""
    epochs = f", {last['epoch']:g} epochs" if "epoch" in last else ""
    skipped = f", {last['skipped']:,} of them skipped (gradient not finite)" if last.get("skipped") else ""
    weight = f" with weight {t.weight}" if t.objective == "hybrid" else ""
    batch = f"batches of {t.batch_size * t.batches_per_step}"
    rows.append(("Training", f"{escape(t.objective + weight)}, {story.step:,}{length} steps{epochs}{skipped}; {batch}"))
    if "samples/s" in last:
        memory = f", {escape(str(last['memory']))} of memory" if "memory" in last else ""
        rows.append(("Speed", f"{last['samples/s']:,} samples per second{memory}"))
    rows.append(("Checkpoint", f"step {story.step:,}, written {story.written}"))
    if story.best is not None:
        value, name = (-story.best[1], "accuracy") if t.objective == "classification" else (story.best[1], "score")
        rows.append((f"Best held-out {name}", f"{number(value)} at step {story.best[0]:,}"))
    rows.append(("Page made with", f"idensenet {idensenet.__version__}, torch {escape(torch.__version__)}"))
    return section("overview", "What was trained", facts(rows))


def score(story: Story) -> str:
    """The last evaluation, every term itemised."""
    last = story.last("eval")
    if last is None:
        return section("score", "Held-out score", note("This run has not been evaluated yet."))
    unit = story.flow.dims * math.log(2) if "bits_per_dim" in last else None
    rows: list[tuple[str, list[Cell]]] = []
    for name, title in TERMS.items():
        if name not in last["terms"]:
            continue
        if name == "levels" and story.flow.integers:
            title = "average over the cells of discrete columns"
        value = -last["terms"][name] or 0.0
        rows.append(("", [escape(title), number(value, 6), *([number(value / unit, 6)] if unit else [])]))
    total = [number(last["nats"], 6), *([number(last["bits_per_dim"], 6)] if unit else [])]
    errors = [number(last["nats_error"], 6), *([number(last["bits_per_dim_error"], 6)] if unit else [])]
    rows.append(("total", ["negative log-density", *total]))
    rows.append(("", ["standard error", *errors]))
    words = f"Mean over {last['samples']:,} held-out samples at step {last['step']:,}, with averaged weights. Lower is better."
    if story.entropy is not None:
        words += f" The entropy of {story.data_name} is {story.entropy:.4f} nats: no model scores lower."
    body = note(words) + table(["term", "nats", *(["bits/dim"] if unit else [])], rows, "terms of the held-out score")
    if "accuracy" in last:
        found = [
            ("", ["accuracy", number(last["accuracy"], 6)]),
            ("", ["expected calibration error (15 bins)", number(last["calibration_error"], 6)]),
        ]
        body += "<h3>Classification</h3>" + table(["measure", "value"], found, "classification of held-out samples")
    return section("score", "Held-out score", body)


# How it went


def training(story: Story) -> str:
    found = panels(story.entries, story.entropy, story.config.train.clip)
    if not found:
        return section("curves", "Training", note("There are no metrics in metrics.jsonl yet."))
    drawn = curves([panel for panel in found if panel.curved])
    body = f'<div class="curves">{"".join(figure(d, alt) for d, alt in drawn)}</div>' if drawn else ""
    rows: list[tuple[str, list[Cell]]] = [
        ("", [escape(f"{panel.title}: {line.label}"), f"{step:,}", number(value)])
        for panel in found
        if not panel.curved
        for line in panel.lines
        for step, value in zip(line.steps, line.values, strict=True)
    ]
    if rows:
        body += note(f"Too few values for a curve{' of each' if drawn else ''}; here they are as numbers.")
        body += table(["quantity", "step", "value"], rows, "metrics with few values")
    return section("curves", "Training", body)


# What is inside


def concatenation(story: Story) -> str:
    found = heat_maps(story.flow)
    if not found:
        return ""
    learned = any(isinstance(layer, DenseLayer) and isinstance(layer.k, torch.nn.Parameter) for layer in story.flow.modules())
    words = "A dense layer passes on eta1 times its input and eta2 times its transformation, the pair having norm one. "
    words += "Here they were learned; equal weights are where they start." if learned else "Here they are fixed, not learned."
    maps = "".join(figure(drawing, alt, kind="heat") for drawing, alt in found)
    return section("concatenation", "Weights of the concatenation", f'{note(words)}<div class="pair">{maps}</div>')


def certificate_table(story: Story, certificate: Certificate | str) -> str:
    title = "Certificate"
    if isinstance(certificate, str):
        return section("certificate", title, f'<p class="alarm">NOT CERTIFIED. {escape(certificate)}</p>')
    if not certificate.blocks:
        return section(
            "certificate", title, note("This model has no residual block: every part has an inverse in closed form.")
        )
    titles = block_titles(story.flow)
    rows: list[tuple[str, list[Cell]]] = []
    for block in certificate.blocks:
        verdict = '<span class="good">yes</span>' if block.contractive else "NOT CERTIFIED"
        layers = " &nbsp;".join(f"{bound:.3f}" for _, bound in block.layers)
        cells = [escape(titles.get(block.name, block.name)), verdict, number(block.L)]
        rows.append(("" if block.contractive else "bad", [*cells, number(max(0.0, 1 - block.L)), number(1 + block.L), layers]))
    norm = "infinity" if math.isinf(certificate.norm) else f"{certificate.norm:g}"
    words = (
        f"Guaranteed bounds in the {norm}-norm: Lip(g) is at most L, so a block x + g(x) stretches distances by a factor "
        "between 1 − L and 1 + L. It is invertible if L is below 1. On the right are bounds on its linear maps."
    )
    header = ["block", "invertible", "L", "1 − L", "1 + L", "norms of linear maps"]
    lower, upper = f"{certificate.lower:.3g} |x − y|", f"{certificate.upper:.3g} |x − y|"
    whole = f"The flow as a whole, after the preprocessing: {lower} ≤ |F(x) − F(y)| ≤ {upper}."
    body = note(words) + table(header, rows, "certificate of every block", text_columns=2) + f"<p>{escape(whole)}</p>"
    return section("certificate", title, body)


# How to have it again


def repeat(story: Story) -> str:
    import yaml

    run = shlex.quote(str(story.run.path))
    image = story.flow.levels is not None
    commands = [
        ("Score all held-out data", f"idensenet evaluate {run}"),
        ("Draw samples", f"idensenet sample {run} -n {64 if image else 5000} --out samples.png"),
        ("Round trip of data", f"idensenet reconstruct {run} --out round_trip.png"),
        ("Certify it", f"idensenet certify {run}"),
        ("Explore it live", f"idensenet explore {run}"),
        ("Make this page again", f"idensenet report {run}"),
    ]
    if story.config.train.max_steps is not None and story.step < story.config.train.max_steps:
        commands.insert(0, ("Continue it", f"idensenet train --resume {run}"))
    body = f"<p>Train it again:</p><pre>{escape(story.command)}</pre><p>Use it:</p>"
    body += facts([(what, f"<code>{escape(command)}</code>") for what, command in commands])
    text = yaml.safe_dump(story.config.as_dict(), sort_keys=False)
    configuration = f"<details><summary>Every option of this run, as YAML</summary><pre>{escape(text)}</pre></details>"
    return section("repeat", "Commands", body) + section("configuration", "Configuration", configuration)
