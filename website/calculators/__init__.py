"""Pages that compute in the browser, by the library's own code.

Each module is a page: its docstring is the title and the text, `answer` computes, `RANGES` has what a reader may change
(as for `worldsize.explore`), and `QUESTION` is asked before the first answer. The modules import the standard library
and those parts of `worldsize` that need nothing else, because that is all there is in a browser.
"""

NAMES = (  # in the order of the index
    "training_time",
    "cluster_cost",
    "what_fits",
    "layouts",
    "roofline",
    "collectives",
    "overlap",
    "bubbles",
    "checkpoints",
    "slow_steps",
)
