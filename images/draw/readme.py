"""The README's figure."""

from matplotlib.figure import Figure

from draw.drawing import DPI, WIDTH, image
from fa_tutorial import figures
from fa_tutorial.bench import plots, results, tables
from fa_tutorial.bench.cases import GRIDS, MODES

COMPARED = ("hopper", "tuned", "basic", "sdpa_cudnn", "flash_attn_4", "sdpa_flash", "naive")


@image("speed.png")
def speed() -> Figure:
    """Causal attention with D = 128, forward and backward: a row of panels for each card whose results are stored."""
    figures.style()
    grid, cards = GRIDS["literature"], results.cards()
    figure = Figure(figsize=(WIDTH, 3.4 * len(cards) + 0.7), dpi=DPI)
    panels = figure.subplots(len(cards), 2, squeeze=False, sharey="row")
    for card, pair in zip(cards, panels, strict=True):
        for ax, mode in zip(pair, ("fwd", "bwd"), strict=True):
            tflops = tables.table(card["rows"], grid, mode, "fp16")
            plots.tflops_against_length(ax, tflops[tflops.columns.intersection(list(COMPARED))], 128, True)
            ax.set(title=f"{card['provenance']['gpu']}, {MODES[mode]}", xlabel="S, tokens in a sequence")
        pair[1].set_ylabel("")
    figure.suptitle(f"Causal attention, fp16, D = 128, {grid.about}")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
