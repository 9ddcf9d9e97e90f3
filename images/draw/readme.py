"""The README's figure."""

from matplotlib.figure import Figure

from draw.drawing import IMAGES
from draw.look import DPI, WIDTH
from fa_tutorial import figures
from fa_tutorial.bench import plots, results, tables
from fa_tutorial.bench.cases import GRIDS, MODES

COMPARED = ("hopper", "tuned", "basic", "sdpa_cudnn", "flash_attn_4", "sdpa_flash")


def speed() -> Figure:
    """Causal attention with D = 128, forward and backward, on the card where all of these ran in turns."""
    figures.style()
    grid, card = GRIDS["literature"], results.load("h200")
    figure = Figure(figsize=(WIDTH, 4.1), dpi=DPI)
    panels = figure.subplots(1, 2, sharey=True)
    for ax, mode in zip(panels, ("fwd", "bwd"), strict=True):
        tflops = tables.table(card["rows"], grid, mode, "fp16")
        plots.tflops_against_length(ax, tflops[tflops.columns.intersection(list(COMPARED))], 128, True)
        ax.set(title=MODES[mode], xlabel="S, tokens in a sequence")
    panels[1].set_ylabel("")
    figure.suptitle(f"{card['provenance']['gpu']}: causal attention, fp16, D = 128, {grid.about}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


IMAGES["speed.png"] = speed
