"""Which citations of a lesson become links, and where these lead."""

import sys

import pytest
from repository import ROOT

pytest.importorskip("sphinx")
sys.path.insert(0, str(ROOT / "website"))
from extensions import citations

LIST = """
| 9, 10 | D. Narayanan and others, *Megatron-LM*, [arXiv 2104.04473](https://arxiv.org/abs/2104.04473) | 1F1B |
| 11 | Z. Jiang and others, *MegaScale*, [arXiv 2402.15627](https://arxiv.org/abs/2402.15627) | stragglers |
| 15 | Y. Jiang and others, *TrainCheck*, [arXiv 2506.14813](https://arxiv.org/abs/2506.14813) | rules |
| 5 | T. Vogels and others, *PowerSGD*, [arXiv 1905.13727](https://arxiv.org/abs/1905.13727) | compression |
| 2 | P. Patarasuk and X. Yuan, *All-reduce*, JPDC 69(2), 2009 | the bound |
"""


@pytest.mark.parametrize(
    ("text", "cited", "address"),
    [
        ("as Narayanan et al. 2021 did", "Narayanan et al. 2021", "https://arxiv.org/abs/2104.04473"),
        ("(Vogels, Karimireddy and Jaggi 2019)", None, None),  # the last author is not the first of another paper
        ("Narayanan et al. 2019", None, None),  # another paper
        ("Jiang et al. 2024", None, None),  # two people of this name
        ("Patarasuk and Yuan 2009", None, None),  # no address
        ("pytorch issue 33148", "pytorch issue 33148", "https://github.com/pytorch/pytorch/issues/33148"),
        ("pytorch/torchtitan issue 7.", "pytorch/torchtitan issue 7", "https://github.com/pytorch/torchtitan/issues/7"),
    ],
)
def test_a_citation_becomes_a_link_where_one_paper_fits(text, cited, address):
    found = [(text[start:end], url) for start, end, url in citations.links(text, citations.papers(LIST))]
    assert found == ([(cited, address)] if cited else [])
