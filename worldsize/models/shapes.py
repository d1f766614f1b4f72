"""The sizes of decoders as data, and quantities derived from them: parameters, flops, activations."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a decoder whose layers are identical.

    `family` is the kind of layer. "llama": RMSNorm, rotary positions, SwiGLU, no biases, no dropout. "gpt": LayerNorm,
    learned positions, GELU, biases, three dropouts. With `num_experts`, for the family "llama" only, a layer has this
    many MLPs of `hidden_width` behind a router, and each token goes through `num_active_experts` of them.
    """

    name: str
    family: Literal["llama", "gpt"] = "llama"
    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    hidden_width: int
    vocab_size: int
    context_length: int
    num_experts: int = 1
    num_active_experts: int = 1
    is_tied: bool = False
    rotary_base: float = 10_000.0
    source: str

    def __post_init__(self) -> None:
        sizes = ("num_layers", "width", "num_heads", "num_kv_heads", "hidden_width", "vocab_size", "context_length")
        for field in (*sizes, "num_experts", "num_active_experts"):
            if getattr(self, field) < 1:
                raise ValueError(f"{self.name}: {field} is {getattr(self, field)}; it must be 1 or more")
        if self.family not in ("llama", "gpt"):
            raise ValueError(f"{self.name}: family is {self.family!r}; it must be 'llama' or 'gpt'")
        if self.num_active_experts > self.num_experts:
            raise ValueError(
                f"{self.name}: a token cannot go through {self.num_active_experts} of {self.num_experts} experts"
            )
        if self.num_experts > 1 and self.family != "llama":
            raise ValueError(f"{self.name}: only the family 'llama' has experts; it is {self.family!r}")
        if self.width % (2 * self.num_heads):
            raise ValueError(f"{self.name}: a width of {self.width} cannot be split evenly into {self.num_heads} heads")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.name}: {self.num_heads} heads cannot share {self.num_kv_heads} key/value heads evenly"
            )
        if not re.search(r"\b(19|20)\d\d\b", self.source):
            raise ValueError(f"{self.name}: the source {self.source!r} names no year; say where the sizes come from")

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    @property
    def kv_width(self) -> int:
        """Elements in the keys of one token, and in its values."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_mlp_weights(self) -> int:
        """Parameters of the matrices of one MLP, or of one expert."""
        # a gate in addition to up and down
        return (3 if self.family == "llama" else 2) * self.width * self.hidden_width

    @property
    def num_layer_weights(self) -> int:
        """Parameters of a layer's matrices."""
        return self._num_attention_and_router_weights + self.num_experts * self.num_mlp_weights

    @property
    def num_active_layer_weights(self) -> int:
        """Parameters of a layer's matrices that are used for a token: only its active experts count."""
        return self._num_attention_and_router_weights + self.num_active_experts * self.num_mlp_weights

    @property
    def _num_attention_and_router_weights(self) -> int:
        attention = 2 * self.width * self.width + 2 * self.width * self.kv_width  # query and output; key and value
        return attention + (self.width * self.num_experts if self.num_experts > 1 else 0)

    @property
    def num_layer_parameters(self) -> int:
        if self.family == "llama":
            return self.num_layer_weights + 2 * self.width  # two norms
        biases = 2 * self.width + 2 * self.kv_width + self.hidden_width + self.width
        return self.num_layer_weights + biases + 2 * 2 * self.width  # two norms, with their own biases

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters before the first layer: the embeddings of tokens and, if learned, of positions."""
        num_positions = self.context_length if self.family == "gpt" else 0
        return (self.vocab_size + num_positions) * self.width

    @property
    def num_head_parameters(self) -> int:
        """Parameters after the last layer: the norm and, unless it is tied to the embedding, the LM head."""
        norm = self.width if self.family == "llama" else 2 * self.width
        return norm + (0 if self.is_tied else self.vocab_size * self.width)

    @property
    def num_parameters(self) -> int:
        return self.num_embedding_parameters + self.num_layers * self.num_layer_parameters + self.num_head_parameters

    def layer_flops(self, length: int) -> int:
        """Return the forward flops of one layer for one token of a sequence of `length` tokens.

        Counted as usual: the matmuls, two flops per weight; and attention with all `length` scores of a token, although
        a causal mask discards half of them. Left out: norms, RoPE, activation functions, softmax and sums.

        Source: Narayanan et al. 2021, arXiv 2104.04473, appendix; Chowdhery et al. 2022 (PaLM), appendix B.
        """
        return 2 * self.num_active_layer_weights + 4 * length * self.width  # scores, and their sum of values

    @property
    def head_flops(self) -> int:
        """Forward flops of the LM head for one token."""
        return 2 * self.vocab_size * self.width

    def flops(self, num_tokens: int, length: int) -> int:
        """Return the flops of forward and backward for `num_tokens` in sequences of `length`, as in `layer_flops`.

        Backward takes twice a forward: the gradients of both factors of each matmul. Recomputation is not counted.
        """
        return 3 * num_tokens * (self.num_layers * self.layer_flops(length) + self.head_flops)

    def layer_activation_bytes(self, num_sequences: int, length: int) -> int:
        """Return the bytes that one layer keeps for backward in 16-bit training, without recomputation.

        "gpt" writes its attention scores to memory; "llama" has fused attention, which does not. Tokens are copied to
        their experts, whose outputs are kept for the router's gradient.

        Source: Korthikanti et al. 2022, arXiv 2205.05198, equation 1, for "gpt"; counted on `Transformer` for "llama".
        """
        num_tokens, width, kv_width, num_heads = num_sequences * length, self.width, self.kv_width, self.num_heads
        if self.family == "llama":
            of_a_token = [
                2 * width + 4,  # the layer's input, and its norm in float32
                2 * width,  # normalised: what query, key and value multiply
                2 * width + 2 * kv_width + 2 * kv_width,  # query and key after rotation; value
                2 * width + 4 * num_heads,  # attention's output, and each row's sum of exponentials in float32
                2 * width + 4,  # the MLP's input, and its norm in float32
                2 * width,  # normalised: what gate and up multiply
                self.num_active_experts * 4 * 2 * self.hidden_width,  # gate, SiLU of gate, up, and their product
            ]
            if self.num_experts > 1:
                of_a_token.append(self.num_active_experts * 2 * 2 * width + 4 * self.num_experts)
            rotation = 4 * length * self.head_dim  # its cosines and sines in float32, the same for all sequences
            return num_tokens * sum(of_a_token) + rotation
        of_a_token = [
            2 * width,  # the layer's input
            2 * width,  # normalised: what query, key and value multiply
            2 * width + 2 * kv_width + 2 * kv_width,  # query, key and value
            (2 + 1 + 2) * num_heads * length,  # softmax's output, a dropout's mask, what it leaves
            2 * width + width,  # attention's output; the mask of the dropout after its projection
            2 * width,  # the MLP's input
            2 * width,  # normalised: what the first matrix multiplies
            2 * 2 * self.hidden_width,  # GELU's input and output
            width,  # the mask of the last dropout
        ]
        return num_tokens * sum(of_a_token)


def shape(name: str) -> Shape:
    """Return the catalogue's shape of this name, or of the last part of a name, where only one shape has it: "70B".

    Raises:
        ValueError: the shape is unknown; the message suggests the most similar name and lists all.
    """
    of_this_size = [full for full in SHAPES if full.rpartition("-")[2] == name.lower()]
    if name not in SHAPES and len(of_this_size) == 1:
        return SHAPES[of_this_size[0]]
    if name not in SHAPES:
        nearest = difflib.get_close_matches(name, SHAPES, n=1, cutoff=0.0)[0]
        raise ValueError(f"no shape is called {name!r}; did you mean {nearest!r}? Known: {', '.join(SHAPES)}")
    return SHAPES[name]


_OURS = "our example for two cores, 2026: the proportions of Llama 3, and bytes for tokens"
_LLAMA_2 = (
    "layers, width, heads: Touvron et al. 2023, arXiv 2302.13971, table 2; context: Touvron et al. 2023, "
    "arXiv 2307.09288, table 1; hidden width and vocabulary: config.json of meta-llama/Llama-2-{}-hf (2023)"
)
_LLAMA_3 = (
    "Llama Team 2024, arXiv 2407.21783, table 3; context before it was lengthened: section 3.4.1; vocabulary with its "
    "256 special tokens: config.json of meta-llama/Llama-3.1-8B (2024)"
)
_QWEN = "config.json of Qwen/Qwen2.5-32B (2024), whose biases of query, key and value are left out"
_GPT_3 = (
    "Brown et al. 2020, arXiv 2005.14165, table 2.1, with all layers dense; vocabulary, tied head: Radford et al. 2019"
)
_MIXTRAL = (
    "Jiang et al. 2024, arXiv 2401.04088, table 1; base of the rotation: config.json of mistralai/Mixtral-8x7B-v0.1 "
    "(2023), recalled in 2026"
)
_NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473, table 1; vocabulary and context: section 5"

SHAPES: Mapping[str, Shape] = {
    found.name: found
    for found in (
        Shape(
            name="tiny",
            num_layers=2,
            width=64,
            num_heads=4,
            num_kv_heads=2,
            hidden_width=192,
            vocab_size=256,
            context_length=128,
            source=_OURS,
        ),
        Shape(
            name="small",
            num_layers=4,
            width=128,
            num_heads=8,
            num_kv_heads=4,
            hidden_width=448,
            vocab_size=256,
            context_length=256,
            source=_OURS,
        ),
        Shape(
            name="llama-2-7b",
            num_layers=32,
            width=4096,
            num_heads=32,
            num_kv_heads=32,
            hidden_width=11008,
            vocab_size=32_000,
            context_length=4096,
            source=_LLAMA_2.format("7b"),
        ),
        Shape(
            name="llama-2-13b",
            num_layers=40,
            width=5120,
            num_heads=40,
            num_kv_heads=40,
            hidden_width=13824,
            vocab_size=32_000,
            context_length=4096,
            source=_LLAMA_2.format("13b"),
        ),
        Shape(
            name="llama-3-8b",
            num_layers=32,
            width=4096,
            num_heads=32,
            num_kv_heads=8,
            hidden_width=14336,
            vocab_size=128_256,
            context_length=8192,
            rotary_base=500_000.0,
            source=_LLAMA_3,
        ),
        Shape(
            name="llama-3-70b",
            num_layers=80,
            width=8192,
            num_heads=64,
            num_kv_heads=8,
            hidden_width=28672,
            vocab_size=128_256,
            context_length=8192,
            rotary_base=500_000.0,
            source=_LLAMA_3,
        ),
        Shape(
            name="llama-3-405b",
            num_layers=126,
            width=16384,
            num_heads=128,
            num_kv_heads=8,
            hidden_width=53248,
            vocab_size=128_256,
            context_length=8192,
            rotary_base=500_000.0,
            source=_LLAMA_3,
        ),
        Shape(
            name="qwen-2.5-32b",
            num_layers=64,
            width=5120,
            num_heads=40,
            num_kv_heads=8,
            hidden_width=27648,
            vocab_size=152_064,
            context_length=131_072,
            rotary_base=1_000_000.0,
            source=_QWEN,
        ),
        Shape(
            name="mixtral-8x7b",
            num_layers=32,
            width=4096,
            num_heads=32,
            num_kv_heads=8,
            hidden_width=14336,
            vocab_size=32_000,
            context_length=32_768,
            num_experts=8,
            num_active_experts=2,
            rotary_base=1_000_000.0,
            source=_MIXTRAL,
        ),
        Shape(
            name="gpt-3-175b",
            family="gpt",
            num_layers=96,
            width=12288,
            num_heads=96,
            num_kv_heads=96,
            hidden_width=4 * 12288,
            vocab_size=50_257,
            context_length=2048,
            is_tied=True,
            source=_GPT_3,
        ),
        Shape(
            name="gpt-1t",
            family="gpt",
            num_layers=128,
            width=25600,
            num_heads=160,
            num_kv_heads=160,
            hidden_width=4 * 25600,
            vocab_size=51_200,
            context_length=2048,
            is_tied=True,
            source=_NARAYANAN,
        ),
    )
}
