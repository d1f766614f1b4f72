"""The parts of a rank's exception that may be shown: none of its text can be trusted to come from an error.

Code that means to can put anything into an exception's text: hidden inputs, a check's source. So a text is shown only
if it has the form of one of Python's, torch's or the course's own messages, and then without its numbers and
values; names in it are shown only if the submission contains them.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import itertools
import re
from collections.abc import Collection
from dataclasses import dataclass

from worldsize.emulate.protocol.operations import OPERATIONS

_MAX_CHARS, _LEAST_CHARS = 400, 12
_LEFT_OUT = "…"
_MOST_PARTS = 3  # of a name such as Replica.step.<locals>.hook
_WORD = re.compile(r"[A-Za-z_]\w*")
_EXCEPTIONS = frozenset(
    name for name, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, BaseException)
) | {"BrokenProcessPool", "DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "Empty", "Forbidden"}
_KNOWN_NAMES = frozenset((*dir(builtins), "<locals>", "<lambda>")) | frozenset(
    re.findall(
        r"\w+",
        "Tensor torch Parameter NoneType module function method ndarray dist Work ProcessGroup Module Size dtype "
        "device Float Double Half BFloat16 Int Long Bool Char Byte Short float32 float64 float16 bfloat16 int32 int64 "
        "uint8 builtin_function_or_method method_descriptor generator coroutine dict_keys dict_values dict_items "
        "list_iterator numpy cpu cuda meta Optimizer SGD Adam ParameterList ModuleList Sequential Linear Future",
    )
)
# {name} is shown if the submission contains it or it is Python's or torch's; {number} and {any} are left out
_FORMS = """
name '{name}' is not defined{any}
cannot access local variable '{name}' where it is not associated with a value
cannot access free variable '{name}' where it is not associated with a value in enclosing scope
'{name}' object has no attribute '{name}'{any}
module '{name}' has no attribute '{name}'{any}
type object '{name}' has no attribute '{name}'{any}
'{name}' object is not callable
'{name}' object is not iterable
'{name}' object is not subscriptable
'{name}' object is not an iterator
'{name}' object is not reversible
'{name}' object does not support item assignment
'{name}' object does not support item deletion
'{name}' object does not support the context manager protocol{any}
'{name}' object cannot be interpreted as an integer
cannot unpack non-iterable {name} object
not enough values to unpack (expected {number}, got {number})
not enough values to unpack (expected at least {number}, got {number})
too many values to unpack (expected {number})
unsupported operand type(s) for {operator}: '{name}' and '{name}'{any}
bad operand type for unary {operator}: '{name}'
'{operator}' not supported between instances of '{name}' and '{name}'
can only concatenate str (not "{name}") to str
can only concatenate list (not "{name}") to list
can only concatenate tuple (not "{name}") to tuple
can't multiply sequence by non-int of type '{name}'
must be real number, not {name}
{name}() takes {any} positional argument{any} but {any} given
{name}() takes no arguments
{name}() missing {number} required positional argument: '{name}'
{name}() missing {number} required positional arguments: '{name}' and '{name}'
{name}() missing {number} required keyword-only argument{any}
{name}() missing {number} required positional arguments{any}
{name}() got an unexpected keyword argument '{name}'
{name}() got multiple values for argument '{name}'
{name}() argument after {operator} must be an iterable, not {name}
{name}() argument after {operator} must be a mapping, not {name}
list index out of range
tuple index out of range
string index out of range
list assignment index out of range
pop from empty list
pop from an empty deque
pop from an empty set
popitem(): dictionary is empty
list indices must be integers or slices, not {name}
tuple indices must be integers or slices, not {name}
string indices must be integers, not '{name}'
slice indices must be integers or None or have an __index__ method
slice step cannot be zero
range() arg {number} must not be zero
object of type '{name}' has no len()
unhashable type: '{name}'
division by zero
integer division or modulo by zero
integer modulo by zero
float division by zero
float modulo
float floor division by zero
math domain error
math range error
cannot convert float NaN to integer
cannot convert float infinity to integer
dictionary changed size during iteration
dictionary keys changed during iteration
Set changed size during iteration
deque mutated during iteration
list.remove(x): x not in list
maximum recursion depth exceeded{any}
No module named '{name}'{any}
cannot import name '{name}' from {any}
invalid literal for int() with base {number}: {any}
could not convert string to float: {any}
int() argument must be {any}
float() argument must be {any}
zip() argument {number} is shorter than argument{any}
zip() argument {number} is longer than argument{any}
min() arg is an empty sequence
max() arg is an empty sequence
generator raised StopIteration
'{name}' object is not an async iterator
Can't instantiate abstract class {name}{any}
'{name}'
invalid syntax{any}
'{bracket}' was never closed
unmatched '{bracket}'
closing parenthesis '{bracket}' does not match opening parenthesis '{bracket}'{any}
unexpected indent
unindent does not match any outer indentation level
expected an indented block after {any}
expected ':'
expected '('
unterminated string literal{any}
unterminated triple-quoted string literal{any}
unterminated f-string literal{any}
unexpected EOF while parsing
unexpected character after line continuation character
inconsistent use of tabs and spaces in indentation
cannot assign to {any}
'return' outside function
'yield' outside function
'await' outside function
'break' outside loop
'continue' not properly in loop
name '{name}' is used prior to global declaration
name '{name}' is assigned to before global declaration
no binding for nonlocal '{name}' found
nonlocal declaration not allowed at module level
positional argument follows keyword argument{any}
keyword argument repeated: {name}
duplicate argument '{name}' in function definition
non-default argument follows default argument
source code string cannot contain null bytes
invalid decimal literal
invalid non-printable character {any}
leading zeros in decimal integer literals are not permitted{any}
[Errno {number}] {errno}{any}
the notebook defines no {name}
The size of tensor a ({number}) must match the size of tensor b ({number}) at non-singleton dimension {number}
mat1 and mat2 shapes cannot be multiplied ({any})
mat1 and mat2 must have the same dtype{any}
size mismatch, got {any}
inconsistent tensor size, expected tensor {any}
shape '{any}' is invalid for input of size {number}
expected scalar type {name} but found {name}
expected m1 and m2 to have the same dtype{any}
Found dtype {name} but expected {name}
Tensors must have same number of dimensions: got {number} and {number}
Sizes of tensors must match except in dimension {number}{any}
stack expects each tensor to be equal size{any}
stack expects a non-empty TensorList
torch.cat(): expected a non-empty list of Tensors
expected a non-empty list of Tensors
split_with_sizes expects split_sizes to sum exactly to {any}
split_with_sizes expects split_sizes have only non-negative entries{any}
chunk expects `chunks` to be greater than 0, got: {any}
Dimension out of range (expected to be in range of {any}
Dimension specified as {number} but tensor has no dimensions
index {number} is out of bounds for dimension {number} with size {number}
index out of range in self
index {number} is out of range
invalid index of a 0-dim tensor{any}
slice() cannot be applied to a 0-dim tensor.
iteration over a 0-d tensor
len() of a 0-d tensor
too many indices for tensor of dimension {number}
selected index k out of range
shape mismatch: {any}
only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices (got {name})
attempting to assign a gradient of size {any}
tensors used as indices must be long, int, byte or bool tensors
index_copy_(): {any}
index_add_(): {any}
scatter(): {any}
start ({number}) + length ({number}) exceeds dimension size ({number}).
a leaf Variable that requires grad is being used in an in-place operation.
a view of a leaf Variable that requires grad is being used in an in-place operation.
one of the variables needed for gradient computation has been modified by an inplace operation{any}
element {number} of tensors does not require grad and does not have a grad_fn
Trying to backward through the graph a second time{any}
grad can be implicitly created only for scalar outputs
Can't call numpy() on Tensor that requires grad.{any}
Boolean value of Tensor with more than one value is ambiguous
Boolean value of Tensor with no values is ambiguous
a Tensor with {number} elements cannot be converted to Scalar
only one element tensors can be converted to Python scalars
Only Tensors of floating point and complex dtype can require gradients
cannot register a hook on a tensor that doesn't require gradient
post accumulate grad hooks cannot be registered on non-leaf tensors
assigned grad has data of a different type
assigned grad has data of a different size
assigned grad expected to be a Tensor or None but got {any}
output with shape {any} doesn't match the broadcast shape {any}
result type {name} can't be cast to the desired output type {name}
The expanded size of the tensor ({number}) must match the existing size ({number}) at non-singleton dimension {any}
expand({any}
view size is not compatible with input tensor's size and stride {any}
unsupported operation: {any}
value cannot be converted to type {any}
"{name}" not implemented for '{name}'
Input type ({any}) and weight type ({any}) should be the same{any}
Expected all tensors to be on the same device{any}
Expected tensor for argument {any}
mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype{any}
{name}(): argument '{name}' {any} must be {any}, not {name}
{name}(): argument '{name}' must be {any}, not {name}
{name}() received an invalid combination of arguments{any}
{name}(): functions with out=... arguments don't support automatic differentiation{any}
Default process group has not been initialized, please call init_process_group.
Tensors must be contiguous
Tensors must be dense and non-overlapping
Invalid scalar type
Torch not compiled with CUDA enabled{any}
Attempting to deserialize object on a CUDA device{any}
Found no NVIDIA driver{any}
Distributed package doesn't have NCCL built in
ProcessGroupNCCL is only supported with GPUs, no GPUs found!
Invalid rank {any}
Expected to have finished reduction in the prior iteration{any}
Expected to mark a variable ready only once{any}
[{any}]{any}Connection closed by peer{any}
[{any}]{any}Connection reset by peer{any}
[{any}]{any}Timed out{any}
[{any}]{any}DefaultCPUAllocator: can't allocate memory{any}
{operation} is not allowed here: this run is to be built from {operations} alone
{name} is not allowed here: use groups from dist.new_group(), and only {operations}
{name} would bypass the emulated cluster, so nothing would be priced{any}
the function ended the process instead of returning
an exception that cannot be printed
"""
_OPERATION = f"(?:{'|'.join(sorted(OPERATIONS, key=len, reverse=True))})"
_SLOTS = {
    "name": r"[A-Za-z_<][\w.<>]{0,120}",
    "number": r"[-+\d.,e]{1,40}|one|two",
    "any": r"[\s\S]*?",
    "value": r"[\s\S]*?",
    "operator": r"[-+*/%@&|^<>=!~]{1,3}(?:, [-+*/%@&|^<>=]{2,3})?|\*\* or pow\(\)|divmod\(\)",
    "bracket": r"[\[\](){}]",
    "operation": _OPERATION,
    "operations": rf"{_OPERATION}(?:, {_OPERATION})*",
    "errno": r"No space left on device|File too large|Disk quota exceeded|No such file or directory|Permission denied"
    r"|File exists|Is a directory|Too many open files|Resource temporarily unavailable|Cannot allocate memory",
}
_SHOWN_AS_IT_IS = ("operator", "bracket", "operation", "operations", "errno")
_NO_MEMORY = ("memoryerror", "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc")
_NO_SPACE = ("no space left on device", "file too large", "disk quota exceeded", "sigxfsz")


def sentence_for(headline: str) -> str:
    """Return a hint for the student if an error looks like a limit of memory or of files; empty for other errors.

    These are only words: they never decide how a run ended.
    """
    said = headline.lower()
    if any(sign in said for sign in _NO_MEMORY):
        return "This happens when code needs more memory than a submission may use."
    if any(sign in said for sign in _NO_SPACE):
        return "This happens when code writes more than a submission may."
    return ""


def shown_kind(kind: str, own_words: Collection[str]) -> str:
    """Return the name of an exception's class if it is Python's, torch's or the submission's own."""
    if kind.startswith("sys.exit("):
        return "sys.exit"
    return kind if kind in _EXCEPTIONS or (kind.isidentifier() and kind in own_words) else "an exception"


def shown_text(text: str, own_words: Collection[str], more_forms: Collection[str] = ()) -> str:
    """Return the part of an exception's text that may be shown; empty if nothing may.

    `more_forms` are those of the checks' own messages.
    """
    text = text.partition("\n")[0][:_MAX_CHARS].strip()
    forms = itertools.chain(_forms(), map(_Form.of, more_forms))
    return next((shown for form in forms if (shown := form.shown(text, own_words))), "")


def forms_raised(source: str) -> list[str]:
    """Collect the forms of the messages of all exceptions that this source raises."""
    raised = (node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise))
    texts = [call.args[0] for call in raised if isinstance(call, ast.Call) and call.args]
    return [form for text in texts if len((form := _form_of(text)).replace("{value}", "")) > _LEAST_CHARS]


def _form_of(text: ast.expr) -> str:
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(str(one.value) if isinstance(one, ast.Constant) else "{value}" for one in parts)


def words_of(sources: Collection[str]) -> frozenset[str]:
    """Collect all words in these sources."""
    return frozenset(word for source in sources for word in _WORD.findall(source))


@dataclass(frozen=True)
class _Form:
    """One form of a message: fixed parts with slots between them."""

    parts: list[str]
    slots: list[str]
    pattern: re.Pattern[str]

    @staticmethod
    def of(line: str) -> _Form:
        parts = re.split(r"\{([a-z]+)\}", line)  # part, slot, part, slot, ..., part
        pattern = "".join(f"({_SLOTS[one]})" if place % 2 else re.escape(one) for place, one in enumerate(parts))
        return _Form(parts[::2], parts[1::2], re.compile(pattern))

    def shown(self, text: str, own_words: Collection[str]) -> str:
        """Return the text without what may not be shown; empty if it does not have this form."""
        found = self.pattern.fullmatch(text)
        if not found:
            return ""
        values = zip(self.slots, found.groups(), strict=True)
        filled = [
            # one name may be a path: every further path could leak as much again
            _filled(slot, value, own_words, _MOST_PARTS if place == 0 else 1)
            for place, (slot, value) in enumerate(values)
        ]
        return "".join(part + value for part, value in zip(self.parts, [*filled, ""], strict=True))


@functools.cache
def _forms() -> list[_Form]:
    from worldsize.emulate.worker import backend, client
    from worldsize.launch.protocol import codec

    ours = [form for module in (backend, client, codec) for form in forms_raised(inspect.getsource(module))]
    return [_Form.of(line) for line in [*_FORMS.strip().splitlines(), *ours]]


def _filled(slot: str, value: str, own_words: Collection[str], most_parts: int) -> str:
    if slot in _SHOWN_AS_IT_IS:
        return value
    parts = [one for one in value.split(".") if one != "<locals>"]
    is_known = len(parts) <= most_parts and all(one in own_words or one in _KNOWN_NAMES for one in parts)
    if slot in ("name", "value") and is_known:
        return value
    return _LEFT_OUT if value else ""
