"""Options under the names that kernels give them: what is handed on, what is refused, what has to be said beside."""

import inspect

import pytest
import torch

from attention_check.adapters import OwnNames, renamed


def theirs(q, k, v, attention_mask=None, scaling=None, is_causal=False, **kwargs):
    """As in model libraries: what **kwargs take is none of attention's options."""
    return dict(mask=attention_mask, scale=scaling, causal=is_causal)


def wrapper(q, k, v, causal=False, **options):
    return dict(causal=causal) | options


def shares_heads(q, k, v, enable_gqa=False):
    return enable_gqa


TENSORS = tuple(torch.zeros(1, 2, 4, 8) for _ in range(3))


def test_a_name_of_its_own_is_used_though_it_takes_any_others():
    fn = renamed(theirs)
    assert fn(*TENSORS, causal=True, scale=0.5, mask=7) == dict(mask=7, scale=0.5, causal=True)
    assert list(inspect.signature(fn).parameters) == ["q", "k", "v", "causal", "scale", "mask"]
    with pytest.raises(TypeError, match="takes no option 'softcap'"):
        fn(*TENSORS, softcap=2.0)


def test_one_that_takes_any_option_under_our_names_stays_itself():
    assert renamed(wrapper) is wrapper and OwnNames.of(wrapper) == OwnNames({}, False)


def test_shared_heads_are_said_where_the_kernel_has_a_word_for_them():
    one, two, four = (torch.zeros(1, heads, 4, 8) for heads in (1, 2, 4))
    assert renamed(shares_heads)(four, two, two) and not renamed(shares_heads)(two, two, two)
    assert not renamed(shares_heads)(*(torch.zeros(4, 8) for _ in range(3)))  # without heads
    of_bshd = renamed(shares_heads, heads=-2)
    assert of_bshd(torch.zeros(1, 4, 4, 8), one.mT.transpose(1, 2)[..., :8], None) is not None
    assert of_bshd(*(x.transpose(1, 2) for x in (four, two, two)))
    assert not of_bshd(torch.zeros(1, 7, 2, 8), torch.zeros(1, 9, 2, 8), None)  # of different lengths
